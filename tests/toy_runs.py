"""Runs of the shipped toy configuration in this process, for tests of what comes out of a run."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import engines, run_preparation
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_with_settings
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.plain_files import read_json, read_json_lines
from fedsocket_flwr.run_preparation import read_run_configuration
from fedsocket_flwr.runtime.callbacks import Callback
from fedsocket_flwr.runtime.run_files import load_checkpoint, read_identity
from fedsocket_flwr.runtime.store import ClientStore, state_directory

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What a run left behind: Q after the last round, every client's private arrays, TEST, and the history."""

    folder: Path
    q: Blocks
    states: Mapping[str, Blocks]
    test: Mapping[str, Any]
    history: Rows

    def private(self, client: str) -> Blocks:
        """The weights of a client's last private model."""
        return {name: array for name, array in self.states[client].items() if name.startswith("private/")}

    def own_q(self, client: str) -> Blocks:
        """The weights of the Q that a client keeps to itself."""
        return {name: array for name, array in self.states[client].items() if name.startswith("q/")}

    def rounds(self) -> Rows:
        return [row for row in self.history if row["phase"] == "train"]


def toy_config(settings: Mapping[str, Any] | None = None) -> Configuration:
    """Return the toy configuration with settings changed by key path, as in ``{"training.teaching.distil_q": 0.0}``."""
    return read_with_settings("toy", settings or {}, Path.cwd())


def same_task_config(settings: Mapping[str, Any] | None = None) -> Configuration:
    """Return the toy configuration of donors and recipients, changed in the same way."""
    return read_with_settings("toy_same_task", settings or {}, Path.cwd())


class Cut:
    """A callback that ends the process after a round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_start(self, run: Any) -> None: ...

    def on_phase(self, row: Any) -> None:
        if row["phase"] == "train" and row["round"] == self.after:
            raise KeyboardInterrupt

    def on_end(self, status: str) -> None:
        assert status == "interrupted"


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Draw no report and do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_preparation, "write_report", lambda folder: None)
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


def run_quickly(config: Configuration, folder: Path, callbacks: Sequence[Callback] = ()) -> Outcome:
    with quick():
        return read_outcome(engines.start(config, folder, "inprocess", callbacks))


def resume_quickly(folder: Path, rounds: int | None = None) -> Outcome:
    with quick():
        engines.resume(folder, "inprocess", rounds)
    return read_outcome(folder)


def store_of(folder: Path, client: str) -> ClientStore:
    """Return where a client of a run keeps its state."""
    return ClientStore(state_directory({}), str(read_identity(folder)["run"]), client)


def read_outcome(folder: Path) -> Outcome:
    config, checkpoint = read_run_configuration(folder), load_checkpoint(folder)
    assert checkpoint is not None
    states = {}
    for _, client in config.clients():
        store = store_of(folder, client.name)
        versions = store.versions()
        states[client.name] = store.load(versions[-1]).arrays if versions else {}
    test = read_json(folder / "test.json")["clients"] if (folder / "test.json").exists() else {}
    return Outcome(folder, checkpoint.blocks, states, test, read_json_lines(folder / "history.jsonl")[0])


def assert_same_arrays(found: Blocks, expected: Blocks) -> None:
    assert list(found) == list(expected)
    different = [name for name in expected if not same_bits(found[name], expected[name])]
    assert different == []


def same_bits(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def timeless(rows: Rows) -> Rows:
    """Return rows of the history without what a clock wrote."""
    plain: Rows = json.loads(json.dumps(rows))
    for row in plain:
        del row["seconds"]
        for numbers in row["clients"].values():
            numbers.pop("seconds", None)
    return plain


def assert_same_outcome(found: Outcome, expected: Outcome) -> None:
    """Everything but times, to the bit."""
    assert_same_arrays(found.q, expected.q)
    for client, arrays in expected.states.items():
        assert_same_arrays(found.states[client], arrays)
    assert found.test == expected.test
    assert timeless(found.history) == timeless(expected.history)
