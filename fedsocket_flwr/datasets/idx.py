"""The IDX layout of MNIST and its kin: a magic number, the length of every axis, and then the bytes."""

import math
import struct
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError

# The third byte of the magic number says `unsigned bytes`, the fourth how many axes there are.
UNSIGNED_BYTES = 0x0800


def idx_array(path: Path, content: bytes, axes: int) -> Array:
    """Return the ``uint8`` array of an IDX file.

    Parameters
    ----------
    path
        The file, for messages.
    content
        Its unpacked bytes.
    axes
        How many axes it must have: 1 for labels, 3 for pictures.

    Raises
    ------
    DataError
        The magic number or the length is another one.
    """
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError(f"{path} is no IDX file: it has {len(content)} bytes, and its header alone takes {start}")
    magic, *lengths = struct.unpack(f">{1 + axes}I", content[:start])
    if magic != UNSIGNED_BYTES + axes:
        raise DataError(f"{path} has the IDX magic number {magic}, expected {UNSIGNED_BYTES + axes} (bytes with {axes} axes)")
    if len(content) - start != math.prod(lengths):
        shape = " x ".join(map(str, lengths))
        raise DataError(f"{path} says {shape} = {math.prod(lengths)} bytes, but {len(content) - start} follow its header")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(lengths)
