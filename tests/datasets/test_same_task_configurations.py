"""The data of the shipped same-task configurations: the demo on real sensors, and the paper's on made features of its layout."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import describe_clients, open_client_data, token_modalities
from fedsocket_flwr.datasets.feature_files import write_features
from fedsocket_flwr.datasets.partitions import task_splits
from fedsocket_flwr.datasets.split_manifest import SPLITS
from fedsocket_flwr.errors import ConfigurationError, DataError

SHAPES = {
    "meld": ({"transcript": (300,), "audio": (1611,)}, 4, 400),
    "cremad": ({"video": (8, 1280), "audio": (852,)}, 6, 900),
    "ucf51": ({"video": (8, 1280), "audio": (852,)}, 51, 1020),
}


@pytest.fixture(scope="module")
def activity() -> Configuration:
    return read_configuration("activity")


def test_the_sensors_people_are_disjoint(activity: Configuration) -> None:
    corpus, splits = read_corpus(activity.tasks["activity"]), task_splits(activity, "activity")
    person = np.asarray(corpus.columns["person"])
    held = {which: {person[row] for split in splits.values() for row in getattr(split, which)} for which in SPLITS}
    assert [len(held[which]) for which in SPLITS] == [18, 5, 7]
    assert sum(len(people) for people in held.values()) == len(set().union(*held.values())) == 30
    donors = [{person[row] for row in splits[f"donor-{k}"].train} for k in range(1, 6)]
    recipients = [
        {person[row] for row in splits[f"{kind}-{k}"].train} for kind in ("mlp", "cnn", "transformer") for k in range(1, 6)
    ]
    assert [len(people) for people in donors] == [2] * 5
    assert len(set().union(*donors)) == 10
    assert len(set().union(*recipients)) == 8
    assert not set().union(*donors) & set().union(*recipients)


def test_the_sensors_clients(activity: Configuration, tmp_path: Path) -> None:
    rows = describe_clients(activity)
    assert Counter(row["model"] for row in rows) == {
        "bottleneck_pair": 5,
        "sequence_mlp": 5,
        "sequence_cnn": 5,
        "sequence_transformer": 5,
    }
    assert Counter(activity.role(row["client"]) for row in rows) == {"donor": 5, "recipient": 15}
    assert all(row["dev"] >= 15 and row["test"] >= 20 for row in rows)
    assert token_modalities(activity) == {"accelerometer"}
    donor, recipient = (open_client_data(activity, client, tmp_path) for client in ("donor-1", "cnn-1"))
    assert {modality: values.shape[1:] for modality, values in donor.train.inputs.items()} == {
        "accelerometer": (8, 32),
        "gyroscope": (8, 32),
    }
    assert list(donor.train.features) == list(recipient.train.inputs) == list(recipient.train.features) == ["accelerometer"]
    assert donor.train.groups is not None
    assert len(set(donor.train.groups.tolist())) == 2


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_paper_s_protocols_read_features_of_its_widths(name: str, tmp_path: Path) -> None:
    shapes, classes, rows = SHAPES[name]
    generator, labels = np.random.default_rng(0), np.arange(rows) % classes
    write_features(
        tmp_path / name,
        name,
        [f"class{k}" for k in range(classes)],
        {modality: generator.normal(size=(rows, *shape)).astype(np.float32) for modality, shape in shapes.items()},
        labels,
        {"group": [f"group{row % 40}" for row in range(rows)]},
        ["test" if row % 4 == 3 else "train" for row in range(rows)],
    )
    config = read_configuration(
        f"paper/{name}", [f"tasks.{name}.path={tmp_path / name}", f"tasks.{name}.partition.minimum_size=2"]
    )
    described = describe_clients(config)
    assert sum(row["test"] for row in described) == rows // 4
    shared = config.tasks[name].q_modalities
    for client in (described[0]["client"], described[-1]["client"]):
        data = open_client_data(config, client, tmp_path)
        assert {m: values.shape[1:] for m, values in data.train.inputs.items()} == {m: shapes[m] for m in data.modalities}
        assert {m: values.shape[1:] for m, values in data.train.features.items()} == {m: shapes[m] for m in shared}
        assert data.train.groups is not None
    assert config.role(described[0]["client"]) == "donor"
    assert config.role(described[-1]["client"]) == "recipient"


def test_ucf51_has_the_paper_s_clients() -> None:
    config = read_configuration("paper/ucf51")
    models = Counter(client.model for _, client in config.clients())
    assert models == {"attention_pair": 5, "sequence_mlp": 5, "sequence_cnn": 5, "sequence_transformer": 5}
    assert config.tasks["ucf51"].partition.alpha == 0.5


def test_features_that_are_not_there() -> None:
    with pytest.raises(
        ConfigurationError, match=r"needs `path`, a folder with manifest\.json; the layout is in docs/feature_files\.md"
    ):
        describe_clients(read_configuration("paper/meld"))
    with pytest.raises(DataError, match=r"/nowhere/manifest\.json: cannot be read .*convert-fedmultimodal SOURCE TARGET"):
        describe_clients(read_configuration("paper/meld", ["tasks.meld.path=/nowhere"]))


def test_another_width_than_the_protocol_s(tmp_path: Path) -> None:
    rows = 200
    write_features(
        tmp_path,
        "meld",
        ["neutral", "sadness", "joy", "anger"],
        {"transcript": np.zeros((rows, 512)), "audio": np.zeros((rows, 1611))},
        np.arange(rows) % 4,
        {"group": [f"dialogue{row % 20}" for row in range(rows)]},
    )
    config = read_configuration("paper/meld", [f"tasks.meld.path={tmp_path}", "tasks.meld.partition.minimum_size=1"])
    with pytest.raises(ConfigurationError, match="interface 'precomputed' has width 300, but the data are 512 wide"):
        open_client_data(config, "donor-1", tmp_path / "cache")
