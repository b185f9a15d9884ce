"""Flower's client-side mods around our ClientApp, unchanged, under Flower's own strategy wrappers where they have one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    Strategy,
)

from fedsocket_flwr import client_app, engines
from fedsocket_flwr.exchange.contract import Blocks
from fedsocket_flwr.exchange.payload import array_record, read_array_record, serialise
from fedsocket_flwr.exchange.registration import Roster
from fedsocket_flwr.methods import ServerSide, build_server_side
from fedsocket_flwr.provenance import code_digest
from fedsocket_flwr.run_preparation import prepare_run
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.run_files import read_identity
from tests.toy_runs import quick, same_bits, toy_config

CONFIG = toy_config({"run.rounds": 2})
CLIENTS = [client.name for _, client in CONFIG.clients()]


class Listening(InProcessGrid):
    """Remember every round's messages and answers."""

    def __init__(self, mods: Sequence[Mod]) -> None:
        super().__init__(client_app.build_app(mods), [{"client": client} for client in CLIENTS])
        self.rounds: list[tuple[Message, Message]] = []

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type == "train":
            self.rounds.append((message, reply))
        return reply

    def norms(self) -> list[float]:
        """The L2 norm of every update, in the order of the answers."""
        found = []
        for message, reply in self.rounds:
            before, after = (read_array_record(m.content["arrays"]) for m in (message, reply))
            found.append(float(np.sqrt(sum(np.square(after[n].astype(float) - before[n]).sum() for n in before))))
        return found


@pytest.fixture
def side(tmp_path: Path) -> Iterator[ServerSide]:
    with quick():
        folder = prepare_run(CONFIG, tmp_path / "run", "inprocess")
        engines.compute_features(folder)
        run = str(read_identity(folder)["run"])
        digests = {"code": code_digest(), "configuration": CONFIG.digest()}
        yield build_server_side(CONFIG, run, Roster({"configuration": CONFIG.to_json(), "run": run}, digests))


def two_rounds(strategy: Strategy, grid: Listening, side: ServerSide) -> Blocks:
    result = strategy.start(grid, array_record(serialise(side.initial)), num_rounds=2, timeout=60)
    assert isinstance(result.arrays, ArrayRecord)
    return read_array_record(result.arrays)


def test_without_mods_updates_are_longer_than_the_bounds_below(side: ServerSide) -> None:
    grid = Listening([])
    two_rounds(side.strategy, grid, side)
    assert min(grid.norms()) > 0.2


def test_local_differential_privacy_moves_every_number_and_the_round_counts(side: ServerSide) -> None:
    np.random.seed(1)
    grid = Listening([LocalDpMod(clipping_norm=0.1, sensitivity=0.1, epsilon=50.0, delta=1e-5)])
    merged = two_rounds(side.strategy, grid, side)
    assert side.strategy.report.answered == sorted(CLIENTS)
    assert side.strategy.report.refused == {}
    message, reply = grid.rounds[0]
    for name, before in read_array_record(message.content["arrays"]).items():
        after = reply.content["arrays"][name].numpy()
        assert (after != before).mean() > 0.9, f"{name} went up without noise"
    assert all(np.isfinite(array).all() for array in merged.values())


def test_fixed_clipping_bounds_every_update(side: ServerSide) -> None:
    grid = Listening([fixedclipping_mod])
    wrapped = DifferentialPrivacyClientSideFixedClipping(
        side.strategy, noise_multiplier=0.0, clipping_norm=0.1, num_sampled_clients=len(CLIENTS)
    )
    merged = two_rounds(wrapped, grid, side)
    assert side.strategy.report.answered == sorted(CLIENTS)
    assert grid.norms() == pytest.approx([0.1] * 2 * len(CLIENTS), rel=1e-3)
    assert any(not same_bits(merged[name], side.initial[name]) for name in merged)


def test_adaptive_clipping_moves_the_bound_by_the_bits_that_clients_send(side: ServerSide) -> None:
    grid = Listening([adaptiveclipping_mod])
    wrapped = DifferentialPrivacyClientSideAdaptiveClipping(
        side.strategy, noise_multiplier=0.0, num_sampled_clients=len(CLIENTS), initial_clipping_norm=0.1, clip_norm_lr=0.5
    )
    two_rounds(wrapped, grid, side)
    assert side.strategy.report.answered == sorted(CLIENTS)
    first, second = grid.norms()[: len(CLIENTS)], grid.norms()[len(CLIENTS) :]
    assert first == pytest.approx([0.1] * len(CLIENTS), rel=1e-3)
    # Flower 1.42 lowers the bound by exp(-rate x (share that was clipped - target)).
    assert second == pytest.approx([0.1 * np.exp(-0.5 * (1.0 - 0.5))] * len(CLIENTS), rel=1e-3)
    bits = [reply.content.metric_records["metrics"]["norm_bit"] for _, reply in grid.rounds]
    assert bits[: len(CLIENTS)] == [1] * len(CLIENTS)
