"""The interface of motion sensors: a window of three axes as a sequence of pieces, each told by sixteen numbers.

Legend: ``N`` windows, ``L`` rows of a window, ``P`` pieces, ``S`` signals (three axes and their norm).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Raw
from fedsocket_flwr.datasets.options import at_least, choose_options
from fedsocket_flwr.errors import ConfigurationError

AXES = 3
# Added before each logarithm, in the signal's unit (g, rad/s): below a phone sensor's noise, so that a constant signal is finite.
EPSILON = 1e-3


class SensorPieces:
    """Statistics of the pieces of a window.

    A window (L, 3) is cut into ``pieces`` equal pieces (option, 8). Of each piece and each of four signals, the three axes and
    their Euclidean norm, it gives the mean, and the logarithms of standard deviation, range and mean absolute difference of
    neighbouring rows, each plus :data:`EPSILON`: four times the means first, then the deviations, ranges and differences.
    """

    content = ""

    def __init__(self, options: Mapping[str, Any]) -> None:
        chosen = choose_options("interface 'sensor_pieces'", options, {"pieces": 8})
        at_least("interface 'sensor_pieces'", chosen, pieces=1)
        self._pieces = int(chosen["pieces"])

    def __call__(self, raw: Raw) -> Array:
        """Return ``float64`` (N, P, 16)."""
        if not isinstance(raw, np.ndarray) or raw.dtype.kind != "f" or raw.ndim != 3 or raw.shape[2] != AXES:
            found = f"{raw.dtype} of shape {raw.shape}" if isinstance(raw, np.ndarray) else f"a {type(raw).__name__}"
            raise ConfigurationError(f"interface 'sensor_pieces' takes floats of shape (N, rows, {AXES}), found {found}")
        rows = raw.shape[1]
        if rows % self._pieces or rows < 2 * self._pieces:
            raise ConfigurationError(
                f"interface 'sensor_pieces': {rows} rows cannot be cut into {self._pieces} equal pieces of at least two"
            )
        axes_NLA = raw.astype(np.float64)
        signals_NLS = np.concatenate([axes_NLA, np.linalg.norm(axes_NLA, axis=2, keepdims=True)], axis=2)
        pieces = signals_NLS.reshape(len(raw), self._pieces, rows // self._pieces, AXES + 1)
        spreads = (pieces.std(axis=2), np.ptp(pieces, axis=2), np.abs(np.diff(pieces, axis=2)).mean(axis=2))
        return np.concatenate([pieces.mean(axis=2), *(np.log(spread + EPSILON) for spread in spreads)], axis=2)
