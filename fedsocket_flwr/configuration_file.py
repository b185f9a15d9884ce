"""Reading and writing configuration files: a path or the name of a shipped one, overrides, and one error for all that is wrong.

Paths of data in a file are relative to that file and stored absolute, so that every worker finds them; paths in overrides are
relative to the folder that the caller names, which on the command line is the working directory.
"""

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.plain_files import write_whole
from fedsocket_flwr.problems import configuration_error, path_text
from fedsocket_flwr.strict_yaml import dump_yaml, parse_value, parse_yaml

__all__ = [
    "SUFFIXES",
    "parse_key",
    "parse_yaml",
    "read_configuration",
    "read_text_file",
    "read_with_settings",
    "shipped_configurations",
    "validate",
    "write_configuration",
]

Model = TypeVar("Model", bound=BaseModel)
_KEY_PART = re.compile(r'\.?(?:"([^"]+)"|([^.\[\]"]+))|\[(\d+)\]')
SUFFIXES = (".yaml", ".yml")
SWEEPS = "sweeps"
"""Folders of the shipped sweeps, beside the configurations."""


def read_configuration(source: str | Path, overrides: Sequence[str] = ()) -> Configuration:
    """Read a configuration.

    Parameters
    ----------
    source
        The path of a YAML file, or the bare name of a configuration that ships with the package, as in ``demo``.
    overrides
        Texts such as ``training.q.learning_rate=1e-3`` or ``tasks.digits.clients[2].model=image_cnn``: a key path, and a value in
        YAML that takes the place of the one in the file. A part of the path that has a dot is put in double quotes. Paths of data
        in them are relative to the working directory.

    Returns
    -------
    Configuration
        With every path of data absolute.

    Raises
    ------
    ConfigurationError
        With one line a problem: file, key path, value found and what was expected.
    """
    return read_with_settings(source, {}, Path.cwd(), overrides)


def read_with_settings(
    source: str | Path, settings: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()
) -> Configuration:
    """Read a configuration as :func:`read_configuration` does, with overrides as key path -> value.

    Parameters
    ----------
    source
        The path of a YAML file or the name of a shipped configuration.
    settings
        Key path -> plain data as :func:`parse_yaml` gives them, applied in order.
    folder
        What paths of data among ``settings`` are relative to.
    overrides
        As in :func:`read_configuration`, applied last.
    """
    content, origin, home = _read_source(source)
    data = parse_yaml(content, origin)
    _make_paths_absolute(data, home)
    for key, value in settings.items():
        _put(data, parse_key(key), value)
    _make_paths_absolute(data, folder)
    for key, value in _parsed(overrides).items():
        _put(data, parse_key(key), value)
    _make_paths_absolute(data, Path.cwd())
    return validate(Configuration, data, origin)


def _parsed(overrides: Sequence[str]) -> dict[str, Any]:
    """Return key path -> value of texts such as ``run.seed=202``."""
    settings: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {override}: expected key=value, as in run.seed=202")
        settings[key.strip()] = parse_value(value, f"--set {override}")
    return settings


