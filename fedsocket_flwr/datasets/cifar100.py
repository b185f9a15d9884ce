"""``cifar100``: CIFAR-100 (Krizhevsky, 2009) as published, the folder ``cifar-100-python``, or as parquet files.

Legend: ``N`` rows.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.parquet import read_shards, shards
from fedsocket_flwr.datasets.published import data_set_folder
from fedsocket_flwr.datasets.safe_pickle import read_pickle
from fedsocket_flwr.datasets.sources import read_bytes
from fedsocket_flwr.errors import DataError

# In the order of the labels, as the published `meta` has them.
# fmt: off
CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy", "bridge",
    "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach",
    "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster",
    "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree",
    "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck",
    "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea",
    "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
    "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle",
    "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on
SIDE = 32
PIXELS = 3 * SIDE * SIDE
SPLITS = ("train", "test")
LAYOUT = "train and test (the unpacked cifar-100-python), or train-*.parquet and test-*.parquet"
HOW_TO_GET = "give `path` the unpacked folder cifar-100-python, or a folder of Hugging Face's parquet files"
PUBLISHED = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read CIFAR-100: pictures ``uint8`` (N, 32, 32, 3), the 100 fine labels, and the published split.

    ``path`` is the folder ``cifar-100-python`` or the one that holds it. Its files are pickles: they are read through a list of
    what data may name, and nothing else of them runs.

    Raises
    ------
    DataError
        A file is missing, damaged, or not in that layout; it is named.
    """
    choose_options("data set 'cifar100'", options, {})
    folder = data_set_folder("cifar100", path, LAYOUT)
    if (folder / "cifar-100-python").is_dir():
        folder = folder / "cifar-100-python"
    read_split = _from_parquet if shards(folder, SPLITS[0]) else _from_pickle
    found = {split: read_split(folder, split) for split in SPLITS}
    return Corpus(
        name="cifar100",
        kind="classification",
        raw={"image": np.concatenate([images for images, _ in found.values()])},
        labels=np.concatenate([labels for _, labels in found.values()]),
        classes=CLASSES,
        part=[split for split, (images, _) in found.items() for _ in images],
    )


def _from_pickle(folder: Path, split: str) -> tuple[Array, Array]:
    file = folder / split
    content = read_pickle(file, read_bytes(file, HOW_TO_GET), encoding="bytes")
    if not isinstance(content, dict):
        raise DataError(f"{file} holds a {type(content).__name__}, expected a dictionary with data and fine_labels")
    # Python 2 wrote bytes; a copy written by Python 3 may have text.
    keys = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    lacking = [key for key in ("data", "fine_labels") if key not in keys]
    if lacking:
        raise DataError(f"{file} has no {lacking[0]!r} (it has {', '.join(map(str, keys))})")
    data, labels = keys["data"], _labels(file, keys["fine_labels"])
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels), PIXELS):
        shape = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{file}: data are {shape} for {len(labels)} labels, expected uint8 of shape ({len(labels)}, {PIXELS})")
    # A row has all red values, then green, then blue, each picture row by row.
    return np.ascontiguousarray(np.moveaxis(data.reshape(-1, 3, SIDE, SIDE), 1, 3)), labels


def _from_parquet(folder: Path, split: str) -> tuple[Array, Array]:
    files = shards(folder, split)
    if not files:
        raise DataError(f"{folder} has no {split}-*.parquet; expected {LAYOUT}")
    columns = read_shards(files, ("img", "fine_label"))
    place = files[0].parent / f"{split}-*.parquet"
    labels = _labels(place, columns["fine_label"])
    return np.stack([_decoded(f"{place}, row {row}", image) for row, image in enumerate(columns["img"])]), labels


def _labels(file: Path, values: Any) -> Array:
    """Return fine labels as ``int64`` (N,), or raise :class:`DataError` naming the first that is none."""
    if not isinstance(values, list) or not values:
        raise DataError(f"{file}: fine labels are a {type(values).__name__} without rows, expected a list of 0 to 99")
    for row, value in enumerate(values):
        if not isinstance(value, int | np.integer) or not 0 <= value < len(CLASSES):
            raise DataError(f"{file}: row {row} has the fine label {value!r}, expected 0 to {len(CLASSES) - 1}")
    return np.array(values, dtype=np.int64)


def _decoded(where: str, image: Any) -> Array:
    """Return one encoded picture as ``uint8`` (32, 32, 3)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(image["bytes"])) as picture:
            pixels = np.asarray(picture.convert("RGB"), dtype=np.uint8)
    except (OSError, UnidentifiedImageError, TypeError, KeyError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: not a picture that can be read: {error}") from error
    if pixels.shape != (SIDE, SIDE, 3):
        raise DataError(f"{where}: the picture is {pixels.shape[1]} x {pixels.shape[0]}, expected {SIDE} x {SIDE}")
    return pixels
