import numpy as np
import pytest

from fedsocket_flwr.datasets.labels import class_table
from fedsocket_flwr.errors import DataError

PATTERN = [0, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.array(PATTERN, dtype=float), ("0", "1", "2")),
        (np.array(PATTERN, dtype=np.uint8), ("0", "1", "2")),
        ([f"{label}.0" for label in PATTERN], ("0", "1", "2")),
        ([str(label) for label in PATTERN], ("0", "1", "2")),
        (np.array(PATTERN).reshape(12, 1), ("0", "1", "2")),
        (np.array([("cat", "dog", "eel")[label] for label in PATTERN]), ("cat", "dog", "eel")),
        (np.array([(3, 17, 42)[label] for label in PATTERN]), ("3", "17", "42")),
        ([("3", "17", "42")[label] for label in PATTERN], ("3", "17", "42")),
        ([("1e5", "null", "true")[label] for label in PATTERN], ("1e5", "null", "true")),
        ([("007", "07", "7")[label] for label in PATTERN], ("007", "07", "7")),
    ],
)
def test_equal_tables_from_every_form(values, classes):
    table = class_table(values)
    assert table.labels.dtype == np.int64
    assert table.labels.tolist() == PATTERN
    assert table.classes == classes


def test_one_hot_rows_are_converted_with_a_notice(caplog):
    assert class_table(np.eye(3)[PATTERN]).labels.tolist() == PATTERN
    assert "taken as one-hot rows of 3 classes" in caplog.text
    with pytest.raises(DataError, match="must be one-hot, but row 1 is"):
        class_table(np.array([[1, 0], [0.5, 0.5]]))


def test_booleans():
    assert class_table(np.array([True, False, True])).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0, 1, 1.5]), r"row 2 has the label 1.5, which is not a whole number"),
        (np.array([0, np.nan]), "row 1 has the label nan"),
        (np.array([0, 1, -1]), "row 2 has the label -1, which stands for `unlabelled`"),
        (["0", "-1.0"], "row 1 has the label -1"),
        (["a", ""], "row 1 has no label"),
        (np.zeros((2, 2, 2)), "found \\(2, 2, 2\\)"),
        (np.array([1j]), "must be numbers or texts"),
    ],
)
def test_labels_that_are_no_class(values, message):
    with pytest.raises(DataError, match=message):
        class_table(values)


def test_unlabelled_rows_by_explicit_choice():
    table = class_table(np.array([4, -1, 7, -1]), unlabelled="-1")
    assert (table.labels.tolist(), table.classes, table.kept.tolist()) == ([0, 1], ("4", "7"), [0, 2])


def test_given_names_count_from_zero_or_one():
    names = ["World", "Sports", "Business", "Sci/Tech"]
    assert class_table(["1", "4", "3"], names=names).labels.tolist() == [0, 3, 2]
    assert class_table(["0", "3"], names=names).labels.tolist() == [0, 3]
    assert class_table(["Sports", "World"], names=names).labels.tolist() == [1, 0]
    assert class_table(["4", "1"], names=names).classes == tuple(names)
    with pytest.raises(DataError, match="from 0 or from 1: neither end occurs"):
        class_table(["1", "3"], names=names)
    with pytest.raises(DataError, match="row 1 has the label '5', but there are 4 class names"):
        class_table(["1", "5", "0"], names=names)
    with pytest.raises(DataError, match="row 1 has the label 'Sport', which is none of the 4 class names"):
        class_table(["World", "Sport"], names=names)
    with pytest.raises(DataError, match="given twice"):
        class_table(["a"], names=["a", "a"])
