import numpy as np
import pytest

from fedsocket_flwr.datasets import table
from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.inputs import words
from fedsocket_flwr.errors import ConfigurationError, DataError

# The layout of AG News: class from 1, title, description, and what broke readers of it.
NEWS = (
    '"3","None","Wall St. bears, Wall Street\'s dwindling\\band of cynics"\r\n'
    '"1","NA","He said ""no"" to it#39;s end\\next"\r\n'
    '"2","nan","n/a"\r\n'
    '"4","",""\r\n'
    '"1","null","line one\nline two"\r\n'
)
OPTIONS = {"header": False, "label": "1", "text": ["2", "3"], "class_names": ["World", "Sports", "Business", "Sci/Tech"]}


def test_every_record_stays_text(tmp_path, caplog):
    file = tmp_path / "news.csv"
    file.write_bytes(NEWS.encode())
    corpus = checked(table.read(str(file), OPTIONS))
    assert corpus.labels.tolist() == [2, 0, 1, 3, 0]
    assert corpus.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert words(corpus.raw["text"][0])[-5:] == ["street's", "dwindling", "band", "of", "cynics"]
    assert corpus.raw["text"][1].startswith('NA He said "no" to')
    assert corpus.raw["text"][2] == "nan n/a"
    assert corpus.raw["text"][4] == "null line one\nline two"
    assert caplog.text.count("1 records have an empty text, the first is record 4") == 1


def test_header_columns_parts_and_odd_class_names(tmp_path):
    file = tmp_path / "own.csv"
    file.write_bytes("\ufefftext,label,who,fold\na b,null,x,train\nc,true,y,test\n\nd,1e5,x,dev\n".encode())
    corpus = checked(table.read(str(file), {"columns": ["who"], "part": "fold"}))
    assert corpus.classes == ("1e5", "null", "true")
    assert corpus.columns == {"who": ["x", "y", "x"]}
    assert corpus.part == ["train", "test", "dev"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"text,label\na,1\nb\n", {}, "record 2: 1 fields, expected 2"),
        (b"text,label\na,1\n", {"label": "class"}, "0 columns called 'class', expected one of text, label"),
        (b"text,text,label\na,b,1\n", {}, "2 columns called 'text'"),
        (b"text,label\n\xe9,1\n", {}, "is not UTF-8: byte 0xe9 at 11"),
        (b'text,label\n"a,1\n', {}, "is not a CSV file"),
        (b"\n\n", {}, "has no records"),
        (b"", {}, "is empty"),
        (b"text,label\na,-1\nb,0\n", {}, r"own.csv: row 0 has the label -1"),
    ],
)
def test_broken_tables(content, options, message, tmp_path):
    file = tmp_path / "own.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        table.read(str(file), options)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "own.xlsx").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=r"reads .csv and .npz files, found own.xlsx"):
        table.read(str(tmp_path / "own.xlsx"), {})


def test_arrays(tmp_path):
    file = tmp_path / "own.npz"
    np.savez(
        file,
        label=np.array([3, -1, 17]),
        image=np.zeros((3, 4, 4), np.uint8),
        audio=np.ones((3, 2, 5)),
        text=np.array(["a", "b", "c"]),
        who=np.array([1, 2, 3]),
    )
    corpus = checked(table.read(str(file), {"columns": ["who"], "unlabelled": "-1"}))
    assert corpus.labels.tolist() == [0, 1]
    assert {name: np.shape(rows) for name, rows in corpus.raw.items()} == {"image": (2, 4, 4), "audio": (2, 2, 5), "text": (2,)}
    assert corpus.raw["audio"].dtype == np.float32
    assert corpus.columns == {"who": ["1", "3"]}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"label": np.zeros(2), "image": np.zeros((3, 2, 2), np.uint8)}, "different lengths"),
        ({"label": np.zeros(2)}, "labels only"),
        ({"y": np.zeros(2), "image": np.zeros((2, 2, 2), np.uint8)}, "no array 'label'"),
        ({"label": np.zeros(2), "x": np.array([[1.0], [np.inf]])}, "row 1 of 'x' has a value that is not finite"),
        ({"label": np.zeros(2), "x": np.zeros((2, 2), np.int64)}, "'x' is int64 of shape"),
        ({"label": np.zeros(2), "x": np.array([None, {}])}, "is not an npz file of numbers and texts"),
    ],
)
def test_broken_arrays(arrays, message, tmp_path):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        table.read(str(tmp_path / "own.npz"), {})


def test_a_truncated_npz(tmp_path):
    np.savez(tmp_path / "own.npz", label=np.zeros(2), x=np.zeros((2, 2)))
    content = (tmp_path / "own.npz").read_bytes()
    (tmp_path / "own.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="is not an npz file"):
        table.read(str(tmp_path / "own.npz"), {})
