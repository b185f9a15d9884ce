"""Extractors of pictures that need no weights: pixels, and histograms of oriented gradients.

Legend: ``N`` rows, ``S`` side in pixels, ``O`` orientations, ``G`` cells along a side.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.interfaces import require_images
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.datasets.pictures import unit_images
from fedsocket_flwr.errors import ConfigurationError

# ITU-R BT.601, as in most picture libraries.
GREY_WEIGHTS = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def planes(images: Array, channels: int) -> Array:
    """Return pictures as ``float32`` (N, channels, H, W) in [0, 1]; colour becomes grey by BT.601, grey is repeated."""
    found = unit_images(images)
    if found.shape[1] == channels:
        return found
    if channels == 1:
        grey: Array = np.einsum("ncij,c->nij", found, GREY_WEIGHTS)[:, None].astype(np.float32)
        return grey
    return np.repeat(found, channels, axis=1)


def resized(images: Array, size: int) -> Array:
    """Return (N, channels, H, W) scaled to (N, channels, size, size), bilinear with antialiasing; the same size is left alone."""
    if images.shape[2:] == (size, size):
        return images
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(images))
    scaled: Array = torch.nn.functional.interpolate(tensor, size=(size, size), mode="bilinear", antialias=True).numpy()
    return scaled


class Pixels:
    """The picture itself, scaled to ``size`` and flattened: D = channels x size x size.

    Options: ``size`` (28), ``channels`` (1 grey, 3 colour).
    """

    content = ""

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'pixels'", options, {"size": 28, "channels": 1})
        at_least("interface 'pixels'", chosen, size=1)
        if chosen["channels"] not in (1, 3):
            raise ConfigurationError(f"option 'channels' of interface 'pixels' must be 1 or 3, found {chosen['channels']}")
        self._size, self._channels = int(chosen["size"]), int(chosen["channels"])

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, D) in [0, 1]."""
        images = require_images("pixels", raw)
        flat: Array = resized(planes(images, self._channels), self._size).reshape(
            len(images), self._channels * self._size * self._size
        )
        return flat


class OrientedGradients:
    """Histograms of oriented gradients (Dalal and Triggs, 2005) of the grey picture.

    Unsigned orientations, each gradient's magnitude shared by the two nearest; blocks of 2 x 2 cells are scaled to norm 1, so
    D = (G - 1)^2 x 4 x O with G = size / cell. Options: ``size`` (28), ``cell`` (7), ``orientations`` (9).
    """

    content = ""

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'hog'", options, {"size": 28, "cell": 7, "orientations": 9})
        at_least("interface 'hog'", chosen, size=2, cell=1, orientations=1)
        if chosen["size"] % chosen["cell"] or chosen["size"] // chosen["cell"] < 2:
            raise ConfigurationError(
                f"interface 'hog': size must be at least two cells and a multiple of cell, found size {chosen['size']} and "
                f"cell {chosen['cell']}"
            )
        self._size, self._cell, self._orientations = int(chosen["size"]), int(chosen["cell"]), int(chosen["orientations"])

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, D)."""
        images_NSS = resized(planes(require_images("hog", raw), 1), self._size)[:, 0]
        cells_NGGO = self._cells(images_NSS)
        grid = self._size // self._cell - 1
        blocks = np.stack([cells_NGGO[:, i : i + grid, j : j + grid] for i in (0, 1) for j in (0, 1)], axis=3)
        flat = blocks.reshape(len(blocks), grid, grid, -1)
        scaled = flat / np.sqrt(np.sum(flat * flat, axis=-1, keepdims=True) + 1e-6)
        flat_ND: Array = scaled.reshape(len(scaled), -1).astype(np.float32)
        return flat_ND

    def _cells(self, images_NSS: Array) -> Array:
        """Return the histogram of each cell, (N, G, G, O)."""
        padded = np.pad(images_NSS, ((0, 0), (1, 1), (1, 1)), mode="edge")
        down, right = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1], padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
        magnitude = np.hypot(down, right)
        position = (np.arctan2(down, right) % np.pi) / np.pi * self._orientations
        lower = np.floor(position).astype(np.int64)
        share = position - lower
        grid = self._size // self._cell
        histogram = np.zeros((len(images_NSS), grid, grid, self._orientations))
        for orientation in range(self._orientations):
            weight = np.where(lower % self._orientations == orientation, 1 - share, 0.0)
            weight += np.where((lower + 1) % self._orientations == orientation, share, 0.0)
            cells = (weight * magnitude).reshape(-1, grid, self._cell, grid, self._cell)
            histogram[..., orientation] = cells.sum(axis=(2, 4))
        return histogram
