import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.datasets.agnews import CLASSES, read
from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.inputs import token_ids, words
from fedsocket_flwr.datasets.text_interfaces import HashedWords, MeanWordVectors
from fedsocket_flwr.errors import DataError
from tests.published_layouts import write_agnews, write_agnews_csv, write_agnews_parquet, write_glove, write_parquet

# What people reported of such files: words that look like no value, doubled quotes, breaks of lines in two spellings, entities.
ODD = [
    (1, "None", "NA"),
    (2, "nan", "null"),
    (3, "", "n/a"),
    (4, 'He said "no"', "Wall Street's dwindling\\band of cynics"),
    (1, "two\nlines", "the city #39;s end\r\nnext"),
    (2, "", ""),
    (3, "true", "1e5"),
]


def test_the_published_files(tmp_path):
    corpus = checked(read(str(write_agnews(tmp_path)), {}))
    assert corpus.classes == CLASSES
    assert corpus.part == ["train"] * 240 + ["test"] * 80
    assert np.bincount(corpus.labels).tolist() == [80] * 4
    assert corpus.raw["text"][0].startswith("world")
    assert corpus.raw["text"][0].endswith('of "ten" the city #39;s')


def test_parquet_reads_as_the_files_do(tmp_path):
    found = checked(read(str(write_agnews_parquet(tmp_path / "parquet")), {}))
    expected = read(str(write_agnews(tmp_path, 40, 20)), {})
    assert found.raw["text"] == expected.raw["text"]
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.part == expected.part


FIELD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\\0"), max_size=12)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(1, 4), FIELD, FIELD), min_size=1, max_size=6))
def test_any_text_comes_back_as_it_was_written(rows, tmp_path_factory):
    root = write_agnews(tmp_path_factory.mktemp("any"), 4, 4)
    write_agnews_csv(root / "train.csv", rows)
    corpus = read(str(root), {})
    assert corpus.raw["text"][:-4] == [f"{title} {text}".strip() for _, title, text in rows]
    assert corpus.labels[:-4].tolist() == [label - 1 for label, _, _ in rows]


def odd(tmp_path):
    root = write_agnews(tmp_path, 8, 8)
    write_agnews_csv(root / "train.csv", ODD)
    return root


def test_every_field_is_text_and_no_row_is_lost(tmp_path, caplog):
    corpus = read(str(odd(tmp_path)), {})
    texts = corpus.raw["text"][: len(ODD)]
    assert texts == [
        "None NA",
        "nan null",
        "n/a",
        'He said "no" Wall Street\'s dwindling band of cynics',
        "two\nlines the city #39;s end\r\nnext",
        "",
        "true 1e5",
    ]
    assert corpus.labels[: len(ODD)].tolist() == [label - 1 for label, _, _ in ODD]
    assert caplog.text.count("1 rows have an empty text, the first is row 5; they are kept") == 1
    assert [w for w in words(texts[3]) if w.startswith(("dwind", "band"))] == ["dwindling", "band"]
    assert words(texts[4]) == ["two", "lines", "the", "city", "s", "end", "next"]


def test_texts_without_a_known_word_have_features_and_tokens(tmp_path):
    texts = read(str(odd(tmp_path)), {}).raw["text"]
    means = MeanWordVectors({"file": str(write_glove(tmp_path / "glove.txt", 5))})(texts)
    assert np.isfinite(means).all()
    # `None NA` knows no vector, and the empty text has no word at all.
    assert not means[[0, 5]].any()
    assert means[4].any()
    hashed = HashedWords({"buckets": 64})(texts)
    assert not hashed[5].any()
    assert hashed[0].any()
    assert token_ids(texts, 4, 100)[5].tolist() == [1, 0, 0, 0]


def test_class_names_from_the_file_beside(tmp_path):
    root = write_agnews(tmp_path, 8, 8)
    (root / "classes.txt").write_text("null\ntrue\n1e5\nNA\n", encoding="utf-8")
    assert read(str(root), {}).classes == ("null", "true", "1e5", "NA")
    (root / "classes.txt").unlink()
    assert read(str(root), {}).classes == CLASSES
    (root / "classes.txt").write_text("World\nSports\nSports\nTech\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"classes.txt must have 4 different names"):
        read(str(root), {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"1","a","b"\n"2","two\nlines","b"\n"3","c"\n', r"train.csv, line 4: 2 columns, expected 3: class, title, description"),
        ('"1","a","b","c"\n', r"train.csv, line 1: 4 columns"),
        ('"0","a","b"\n', r"train.csv, line 1: the class is '0', expected 1 to 4"),
        ('"Class Index","Title","Description"\n"1","a","b"\n', r"line 1: the class is 'Class Index'"),
        ('"1","a","b\n', r"train.csv is not a CSV file"),
        ('"1","caf\udce9","b"\n', r"train.csv is not UTF-8: byte 0xe9 at 8"),
        ("", r"train.csv is empty"),
        (None, r"cannot read .*train.csv"),
        ("<!DOCTYPE html>", r"is an HTML page"),
    ],
)
def test_broken_files(content, message, tmp_path):
    root = write_agnews(tmp_path, 8, 8)
    (root / "train.csv").unlink()
    if content is not None:
        (root / "train.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message):
        read(str(root), {})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [4]}, "row 0: label 4 and a text of type str, expected 0 to 3"),
        ({"text": [None, "b"], "label": [0, 1]}, "row 0: label 0 and a text of type NoneType"),
        ({"text": ["a"], "label": ["0"]}, "label '0'"),
        ({"content": ["a"], "label": [0]}, "has no column 'text'"),
    ],
)
def test_broken_parquet(columns, message, tmp_path):
    root = write_agnews_parquet(tmp_path)
    write_parquet(root / "data" / "train-00000-of-00001.parquet", columns)
    with pytest.raises(DataError, match=message):
        read(str(root), {})


def test_shards_are_read_in_their_order(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    root = write_agnews_parquet(tmp_path, 4, 4)
    (root / "data" / "train-00000-of-00001.parquet").unlink()
    for shard, word in ((1, "later"), (0, "first")):
        write_parquet(root / "data" / f"train-0000{shard}-of-00002.parquet", {"text": [word], "label": [shard]})
    assert read(str(root), {}).raw["text"][:2] == ["first", "later"]
