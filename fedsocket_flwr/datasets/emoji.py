"""``emoji``: emoji as two vendors draw them, with their Unicode names and keywords."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.cut_outs import picture_on_white
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.packages import Package, data_folder
from fedsocket_flwr.datasets.sources import read_bytes
from fedsocket_flwr.errors import DataError

NAME = "emoji"
VENDORS = ("google", "twitter")
WORDS = "emojibase-data"
# Over the tables and every picture, in the order in which they are read.
CHECKSUM = "e507f8d06da7fd65a6219129c71f7a321a7c568f35616eaa81d864c701f8118d"
PACKAGES = (
    *(
        Package(
            "npm",
            f"emoji-datasource-{vendor}",
            "16.0.0",
            keep=("emoji.json", "package.json", "LICENSE*", f"img/{vendor}/64/*.png"),
            folder=f"emoji-datasource-{vendor}",
        )
        for vendor in VENDORS
    ),
    Package("npm", WORDS, "17.0.0", keep=("en/data.json", "package.json", "LICENSE*"), folder=WORDS),
)
INSIDE = "."
HOW_TO_GET = (
    f"fetch it with `fedsocket-flwr data prepare {NAME} --fetch`, or give `path` a folder node_modules with "
    f"emoji-datasource-google and -twitter 16.0.0 and {WORDS} 17.0.0"
)


def locate(path: str | None = None) -> Path:
    """Return the folder of the three npm packages: the given one, else the fetched one."""
    folder = Path(path) if path else data_folder(NAME)
    if not folder.is_dir():
        raise DataError(f"no folder {folder}; {HOW_TO_GET}")
    return folder


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the emoji: each vendor's picture, ``uint8`` (N, size, size, 3) on white, and one caption an emoji.

    An item is an emoji that both vendors draw, without variants of skin tone. Its caption is its name and its keywords, as in
    ``grinning face: cheerful, cheery, face``. Columns: ``vendor``, and ``group``, Unicode's nine groups. Options: ``size`` (64).

    Raises
    ------
    DataError
        A file is missing or altered, or a picture cannot be read.
    """
    chosen = choose_options(f"data set {NAME!r}", options, {"size": 64})
    at_least(f"data set {NAME!r}", chosen, size=1)
    root = locate(path)
    digest = hashlib.sha256()

    def content(file: Path) -> bytes:
        found = read_bytes(file, HOW_TO_GET)
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + found)
        return found

    known = _records(root / f"emoji-datasource-{VENDORS[0]}" / "emoji.json", content)
    named = {_plain(row["hexcode"]): row for row in _records(root / WORDS / "en" / "data.json", content)}
    images, texts, items, vendors, groups = [], list[str](), list[int](), list[str](), list[str]()
    for row in _drawn_by_all(known):
        words = named.get(_plain(row["unified"]))
        if words is None:
            continue
        for vendor in VENDORS:
            file = root / f"emoji-datasource-{vendor}" / "img" / vendor / "64" / row["image"]
            images.append(picture_on_white(file, content(file), chosen["size"]))
            items.append(len(texts))
            vendors.append(vendor)
            groups.append(row["category"])
        texts.append(": ".join(filter(None, (words["label"], ", ".join(words.get("tags", ()))))))
    if digest.hexdigest() != CHECKSUM:
        raise DataError(
            f"{root} does not hold the published emoji: found {len(texts)} with SHA-256 {digest.hexdigest()}, expected "
            f"{CHECKSUM}; {HOW_TO_GET}"
        )
    item = np.array(items, dtype=np.int64)
    return Corpus(
        name=NAME,
        kind="retrieval",
        raw={"image": np.stack(images), "text": texts},
        pairs=np.stack([np.arange(len(images), dtype=np.int64), item], axis=1),
        columns={"vendor": vendors, "group": groups},
        item=item,
    )


def _records(file: Path, content: Callable[[Path], bytes]) -> list[dict[str, Any]]:
    """Return the records of one of the tables."""
    try:
        found = json.loads(content(file))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}; {HOW_TO_GET}") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise DataError(f"{file} is no list of records; {HOW_TO_GET}")
    return found


def _drawn_by_all(known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what every vendor draws; components (skin tones by themselves) are no emoji."""
    for row in known:
        if row["category"] != "Component" and all(row[f"has_img_{vendor}"] for vendor in VENDORS):
            yield row


def _plain(code: str) -> str:
    """Return a code as both tables write it: lower case, without the selector of colour."""
    return code.lower().replace("-fe0f", "")
