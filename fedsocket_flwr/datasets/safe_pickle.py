"""Pickles that others published, read without running what they name.

A pickle is a program: it may call anything that it can import. Here it reaches a fixed list of names, each bound to a function or
class that only builds data. A name that is not on the list ends the reading before anything of it runs, and so does every other
way to reach one (extension codes, persistent ids).
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array
from fedsocket_flwr.errors import DataError

# (module, name) as the pickle spells it -> what it gets.
AllowList = Mapping[tuple[str, str], Any]


def _empty_array(kind: Any, shape: Any, code: Any) -> Array:
    """Stand in for numpy's own function, which would also make arrays of any subclass."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of kind {kind!r}")
    return np.ndarray(shape, np.dtype(code))


def _from_buffer(data: Any, code: Any, shape: Any, order: str) -> Array:
    """Stand in for numpy's function of the newest pickles; objects have no buffer and fail here."""
    return np.frombuffer(data, dtype=np.dtype(code)).reshape(shape, order="F" if order == "F" else "C")


def _scalar(kind: np.dtype[Any], data: Any) -> Any:
    """Stand in for numpy's scalar; numbers only, as objects would be memory addresses."""
    if not isinstance(data, bytes) or kind.kind not in "biuf" or len(data) != kind.itemsize:
        raise pickle.UnpicklingError(f"a numpy scalar of kind {kind!r}")
    return np.frombuffer(data, dtype=kind)[0]


def _latin_bytes(text: str, encoding: str) -> bytes:
    """Stand in for ``codecs.encode``, which would look up any codec; Python 2's bytes come in Latin-1."""
    if encoding.replace("-", "").lower() != "latin1":
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}")
    return text.encode("latin-1")


_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
ARRAYS: AllowList = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin_bytes,
    **{(module, "_reconstruct"): _empty_array for module in _ARRAY_MODULES},
    **{(module, "scalar"): _scalar for module in _ARRAY_MODULES},
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
}


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, allowed: AllowList, encoding: str) -> None:
        super().__init__(file, encoding=encoding)
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name on the list stands for."""
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which data do not need")
        return self._allowed[module, name]


def read_pickle(path: Path, content: bytes, allowed: AllowList = ARRAYS, encoding: str = "ASCII") -> Any:
    """Return what a pickle holds, if it names nothing but what is allowed.

    Parameters
    ----------
    path
        Where it is from, for messages.
    content
        The pickle.
    allowed
        The names that it may use; by default those of numpy arrays and numbers.
    encoding
        What Python 2's strings become: text in this encoding, or ``bytes``.

    Raises
    ------
    DataError
        It names something else, or is damaged.
    """
    try:
        return _Reader(io.BytesIO(content), allowed, encoding).load()
    except Exception as error:  # a damaged pickle fails in as many ways as there are types
        why = str(error) or type(error).__name__
        raise DataError(f"{path} ({len(content)} bytes) was not read as a pickle of data: {why}") from error
