import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.datasets.inputs import hash_bucket, private_inputs, token_ids, words
from fedsocket_flwr.datasets.pictures import unit_images
from fedsocket_flwr.errors import DataError


def test_words_by_hand():
    assert words("The cat's  2nd, life_time") == ["the", "cat's", "2nd", "life", "time"]
    assert words("dwindling\\band of cynics end\\nnext") == ["dwindling", "band", "of", "cynics", "end", "nnext"]
    assert words("Wall St. it#39;s it&#39;s") == ["wall", "st", "it's", "it's"]
    assert words("ÉTÉ 東京 ... \x85") == ["été", "東京"]
    assert words("") == []


def test_token_ids_by_hand():
    ids = token_ids(["one two one", "", "..."], 4, 100)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[ids[0, 0], ids[0, 1], ids[0, 0], 0], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert ids[0, 0] == 2 + hash_bucket("one", 98)
    assert token_ids(["one two one"], 2, 100).tolist() == [ids[0, :2].tolist()]


def test_hashing_does_not_change_between_versions():
    # The ids are part of what a trained private model means: these two were computed once and must stay.
    assert [hash_bucket(word, 8190) for word in ("football", "été")] == [531, 7090]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=4), st.integers(1, 6), st.integers(16, 64))
def test_no_text_is_all_padding_and_ids_are_in_range(texts, length, buckets):
    ids = token_ids(texts, length, buckets)
    assert ids.shape == (len(texts), length)
    assert (ids[:, 0] > 0).all()
    assert ids.min() >= 0
    assert ids.max() < buckets


def test_images_by_hand():
    grey = unit_images(np.array([[[0, 51], [102, 255]]], dtype=np.uint8))
    np.testing.assert_array_equal(grey, np.array([[[[0, 0.2], [0.4, 1]]]], dtype=np.float32))
    colour = unit_images(np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3))
    assert colour.shape == (2, 3, 4, 5)
    assert colour[0, 1, 0, 0] == np.float32(1) / np.float32(255)


def test_private_inputs_depend_on_the_rows(make_task):
    task = make_task(text_length=3, text_buckets=16)
    assert private_inputs("image", np.zeros((2, 4, 4), np.uint8), task).shape == (2, 1, 4, 4)
    assert private_inputs("text", ["a b c d"], task).shape == (1, 3)
    vectors = np.ones((2, 8, 5), np.float32)
    assert private_inputs("audio", vectors, task) is vectors
    with pytest.raises(DataError, match="'audio': vectors must be float32"):
        private_inputs("audio", vectors.astype(np.float64), task)
    with pytest.raises(DataError, match="pictures must be uint8"):
        private_inputs("image", np.zeros((2, 4, 4, 2), np.uint8), task)
