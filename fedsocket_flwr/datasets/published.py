"""Data sets that a user downloads: the folder that a task's ``path`` names, and whether it holds the published files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fedsocket_flwr.errors import ConfigurationError, DataError


def data_set_folder(name: str, path: str | None, layout: str) -> Path:
    """Return the folder of a data set.

    Parameters
    ----------
    name, path
        The data set, and the task's ``path``.
    layout
        What the folder holds, for the message.

    Raises
    ------
    ConfigurationError
        No path is given.
    DataError
        It is no folder: absent, or an archive that is still packed.
    """
    if path is None:
        raise ConfigurationError(f"data set {name!r} needs `path`, a folder with {layout}")
    folder = Path(path)
    if folder.is_file():
        raise DataError(f"data set {name!r}: {path} is a file; unpack it and give the folder with {layout}")
    if not folder.is_dir():
        raise DataError(f"data set {name!r}: {path} is not a folder; expected one with {layout}")
    return folder


def compared_with_published(folder: Path, published: Mapping[str, str]) -> str:
    """Say in words whether the files of a folder, or of folders in it, are those whose MD5 was published.

    Parameters
    ----------
    folder
        Where the data set is.
    published
        File name -> MD5 as its publisher, or the library that downloads it, states it.
    """
    facts = []
    for name, expected in published.items():
        files = [file for file in (folder / name, *sorted(folder.glob(f"*/{name}"))) if file.is_file()]
        if not files:
            facts.append(f"{name} is not there")
            continue
        with files[0].open("rb") as content:
            found = hashlib.file_digest(content, "md5").hexdigest()
        facts.append(f"{name} as published" if found == expected else f"{name} is another file (MD5 {found}, not {expected})")
    return ", ".join(facts)