def validate(model: type[Model], data: dict[str, Any], origin: str) -> Model:
    """Make a model from plain data; what is wrong becomes one :class:`ConfigurationError` with one line a problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise configuration_error(error, model, data, origin) from None


def write_configuration(config: Configuration, path: Path) -> None:
    """Write a configuration, defaults included, as YAML in UTF-8: whole or not at all.

    Reading it gives an equal configuration, and writing that one the same bytes.
    """
    write_whole(path, dump_yaml(config.model_dump(mode="json")))


def shipped_configurations() -> tuple[str, ...]:
    """Return the names of the configurations that ship with the package, as in ``demo`` or ``paper/heterogeneous``."""
    return tuple(sorted(_shipped()))


def shipped_sweeps() -> tuple[str, ...]:
    """Return the names of the sweeps that ship with the package: ``paper/main`` lies in ``configs/paper/sweeps/main.yaml``."""
    return tuple(sorted(_shipped_sweeps()))


def shipped_sweep(source: Path) -> Path:
    """Return ``source`` if it is a file, else the sweep of that name that ships with the package.

    Raises
    ------
    ConfigurationError
        There is neither; the message lists those that ship.
    """
    if source.exists():
        return source
    # As in a file listing, too: `configs/paper/sweeps/main.yaml`.
    parts = [part for part in source.with_suffix("").parts if part != SWEEPS]
    named = "/".join(parts[1:] if parts[0] == "configs" else parts)
    if named not in _shipped_sweeps():
        raise ConfigurationError(f"{source}: no such file; sweeps that ship with the package: {', '.join(shipped_sweeps())}")
    return Path(str(_shipped_sweeps()[named]))


def parse_key(key: str) -> tuple[int | str, ...]:
    """Split a key path such as ``tasks.digits.clients[2].model`` or ``tasks."v1.5".path`` into its parts."""
    parts: list[int | str] = []
    position = 0
    while position < len(key):
        match = _KEY_PART.match(key, position)
        if match is None or (position == 0) == key.startswith((".", "["), position, position + 1):
            raise ConfigurationError(f"{key!r} is not a key path; expected one as in tasks.digits.clients[2].model")
        parts.append(int(match[3]) if match[3] else match[1] or match[2])
        position = match.end()
    if not parts:
        raise ConfigurationError("an override has no key; expected one as in run.seed=202")
    return tuple(parts)


def read_text_file(path: Path) -> str:
    """Read a file as UTF-8 whatever the locale, with or without a byte order mark."""
    try:
        return _decoded(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error


def _shipped(folder: Traversable | None = None, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in (folder or resources.files("fedsocket_flwr") / "configs").iterdir():
        if entry.is_dir() and entry.name != SWEEPS:
            found |= _shipped(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIXES[0]):
            found[prefix + entry.name.removesuffix(SUFFIXES[0])] = entry
    return found


def _shipped_sweeps(folder: Traversable | None = None, prefix: str = "") -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in (folder or resources.files("fedsocket_flwr") / "configs").iterdir():
        if entry.is_dir() and entry.name == SWEEPS:
            found |= {
                prefix + file.name.removesuffix(SUFFIXES[0]): file for file in entry.iterdir() if file.name.endswith(SUFFIXES[0])
            }
        elif entry.is_dir():
            found |= _shipped_sweeps(entry, f"{prefix}{entry.name}/")
    return found


def _read_source(source: str | Path) -> tuple[str, str, Path]:
    """Return a configuration's text, its name in messages, and the folder its paths are relative to."""
    path = Path(source)
    # A shipped configuration may also be called as in a file listing, `configs/demo.yaml`, wherever the package is installed.
    named = path.as_posix().removeprefix("configs/").removesuffix(SUFFIXES[0])
    shipped = _shipped().get(named) if path.suffix not in SUFFIXES or not path.exists() else None
    if shipped is not None:
        return _decoded(shipped.read_bytes(), str(source)), str(source), Path.cwd()
    if not path.exists():
        known = ", ".join(shipped_configurations())
        raise ConfigurationError(f"{source}: no such file; configurations that ship with the package: {known}")
    return read_text_file(path), str(source), path.parent


def _decoded(content: bytes, origin: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{origin}: line {line}: the byte {error.object[error.start]:#x} is not UTF-8 text") from None


def _put(data: dict[str, Any], key: tuple[int | str, ...], value: Any) -> None:
    """Put a value at a key path; sections on the way that are not there yet are made."""
    place: Any = data
    for depth, part in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(part, int):
            if not isinstance(place, list) or part >= len(place):
                found = f"a list of {len(place)}" if isinstance(place, list) else "no list"
                raise ConfigurationError(f"{path_text(key)}: {path_text(key[:depth])} is {found}, so it has no entry [{part}]")
        elif not isinstance(place, dict):
            kind = "a list" if isinstance(place, list) else f"{place!r}"
            raise ConfigurationError(f"{path_text(key)}: {path_text(key[:depth])} is {kind}, so it has no key {part!r}")
        elif not last:
            place.setdefault(part, {})
        if last:
            place[part] = value
        else:
            place = place[part]


def _make_paths_absolute(data: dict[str, Any], folder: Path) -> None:
    for section, key in _paths_of_data(data):
        value = section.get(key) if isinstance(section, dict) else None
        if isinstance(value, str):
            section[key] = str((folder / os.path.expanduser(value)).resolve())


def _paths_of_data(data: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the sections and keys that hold paths; what is malformed is left for the schema to refuse."""
    for task in _sections(data.get("tasks")):
        yield task, "path"
        yield task.get("partition"), "manifest"
        clients = task.get("clients")
        for client in clients if isinstance(clients, list) else []:
            for key in ("file", "index"):
                yield client.get("arguments") if isinstance(client, dict) else None, key
    for interface in _sections(data.get("interfaces")):
        yield interface.get("options"), "file"
        yield interface.get("options"), "index"


def _sections(group: Any) -> list[dict[str, Any]]:
    return [section for section in group.values() if isinstance(section, dict)] if isinstance(group, dict) else []
