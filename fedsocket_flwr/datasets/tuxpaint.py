"""``tuxpaint``: the stamps of Tux Paint, photographs and drawings with an English caption each."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.cut_outs import picture_on_white
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.packages import Package, data_folder
from fedsocket_flwr.datasets.sources import read_bytes
from fedsocket_flwr.errors import DataError

NAME = "tuxpaint"
# Over name, picture and caption file of every stamp in sorted order.
CHECKSUM = "d54e03a55ad0ef3faac2460e79e7abb727556df72b04817f5238e051c18034c7"
PACKAGES = (
    Package(
        "apt",
        "tuxpaint-stamps-default",
        keep=("usr/share/tuxpaint/stamps/*.png", "usr/share/tuxpaint/stamps/*.txt", "usr/share/doc/*/copyright"),
    ),
)
INSIDE = "usr/share/tuxpaint/stamps"
INSTALLED = Path("/") / INSIDE
HOW_TO_GET = (
    f"fetch it with `fedsocket-flwr data prepare {NAME} --fetch`, install Debian's package tuxpaint-stamps-default (2022.06.04), "
    "or give `path` its folder stamps"
)


def locate(path: str | None = None) -> Path:
    """Return the folder of the stamps: the given one, else Debian's, else the fetched one."""
    places = [Path(path)] if path else [INSTALLED, data_folder(NAME) / INSIDE]
    for folder in places:
        if folder.is_dir():
            return folder
    raise DataError(f"no folder {' or '.join(map(str, places))}; {HOW_TO_GET}")


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the stamps that are PNG files with a caption: ``uint8`` (N, size, size, 3), laid on white.

    Stamps with the same caption are pictures of one item, and the caption stands once among the texts. The column ``folder`` is
    the folder under ``stamps`` (``animals``, ``food``, ...). Mirrored stamps, which have no caption, and SVG files are passed
    over. Options: ``size`` (64).

    Raises
    ------
    DataError
        The folder is missing, the stamps are not the published ones, or a picture cannot be read.
    """
    chosen = choose_options(f"data set {NAME!r}", options, {"size": 64})
    at_least(f"data set {NAME!r}", chosen, size=1)
    root = locate(path)
    digest, images, captions, folders = hashlib.sha256(), [], list[str](), list[str]()
    for file in _stamps(root):
        picture, text = read_bytes(file, HOW_TO_GET), read_bytes(file.with_suffix(".txt"), HOW_TO_GET)
        place = file.relative_to(root)
        digest.update(f"{place.as_posix()}\n".encode() + picture + text)
        images.append(picture_on_white(file, picture, chosen["size"]))
        captions.append(_caption(file.with_suffix(".txt"), text))
        folders.append(place.parts[0])
    if digest.hexdigest() != CHECKSUM:
        raise DataError(
            f"{root} does not hold the published stamps: found {len(images)} with SHA-256 {digest.hexdigest()}, expected "
            f"{CHECKSUM}; {HOW_TO_GET}"
        )
    texts = sorted(set(captions))
    item = np.array([texts.index(caption) for caption in captions], dtype=np.int64)
    return Corpus(
        name=NAME,
        kind="retrieval",
        raw={"image": np.stack(images), "text": texts},
        pairs=np.stack([np.arange(len(images), dtype=np.int64), item], axis=1),
        columns={"folder": folders},
        item=item,
    )


def _stamps(root: Path) -> list[Path]:
    """Return the PNG files that have a caption, whatever the order of the directories."""
    found = (Path(folder) / name for folder, _, names in os.walk(root) for name in names if name.endswith(".png"))
    return sorted((file for file in found if file.with_suffix(".txt").exists()), key=lambda file: file.relative_to(root).parts)


def _caption(file: Path, content: bytes) -> str:
    """Return the first line of a caption file, which is the English one; translations follow."""
    try:
        caption = content.decode("utf-8").split("\n", 1)[0].strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}; {HOW_TO_GET}") from error
    if not caption:
        raise DataError(f"{file} has no caption in its first line; {HOW_TO_GET}")
    return caption
