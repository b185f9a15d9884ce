import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from fedsocket_flwr.config import Configuration, modality_key
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.field_types import ExponentText


def small() -> dict[str, Any]:
    return {
        "run": {"name": "small", "seed": 3},
        "interfaces": {"image": {"kind": "pixels"}},
        "tasks": {
            "digits": {
                "dataset": "toy_images",
                "kind": "classification",
                "modalities": ["image"],
                "clients": [{"name": "a", "model": "image_cnn"}, {"name": "b", "model": "image_mlp"}],
            }
        },
        "training": {"private": {"image": {"optimiser": "sgd", "learning_rate": 0.05}}},
    }


def changed(change: Callable[[dict[str, Any]], Any]) -> Configuration:
    data = small()
    change(data)
    return Configuration.model_validate(data)


@pytest.mark.parametrize("seed", [0, 4294967296, 2**63 - 1])
def test_seeds_up_to_63_bits_are_valid(seed: int) -> None:
    assert changed(lambda d: d["run"].update(seed=seed)).run.seed == seed


@pytest.mark.parametrize("seed", [-1, 10**20 - 1, 2**63, 1.0, True, "1"])
def test_other_seeds_are_refused(seed: object) -> None:
    with pytest.raises(ValidationError):
        changed(lambda d: d["run"].update(seed=seed))


@pytest.mark.parametrize("value", [0.001, "1e-3", "1.0e-3", ExponentText("1e-3")])
def test_a_number_may_be_spelled_with_an_exponent(value: object) -> None:
    config = changed(lambda d: d["training"]["private"]["image"].update(learning_rate=value))
    assert config.training.private["image"].learning_rate == 0.001


@pytest.mark.parametrize("value", ["nan", float("inf"), "1e999", 10**400, True, None, "fast", 0, -1.0])
def test_what_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        changed(lambda d: d["training"]["private"]["image"].update(learning_rate=value))


