import numpy as np
import pytest

from fedsocket_flwr.datasets import client_data, interfaces
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import (
    describe_clients,
    open_client_data,
    task_classes,
    warm_features,
)
from fedsocket_flwr.datasets.interfaces import build_interface
from fedsocket_flwr.datasets.partitions import task_splits
from fedsocket_flwr.datasets.pictures import unit_images
from fedsocket_flwr.errors import ConfigurationError
from tests.datasets.conftest import shipped


@pytest.fixture(autouse=True)
def _empty_caches():
    client_data._FEATURES.clear()
    client_data._SPLITS.clear()


def test_classification_rows_are_aligned(toy, tmp_path):
    data = open_client_data(toy, "shapes-cnn", tmp_path)
    rows = list(task_splits(toy, "shapes")["shapes-cnn"].train)
    corpus = read_corpus(toy.tasks["shapes"])
    assert (data.client, data.task, data.kind, data.modalities) == ("shapes-cnn", "shapes", "classification", ("image",))
    assert data.classes == ("class0", "class1", "class2")
    np.testing.assert_array_equal(data.train.inputs["image"], unit_images(corpus.raw["image"][rows]))
    np.testing.assert_array_equal(data.train.labels, corpus.labels[rows])
    expected = build_interface(toy.interfaces["image"])(corpus.raw["image"][rows])
    np.testing.assert_array_equal(data.train.features["image"], expected)
    assert data.train.features["image"].shape == (data.train.examples, 16)
    assert sum(data.class_counts()) == data.train.examples


def test_retrieval_pairs_point_into_the_split(toy, tmp_path):
    data = open_client_data(toy, "pairs-a", tmp_path)
    corpus = read_corpus(toy.tasks["pairs"])
    split = data.train
    assert data.class_counts() == ()
    assert (split.examples, len(split.inputs["image"]), len(split.inputs["text"])) == (30, 15, 30)
    for (image, text), row in zip(split.pairs, task_splits(toy, "pairs")["pairs-a"].train, strict=True):
        whole_image, whole_text = corpus.pairs[row]
        np.testing.assert_array_equal(split.inputs["image"][image, 0] * 255, corpus.raw["image"][whole_image])
        expected = build_interface(toy.interfaces["text"])([corpus.raw["text"][whole_text]])[0]
        np.testing.assert_array_equal(split.features["text"][text], expected)


def test_all_clients_of_a_process_share_the_work(toy, tmp_path, monkeypatch):
    calls = []
    real = client_data.features
    monkeypatch.setattr(client_data, "features", lambda *args: calls.append(args[2]) or real(*args))
    first = [open_client_data(toy, client.name, tmp_path) for _, client in toy.clients()]
    assert sorted(calls) == ["image", "image", "text", "text"]
    assert first[0].test is first[1].test
    again = open_client_data(toy, first[0].client, tmp_path)
    assert again.train is first[0].train
    assert len(calls) == 4


def test_warming_computes_what_clients_read(toy, tmp_path):
    told = []
    warm_features(toy, tmp_path, lambda what, done, total: told.append((what, done == total)))
    assert sorted(told) == [
        ("toy_images.image", True),
        ("toy_pairs.image", True),
        ("toy_pairs.text", True),
        ("toy_texts.text", True),
    ]
    before = sorted(tmp_path.glob("*.npy"))
    client_data._FEATURES.clear()
    open_client_data(toy, "pairs-b", tmp_path)
    assert sorted(tmp_path.glob("*.npy")) == before


def test_a_second_run_computes_nothing(toy, tmp_path, monkeypatch):
    """Another process, that is: it holds nothing in memory, and every client's features come from the cache."""
    warm_features(toy, tmp_path)
    first = {client.name: open_client_data(toy, client.name, tmp_path) for _, client in toy.clients()}

    def refuse(*arguments):
        raise AssertionError("features are computed again")

    client_data._FEATURES.clear()
    client_data._SPLITS.clear()
    monkeypatch.setattr(interfaces.Projected, "__call__", refuse)
    warm_features(toy, tmp_path)
    for name, expected in first.items():
        found = open_client_data(toy, name, tmp_path)
        for modality, values in expected.train.features.items():
            np.testing.assert_array_equal(found.train.features[modality], values)
    other = toy.model_copy(update={"interfaces": {m: s.model_copy(update={"seed": 8}) for m, s in toy.interfaces.items()}})
    with pytest.raises(AssertionError, match="computed again"):
        warm_features(other, tmp_path)


