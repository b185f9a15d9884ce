"""``agnews``: AG News as Zhang, Zhao and LeCun (2015) published it, ``train.csv`` and ``test.csv``, or as parquet files."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.parquet import read_shards, shards
from fedsocket_flwr.datasets.published import data_set_folder
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.datasets.table import numbered_records
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SPLITS = ("train", "test")
COLUMNS = 3
LAYOUT = "train.csv and test.csv, or train-*.parquet and test-*.parquet"
HOW_TO_GET = "give `path` the folder ag_news_csv, or a folder of Hugging Face's parquet files"
PUBLISHED = {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"}


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read AG News.

    A record of the CSV files is class (1 to 4), title, description, without a header; the text is title and description. Every
    field is text: ``None`` is a word. A backslash, which stands for a line break in the published files, becomes a space.
    ``classes.txt``, where it is there, names the classes in order. Parquet files have ``text`` and ``label`` (0 to 3).

    Raises
    ------
    DataError
        A file is missing or not in that layout; a record is named by its line.
    """
    choose_options("data set 'agnews'", options, {})
    folder = data_set_folder("agnews", path, LAYOUT)
    read_split = _from_parquet if shards(folder, SPLITS[0]) else _from_csv
    texts: list[str] = []
    labels: list[int] = []
    part: list[str] = []
    for split in SPLITS:
        found = read_split(folder, split)
        texts += [text.replace("\\", " ").strip() for text, _ in found]
        labels += [label for _, label in found]
        part += [split] * len(found)
    empty = [row for row, text in enumerate(texts) if not text]
    if empty:
        LOG.warning("%s: %d rows have an empty text, the first is row %d; they are kept", folder, len(empty), empty[0])
    return Corpus("agnews", "classification", {"text": texts}, np.array(labels, dtype=np.int64), _classes(folder), part=part)


def _from_csv(folder: Path, split: str) -> list[tuple[str, int]]:
    file = folder / f"{split}.csv"
    require_real_file(file)
    found = []
    for line, record in numbered_records(file):
        if len(record) != COLUMNS:
            raise DataError(f"{file}, line {line}: {len(record)} columns, expected {COLUMNS}: class, title, description")
        if record[0] not in ("1", "2", "3", "4"):
            raise DataError(f"{file}, line {line}: the class is {record[0]!r}, expected 1 to {len(CLASSES)}")
        found.append((f"{record[1]} {record[2]}", int(record[0]) - 1))
    return found


def _from_parquet(folder: Path, split: str) -> list[tuple[str, int]]:
    files = shards(folder, split)
    if not files:
        raise DataError(f"{folder} has no {split}-*.parquet; expected {LAYOUT}")
    columns = read_shards(files, ("text", "label"))
    found = list(zip(columns["text"], columns["label"], strict=True))
    for row, (text, label) in enumerate(found):
        if not isinstance(text, str) or type(label) is not int or not 0 <= label < len(CLASSES):
            raise DataError(
                f"{files[0].parent}, {split}, row {row}: label {label!r} and a text of type {type(text).__name__}, expected 0 to "
                f"{len(CLASSES) - 1} and a text"
            )
    return found


def _classes(folder: Path) -> tuple[str, ...]:
    """Return the names in ``classes.txt``, one a line, or the published ones where there is no such file."""
    file = folder / "classes.txt"
    if not file.exists():
        return CLASSES
    names = tuple(line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    if len(names) != len(CLASSES) or len(set(names)) != len(CLASSES):
        raise DataError(f"{file} must have {len(CLASSES)} different names, one a line, found {list(names)}")
    return names
