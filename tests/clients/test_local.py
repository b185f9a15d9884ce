from pathlib import Path

import numpy as np
import pytest

from fedsocket_flwr.clients.local import LocalClient
from fedsocket_flwr.configuration_file import read_with_settings
from tests.clients.driving import Federation, message, open_client, stored_q

LOCAL = {"run.method": "local"}


def test_a_local_client_sends_and_receives_nothing_but_trains() -> None:
    client = open_client("pairs-a", LOCAL)
    assert isinstance(client, LocalClient)
    update, failure = client.train(message(1, 0, {}))
    assert (update.blocks, failure) == ({}, "")
    assert set(update.metrics) == {"loss.private", "seconds"}
    assert stored_q(client) == set()


def test_a_local_client_has_its_private_endpoint_and_no_other() -> None:
    federation = Federation.of(open_client("shapes-mlp", LOCAL))
    metrics = federation.train(3).metrics
    assert {name for name in metrics if name.startswith("dev.")} == {"dev.private.accuracy", "dev.private.macro_f1"}
    federation.close()
    measured = {name for name in federation.test().metrics if name.startswith(("best", "last"))}
    assert {name.split(".")[1] for name in measured} == {"private"}


def test_more_warm_up_is_another_model() -> None:
    short, long = (
        Federation.of(open_client("shapes-mlp", LOCAL | {"training.warm_up_epochs": epochs})).train().metrics for epochs in (0, 8)
    )
    assert long["loss.private"] < short["loss.private"]


@pytest.mark.parametrize("name", ["donor-1", "mlp-1"])
@pytest.mark.parametrize("method", ["local", "fedsocket"])
def test_where_there_are_donors_and_recipients_test_comes_with_confusion_matrices(name: str, method: str) -> None:
    client = open_client(name, config=read_with_settings("toy_same_task", {"run.method": method}, Path.cwd()))
    federation = Federation.of(client)
    federation.train(2)
    federation.close()
    tested = federation.test()
    endpoints = ["private"] if method == "local" else ["private", "q", "joint"]
    assert set(tested.counts) == {f"{moment}.{endpoint}" for moment in ("best", "last") for endpoint in endpoints}
    labels = client.data.test.labels
    assert labels is not None
    for of, counts in tested.counts.items():
        matrix = np.array(counts).reshape(3, 3)
        assert matrix.sum(axis=1).tolist() == np.bincount(labels, minlength=3).tolist()
        assert tested.metrics[f"{of}.accuracy"] == matrix.trace() / len(labels)
        assert f"{of}.uar" in tested.metrics


def test_elsewhere_no_matrix_is_kept() -> None:
    federation = Federation.of(open_client("shapes-mlp", LOCAL))
    federation.train()
    assert federation.close().counts == {}
    assert federation.test().counts == {}
