import json

from fedsocket_flwr.clients.checkpoints import Checkpoints, Kept
from fedsocket_flwr.config import EvaluationSettings
from fedsocket_flwr.datasets.corpus import Split
from fedsocket_flwr.learning.measuring import ClassificationMeasure, Measurement

HOW = ClassificationMeasure(Split({}, {}), (1, 1), EvaluationSettings())


def measured(rho: float = 1.0, **accuracies: float) -> Measurement:
    endpoints = {endpoint: {"accuracy": value, "macro_f1": 0.0} for endpoint, value in accuracies.items()}
    return Measurement(endpoints, {"rho": rho} if "joint" in accuracies else {})


def test_each_endpoint_keeps_its_own_best_round() -> None:
    found = Checkpoints({})
    found = found.after(measured(private=0.5, q=0.4, joint=0.6, rho=2.0), HOW, 1, 1)
    found = found.after(measured(private=0.4, q=0.6, joint=0.7, rho=4.0), HOW, 2, 2)
    found = found.after(measured(private=0.7, q=0.5, joint=0.6, rho=8.0), HOW, 3, 3)
    assert {endpoint: kept.round for endpoint, kept in found.kept.items()} == {"private": 3, "q": 2, "joint": 2}
    assert found.kept["joint"].choice == {"rho": 4.0}
    assert found.versions() == {3, 2}
    assert found.q_rounds() == {2}


def test_of_equal_rounds_the_earlier_one_keeps_its_place() -> None:
    found = Checkpoints({}).after(measured(q=0.5), HOW, 4, 2).after(measured(q=0.5), HOW, 5, 3)
    assert (found.kept["q"].round, found.kept["q"].version) == (4, 2)


def test_a_round_and_a_version_are_two_things() -> None:
    """A client that was last asked in round 2 measures the Q of round 6 with the Private of version 2."""
    found = Checkpoints({}).after(measured(private=0.1, q=0.2, joint=0.3), HOW, 6, 2)
    assert found.versions() == {2}
    assert found.q_rounds() == {6}


def test_a_measurement_changes_no_earlier_checkpoints() -> None:
    first = Checkpoints({}).after(measured(q=0.1), HOW, 1, 1)
    first.after(measured(q=0.9), HOW, 2, 2)
    assert first.kept["q"].round == 1


def test_the_last_round_stands_in_where_no_dev_has_chosen() -> None:
    last = Kept(7, 6, 0.0, {"rho": 1.0})
    found = Checkpoints({}).after(measured(q=0.5), HOW, 3, 2).or_last(last, ("private", "q", "joint"))
    assert {endpoint: kept.round for endpoint, kept in found.kept.items()} == {"private": 7, "q": 3, "joint": 7}
    assert Checkpoints({}).or_last(last, ("q",)).kept == {"q": last}


def test_a_client_that_never_trained_needs_no_version() -> None:
    assert Checkpoints({"q": Kept(3, 0, 0.4, {})}).versions() == set()


def test_checkpoints_survive_json() -> None:
    found = Checkpoints({}).after(measured(private=0.5, q=1 / 3, joint=0.6, rho=0.125), HOW, 1, 1)
    assert Checkpoints.from_notes(json.loads(json.dumps(found.to_notes()))) == found
    assert Checkpoints.from_notes({}) == Checkpoints({})
