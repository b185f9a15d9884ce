"""The fixed interface h_m: what Q reads of a modality, the same for every client and never trained (FedSocket v1, section on Q).

An interface is an *extractor* (pixels, hashed words, a frozen backbone, ...), then a fixed orthogonal projection to ``width``,
then scaling to one norm. Adding one means one class and one row in ``EXTRACTORS``; another project's needs no row, a setting
names it as ``package.module:Class``.

Legend: ``N`` rows, ``D`` numbers an extractor gives, ``W`` the width.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fedsocket_flwr.config import InterfaceSettings
from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.options import choose_options, unknown_name
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.import_paths import is_import_path, load
from fedsocket_flwr.seeds import derive_seed

ROOM = "fedsocket_flwr.datasets"
PRECOMPUTED = "precomputed"
# Goes into every digest: raise it when an extractor, the projection or the scaling changes what it gives.
VERSION = 1


class Interface(Protocol):
    """A fixed map from raw rows to Q's input.

    ``width`` is the size of the last axis; ``digest`` names everything that its output depends on but the rows; ``storage`` is
    the type in which the output is kept on disk.
    """

    width: int
    digest: str
    storage: str

    @property
    def parameters(self) -> int:
        """How many frozen parameters it has, the projection apart."""

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` features (N, width) or (N, tokens, width)."""


class Extractor(Protocol):
    """What an interface computes before the projection.

    Tokens come of rows that are tokens or sequences; a picture or a text becomes one vector.
    ``content`` names what its output depends on beyond its options: the checksum of weights or vectors, or nothing. One that has
    weights or vectors may say in ``parameters`` how many numbers they are.
    """

    content: str

    def __init__(self, options: Mapping[str, Any]) -> None: ...

    def __call__(self, raw: Raw) -> Array:
        """Return numbers (N, D) or (N, tokens, D)."""


EXTRACTORS: dict[str, str] = {
    "pixels": f"{ROOM}.image_interfaces:Pixels",
    "hog": f"{ROOM}.image_interfaces:OrientedGradients",
    "hashed_words": f"{ROOM}.text_interfaces:HashedWords",
    "glove": f"{ROOM}.text_interfaces:MeanWordVectors",
    "backbone": f"{ROOM}.backbones:Backbone",
    "efficientnet_lite0": f"{ROOM}.efficientnet_lite:EfficientNetLite0",
    "sensor_pieces": f"{ROOM}.sensor_interface:SensorPieces",
}


def build_interface(settings: InterfaceSettings) -> Interface:
    """Build the interface that the settings name.

    Raises
    ------
    ConfigurationError
        An unknown kind or option, or an option of the wrong type.
    DataError
        Its weights or vectors are missing or damaged.
    """
    if settings.kind == PRECOMPUTED:
        choose_options(f"interface {PRECOMPUTED!r}", settings.options, {})
        return Precomputed(settings)
    if settings.kind not in EXTRACTORS and not is_import_path(settings.kind):
        raise unknown_name("kind of interface", settings.kind, [*EXTRACTORS, PRECOMPUTED])
    path = EXTRACTORS.get(settings.kind, settings.kind)
    extractor: Extractor = load(path, f"interface {settings.kind!r}")(settings.options)
    return Projected(settings, extractor)


def _digest(settings: InterfaceSettings, content: str) -> str:
    canonical = json.dumps([VERSION, settings.model_dump(mode="json"), content], sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Precomputed:
    """Identity: the rows are features already. Neither projected nor scaled; their width must be the setting's."""

    def __init__(self, settings: InterfaceSettings) -> None:
        self.width = settings.width
        self.storage: str = settings.storage
        self.digest = _digest(settings, "")
        self.parameters = 0

    def __call__(self, raw: Raw) -> Array:
        """Return the rows themselves."""
        if not isinstance(raw, np.ndarray) or raw.dtype.kind != "f":
            raise ConfigurationError(f"interface {PRECOMPUTED!r} takes vectors, found {_described(raw)}")
        if raw.shape[-1] != self.width:
            raise ConfigurationError(f"interface {PRECOMPUTED!r} has width {self.width}, but the data are {raw.shape[-1]} wide")
        return raw.astype(np.float32, copy=False)


class Projected:
    """An extractor, the fixed orthogonal projection to ``width``, and the scaling to ``norm``."""

    def __init__(self, settings: InterfaceSettings, extractor: Extractor) -> None:
        self.width = settings.width
        self.storage: str = settings.storage
        self.digest = _digest(settings, extractor.content)
        self._settings, self._extractor = settings, extractor

    @property
    def parameters(self) -> int:
        """The extractor's; looked up when asked for, since a network is built for it."""
        return int(getattr(self._extractor, "parameters", 0))

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` features (N, W) or (N, tokens, W)."""
        extracted = self._extractor(raw)
        matrix = projection(self._settings.kind, self._settings.seed, extracted.shape[-1], self.width)
        # In float64, so that neither the batch nor the number of threads shows in the float32 result.
        projected = extracted.astype(np.float64) @ matrix.T
        if self._settings.norm is not None:
            projected = to_norm(projected, self._settings.norm)
        features = projected.astype(np.float32)
        if not np.isfinite(features).all():
            raise DataError(f"interface {self._settings.kind!r} gave values that are not finite")
        return features


@lru_cache(maxsize=8)
def projection(kind: str, seed: int, size: int, width: int) -> Array:
    """Return the fixed orthogonal matrix (W, D), computed in float32 on the CPU by one thread, as float64.

    Its rows are orthonormal when D >= W, else its columns are: then the projection keeps every length and angle.
    """
    import torch

    generator = torch.Generator(device="cpu").manual_seed(derive_seed("interface", seed, kind, size, width))
    with _one_thread():
        matrix = torch.nn.init.orthogonal_(torch.empty(width, size, dtype=torch.float32, device="cpu"), generator=generator)
    orthogonal: Array = matrix.numpy().astype(np.float64)
    return orthogonal


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread: a factorisation on several rounds differently."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def to_norm(vectors: Array, norm: float) -> Array:
    """Scale vectors along the last axis to one Euclidean norm; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Array = np.divide(vectors * norm, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled


def require_images(kind: str, raw: Raw) -> Array:
    """Return the rows, decoded, if they are pictures (``uint8``, grey or RGB), else raise :class:`ConfigurationError`."""
    if isinstance(raw, Pictures):
        return raw[:]
    if isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and (raw.ndim == 3 or (raw.ndim == 4 and raw.shape[3] == 3)):
        return raw
    raise ConfigurationError(f"interface {kind!r} takes pictures (uint8), found {_described(raw)}")


def require_texts(kind: str, raw: Raw) -> list[str]:
    """Return the rows if they are texts, else raise :class:`ConfigurationError`."""
    if not isinstance(raw, np.ndarray | Pictures) and all(isinstance(text, str) for text in raw):
        return list(raw)
    raise ConfigurationError(f"interface {kind!r} takes texts, found {_described(raw)}")


def _described(raw: Raw) -> str:
    return f"{raw.dtype} of shape {raw.shape}" if isinstance(raw, np.ndarray) else f"a {type(raw).__name__} of {len(raw)} texts"
