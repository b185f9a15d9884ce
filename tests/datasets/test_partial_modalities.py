from functools import partial
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets import client_data
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import (
    open_client_data,
    private_input_shapes,
    token_modalities,
    warm_features,
)
from fedsocket_flwr.datasets.interfaces import build_interface
from fedsocket_flwr.datasets.partitions import task_splits
from fedsocket_flwr.errors import PartitionError

ADAM = {"optimiser": "adam", "learning_rate": 0.01}
IDENTITY = {"kind": "precomputed", "width": 8, "norm": None}


def configuration(interfaces: Any = ("video", "audio"), group: str | None = "group", **task: Any) -> Configuration:
    scene = {
        "dataset": "toy_vectors",
        "kind": "classification",
        "modalities": ["video", "audio"],
        "shared": ["video"],
        "partition": {"kind": "iid", "group": group},
        "clients": [{"name": "donor", "model": "m"}, {"name": "recipient", "model": "m", "modalities": ["video"]}],
    }
    return Configuration.model_validate(
        {
            "interfaces": interfaces if isinstance(interfaces, dict) else dict.fromkeys(interfaces, IDENTITY),
            "tasks": {"scene": scene | task},
            "training": {"private": {"audio+video": ADAM, "video": ADAM, "audio": ADAM}},
        }
    )


def test_each_client_gets_what_it_holds_and_q_what_it_reads(tmp_path: Any) -> None:
    config = configuration(interfaces=("video",))
    corpus = read_corpus(config.tasks["scene"])
    splits = task_splits(config, "scene")
    for client, modalities in (("donor", ["video", "audio"]), ("recipient", ["video"])):
        data = open_client_data(config, client, tmp_path)
        assert data.modalities == tuple(modalities)
        for split in ("train", "dev", "test"):
            opened, rows = getattr(data, split), list(getattr(splits[client], split))
            assert (list(opened.inputs), list(opened.features)) == (modalities, ["video"])
            for modality in modalities:
                np.testing.assert_array_equal(opened.inputs[modality], corpus.raw[modality][rows])
            np.testing.assert_array_equal(opened.features["video"], corpus.raw["video"][rows])
    assert token_modalities(config) == {"video"}
    assert private_input_shapes(config, "donor") == {"video": (4, 8), "audio": (4, 8)}


def test_private_models_may_read_the_interface_features(tmp_path: Any) -> None:
    small = {"kind": "tests.datasets.test_partial_modalities:FirstToken", "width": 3, "norm": 2.0}
    config = configuration({"video": IDENTITY, "audio": small}, private_inputs="features")
    donor, recipient = (open_client_data(config, client, tmp_path) for client in ("donor", "recipient"))
    rows = list(task_splits(config, "scene")["donor"].train)
    raw = read_corpus(config.tasks["scene"]).raw["audio"][rows]
    np.testing.assert_array_equal(donor.train.inputs["audio"], build_interface(config.interfaces["audio"])(raw))
    assert donor.train.inputs["audio"].shape == (len(rows), 3)
    assert donor.train.inputs["video"] is donor.train.features["video"]
    assert list(donor.train.features) == list(recipient.train.features) == ["video"]
    assert private_input_shapes(config, "donor") == {"video": (4, 8), "audio": (3,)}
    assert private_input_shapes(config, "recipient") == {"video": (4, 8)}


class FirstToken:
    content = ""

    def __init__(self, options: Any) -> None:
        assert not options

    def __call__(self, raw: Any) -> Any:
        return raw[:, 0]


def test_warming_computes_what_somebody_reads(tmp_path: Any) -> None:
    for config, expected in (
        (configuration(interfaces=("video",)), {"video"}),
        (configuration(private_inputs="features"), {"video", "audio"}),
        (configuration(shared=None, clients=[{"name": "a", "model": "m", "modalities": ["video"]}]), {"video", "audio"}),
    ):
        client_data._FEATURES.clear()
        told: list[str] = []
        warm_features(config, tmp_path / config.digest(), partial(note, told))
        assert set(told) == {f"toy_vectors.{modality}" for modality in expected}


def note(told: list[str], what: str, done: int, total: int) -> None:
    told.append(what)


def test_groups_are_those_of_the_rows(tmp_path: Any) -> None:
    config = configuration()
    data = open_client_data(config, "recipient", tmp_path)
    corpus, splits = read_corpus(config.tasks["scene"]), task_splits(config, "scene")["recipient"]
    names = np.unique(corpus.columns["group"])
    for split in ("train", "dev", "test"):
        groups = getattr(data, split).groups
        assert groups.dtype == np.int64
        assert names[groups].tolist() == [corpus.columns["group"][row] for row in getattr(splits, split)]
    assert open_client_data(configuration(group=None), "recipient", tmp_path).train.groups is None


def test_groups_of_a_column_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(PartitionError, match=r"task 'scene': data set 'toy_vectors' has no column 'dialogue' \(columns: group\)"):
        open_client_data(configuration(group="dialogue"), "donor", tmp_path)


def test_without_shared_q_reads_what_a_client_holds(tmp_path: Any) -> None:
    clients = [{"name": "a", "model": "m", "modalities": ["audio"]}, {"name": "v", "model": "m", "modalities": ["video"]}]
    config = configuration(shared=None, clients=clients)
    for client, modality in (("a", "audio"), ("v", "video")):
        data = open_client_data(config, client, tmp_path)
        assert list(data.train.inputs) == list(data.train.features) == [modality]
    assert token_modalities(config) == {"audio", "video"}
