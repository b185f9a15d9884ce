"""Tiny data in exactly the layouts in which the open data sets are published, with the checksums that belong to them."""

import gzip
import hashlib
import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.datasets import emoji, fashion_mnist, newsgroups20, tuxpaint


def idx(array: np.ndarray) -> bytes:
    """Return the IDX file of an array of bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_fashion_mnist(folder: Path, patch: pytest.MonkeyPatch, train: int = 20, test: int = 10, packed: bool = True) -> None:
    """Write the four IDX files, row k of class k modulo 10 and as dark as its class says."""
    folder.mkdir(parents=True)
    checksums = {}
    for prefix, rows in (("train", train), ("t10k", test)):
        labels = np.arange(rows) % 10
        images = np.random.default_rng(rows).integers(0, 30, (rows, 28, 28)) + 20 * labels[:, None, None]
        for name, array in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            content = idx(array)
            checksums[name] = hashlib.sha256(content).hexdigest()
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content, 1) if packed else content)
    patch.setattr(fashion_mnist, "CHECKSUMS", checksums)


def write_newsgroups(folder: Path, patch: pytest.MonkeyPatch, train: int = 40, test: int = 20) -> None:
    """Write the two tables, with the blank row that each of them has after Orange's header."""
    folder.mkdir(parents=True)
    checksums = {}
    for split, rows in (("train", train), ("test", test)):
        lines = [*newsgroups20.HEADER, ""]
        for row in range(rows):
            group = newsgroups20.CLASSES[row % 20]
            lines.append(f"{group}\t{group.replace('.', ' ').replace('-', ' ')} article number {'a' * (1 + row // 20)} ")
        content = ("\n".join(lines) + "\n").encode()
        (folder / f"20newsgroups-{split}.tab").write_bytes(content)
        checksums[split] = hashlib.sha256(content).hexdigest()
    patch.setattr(newsgroups20, "CHECKSUMS", checksums)


def picture(colour: tuple[int, ...], mode: str = "RGBA", size: tuple[int, int] = (8, 8)) -> bytes:
    """Return a PNG file of one colour."""
    content = io.BytesIO()
    Image.new("RGBA", size, colour).convert(mode).save(content, "PNG")
    return content.getvalue()


def write_stamps(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write four stamps of three captions, a mirrored one, one in SVG, and a sound."""
    stamps = {
        "animals/birds/hen": ("A hen.", picture((200, 0, 0, 255))),
        "animals/birds/hen-2": ("A hen.", picture((0, 200, 0, 255))),
        "food/fuji": ("A “Fuji” apple.", picture((0, 0, 0, 0), size=(8, 4))),
        "town/sign": ("“Stop”.", picture((9, 9, 9, 255), "LA")),
    }
    digest = hashlib.sha256()
    for name, (caption, png) in sorted(stamps.items(), key=lambda item: f"{item[0]}.png"):
        file = folder / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = f"{caption}\nde.utf8=Übersetzt\n".encode()
        file.write_bytes(png)
        file.with_suffix(".txt").write_bytes(text)
        digest.update(f"{name}.png\n".encode() + png + text)
    (folder / "food" / "fuji_mirror.png").write_bytes(picture((1, 2, 3, 255)))
    (folder / "food" / "pear.svg").write_text("<svg/>", encoding="utf-8")
    (folder / "food" / "pear.txt").write_text("A pear.\n", encoding="utf-8")
    (folder / "food" / "fuji_desc.ogg").write_bytes(b"OggS")
    patch.setattr(tuxpaint, "CHECKSUM", digest.hexdigest())


def write_emoji(folder: Path, patch: pytest.MonkeyPatch, count: int = 3) -> None:
    """Write the three npm packages: ``count`` emoji, one that only one vendor draws, and a component."""
    rows, words = [], []
    for number in range(count):
        code = f"1F6{number:02X}"
        rows.append({"unified": code, "image": f"{code.lower()}.png", "category": "Symbols" if number % 2 else "Objects"})
        words.append({"hexcode": code, "label": f"thing {number}", "tags": [f"tag {number}", "thing"]})
    # The selector of colour stands in one table and not in the other; a name without keywords.
    rows[0] = {**rows[0], "unified": f"{rows[0]['unified']}-FE0F"}
    del words[0]["tags"]
    drawn = [{**row, **{f"has_img_{vendor}": True for vendor in emoji.VENDORS}} for row in rows]
    lone = {"unified": "1F9FF", "image": "1f9ff.png", "category": "Objects", "has_img_google": True, "has_img_twitter": False}
    component = {**drawn[0], "unified": "1F3FB", "category": "Component"}
    table, named = json.dumps([*drawn, lone, component]).encode(), json.dumps(words).encode()
    digest = hashlib.sha256()

    def write(place: str, content: bytes) -> None:
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        digest.update(f"{place}\n".encode() + content)

    write("emoji-datasource-google/emoji.json", table)
    write("emojibase-data/en/data.json", named)
    for number, row in enumerate(drawn):
        for vendor in emoji.VENDORS:
            colour = (number * 37 % 256, number * 91 % 256, 255 if vendor == "google" else 0, 255)
            write(f"emoji-datasource-{vendor}/img/{vendor}/64/{row['image']}", picture(colour, "P" if number == 1 else "RGBA"))
    (folder / "emoji-datasource-twitter" / "emoji.json").write_bytes(table)
    patch.setattr(emoji, "CHECKSUM", digest.hexdigest())
