import json

from fedsocket_flwr.clients.checkpoints import Checkpoints, Kept
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.learning.measuring import ClassificationMeasure, Measurement
from fedsocket_flwr.protocol_settings import EvaluationSettings

HOW = ClassificationMeasure(Split({}, {}), (1, 1), EvaluationSettings())


def measured(rho: float = 1.0, **accuracies: float) -> Measurement:
    endpoints = {endpoint: {"accuracy": value, "macro_f1": 0.0} for endpoint, value in accuracies.items()}
    return Measurement(endpoints, {"joint": {"rho": rho}} if "joint" in accuracies else {})


def after(found: Checkpoints, measurement: Measurement, model_round: int, version: int) -> Checkpoints:
    return found.improved_by(Checkpoints.of(measurement, HOW, model_round, version))


def test_each_endpoint_keeps_its_own_best_round() -> None:
    found = after(Checkpoints({}), measured(private=0.5, q=0.4, joint=0.6, rho=2.0), 1, 1)
    found = after(found, measured(private=0.4, q=0.6, joint=0.7, rho=4.0), 2, 2)
    found = after(found, measured(private=0.7, q=0.5, joint=0.6, rho=8.0), 3, 3)
    assert {endpoint: kept.round for endpoint, kept in found.kept.items()} == {"private": 3, "q": 2, "joint": 2}
    assert found.kept["joint"].choice == {"rho": 4.0}
    assert found.versions() == {3, 2}
    assert found.q_rounds() == {2}


def test_of_equal_rounds_the_earlier_one_keeps_its_place() -> None:
    found = after(after(Checkpoints({}), measured(q=0.5), 4, 2), measured(q=0.5), 5, 3)
    assert (found.kept["q"].round, found.kept["q"].version) == (4, 2)


def test_a_round_and_a_version_are_two_things() -> None:
    """A client that was last asked in round 2 measures the Q of round 6 with the Private of version 2."""
    found = after(Checkpoints({}), measured(private=0.1, q=0.2, joint=0.3), 6, 2)
    assert found.versions() == {2}
    assert found.q_rounds() == {6}


def test_a_measurement_changes_no_earlier_checkpoints() -> None:
    first = after(Checkpoints({}), measured(q=0.1), 1, 1)
    after(first, measured(q=0.9), 2, 2)
    assert first.kept["q"].round == 1


def test_the_last_round_stands_in_where_no_dev_has_chosen() -> None:
    last = Kept(7, 6, 0.0, {"rho": 1.0})
    found = after(Checkpoints({}), measured(q=0.5), 3, 2).completed_by(
        Checkpoints(dict.fromkeys(("private", "q", "joint"), last))
    )
    assert {endpoint: kept.round for endpoint, kept in found.kept.items()} == {"private": 7, "q": 3, "joint": 7}
    assert Checkpoints({}).completed_by(Checkpoints({"q": last})).kept == {"q": last}


def test_a_client_that_never_trained_needs_no_version() -> None:
    assert Checkpoints({"q": Kept(3, 0, 0.4, {})}).versions() == set()


def test_checkpoints_survive_json() -> None:
    found = after(Checkpoints({}), measured(private=0.5, q=1 / 3, joint=0.6, rho=0.125), 1, 1)
    assert Checkpoints.from_notes(json.loads(json.dumps(found.to_notes()))) == found
    assert Checkpoints.from_notes({}) == Checkpoints({})


def test_candidates_of_the_federation_keep_rounds_and_counts_of_their_own() -> None:
    endpoints = {"joint@0.2": {"accuracy": 0.5, "macro_f1": 0.0}, "joint@1": {"accuracy": 0.7, "macro_f1": 0.0}}
    choices, counts = {"joint@0.2": {"beta": 0.2}, "joint@1": {"beta": 1.0}}, {"joint@0.2": [1, 1, 0, 0], "joint@1": [2, 0, 0, 0]}
    found = Checkpoints.of(Measurement(endpoints, choices, counts), HOW, 4, 3)
    assert found.kept["joint@1"] == Kept(4, 3, 0.7, {"beta": 1.0}, (2, 0, 0, 0))
    assert (found.versions(), found.q_rounds()) == ({3}, {4})
    assert Checkpoints.from_notes(json.loads(json.dumps(found.to_notes()))) == found
