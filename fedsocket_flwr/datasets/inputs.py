"""What private models take: pictures as floats, texts as hashed token ids, vectors as they are.

Legend: ``N`` rows, ``L`` tokens of a text.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets.corpus import Array, Inputs, Raw
from fedsocket_flwr.datasets.pictures import Pictures, UnitPictures, unit_images
from fedsocket_flwr.errors import DataError

PADDING, NO_WORDS, FIRST_WORD = 0, 1, 2
# Letters and digits of any script, with apostrophes inside; all else separates, a backslash too (AG News joins lines by it).
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# An entity of the apostrophe, also without the ampersand that some published files lost.
_APOSTROPHE = re.compile(r"&?#0?39;|&apos;")


def words(text: str) -> list[str]:
    """Return the lower-cased words of a text: runs of letters and digits, with apostrophes inside (``it's``).

    Everything else separates words. The character entity of the apostrophe counts as an apostrophe.
    """
    return _WORD.findall(_APOSTROPHE.sub("'", text).lower())


@lru_cache(maxsize=1 << 17)
def hash_bucket(word: str, buckets: int) -> int:
    """Return the bucket of a word, 0 to ``buckets - 1``, by BLAKE2b: the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % buckets


def token_ids(texts: Sequence[str], length: int, buckets: int) -> Array:
    """Return the hashed token ids of texts.

    Parameters
    ----------
    texts
        N texts.
    length
        L; later words are cut off.
    buckets
        Number of ids in all, at least 3.

    Returns
    -------
    numpy.ndarray
        ``int64`` (N, L): 0 pads, 1 stands alone for a text without words, 2 to ``buckets - 1`` are words.
    """
    ids = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        found = [FIRST_WORD + hash_bucket(word, buckets - FIRST_WORD) for word in words(text)[:length]] or [NO_WORDS]
        ids[row, : len(found)] = found
    return ids


def private_inputs(modality: str, raw: Raw, task: TaskSettings) -> Inputs:
    """Return what a private model takes of a modality.

    Parameters
    ----------
    modality
        Its name, for messages: what is done depends on the rows themselves.
    raw
        Rows as in :class:`~fedsocket_flwr.datasets.corpus.Corpus`.
    task
        The task; ``text_length`` and ``text_buckets`` shape its token ids.

    Returns
    -------
    numpy.ndarray or UnitPictures
        Pictures: ``float32`` (N, 1 or 3, H, W) in [0, 1], still not decoded if they were files. Texts: ``int64``
        (N, ``text_length``), see :func:`token_ids`. Vectors and tokens: ``float32`` as they are.
    """
    if isinstance(raw, Pictures):
        return UnitPictures(raw)
    if not isinstance(raw, np.ndarray):
        return token_ids(raw, task.text_length, task.text_buckets)
    if raw.dtype == np.uint8:
        return unit_images(raw)
    if raw.dtype != np.float32 or raw.ndim not in (2, 3):
        raise DataError(
            f"modality {modality!r}: vectors must be float32 of shape (N, D) or (N, tokens, D) and pictures uint8, "
            f"found {raw.dtype} of shape {raw.shape}"
        )
    return raw
