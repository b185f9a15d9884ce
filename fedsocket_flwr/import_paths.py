"""What is named by import path, ``package.module:name``: the rows of the registries, and whatever a user names without a row.

Every process that meets the name imports the module itself, so it must be importable everywhere: installed, or in a folder on
``PYTHONPATH``.
"""

import importlib
from difflib import get_close_matches
from typing import Any

from fedsocket_flwr.errors import ConfigurationError


def load(path: str, what: str) -> Any:
    """Import a module and return one of its names.

    Parameters
    ----------
    path
        ``package.module:name``.
    what
        Whose path it is, for messages.

    Raises
    ------
    ConfigurationError
        The module cannot be imported, or has no such name.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        remedy = "; install it, or put its folder on PYTHONPATH" if absent else ""
        raise ConfigurationError(f"{what}: cannot import {module_name!r} ({type(error).__name__}: {error}){remedy}") from error
    if not hasattr(module, name):
        nearest = get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigurationError(f"{what}: the module {module_name} has no {name!r}{hint}")
    return getattr(module, name)


def is_import_path(name: str) -> bool:
    """Say whether a name of the configuration is an import path and no row of a registry."""
    return ":" in name
