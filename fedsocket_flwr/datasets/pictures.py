"""Picture files as rows of one size, decoded when they are asked for: a large data set never lies in memory as a whole.

Legend: ``N`` rows, ``H`` height, ``W`` width, ``S`` side of a square.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import DataError

Array = NDArray[Any]
MOST_WORKERS = 8


def read_picture(file: Path, size: int | tuple[int, int], colour: bool) -> Array:
    """Return one picture as ``uint8`` (H, W, 3), or (H, W) in grey, whatever its own size and mode (palette, CMYK, ...).

    Parameters
    ----------
    file
        The picture.
    size
        Height and width that it is scaled to, or the side of a square.
    colour
        Whether it is in colour.

    Raises
    ------
    DataError
        The file is missing, damaged, or no picture; the message names it.
    """
    return _decoded(file, "RGB" if colour else "L", (size, size) if isinstance(size, int) else size)


def picture_checksum(file: Path) -> str:
    """Return the SHA-256 of what a picture shows: its pixels in RGB, whatever the form of the file; errors as above."""
    pixels = _decoded(file, "RGB", None)
    return hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()


def _decoded(file: Path, mode: str, size: tuple[int, int] | None) -> Array:
    """Return a picture upright in a mode of Pillow, scaled to a height and width if asked."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    require_real_file(file)
    try:
        with Image.open(file) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode == "P" and "transparency" in upright.info:
                upright = upright.convert("RGBA")
            found = upright.convert(mode)
            if size is not None:
                found = found.resize(size[::-1], Image.Resampling.BILINEAR)
            return np.asarray(found, dtype=np.uint8)
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is not a picture that can be read: {error}") from error


@dataclass(frozen=True)
class Pictures:
    """Picture files as ``uint8`` rows (N, S, S, 3), or (N, S, S) in grey.

    Indexing with a slice or row numbers decodes those rows, on several threads, as an array; :meth:`subset` decodes nothing.
    """

    files: tuple[Path, ...]
    size: int
    colour: bool = True

    dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole as an array."""
        return (len(self.files), self.size, self.size, *((3,) if self.colour else ()))

    def __getitem__(self, rows: slice | Array) -> Array:
        """Return the rows, decoded."""
        files = self.files[rows] if isinstance(rows, slice) else [self.files[row] for row in rows]
        decoded = np.empty((len(files), *self.shape[1:]), dtype=np.uint8)
        if len(files) < 2:
            pictures: Any = map(self._decoded, files)
        else:
            pictures = _workers().map(self._decoded, files)
        for row, picture in enumerate(pictures):
            decoded[row] = picture
        return decoded

    def subset(self, rows: Array | Sequence[int]) -> "Pictures":
        """Return these rows, not decoded."""
        return Pictures(tuple(self.files[row] for row in rows), self.size, self.colour)

    def checksum(self) -> str:
        """Return the SHA-256 over name, length and time of change of every file, and how it is decoded.

        Contents are left out: hashing gigabytes would take every process longer than its work.
        """
        digest = hashlib.sha256(f"pictures {self.size} {self.colour}".encode())
        for file in self.files:
            facts = file.stat()
            digest.update(f"\n{file.name} {facts.st_size} {facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _decoded(self, file: Path) -> Array:
        return read_picture(file, self.size, self.colour)


@dataclass(frozen=True)
class UnitPictures:
    """What private models take of pictures that are decoded when asked for: ``float32`` (N, 3 or 1, S, S) in [0, 1]."""

    pictures: Pictures

    dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole as an array."""
        side = self.pictures.size
        return (len(self), 3 if self.pictures.colour else 1, side, side)

    def __getitem__(self, rows: slice | Array) -> Array:
        """Return the rows, decoded."""
        return unit_images(self.pictures[rows])


def unit_images(images: Array) -> Array:
    """Return ``uint8`` pictures (N, H, W) or (N, H, W, 3) as ``float32`` (N, 1 or 3, H, W) in [0, 1]."""
    if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
        raise DataError(
            f"pictures must be uint8 of shape (N, H, W) or (N, H, W, 3), found {images.dtype} of shape {images.shape}"
        )
    planes = images[:, None] if images.ndim == 3 else np.moveaxis(images, 3, 1)
    return np.ascontiguousarray(planes, dtype=np.float32) / np.float32(255)


@cache
def _workers() -> ThreadPoolExecutor:
    """Return the process's decoding threads: decoding leaves Python's lock, and its result does not depend on their number."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_WORKERS), "decode")
