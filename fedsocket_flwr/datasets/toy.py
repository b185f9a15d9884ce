"""Synthetic data sets of every kind, for tests and first steps: seeded, learnable, made in milliseconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.seeds import numpy_generator

# The sixteen places of a 4 x 4 grid; a caption names a place by its word.
PLACES = (
    *("ant", "bear", "cat", "deer", "eel", "fox", "goat", "hare"),
    *("ibis", "jay", "kite", "lynx", "mole", "newt", "owl", "pig"),
)
GRID = 4


def _balanced_labels(generator: np.random.Generator, rows: int, classes: int) -> Array:
    """Return ``rows`` labels in random order, every class as often as any other (within one)."""
    return generator.permutation(np.arange(rows, dtype=np.int64) % classes)


def read_images(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Make ``toy_images``: one random pattern a class under noise, ``uint8`` (rows, size, size)."""
    chosen = choose_options("data set 'toy_images'", options, {"rows": 150, "classes": 3, "size": 8, "seed": 0})
    at_least("data set 'toy_images'", chosen, rows=1, classes=2, size=2)
    generator = numpy_generator("toy_images", chosen["seed"])
    labels = _balanced_labels(generator, chosen["rows"], chosen["classes"])
    patterns = generator.uniform(0, 255, (chosen["classes"], chosen["size"], chosen["size"]))
    images = 0.7 * patterns[labels] + 0.3 * generator.uniform(0, 255, (len(labels), chosen["size"], chosen["size"]))
    return Corpus("toy_images", "classification", {"image": images.astype(np.uint8)}, labels, _class_names(chosen["classes"]))


def read_texts(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Make ``toy_texts``: eight words, about half of them from the six words of the class and the others common to all."""
    chosen = choose_options("data set 'toy_texts'", options, {"rows": 120, "classes": 4, "seed": 0})
    at_least("data set 'toy_texts'", chosen, rows=1, classes=2)
    generator = numpy_generator("toy_texts", chosen["seed"])
    labels = _balanced_labels(generator, chosen["rows"], chosen["classes"])
    texts = []
    for label in labels:
        own = generator.random(8) < 0.5
        picks = generator.integers(0, 6, 8)
        texts.append(
            " ".join(f"topic{label}word{pick}" if mine else f"common{pick}" for mine, pick in zip(own, picks, strict=True))
        )
    return Corpus("toy_texts", "classification", {"text": texts}, labels, _class_names(chosen["classes"]))


def read_vectors(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Make ``toy_vectors``: ``tokens`` vectors of ``width`` a row in each of two modalities, ``video`` and ``audio``.

    Each modality carries the class under noise of its own, so both together tell more than one.
    """
    defaults = {"rows": 120, "classes": 3, "tokens": 4, "width": 8, "groups": 12, "noise": 1.0, "seed": 0}
    chosen = choose_options("data set 'toy_vectors'", options, defaults)
    at_least("data set 'toy_vectors'", chosen, rows=1, classes=2, tokens=1, width=1, groups=1)
    generator = numpy_generator("toy_vectors", chosen["seed"])
    labels = _balanced_labels(generator, chosen["rows"], chosen["classes"])
    raw = {}
    for modality in ("video", "audio"):
        means = generator.normal(size=(chosen["classes"], chosen["width"]))
        noise = generator.normal(size=(chosen["rows"], chosen["tokens"], chosen["width"]))
        raw[modality] = (means[labels][:, None, :] + chosen["noise"] * noise).astype(np.float32)
    groups = [f"group{row % chosen['groups']}" for row in range(chosen["rows"])]
    return Corpus("toy_vectors", "classification", raw, labels, _class_names(chosen["classes"]), columns={"group": groups})


def read_pairs(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Make ``toy_pairs``: a bright and a dim square on a 4 x 4 grid, captions that name both places; every item differs."""
    chosen = choose_options("data set 'toy_pairs'", options, {"items": 60, "size": 8, "captions": 2, "seed": 0})
    at_least("data set 'toy_pairs'", chosen, items=1, size=GRID, captions=1)
    scenes = [(bright, dim) for bright in range(GRID * GRID) for dim in range(GRID * GRID) if bright != dim]
    if chosen["items"] > len(scenes):
        raise ConfigurationError(f"data set 'toy_pairs' has {len(scenes)} different items, found items: {chosen['items']}")
    generator = numpy_generator("toy_pairs", chosen["seed"])
    picked = [scenes[k] for k in generator.permutation(len(scenes))[: chosen["items"]]]
    images = generator.integers(0, 30, (len(picked), chosen["size"], chosen["size"])).astype(np.uint8)
    cells = np.arange(chosen["size"]) * GRID // chosen["size"]
    place = cells[:, None] * GRID + cells[None, :]
    texts: list[str] = []
    pairs: list[tuple[int, int]] = []
    for row, (bright, dim) in enumerate(picked):
        images[row][place == bright] += 200
        images[row][place == dim] += 80
        for caption in range(chosen["captions"]):
            pairs.append((row, len(texts)))
            texts.append(f"view {caption} bright{PLACES[bright]} dim{PLACES[dim]} {PLACES[bright]} over {PLACES[dim]}")
    found = np.asarray(pairs, dtype=np.int64)
    return Corpus("toy_pairs", "retrieval", {"image": images, "text": texts}, pairs=found, item=found[:, 0].copy())


def _class_names(classes: int) -> tuple[str, ...]:
    return tuple(f"class{label}" for label in range(classes))
