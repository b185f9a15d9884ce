"""``data convert-own``: a folder of pictures, a table of texts or arrays, divided into the layout of a client's own data.

What is equal in content goes to one side: a picture that lies there twice is never in TRAIN and in TEST. The draw keeps the
share of every class and depends on the seed, the contents' order (names of files, rows of a table) and nothing else.

Legend: ``N`` rows, ``G`` groups of rows that are equal in content.
"""

import csv
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsocket_flwr.datasets import table
from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.datasets.draws import stratified
from fedsocket_flwr.datasets.image_folder import composed, picture_files
from fedsocket_flwr.datasets.pictures import picture_checksum
from fedsocket_flwr.datasets.split_manifest import SPLITS
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.seeds import numpy_generator

__all__ = ["Converted", "convert_own"]

LOG = logging.getLogger(__name__)
Rows = Sequence[int]


@dataclass(frozen=True)
class Converted:
    """What was written: the names of the classes, for the task's ``classes``, and the rows of each split."""

    classes: tuple[str, ...]
    sizes: dict[str, int]


@dataclass(frozen=True)
class _Source:
    """A source as read: the class and the content's checksum of each row, and how some of the rows are written as a split."""

    labels: Array
    classes: tuple[str, ...]
    contents: Sequence[str]
    write: Callable[[Path, str, Rows], None]


def convert_own(source: Path, target: Path, dev: float, test: float, seed: int) -> Converted:
    """Divide labelled data into TRAIN, DEV and TEST of a client's own.

    Parameters
    ----------
    source
        A folder ``CLASS/picture``; a ``.csv`` file with the columns ``text`` and ``label``; or an ``.npz`` file with the array
        ``label`` and an array for each modality. Further columns are kept.
    target
        The data directory to write, absent or empty: ``train/CLASS/picture`` and so on, ``train.csv`` or ``train.npz``.
    dev, test
        Shares of the different contents, above 0; TRAIN is what they leave.
    seed
        Of the draw.

    Raises
    ------
    ConfigurationError
        The shares leave nothing for TRAIN, or the target holds something.
    DataError
        The source is none of these, a file or a row of it is damaged (it is named), or it is too small for three splits.
    """
    if not (dev > 0 and test > 0 and dev + test < 1):
        raise ConfigurationError(f"--dev and --test must be above 0 and leave something for TRAIN, found {dev} and {test}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(f"{target} is there already; name a folder that is absent or empty")
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise ConfigurationError(f"{target} lies in {source} itself; name a folder outside")
    found = _read(source)
    splits = _divide(source, found, {"test": test, "dev": dev}, seed)
    untaught = sorted(set(range(len(found.classes))) - set(found.labels[list(splits["train"])].tolist()))
    if untaught:
        LOG.warning("%s: TRAIN has no row of %s", source, ", ".join(found.classes[label] for label in untaught))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        aside.chmod(0o755)
        for split in SPLITS:
            found.write(aside, split, splits[split])
        if target.exists():
            target.rmdir()
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Converted(found.classes, {split: len(splits[split]) for split in SPLITS})


def _divide(source: Path, found: _Source, shares: dict[str, float], seed: int) -> dict[str, Rows]:
    """Return the rows of each split, in the order of the source."""
    groups: dict[str, list[int]] = {}
    for row, content in enumerate(found.contents):
        groups.setdefault(content, []).append(row)
    members_G = list(groups.values())
    torn = [rows for rows in members_G if len(set(found.labels[rows].tolist())) > 1]
    if torn:
        named = " and ".join(found.classes[label] for label in dict.fromkeys(found.labels[torn[0]].tolist()))
        LOG.warning("%s: %d contents are in several classes, the first is row %d (%s)", source, len(torn), torn[0][0], named)
    if len(members_G) < len(found.contents):
        LOG.info("%s: %d of %d rows repeat another's content", source, len(found.contents) - len(members_G), len(found.contents))
    strata_G = np.array([found.labels[rows[0]] for rows in members_G])
    left = np.arange(len(members_G))
    drawn: dict[str, Array] = {}
    for split, share in shares.items():
        size = round(share * len(members_G))
        drawn[split] = stratified(left, strata_G[left], size, numpy_generator("convert-own", seed, split))
        left = np.setdiff1d(left, drawn[split])
    drawn["train"] = left
    empty = [split for split in SPLITS if not len(drawn[split])]
    if empty:
        raise DataError(f"{source} has {len(members_G)} different rows, too few for {', '.join(empty)}; raise its share")
    return {split: sorted(row for group in groups_ for row in members_G[group]) for split, groups_ in drawn.items()}


def _read(source: Path) -> _Source:
    if source.is_dir():
        return _read_pictures(source)
    if source.suffix == ".csv":
        return _read_texts(source)
    if source.suffix == ".npz":
        return _read_arrays(source)
    if not source.exists():
        raise DataError(f"{source} is not there")
    raise DataError(f"{source} is neither a folder of pictures, CLASS/picture, nor a .csv or .npz file")


def _read_pictures(source: Path) -> _Source:
    folders = {composed(entry.name): entry for entry in source.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    classes: list[str] = []
    files: list[Path] = []
    labels: list[int] = []
    for name in sorted(folders):
        inside = list(picture_files(folders[name], []).values())
        if inside:
            labels += [len(classes)] * len(inside)
            classes.append(name)
            files += inside
    if not files:
        raise DataError(f"{source} must have folders with pictures, one a class; found none")

    def write(target: Path, split: str, rows: Rows) -> None:
        for row in rows:
            place = target / split / classes[labels[row]]
            place.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files[row], place / files[row].name)

    return _Source(np.array(labels), tuple(classes), [picture_checksum(file) for file in files], write)


def _read_texts(source: Path) -> _Source:
    corpus = table.read(str(source), {})
    header, *records = table.csv_records(source)
    assert corpus.labels is not None

    def write(target: Path, split: str, rows: Rows) -> None:
        with (target / f"{split}.csv").open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows([header, *(records[row] for row in rows)])

    place = header.index("text")
    # White space does not make another text of it.
    contents = [_checksum(" ".join(record[place].split()).encode()) for record in records]
    return _Source(corpus.labels, corpus.classes, contents, write)


def _read_arrays(source: Path) -> _Source:
    corpus = table.read(str(source), {})
    assert corpus.labels is not None
    with np.load(source, allow_pickle=False) as content:
        arrays: dict[str, Array] = {name: content[name] for name in content.files}
    modalities = [np.ascontiguousarray(arrays[name]) for name in sorted(corpus.raw) if arrays[name].dtype.kind != "U"]
    modalities = modalities or [arrays[name] for name in sorted(corpus.raw)]

    def write(target: Path, split: str, rows: Rows) -> None:
        np.savez(target / f"{split}.npz", allow_pickle=False, **{name: array[list(rows)] for name, array in arrays.items()})

    contents = [_checksum(b"".join(array[row].tobytes() for array in modalities)) for row in range(len(corpus.labels))]
    return _Source(corpus.labels, corpus.classes, contents, write)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
