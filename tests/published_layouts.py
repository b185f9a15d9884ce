"""The paper's data sets and weights in exactly their published layouts, tiny and made from a seed."""

import csv
import io
import json
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedsocket_flwr.datasets.agnews import CLASSES as TOPICS
from fedsocket_flwr.datasets.cifar100 import CLASSES as OBJECTS

Array = NDArray[Any]
# Ten words of each AG News topic, and those of captions.
TOPIC_WORDS = [[f"{topic}{k}" for k in "abcdefghij"] for topic in ("world", "sport", "business", "science")]
COLOURS = {"red": (220, 20, 20), "green": (20, 200, 40), "blue": (30, 40, 220), "yellow": (230, 220, 30)}
THINGS = ("dog", "ball", "house", "child", "car", "tree")


class _Python2Pickler(pickle._Pickler):
    """Writes texts and bytes as Python 2's strings, which pickle has opcodes of its own for."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: str | bytes) -> None:
        content = value.encode("latin-1") if isinstance(value, str) else value
        short = len(content) < 256
        self.write((b"U" + bytes([len(content)]) if short else b"T" + struct.pack("<i", len(content))) + content)
        self.memoize(value)

    dispatch[str] = save_string
    dispatch[bytes] = save_string


def python2_pickle(value: Any) -> bytes:
    """Return a pickle as Python 2 and its numpy wrote it."""
    file = io.BytesIO()
    _Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def coloured_pictures(labels: Array, side: int, generator: np.random.Generator) -> Array:
    """Return ``uint8`` (N, side, side, 3): a colour a label, under noise."""
    colours = np.random.default_rng(99).integers(40, 216, size=(labels.max() + 1, 3))
    noise = generator.integers(-30, 31, size=(len(labels), side, side, 3))
    return (colours[labels][:, None, None, :] + noise).clip(0, 255).astype(np.uint8)


def cifar100_rows(rows: int, seed: int) -> tuple[Array, Array]:
    """Return pictures (N, 32, 32, 3) and fine labels in which every class comes in turn."""
    labels = np.arange(rows) % len(OBJECTS)
    return coloured_pictures(labels, 32, np.random.default_rng(seed)), labels


def write_cifar100(folder: Path, train: int = 600, test: int = 200) -> Path:
    """Write ``cifar-100-python`` as the archive unpacks, and return it."""
    root = folder / "cifar-100-python"
    root.mkdir(parents=True)
    for split, rows in (("train", train), ("test", test)):
        images, labels = cifar100_rows(rows, rows)
        content = {
            "filenames": [f"picture_s_{row:06d}.png" for row in range(rows)],
            "batch_label": f"{split}ing batch 1 of 1",
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
            "data": np.ascontiguousarray(np.moveaxis(images, 3, 1)).reshape(rows, -1),
        }
        (root / split).write_bytes(python2_pickle(content))
    names = {"fine_label_names": list(OBJECTS), "coarse_label_names": [f"coarse {k}" for k in range(20)]}
    (root / "meta").write_bytes(python2_pickle(names))
    (root / "file.txt~").touch()
    return root


def write_cifar100_parquet(folder: Path, train: int = 200, test: int = 100) -> Path:
    """Write ``cifar100/SPLIT-00000-of-00001.parquet`` as on Hugging Face, and return the repository's folder."""
    for split, rows in (("train", train), ("test", test)):
        images, labels = cifar100_rows(rows, rows)
        column = [{"bytes": encoded(image), "path": None} for image in images]
        columns = {"img": column, "fine_label": labels.tolist(), "coarse_label": (labels // 5).tolist()}
        write_parquet(folder / "cifar100" / f"{split}-00000-of-00001.parquet", columns)
    return folder


def encoded(image: Array) -> bytes:
    """Return a picture as PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def write_parquet(file: Path, columns: dict[str, list[Any]]) -> None:
    """Write a table."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.table(columns), file)


def agnews_rows(rows: int, seed: int) -> list[tuple[int, str, str]]:
    """Return class (1 to 4), title and description, with the oddities of the published texts."""
    generator = np.random.default_rng(seed)
    found = []
    for row in range(rows):
        words = generator.choice(TOPIC_WORDS[row % len(TOPICS)], size=8)
        title, description = " ".join(words[:3]), " ".join(words[3:])
        found.append((row % len(TOPICS) + 1, f"{title} (AP)", f'AP - {description}\\of "ten" the city #39;s'))
    return found


def write_agnews(folder: Path, train: int = 240, test: int = 80) -> Path:
    """Write ``ag_news_csv`` as the archive unpacks, and return it."""
    root = folder / "ag_news_csv"
    root.mkdir(parents=True)
    for split, rows in (("train", train), ("test", test)):
        write_agnews_csv(root / f"{split}.csv", agnews_rows(rows, rows))
    (root / "classes.txt").write_text("\n".join(TOPICS) + "\n", encoding="utf-8")
    (root / "readme.txt").write_text("AG's News Topic Classification Dataset\n", encoding="utf-8")
    return root


def write_agnews_csv(file: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write records with every field quoted and inner quotes doubled."""
    with file.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


def write_agnews_parquet(folder: Path, train: int = 40, test: int = 20) -> Path:
    """Write ``data/SPLIT-00000-of-00001.parquet`` as on Hugging Face, and return the repository's folder."""
    for split, rows in (("train", train), ("test", test)):
        records = agnews_rows(rows, rows)
        columns: dict[str, list[Any]] = {
            "text": [f"{title} {text}" for _, title, text in records],
            "label": [label - 1 for label, _, _ in records],
        }
        write_parquet(folder / "data" / f"{split}-00000-of-00001.parquet", columns)
    return folder


def flickr30k_captions(items: int) -> dict[str, list[str]]:
    """Return file name -> five captions, which name a colour and a thing."""
    pairs = [(colour, thing) for thing in THINGS for colour in COLOURS]
    found = {}
    for item in range(items):
        colour, thing = pairs[item % len(pairs)]
        forms = ("A {} {} .", "There is a {} {} outside .", "The {} {} , alone .", "Somebody sees a {} {} .", "One {} {} .")
        found[f"{1000092795 + item}.jpg"] = [form.format(colour, thing) for form in forms]
    return found


def write_flickr30k(folder: Path, train: int = 48, dev: int = 12, test: int = 20, original: bool = False) -> Path:
    """Write pictures with Karpathy's split file, or with the original captions and lists of the splits; return the folder."""
    root = folder / "flickr30k"
    images = root / "flickr30k-images"
    images.mkdir(parents=True)
    captions = flickr30k_captions(train + dev + test)
    generator = np.random.default_rng(3)
    for item, name in enumerate(captions):
        colour = list(COLOURS.values())[item % len(COLOURS)]
        pixels = np.array(colour) + generator.integers(-20, 21, size=(24, 32, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(images / name, quality=90)
    splits = ["train"] * train + ["val"] * dev + ["test"] * test
    if original:
        lines = [f"{name}#{k}\t{caption}" for name, said in captions.items() for k, caption in enumerate(said)]
        (root / "results_20130124.token").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for split in ("train", "val", "test"):
            names = [name.removesuffix(".jpg") for name, of in zip(captions, splits, strict=True) if of == split]
            (root / f"{split}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        return root
    entries = []
    for item, ((name, said), split) in enumerate(zip(captions.items(), splits, strict=True)):
        ids = list(range(5 * item, 5 * item + 5))
        sentences = [
            {"tokens": raw.lower().split()[:-1], "raw": raw, "imgid": item, "sentid": number}
            for raw, number in zip(said, ids, strict=True)
        ]
        entries.append({"sentids": ids, "imgid": item, "sentences": sentences, "split": split, "filename": name})
    (root / "dataset_flickr30k.json").write_text(json.dumps({"images": entries, "dataset": "flickr30k"}), encoding="utf-8")
    return root


def write_glove(file: Path, dimension: int = 300) -> Path:
    """Write word vectors of all words above in GloVe's text layout."""
    words = [word for topic in TOPIC_WORDS for word in topic] + [
        *COLOURS,
        *THINGS,
        "a",
        "the",
        "of",
        "there",
        "is",
        "one",
        "city",
    ]
    generator = np.random.default_rng(5)
    lines = [" ".join([word, *(f"{value:.5f}" for value in generator.normal(size=dimension))]) for word in words]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def write_resnet18(file: Path) -> Path:
    """Write weights of torchvision's ResNet-18, drawn from a seed, as torchvision's own file of weights has them."""
    import torch
    from torchvision import models

    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(models.resnet18(weights=None).state_dict(), file)
    return file
