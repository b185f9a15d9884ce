"""``fashion_mnist``: 70,000 grey pictures of clothes (Xiao, Rasul and Vollgraf, 2017), in the published IDX files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.idx import idx_array
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.packages import Package, data_folder
from fedsocket_flwr.datasets.sources import read_bytes, require_checksum
from fedsocket_flwr.errors import DataError

NAME = "fashion_mnist"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SIDE = 28
# Of the unpacked content: whoever packed it again wrote other .gz files.
CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FIRST = next(iter(CHECKSUMS))
PACKAGES = (Package("apt", "dataset-fashion-mnist", keep=("usr/share/datasets/*", "usr/share/doc/*/copyright")),)
INSIDE = "usr/share/datasets/fashion-mnist"
INSTALLED = Path("/") / INSIDE
# Where torchvision puts the files below its root.
BELOW = ("", "raw", "FashionMNIST/raw")
HOW_TO_GET = (
    f"fetch it with `fedsocket-flwr data prepare {NAME} --fetch` (Debian's package dataset-fashion-mnist), or give `path` the "
    "root of torchvision's FashionMNIST or a folder with the four IDX files"
)


def locate(path: str | None = None) -> Path:
    """Return the folder of the four files: ``path`` or where torchvision puts them below it, else Debian's, else the fetched."""
    roots = [Path(path)] if path else [INSTALLED, data_folder(NAME) / INSIDE]
    for folder in (root / below for root in roots for below in BELOW):
        if _file(folder, FIRST).exists():
            return folder
    raise DataError(f"no file {FIRST}[.gz] in {' or '.join(map(str, roots))}; {HOW_TO_GET}")


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the pictures, ``uint8`` (N, 28, 28), with the published division into ``train`` and ``test``.

    Options: ``train`` and ``test``, how many rows of each are read, from the beginning of its file (0: all).

    Raises
    ------
    DataError
        A file is missing, no IDX file, or altered.
    """
    chosen = choose_options(f"data set {NAME!r}", options, {"train": 0, "test": 0})
    at_least(f"data set {NAME!r}", chosen, train=0, test=0)
    folder = locate(path)
    parts = {part: _read_part(folder, prefix, chosen[part]) for part, prefix in (("train", "train"), ("test", "t10k"))}
    return Corpus(
        name=NAME,
        kind="classification",
        raw={"image": np.concatenate([images for images, _ in parts.values()])},
        labels=np.concatenate([labels for _, labels in parts.values()]),
        classes=CLASSES,
        part=[part for part, (_, labels) in parts.items() for _ in labels],
    )


def _file(folder: Path, name: str) -> Path:
    """Return the plain file if it is there, else the packed one."""
    return folder / name if (folder / name).exists() else folder / f"{name}.gz"


def _read_part(folder: Path, prefix: str, rows: int) -> tuple[Array, Array]:
    """Return the first rows of one part: pictures, and their labels as ``int64``."""
    images = _read_array(folder, f"{prefix}-images-idx3-ubyte", 3)
    labels = _read_array(folder, f"{prefix}-labels-idx1-ubyte", 1)
    if len(images) != len(labels) or images.shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{folder}: {prefix} has pictures of shape {images.shape} and {len(labels)} labels, expected as many, {SIDE} x {SIDE}"
        )
    if rows > len(images):
        raise DataError(f"data set {NAME!r}: {rows} rows are asked for, but {prefix} has {len(images)}")
    return images[: rows or None], labels[: rows or None].astype(np.int64)


def _read_array(folder: Path, name: str, axes: int) -> Array:
    file = _file(folder, name)
    content = read_bytes(file, HOW_TO_GET)
    array = idx_array(file, content, axes)
    require_checksum(file, content, CHECKSUMS[name], HOW_TO_GET)
    return array
