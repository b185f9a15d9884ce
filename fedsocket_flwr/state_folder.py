"""Where this machine keeps what outlives a run: private models, interface features, fetched data."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOME_VARIABLE = "FEDSOCKET_HOME"
STATE_DIRECTORY_KEY = "state-dir"
DEFAULT = "~/.fedsocket"


def state_folder(node_config: Mapping[str, Any] | None = None) -> Path:
    """Return the state directory, which need not exist: ``state-dir``, else ``FEDSOCKET_HOME``, else ``~/.fedsocket``.

    Parameters
    ----------
    node_config
        A node's configuration, for code that runs on one.

    Raises
    ------
    RuntimeError
        The folder is under a home that this process does not have.
    """
    chosen = (node_config or {}).get(STATE_DIRECTORY_KEY) or os.environ.get(HOME_VARIABLE) or DEFAULT
    return Path(str(chosen)).expanduser().absolute()
