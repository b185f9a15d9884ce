"""Pictures and what is said about them, brought together: several captions a picture, and either may lack the other.

Legend: ``P`` image-caption pairs.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)


def match_captions(table: Path, root: Path, files: Mapping[str, Path], said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the captions of every picture that is there, by the picture's name in sorted order.

    Captions of absent pictures and pictures without a caption are left out, counted, and the first named in the log.

    Parameters
    ----------
    table, root
        The file of the captions and the folder of the pictures, for messages.
    files
        Name -> file of every picture.
    said
        Name of a picture and a caption of it, in the order of the table.

    Raises
    ------
    DataError
        No caption has its picture.
    """
    captions: dict[str, list[str]] = {}
    absent = []
    for name, caption in said:
        if name in files:
            captions.setdefault(name, []).append(caption)
        else:
            absent.append(name)
    if absent:
        LOG.warning("%s: %d captions are of pictures that are not there, the first is %s", table, len(absent), absent[0])
    bare = sorted(set(files) - set(captions))
    if bare:
        LOG.warning("%s: %d pictures have no caption and are left out, the first is %s", root, len(bare), bare[0])
    if not captions:
        raise DataError(f"{table}: no caption has its picture in {root}")
    return dict(sorted(captions.items()))


def pairs_of(captions: Mapping[str, Sequence[str]]) -> tuple[list[str], Array]:
    """Return all captions in the order of their pictures, and the ``int64`` pairs (P, 2) of picture and caption."""
    texts = [caption for of_picture in captions.values() for caption in of_picture]
    pictures = np.repeat(np.arange(len(captions), dtype=np.int64), [len(of_picture) for of_picture in captions.values()])
    return texts, np.stack([pictures, np.arange(len(texts), dtype=np.int64)], axis=1)
