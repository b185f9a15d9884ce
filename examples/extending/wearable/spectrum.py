"""An interface: the spectrum of a signal, which does not change when the signal is shifted in time.

Legend: ``N`` rows, ``T`` steps, ``A`` axes, ``F`` frequencies.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.errors import ConfigurationError


class Spectrum:
    """Amplitudes of the lowest frequencies of every axis: (N, T, A) becomes (N, F x A).

    Options: ``frequencies`` (8).
    """

    # Part of the cached features' name: change it whenever the class computes something else than before.
    content = "version 1"

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'spectrum'", options, {"frequencies": 8})
        at_least("interface 'spectrum'", chosen, frequencies=1)
        self._frequencies = int(chosen["frequencies"])

    def __call__(self, raw: Raw) -> Array:
        """Return ``float32`` (N, F x A)."""
        if not isinstance(raw, np.ndarray) or raw.ndim != 3:
            raise ConfigurationError("interface 'spectrum' takes signals (rows, steps, axes)")
        amplitudes_NFA = np.abs(np.fft.rfft(raw, axis=1))[:, : self._frequencies]
        flat: Array = amplitudes_NFA.reshape(len(raw), -1).astype(np.float32)
        return flat