def test_q_reads_float32_from_half_precision(toy, tmp_path):
    halves = {m: s.model_copy(update={"storage": "float16"}) for m, s in toy.interfaces.items()}
    half = toy.model_copy(update={"interfaces": halves})
    for _, client in toy.clients():
        expected = open_client_data(toy, client.name, tmp_path).train.features
        found = open_client_data(half, client.name, tmp_path).train.features
        for modality, values in expected.items():
            assert found[modality].dtype == np.float32
            np.testing.assert_array_equal(found[modality], values.astype(np.float16).astype(np.float32))
    assert {np.load(file, mmap_mode="r").dtype.name for file in tmp_path.glob("*.npy")} == {"float32", "float16"}


def test_tokens_through_the_identity(tmp_path):
    task = {
        "dataset": "toy_vectors",
        "kind": "classification",
        "modalities": ["video", "audio"],
        "options": {"rows": 60},
        "partition": {"kind": "natural", "column": "group", "minimum_size": 0, "dev": 10, "test": 20},
        "clients": [{"name": f"c{k}", "model": "m", "natural_id": f"group{k}"} for k in range(12)],
    }
    same = {"kind": "precomputed", "width": 8}
    training = {"private": {"audio+video": {"optimiser": "adam", "learning_rate": 0.1}}}
    config = shipped("toy", tasks={"clips": task}, interfaces={"video": same, "audio": same}, training=training)
    data = open_client_data(config, "c3", tmp_path)
    assert data.train.features["audio"].shape == (data.train.examples, 4, 8)
    np.testing.assert_array_equal(data.train.features["audio"], data.train.inputs["audio"])


def test_empty_splits_have_shapes(toy, tmp_path):
    task = toy.tasks["words"].model_copy(
        update={"partition": toy.tasks["words"].partition.model_copy(update={"dev": 0, "test": 0})}
    )
    config = toy.model_copy(update={"tasks": toy.tasks | {"words": task}})
    data = open_client_data(config, "words-bag", tmp_path)
    assert data.dev.examples == data.test.examples == 0
    assert data.dev.inputs["text"].shape == (0, 12)
    assert data.dev.features["text"].shape == (0, 16)


def test_descriptions(toy):
    rows = describe_clients(toy)
    assert [row["client"] for row in rows] == [client.name for _, client in toy.clients()]
    assert rows[0]["train"] == sum(rows[0]["class_counts"].values())
    assert rows[0]["dev"] == rows[0]["test"] == 30
    assert rows[-1]["class_counts"] == {}
    assert task_classes(toy, "words") == ("class0", "class1", "class2", "class3")


def test_an_unknown_client(toy, tmp_path):
    with pytest.raises(ConfigurationError, match="no client is called 'nobody'"):
        open_client_data(toy, "nobody", tmp_path)


def test_the_demo(demo, tmp_path):
    rows = describe_clients(demo)
    sizes = {row["client"]: row["train"] for row in rows}
    assert sizes["glyphs-sans"] == sizes["glyphs-bold"] == sizes["glyphs-serif"] == 1875
    assert 1300 < sizes["glyphs-mono"] < 1500
    assert sum(sizes[name] for name in ("digits-cnn", "digits-mlp", "digits-resnet")) == 1500
    assert sum(sizes[name] for name in ("news-bag", "news-bigru", "news-deep-bag")) == 900
    assert [row["test"] for row in rows] == [1000] * 3 + [600] * 3 + [1000] * 4
    data = open_client_data(demo, "glyphs-mono", tmp_path)
    assert data.test.features["image"].shape == data.test.features["text"].shape == (1000, 256)
    np.testing.assert_allclose(np.linalg.norm(data.test.features["text"], axis=1), 16, rtol=1e-5)
