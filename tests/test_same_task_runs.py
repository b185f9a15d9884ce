"""Whole runs of donors and recipients: one beta for all, TEST untouched before the last message, predictors that can be used."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import client_app
from fedsocket_flwr.clients.participant import Participant
from fedsocket_flwr.datasets import client_data, toy
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.corpus import ClientData, Corpus, Split
from fedsocket_flwr.datasets.partitions import task_splits
from fedsocket_flwr.endpoints import load_predictor
from fedsocket_flwr.evaluation.metrics import confusion, metrics_from_confusion
from fedsocket_flwr.exchange.contract import Broadcast, Update
from fedsocket_flwr.learning.calibration import choose_beta
from fedsocket_flwr.plain_files import read_json
from tests.toy_runs import Outcome, assert_same_arrays, run_quickly, same_task_config, store_of, timeless

DONORS, RECIPIENTS = ("donor-1", "donor-2"), ("mlp-1", "mlp-2", "cnn-1")
TWO_ROUNDS = {"run.rounds": 2}
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the toy configuration with changed settings; equal settings run once."""
    known: dict[str, Outcome] = {}

    def of(settings: Mapping[str, Any] | None = None) -> Outcome:
        config = same_task_config(settings)
        if config.digest() not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FEDSOCKET_HOME", str(shared_home))
                known[config.digest()] = run_quickly(config, tmp_path_factory.mktemp("same-task") / "run")
        return known[config.digest()]

    return of


@pytest.fixture
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the private models of these runs lie."""
    monkeypatch.setenv("FEDSOCKET_HOME", str(shared_home))


def test_everybody_has_three_endpoints_and_uar(run: Run) -> None:
    found = run()
    assert set(found.test) == {*DONORS, *RECIPIENTS}
    for entry in found.test.values():
        for moment in ("best", "last"):
            assert set(entry[moment]) == {"private", "q", "joint"}
            assert all(set(metrics) == {"accuracy", "macro_f1", "uar"} for metrics in entry[moment].values())
    assert all(row["refused"] == {} and row["missing"] == [] for row in found.history)


def test_one_beta_for_the_run_from_the_recipients_pooled_dev(run: Run, home: None) -> None:
    found = run()
    for moment, choice in (("best", "joint.beta"), ("last", "last.beta")):
        pooled: dict[float, Any] = {}
        for client in RECIPIENTS:
            frozen = store_of(found.folder, client).read_note("closing")
            assert frozen is not None
            for endpoint, kept in frozen[moment].items():
                if "@" in endpoint:
                    beta = kept["choice"]["beta"]
                    pooled[beta] = pooled.get(beta, 0) + np.reshape(kept["counts"], (3, 3))
        expected = choose_beta(pooled)
        assert {found.test[client]["choices"][choice] for client in RECIPIENTS} == {expected}
        assert {found.test[client]["choices"][choice] for client in DONORS} == {0.0}


def test_a_recipient_is_tested_at_the_round_that_was_best_for_the_run_s_beta(run: Run, home: None) -> None:
    found = run()
    for client in RECIPIENTS:
        frozen = store_of(found.folder, client).read_note("closing")
        assert frozen is not None
        choices = found.test[client]["choices"]
        assert choices["joint.round"] == frozen["best"][f"joint@{choices['joint.beta']}"]["round"]


def test_a_donor_s_joint_is_its_private(run: Run) -> None:
    for client in DONORS:
        entry = run().test[client]
        for moment in ("best", "last"):
            assert entry[moment]["joint"] == entry[moment]["private"]
            assert entry["confusion"][f"{moment}.joint"] == entry["confusion"][f"{moment}.private"]


# --- TEST and the last message ---


class Sealed(Split):
    """TEST that nobody may look at before the last message."""

    opened = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("inputs", "features", "labels", "pairs", "groups", "examples") and not Sealed.opened:
            raise AssertionError(f"TEST was asked for its {name} before the last message")
        return super().__getattribute__(name)


def test_test_is_untouched_before_the_last_message(run: Run, home: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_test, phases = client_data.open_client_data, Participant.test, []

    def sealing(*arguments: Any) -> ClientData:
        data = real_open(*arguments)
        split = data.test
        return replace(data, test=Sealed(split.inputs, split.features, split.labels, split.pairs, split.groups))

    def opening(self: Participant, broadcast: Broadcast) -> Update:
        phases.append(broadcast.phase)
        monkeypatch.setattr(Sealed, "opened", True)
        return real_test(self, broadcast)

    monkeypatch.setattr(client_data, "open_client_data", sealing)
    monkeypatch.setattr(Participant, "test", opening)
    client_app._open_client.cache_clear()
    found = run_quickly(same_task_config(TWO_ROUNDS), tmp_path / "run")
    client_app._open_client.cache_clear()
    assert phases == ["test"] * 5
    assert found.test == run(TWO_ROUNDS).test


def test_a_look_at_test_would_be_found_out() -> None:
    sealed = Sealed({}, {}, np.zeros(3, np.int64))
    with pytest.raises(AssertionError, match="TEST was asked for its labels"):
        _ = sealed.labels
    with pytest.raises(AssertionError, match="TEST was asked for its examples"):
        _ = sealed.examples


def test_other_test_rows_change_no_model_and_no_choice(
    run: Run, home: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the rows of TEST reaches nothing but the metrics of TEST."""
    config = same_task_config(TWO_ROUNDS)
    task = config.tasks["scene"]
    tested = np.concatenate([split.test for split in task_splits(config, "scene").values()])
    kept = read_corpus(task)
    assert not set(tested.tolist()) & {row for s in task_splits(config, "scene").values() for row in (*s.train, *s.dev)}
    changed: dict[str, Any] = {}
    for modality, values in kept.raw.items():
        changed[modality] = np.array(values)
        changed[modality][tested] = -5.0 * changed[modality][tested]

    def other(path: str | None, options: Mapping[str, Any]) -> Corpus:
        return replace(kept, raw=changed)

    expected = run(TWO_ROUNDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "read_vectors", other)
        # Another path, so that no cache of the process knows the data.
        found = run_quickly(same_task_config(TWO_ROUNDS | {"tasks.scene.options.seed": 0}), tmp_path / "run")
    assert_same_arrays(found.q, expected.q)
    for client, arrays in expected.states.items():
        assert_same_arrays(found.states[client], arrays)
        assert found.test[client]["choices"] == expected.test[client]["choices"]
    assert timeless(found.history) == timeless(expected.history)
    assert any(found.test[client]["best"] != expected.test[client]["best"] for client in RECIPIENTS)


