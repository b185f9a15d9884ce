"""Federations whose clients have data of their own: files as an operator lays them out, and the configuration for them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_with_settings
from fedsocket_flwr.datasets import toy
from fedsocket_flwr.datasets.corpus import Corpus

SHAPES = ("class0", "class1", "class2")
WORDS = ("class3", "class1", "class0", "class2")
PARTS: Mapping[str, tuple[float, float]] = {"train": (0.0, 0.6), "dev": (0.6, 0.8), "test": (0.8, 1.0)}


def own_config(path: Path | None, settings: Mapping[str, Any] | None = None) -> Configuration:
    """Return the toy configuration with two tasks of own data below ``path``: pictures in folders, texts in tables."""
    own = {"kind": "own"}
    changed: dict[str, Any] = {
        "run.rounds": 2,
        "evaluation.test": "own",
        "tasks": {
            "shapes": {
                "dataset": "image_folder",
                "kind": "classification",
                "modalities": ["image"],
                "path": None if path is None else str(path),
                "options": {"size": 8, "colour": False},
                "classes": list(SHAPES),
                "partition": own,
                "clients": [
                    {"name": "shapes-a", "model": "image_cnn", "arguments": {"width": 4}},
                    {"name": "shapes-b", "model": "image_mlp", "arguments": {"hidden": 16}},
                ],
            },
            "words": {
                "dataset": "table",
                "kind": "classification",
                "modalities": ["text"],
                "path": None if path is None else str(path),
                "text_buckets": 64,
                "text_length": 12,
                "classes": list(WORDS),
                "partition": own,
                "clients": [
                    {"name": "words-a", "model": "text_bag", "arguments": {"width": 8}},
                    {"name": "words-b", "model": "text_bag", "arguments": {"width": 8}},
                ],
            },
        },
    }
    return read_with_settings("toy", {**changed, **(settings or {})}, Path.cwd())


def write_pictures(folder: Path, corpus: Corpus, rows: Sequence[int]) -> None:
    """Write rows of pictures as ``folder/CLASS/ROW.png``."""
    from PIL import Image

    images, labels = corpus.raw["image"], corpus.labels
    assert isinstance(images, np.ndarray)
    assert labels is not None
    for row in rows:
        place = folder / corpus.classes[labels[row]]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[row]).save(place / f"{row:03d}.png")


def write_texts(file: Path, corpus: Corpus, rows: Sequence[int]) -> None:
    """Write rows of texts as a table of text and label."""
    assert corpus.labels is not None
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        table.writerows([corpus.raw["text"][row], corpus.classes[corpus.labels[row]]] for row in rows)


def write_federation(root: Path) -> Path:
    """Write what each client of :func:`own_config` has, below the folder of its name, and return the folder of all."""
    shapes, words = toy.read_images(None, {"rows": 120, "size": 8}), toy.read_texts(None, {"rows": 120})
    for number, letter in enumerate("ab"):
        for part, (first, last) in PARTS.items():
            rows = range(60 * number + int(60 * first), 60 * number + int(60 * last))
            write_pictures(root / f"shapes-{letter}" / part, shapes, rows)
            (root / f"words-{letter}").mkdir(parents=True, exist_ok=True)
            write_texts(root / f"words-{letter}" / f"{part}.csv", words, rows)
    return root
