"""In Flower's processes, what the project has to say goes where Flower's own lines go, in their form, each line once."""

import logging

from flwr.common.logger import console_handler

PROJECT = "fedsocket_flwr"


def log_through_flower() -> None:
    """Let the package's loggers print as Flower's does, unless somebody prints their lines already.

    Without any handler, Python would print warnings bare and drop the rest. With two, as in a program that has set up logging of
    its own, every line would come twice.
    """
    logger = logging.getLogger(PROJECT)
    if not logger.hasHandlers():
        logger.addHandler(console_handler)
        logger.setLevel(logging.INFO)