# --- use ---


@pytest.mark.parametrize("inputs", ["features", "raw"])
@pytest.mark.parametrize("client", ["donor-1", "donor-2", "mlp-1", "cnn-1"])
def test_a_predictor_gives_the_run_s_own_test_metrics(run: Run, home: None, inputs: str, client: str) -> None:
    found = run({"tasks.scene.private_inputs": inputs, **TWO_ROUNDS})
    config = same_task_config({"tasks.scene.private_inputs": inputs})
    corpus, rows = read_corpus(config.tasks["scene"]), json.loads((found.folder / "splits.json").read_text(encoding="utf-8"))
    mine = np.asarray(rows["tasks"]["scene"]["clients"][client]["test"])
    raw: dict[str, Any] = {modality: np.asarray(corpus.raw[modality])[mine] for modality in config.client_modalities(client)}
    expected = read_json(found.folder / "test.json")["clients"][client]
    assert corpus.labels is not None
    for moment in ("best", "last"):
        for endpoint in ("private", "q", "joint"):
            predictor = load_predictor(found.folder, client, endpoint, moment)
            matrix = confusion(predictor.probabilities(raw), corpus.labels[mine], 3)
            assert metrics_from_confusion(matrix) == expected[moment][endpoint]
            assert matrix.ravel().tolist() == expected["confusion"][f"{moment}.{endpoint}"]
    if client.startswith("donor"):
        joint, private = (load_predictor(found.folder, client, endpoint) for endpoint in ("joint", "private"))
        np.testing.assert_array_equal(joint.probabilities(raw), private.probabilities(raw))


@pytest.mark.parametrize("settings", [{"exchange.sharing": "own"}, {"run.method": "local"}], ids=["own Q", "local"])
def test_nothing_is_exchanged(run: Run, settings: dict[str, Any]) -> None:
    found = run(TWO_ROUNDS | settings)
    assert found.q == {}
    assert all(row["bytes"]["down"] == 0 for row in found.rounds())
    endpoints = {"private"} if "run.method" in settings else {"private", "q", "joint"}
    assert all(set(entry["best"]) == endpoints for entry in found.test.values())
