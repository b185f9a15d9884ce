"""Each line once, in whatever process it is said; each program is a process of its own, since handlers belong to the process."""

import subprocess
import sys

SAY = """
import logging
from flwr.common.logger import log
logging.getLogger("fedsocket_flwr.datasets.table").info("a table")
logging.getLogger("fedsocket_flwr.runtime.store").warning("a lock")
log(logging.INFO, "a client")
log(logging.WARNING, "a refusal")
"""
APPS = "import fedsocket_flwr.server_app, fedsocket_flwr.client_app\n"
OWN_LOGGING = "import logging\nlogging.basicConfig(format='mine: %(message)s', level=logging.INFO)\n"
COMMAND = "from fedsocket_flwr import cli\ncli._speak_safely()\ncli._quieten_flower()\n"


def said(program: str) -> list[str]:
    """Return the lines that a program prints, in order of the alphabet and without colours or padding."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, encoding="utf-8", check=True)
    lines = (done.stdout + done.stderr).replace("\x1b[92m", "").replace("\x1b[93m", "").replace("\x1b[0m", "").splitlines()
    return sorted(" ".join(line.split()) for line in lines)


def test_in_flowers_processes_every_line_is_one_of_flowers() -> None:
    assert said(APPS + SAY) == ["INFO : a client", "INFO : a table", "WARNING : a lock", "WARNING : a refusal"]


def test_the_app_alone_without_the_other_side() -> None:
    assert (
        said("import fedsocket_flwr.client_app\n" + SAY) == said("import fedsocket_flwr.server_app\n" + SAY) == said(APPS + SAY)
    )


def test_in_the_command_flower_says_warnings_only_and_the_project_says_all_once() -> None:
    assert said(COMMAND + APPS + SAY) == ["WARNING : a refusal", "a lock", "a table"]


def test_a_program_with_logging_of_its_own_keeps_it() -> None:
    assert [line for line in said(OWN_LOGGING + APPS + SAY) if "a table" in line or "a lock" in line] == [
        "mine: a lock",
        "mine: a table",
    ]
