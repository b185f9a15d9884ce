from fedsocket_flwr.clients.local import LocalClient
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
