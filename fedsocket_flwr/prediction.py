"""``fedsocket-flwr predict``: raw inputs from files into a trained client's predictor, results as lines of CSV."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from fedsocket_flwr.configuration_file import read_text_file
from fedsocket_flwr.datasets.corpus import Raw
from fedsocket_flwr.datasets.pictures import read_picture
from fedsocket_flwr.endpoints import Endpoint, Predictor, load_predictor
from fedsocket_flwr.errors import DataError

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")


def predict_files(run: Path, client: str, endpoint: Endpoint, files: Sequence[Path], top: int, out: TextIO) -> None:
    """Write predictions for the rows of some files.

    A classifier writes the row, its class and the probability of every class. A retriever takes images and texts, and writes for
    every image the ``top`` texts, then for every text the ``top`` images, by row number.

    Raises
    ------
    DataError
        A file cannot be read as raw inputs, or the files do not fit the client.
    """
    predictor = load_predictor(run, client, endpoint)
    raw = read_raw(files, predictor)
    writer = csv.writer(out)
    if predictor.facts.kind == "classification":
        probabilities = predictor.probabilities(raw)
        writer.writerow(["row", "class", *predictor.facts.classes])
        for row, values in enumerate(probabilities):
            shown = [f"{value:.6f}" for value in values]
            writer.writerow([row, predictor.facts.classes[int(values.argmax())], *shown])
        return
    images, texts = raw["image"], raw["text"]
    writer.writerow(["query", "row", *(f"rank {place}" for place in range(1, top + 1))])
    ranks = {"image": predictor.rank_texts(images, texts), "text": predictor.rank_images(images, texts)}
    for query, order in ranks.items():
        for row, places in enumerate(order[:, :top]):
            writer.writerow([query, row, *places])


def read_raw(files: Sequence[Path], predictor: Predictor) -> dict[str, Raw]:
    """Return raw inputs by modality: ``.npy`` arrays of images or vectors, ``.txt`` files with a text a line, and pictures.

    Pictures are brought to the size and colours that the client was trained on, as the data sets of pictures do; several pictures
    are rows in the order given.
    """
    facts = predictor.facts
    raw: dict[str, Raw] = {}
    pictures = [path for path in files if path.suffix.lower() in PICTURES]
    for path in files:
        if not path.exists():
            raise DataError(f"{path}: no such file")
        if path.suffix == ".txt":
            _add(raw, "text", read_text_file(path).splitlines(), path)
        elif path.suffix == ".npy":
            modality = next((m for m in facts.modalities if m != "text"), facts.modalities[0])
            _add(raw, modality, _read_array(path), path)
        elif path not in pictures:
            raise DataError(f"{path}: expected .npy, .txt or a picture ({', '.join(PICTURES)})")
    if pictures and "image" not in facts.modalities:
        raise DataError(f"{pictures[0]}: client {facts.client!r} reads {', '.join(facts.modalities)}, no pictures")
    if pictures:
        _add(raw, "image", _read_pictures(pictures, facts.input_shapes["image"]), pictures[0])
    missing = [modality for modality in facts.modalities if modality not in raw]
    if missing:
        raise DataError(f"client {facts.client!r} reads {', '.join(facts.modalities)}; no file gives its {missing[0]}")
    return raw


def _add(raw: dict[str, Raw], modality: str, rows: Raw, path: Path) -> None:
    if modality in raw:
        raise DataError(f"{path}: the {modality} inputs were given already")
    raw[modality] = rows


def _read_array(path: Path) -> Raw:
    try:
        array: Raw = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers ({error})") from error
    return array.astype(np.float32) if isinstance(array, np.ndarray) and array.dtype.kind == "f" else array


def _read_pictures(paths: Sequence[Path], shape: tuple[int, ...]) -> Raw:
    channels, height, width = shape
    return np.stack([read_picture(path, (height, width), colour=channels == 3) for path in paths])
