import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.cifar100 import CLASSES, read
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.published_layouts import (
    cifar100_rows,
    encoded,
    python2_pickle,
    write_cifar100,
    write_cifar100_parquet,
    write_parquet,
)


def test_the_class_names_are_a_hundred_in_order():
    assert len(set(CLASSES)) == 100
    assert list(CLASSES) == sorted(CLASSES)


@pytest.mark.parametrize("above", [False, True])
def test_the_published_folder(above, tmp_path):
    root = write_cifar100(tmp_path)
    corpus = checked(read(str(tmp_path if above else root), {}))
    images, labels = cifar100_rows(600, 600)
    assert corpus.raw["image"].shape == (800, 32, 32, 3)
    np.testing.assert_array_equal(corpus.raw["image"][:600], images)
    np.testing.assert_array_equal(corpus.labels[:600], labels)
    assert corpus.part == ["train"] * 600 + ["test"] * 200
    assert corpus.classes == CLASSES


def test_what_python_3_pickled_reads_alike(tmp_path):
    import pickle

    root = write_cifar100(tmp_path, 100, 100)
    expected = read(str(root), {})
    for split in ("train", "test"):
        content = pickle.loads((root / split).read_bytes(), encoding="bytes")
        (root / split).write_bytes(pickle.dumps({key.decode(): value for key, value in content.items()}))
    found = read(str(root), {})
    np.testing.assert_array_equal(found.raw["image"], expected.raw["image"])
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_parquet_gives_the_same_rows(tmp_path):
    corpus = checked(read(str(write_cifar100_parquet(tmp_path)), {}))
    np.testing.assert_array_equal(corpus.raw["image"][:200], cifar100_rows(200, 200)[0])
    assert corpus.labels[-1] == 99
    assert corpus.part.count("test") == 100


def good(rows=4):
    return {"data": np.zeros((rows, 3072), dtype=np.uint8), "fine_labels": list(range(rows))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((4, 3071), dtype=np.uint8)}, r"train: data are uint8 of shape \(4, 3071\) for 4 labels, expected"),
        ({"data": np.zeros((3, 3072), dtype=np.uint8)}, r"shape \(3, 3072\) for 4 labels"),
        ({"data": np.zeros((4, 3072))}, r"data are float64 of shape"),
        ({"data": b"abc"}, "data are bytes for 4 labels"),
        ({"fine_labels": [0, 1, 100, 3]}, "train: row 2 has the fine label 100, expected 0 to 99"),
        ({"fine_labels": [0, -1, 2, 3]}, "row 1 has the fine label -1"),
        ({"fine_labels": [0, 1, b"2", 3]}, "row 2 has the fine label b'2'"),
        ({"fine_labels": []}, "without rows"),
        ({"data": None}, "has no 'data' \\(it has fine_labels\\)"),
        ({"fine_labels": None}, "has no 'fine_labels' \\(it has data\\)"),
    ],
)  # fmt: skip
def test_a_file_of_another_layout(change, message, tmp_path):
    root = write_cifar100(tmp_path, 100, 100)
    content = {key: value for key, value in (good() | change).items() if value is not None}
    (root / "train").write_bytes(python2_pickle(content))
    with pytest.raises(DataError, match=message):
        read(str(root), {})


def test_a_file_that_is_cut_runs_code_or_is_missing(tmp_path):
    root = write_cifar100(tmp_path, 100, 100)
    whole = (root / "test").read_bytes()
    (root / "test").write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"test .* was not read as a pickle of data"):
        read(str(root), {})
    (root / "test").write_bytes(b"cos\nsystem\n(S'echo no'\ntR.")
    with pytest.raises(DataError, match=r"it names os.system, which data do not need"):
        read(str(root), {})
    (root / "test").write_bytes(python2_pickle([1, 2]))
    with pytest.raises(DataError, match="holds a list, expected a dictionary"):
        read(str(root), {})
    (root / "test").unlink()
    with pytest.raises(DataError, match=r"cannot read .*test: No such file"):
        read(str(root), {})


def test_a_path_that_is_none_of_it(tmp_path):
    with pytest.raises(ConfigurationError, match="needs `path`"):
        read(None, {})
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(b"x")
    with pytest.raises(DataError, match="is a file; unpack it"):
        read(str(archive), {})
    with pytest.raises(DataError, match="is not a folder"):
        read(str(tmp_path / "absent"), {})


def test_broken_parquet(tmp_path):
    root = write_cifar100_parquet(tmp_path, 100, 100)
    (test,) = root.rglob("test-*.parquet")
    write_parquet(test, {"img": [{"bytes": b"no", "path": None}], "fine_label": [3]})
    with pytest.raises(DataError, match=r"test-\*.parquet, row 0: not a picture that can be read"):
        read(str(root), {})
    write_parquet(test, {"img": [{"bytes": encoded(np.zeros((8, 9, 3), np.uint8)), "path": None}], "fine_label": [3]})
    with pytest.raises(DataError, match="the picture is 9 x 8, expected 32 x 32"):
        read(str(root), {})
    write_parquet(test, {"img": [{"bytes": encoded(np.zeros((32, 32, 3), np.uint8)), "path": None}], "label": [3]})
    with pytest.raises(DataError, match=r"has no column 'fine_label' \(it has img, label\)"):
        read(str(root), {})
    test.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="is not a parquet file that can be read"):
        read(str(root), {})
    test.unlink()
    with pytest.raises(DataError, match="has no test-"):
        read(str(root), {})


def test_a_grey_picture_in_parquet_becomes_rgb(tmp_path):
    root = write_cifar100_parquet(tmp_path, 100, 100)
    (test,) = root.rglob("test-*.parquet")
    grey = np.asarray(Image.new("L", (32, 32), 77))
    write_parquet(test, {"img": [{"bytes": encoded(grey), "path": "a.png"}], "fine_label": [3]})
    assert np.unique(read(str(root), {}).raw["image"][-1]).tolist() == [77]
