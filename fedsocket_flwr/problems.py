"""What is wrong with a configuration, in words: one line a problem, with key path, value found and what was expected."""

import difflib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedsocket_flwr.errors import ConfigurationError

Location = tuple[int | str, ...]
_LONGEST_VALUE = 60
_NAME_RULE = "a name without / and \\ that begins with neither a dot nor a blank"
_EXPECTED = {
    "string_type": "text (put numbers, dates and yes/no in quotes)",
    "string_pattern_mismatch": _NAME_RULE,
    "string_too_short": "at least {min_length} character",
    "string_too_long": "at most {max_length} characters",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "at least {min_length} entry",
}


def configuration_error(
    error: ValidationError, model: type[BaseModel], data: Mapping[str, Any], origin: str
) -> ConfigurationError:
    """Turn what pydantic found into one :class:`ConfigurationError`.

    Parameters
    ----------
    error
        What ``model.model_validate(data)`` raised.
    model
        The model that was to be made.
    data
        What it was to be made from.
    origin
        The name of the file, at the beginning of every line.

    Returns
    -------
    ConfigurationError
        Its message has one line a problem, as in ``run.yaml: tasks.digits.clients[2].model: found 3, expected text``.
    """
    # The branches of a union fail one by one at the same place: their expectations are joined.
    expectations: dict[tuple[str, str], list[str]] = {}
    for details in error.errors(include_url=False):
        location = _location_in_data(details["loc"], data, missing=details["type"] == "missing")
        found, expected = _found_and_expected(dict(details), location, model)
        wanted = expectations.setdefault((path_text(location), found), [])
        if expected and expected not in wanted:
            wanted.append(expected)
    lines = []
    for (path, found), wanted in expectations.items():
        expected = f", expected {' or '.join(wanted)}" if wanted else ""
        lines.append(": ".join(part for part in (origin, path, found + expected) if part))
    return ConfigurationError("\n".join(lines))


def path_text(location: Sequence[int | str]) -> str:
    """Write a place in a configuration as a key path, as in ``tasks.digits.clients[2].model``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest_key(key: str, known: Sequence[str]) -> str:
    """Return a hint that names the key most like ``key``, or all that there are if none is near."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"


def _location_in_data(location: Location, data: Any, missing: bool) -> Location:
    """Drop the parts that pydantic adds to a location and that are no keys: branches of a union and ``[key]``."""
    kept: list[int | str] = []
    parts, last = (location[:-1], location[-1:]) if missing else (location, ())
    for part in parts:
        in_mapping = isinstance(data, Mapping) and part in data
        if in_mapping or (isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data)):
            data = data[part]
            kept.append(part)
    return (*kept, *last)


def _found_and_expected(details: Mapping[str, Any], location: Location, model: type[BaseModel]) -> tuple[str, str]:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return "missing, but required", ""
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "extra_forbidden":
        return f"unknown key {location[-1]!r}, {nearest_key(str(location[-1]), _known_keys(model, location[:-1]))}", ""
    expected = _EXPECTED[kind].format(**context) if kind in _EXPECTED else str(details["msg"])
    return f"found {_shown(details['input'])}", expected


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """Return the keys that the section at ``location`` may have."""
    annotation: Any = model
    for part in location:
        annotation = _inside(annotation, part)
    section = _section(annotation)
    return list(section.model_fields) if section else []


def _inside(annotation: Any, part: int | str) -> Any:
    section = _section(annotation)
    if section is not None:
        field = section.model_fields.get(str(part))
        return field.annotation if field else None
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if arguments else None


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation stands for, if it stands for one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_section, get_args(annotation))), None)
    return None
