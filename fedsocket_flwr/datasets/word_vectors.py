"""Word vectors from a file: GloVe's text layout as it is really published, or an array with an index.

Published files hold tokens with spaces, control characters that text splitting takes for a line end, and sometimes a first line
``count dimension``. So a line ends at a line feed only, the last ``dimension`` fields are the numbers, and the rest is the token.
A text file is parsed once: its vectors then lie as an array beside the feature cache and are mapped from there.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.datasets.growing_file import open_array, write_array, written_by_one
from fedsocket_flwr.datasets.interface_packages import interface_files
from fedsocket_flwr.datasets.options import unknown_name
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.state_folder import state_folder

LOG = logging.getLogger(__name__)
LINES_TO_LEARN_FROM = 1000
# Vectors that are kept and written together.
BLOCK = 10_000
# Bytes of each end of a text file that help to name what was parsed of it.
END_BYTES = 1 << 16
WORDS = ".words"
# Published vectors whose package holds an array and its index.
PUBLISHED = ("glove-6b-50d",)


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
    """Return the array and the index of published vectors that a package holds, installed or fetched.

    Raises
    ------
    ConfigurationError
        There is no such name.
    DataError
        The package is neither installed nor fetched.
    """
    if name not in PUBLISHED:
        raise unknown_name("word vectors", name, PUBLISHED)
    array, index = interface_files(name)
    return array, index


def chosen_word_vectors(owner: str, vectors: str, file: str, index: str, dimension: int = 0) -> WordVectors:
    """Read the word vectors that options name: either published ones, or a file and, for an array, its index.

    Parameters
    ----------
    owner
        Whose options they are, for the message.
    vectors, file, index, dimension
        The options; empty and 0 where not given.

    Raises
    ------
    ConfigurationError
        Neither or both of ``vectors`` and ``file`` are given, or the name is not known.
    DataError
        The vectors are missing or damaged.
    """
    if bool(vectors) == bool(file):
        raise ConfigurationError(f"{owner} needs either `file`, a file of word vectors, or `vectors`, the name of published ones")
    if vectors:
        return read_word_vectors(*published_vectors(vectors), dimension or None)
    return read_word_vectors(Path(file), Path(index) if index else None, dimension or None)


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
        The first of equal tokens counts. Lines that are not a vector, and words that come again, are counted and the first is
        named in the log.

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
    """Return the vectors of a text file, mapped from the cache; without a cache, in memory and with a warning."""
    size = dimension or _dimension_of(path)
    try:
        kept = state_folder() / "features" / f"vectors-{_identity(path, size)}.npy"
        found = _from_cache(kept)
        if found is not None:
            return found
        with written_by_one(kept, f"word vectors of {path}"):
            return _from_cache(kept) or _parsed_into(kept, path, size)
    except (OSError, RuntimeError) as error:
        require_real_file(path)
        LOG.warning("%s is parsed into memory: its vectors cannot be kept (%s)", path, error)
        parsed = _parse(path, size)
        return WordVectors(np.concatenate(parsed.blocks), parsed.rows, parsed.digest)


def _identity(path: Path, size: int) -> str:
    """Return what names a file without reading it whole: its length, its time of change, and its two ends."""
    facts = path.stat()
    with path.open("rb") as file:
        first = file.read(END_BYTES)
        file.seek(max(0, facts.st_size - END_BYTES))
        ends = first + file.read()
    return hashlib.sha256(f"{facts.st_size} {facts.st_mtime_ns} {size} ".encode() + ends).hexdigest()[:20]


def _from_cache(kept: Path) -> WordVectors | None:
    array = open_array(kept)
    try:
        known = json.loads(kept.with_suffix(WORDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if array is None or len(known["words"]) != len(array):
        return None
    return WordVectors(array, {word: row for row, word in enumerate(known["words"])}, known["digest"])


def _parsed_into(kept: Path, path: Path, size: int) -> WordVectors:
    parsed = _parse(path, size)
    # The words come first: the array's record is what says that both are whole.
    aside = kept.with_suffix(f"{WORDS}{os.getpid()}")
    try:
        aside.write_text(json.dumps({"digest": parsed.digest, "words": list(parsed.rows)}), encoding="utf-8")
        os.replace(aside, kept.with_suffix(WORDS))
    finally:
        aside.unlink(missing_ok=True)
    write_array(kept, len(parsed.rows), "float32", lambda done: iter(parsed.blocks[done // BLOCK :]))
    found = _from_cache(kept)
    if found is None:
        raise OSError(f"{kept}, just written, does not read back")
    return found


@dataclass
class _Parsed:
    """The vectors of a text file in blocks of ``BLOCK``, the last one shorter; the row of each token; the file's checksum."""

    blocks: list[Array]
    rows: dict[str, int]
    digest: str


def _parse(path: Path, size: int) -> _Parsed:
    digest, rows, vectors, blocks = hashlib.sha256(), dict[str, int](), list[Array](), list[Array]()
    bad, again = list[str](), list[str]()
    for number, line in enumerate(_lines(path), start=1):
        digest.update(line + b"\n")
        fields = line.rstrip(b" ").split(b" ")
        values = _numbers(fields[-size:]) if len(fields) > size else None
        if values is None:
            header = number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields)
            if line and not header:
                bad.append(f"line {number}: {line[:60]!r}")
            continue
        token = b" ".join(fields[:-size]).decode("utf-8", "surrogateescape")
        if token in rows:
            again.append(f"{token!r} in line {number}")
            continue
        rows[token] = len(rows)
        vectors.append(np.asarray(values, dtype=np.float32))
        if len(vectors) == BLOCK:
            blocks.append(np.stack(vectors))
            vectors = []
    if bad:
        LOG.warning(
            "%s: %d lines are not a token and %d numbers and were left out, the first is %s", path, len(bad), size, bad[0]
        )
    if again:
        LOG.warning("%s: %d words come again and their first vector counts, the first is %s", path, len(again), again[0])
    if not rows:
        first = f", the first is {bad[0]}" if bad else ""
        raise DataError(f"{path} holds no vector of {size} numbers; {len(bad)} lines are something else{first}")
    return _Parsed([*blocks, np.stack(vectors)] if vectors else blocks, rows, digest.hexdigest())