def test_a_free_mapping_takes_numbers_and_keeps_text() -> None:
    values = {"rate": ExponentText("1e-3"), "id": ExponentText("695e0514"), "text": "1e-3", "list": (ExponentText("2e1"), None)}
    arguments = (
        changed(lambda d: d["tasks"]["digits"]["clients"][0].update(arguments=values)).tasks["digits"].clients[0].arguments
    )
    assert arguments == {"rate": 0.001, "id": "695e0514", "text": "1e-3", "list": [20.0, None]}
    assert type(arguments["id"]) is str


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"bytes", {1: 2}, {"deep": [object()]}])
def test_a_free_mapping_refuses_what_json_has_not(value: object) -> None:
    with pytest.raises(ValidationError):
        changed(lambda d: d["interfaces"]["image"].update(options={"x": value}))


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", ".hidden", " a", "a\nb", "x" * 65])
def test_names_that_cannot_be_file_names_or_keys_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        changed(lambda d: d["tasks"]["digits"]["clients"][0].update(name=name))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["tasks"]["digits"]["clients"][1].update(name="a"), "found twice: a"),
        (lambda d: d["tasks"]["digits"].update(modalities=["text"]), "interfaces.text is not there"),
        (lambda d: d["training"].update(private={}), "needs training.private.image"),
        (lambda d: d.update(exchange={"isolated": ["news"]}), "exchange.isolated names no task: news"),
        (lambda d: d.update(participation={"tasks": {"news": 0.5}}), "participation.tasks names no task: news"),
        (lambda d: d["tasks"]["digits"].update(kind="retrieval"), "modalities image and text"),
        (lambda d: d["tasks"]["digits"].update(partition={"kind": "natural"}), "needs `column`"),
    ],
)
def test_sections_that_disagree_are_refused(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        changed(change)


def test_json_gives_back_an_equal_configuration() -> None:
    config = changed(lambda d: d["interfaces"]["image"].update(options={"size": (8, 8), "mode": None, "mean": 0.1}))
    again = Configuration.from_json(config.to_json())
    assert again == config
    assert again.digest() == config.digest()
    json.loads(config.to_json(), parse_constant=pytest.fail)


def test_the_digest_sees_every_setting() -> None:
    digests = {
        changed(change).digest()
        for change in (
            lambda d: None,
            lambda d: d["run"].update(seed=4),
            lambda d: d["tasks"]["digits"]["clients"][0].update(arguments={"width": 4}),
            lambda d: d.update(resources={"threads": 2}),
        )
    }
    assert len(digests) == 4
    assert changed(lambda d: d.update(predictor={"width": 256})).digest() in digests  # A default that is written out.


def test_clients_are_found_by_name() -> None:
    config = changed(lambda d: None)
    assert [(task, client.name) for task, client in config.clients()] == [("digits", "a"), ("digits", "b")]
    assert config.client("b")[1].model == "image_mlp"
    with pytest.raises(ConfigurationError, match=r"'c'.*a, b"):
        config.client("c")


def test_isolated_tasks_may_be_all() -> None:
    assert changed(lambda d: d.update(exchange={"isolated": "all"})).isolated_tasks == {"digits"}
    assert changed(lambda d: d.update(exchange={"isolated": ["digits"]})).isolated_tasks == {"digits"}
    assert changed(lambda d: None).isolated_tasks == frozenset()


def test_a_modality_key_does_not_depend_on_order() -> None:
    assert modality_key(("text", "image")) == modality_key(("image", "text")) == "image+text"


def two_modalities(**task: Any) -> Configuration:
    clients = [{"name": "donor", "model": "m"}, {"name": "recipient", "model": "m", "modalities": ["video"]}]
    scene = {"dataset": "toy_vectors", "kind": "classification", "modalities": ["video", "audio"], "shared": ["video"]}
    optimiser = {"optimiser": "sgd", "learning_rate": 0.05}
    return Configuration.model_validate(
        {
            "interfaces": {"video": {"kind": "precomputed"}},
            "tasks": {"scene": scene | {"clients": clients} | task},
            "training": {"private": {"audio+video": optimiser, "video": optimiser}},
        }
    )


def test_a_donor_holds_more_than_q_reads() -> None:
    config = two_modalities()
    assert config.tasks["scene"].q_modalities == ("video",)
    assert {name: (config.client_modalities(name), config.role(name)) for name in ("donor", "recipient")} == {
        "donor": (("video", "audio"), "donor"),
        "recipient": (("video",), "recipient"),
    }
    with pytest.raises(ConfigurationError, match="no client is called 'nobody'"):
        config.role("nobody")


def test_where_q_reads_everything_nobody_is_a_donor() -> None:
    config = changed(lambda d: None)
    assert config.tasks["digits"].q_modalities == config.client_modalities("a") == ("image",)
    assert config.role("a") == "recipient"


def test_modalities_keep_the_task_s_order() -> None:
    clients = [{"name": "donor", "model": "m", "modalities": ["audio", "video"]}]
    assert two_modalities(clients=clients).client_modalities("donor") == ("video", "audio")


def test_each_set_of_modalities_that_clients_hold_needs_an_optimiser() -> None:
    recipient = [{"name": "recipient", "model": "m", "modalities": ["video"]}]
    config = two_modalities(clients=recipient)
    assert config.training.private.keys() == {"audio+video", "video"}
    lacking = config.model_dump(mode="json")
    del lacking["training"]["private"]["video"]
    with pytest.raises(ValidationError, match=r"tasks\.scene needs training\.private\.video, found only \['audio\+video'\]"):
        Configuration.model_validate(lacking)
    del lacking["training"]["private"]["audio+video"]
    lacking["training"]["private"]["video"] = config.training.private["video"].model_dump(mode="json")
    assert Configuration.model_validate(lacking).client_modalities("recipient") == ("video",)


def test_what_is_read_as_features_needs_an_interface() -> None:
    with pytest.raises(ValidationError, match=r"tasks\.scene reads the modality 'audio', but interfaces\.audio is not there"):
        two_modalities(private_inputs="features")
    with pytest.raises(ValidationError, match=r"interfaces\.audio is not there"):
        two_modalities(shared=None)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"shared": ["smell"]},
            r"shared must be different ones of the task's modalities \['video', 'audio'\], found \['smell'\]",
        ),
        ({"shared": ["video", "video"]}, "shared must be different ones"),
        ({"shared": []}, "shared"),
        ({"modalities": ["video", "video"], "shared": None}, "must be different ones"),
        ({"shared": ["audio"]}, "client 'recipient' lacks audio, which `shared` says that all clients hold"),
        (
            {"clients": [{"name": "x", "model": "m", "modalities": ["smell"]}]},
            r"client 'x': modalities must be .* found \['smell'\]",
        ),
        (
            {"clients": [{"name": "x", "model": "m", "modalities": ["video", "video"]}]},
            "client 'x': modalities must be different",
        ),
        ({"clients": [{"name": "x", "model": "m", "modalities": []}]}, "modalities"),
        ({"private_inputs": "tokens"}, "private_inputs"),
    ],
)
def test_modalities_that_do_not_fit_are_refused(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        two_modalities(**task)


def test_retrieval_has_both_modalities_everywhere() -> None:
    pairs = {"dataset": "toy_pairs", "kind": "retrieval", "modalities": ["image", "text"]}
    client = {"name": "x", "model": "m"}
    for change in ({"shared": ["image"], "clients": [client]}, {"clients": [client | {"modalities": ["text"]}]}):
        with pytest.raises(ValidationError, match="in a retrieval task Q and every client have both image and text"):
            changed(lambda d, change=change: d["tasks"].update(pairs=pairs | change))  # type: ignore[misc]
