"""Free options of a reader or an interface: checked against what it knows, never ignored."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from fedsocket_flwr.errors import ConfigurationError

# A message lists what is known up to this many names.
LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is spelt most like ``name`` (known must not be empty)."""
    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for a name that no registry row has."""
    names = sorted(known)
    listed = f" (known: {', '.join(names)})" if len(names) <= LISTED else ""
    return ConfigurationError(f"unknown {what} {name!r}; the nearest is {nearest(name, names)!r}{listed}")


def choose_options(owner: str, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the given options over the defaults.

    Parameters
    ----------
    owner
        Whose options they are, for the message.
    given
        Options of the configuration.
    defaults
        Every known option with its default. A default that is not None also says the type.

    Returns
    -------
    dict
        All options.

    Raises
    ------
    ConfigurationError
        An option that is not known, or one of another type than its default.
    """
    chosen = dict(defaults)
    for name, value in given.items():
        if name not in defaults:
            if not defaults:
                raise ConfigurationError(f"{owner} takes no options, found {name!r}")
            raise unknown_name(f"option of {owner}", name, defaults)
        default = defaults[name]
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise ConfigurationError(
                f"option {name!r} of {owner} must be of type {type(default).__name__} (default {default!r}), found {value!r}"
            )
        chosen[name] = value
    return chosen


def at_least(owner: str, options: Mapping[str, Any], **smallest: int) -> None:
    """Refuse options below their smallest sensible value."""
    for name, bound in smallest.items():
        if options[name] < bound:
            raise ConfigurationError(f"option {name!r} of {owner} must be at least {bound}, found {options[name]}")
