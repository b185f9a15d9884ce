import numpy as np
import pytest
import torch

from fedsocket_flwr.config import InterfaceSettings
from fedsocket_flwr.datasets.features import raw_checksum
from fedsocket_flwr.datasets.image_interfaces import OrientedGradients, Pixels, planes, resized
from fedsocket_flwr.datasets.interfaces import build_interface, projection, to_norm
from fedsocket_flwr.datasets.text_interfaces import STOP_WORDS, HashedWords
from fedsocket_flwr.errors import ConfigurationError


def interface(kind="pixels", **settings):
    return build_interface(InterfaceSettings(kind=kind, **settings))


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)


# -------------------------------------------------------------------------------------------------- projection and scaling
def test_projection_is_orthogonal_both_ways():
    wide, narrow = projection("pixels", 7, 20, 6), projection("pixels", 7, 4, 6)
    np.testing.assert_allclose(wide @ wide.T, np.eye(6), atol=1e-6)
    np.testing.assert_allclose(narrow.T @ narrow, np.eye(4), atol=1e-6)


def test_projection_depends_on_seed_and_kind_and_leaves_torch_alone():
    torch.manual_seed(3)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    assert not np.array_equal(projection("pixels", 8, 20, 6), projection("pixels", 7, 20, 6))
    assert not np.array_equal(projection("hog", 7, 20, 6), projection("pixels", 7, 20, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_norm_by_hand_and_zero_stays_zero():
    scaled = to_norm(np.array([[3.0, 4.0], [0.0, 0.0]]), 10.0)
    np.testing.assert_allclose(scaled, [[6, 8], [0, 0]])
    tokens = to_norm(np.array([[[3.0, 4.0], [0.0, 0.0]]]), 10.0)
    np.testing.assert_allclose(tokens, [[[6, 8], [0, 0]]])


def test_features_have_width_norm_and_type(pictures):
    pictures[2] = 0
    found = interface(width=16, norm=4.0)(pictures)
    assert found.dtype == np.float32
    assert found.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [4, 4, 0, 4, 4], rtol=1e-6)
    free = interface(width=16, norm=None)(pictures)
    np.testing.assert_allclose(free, pictures.reshape(5, -1) / 255 @ projection("pixels", 7, 784, 16).T, rtol=1e-4, atol=1e-5)


def test_features_do_not_depend_on_the_batch(pictures):
    whole = interface(width=16)
    np.testing.assert_array_equal(whole(pictures), np.concatenate([whole(pictures[:2]), whole(pictures[2:])]))


def test_digest_names_all_that_matters():
    digests = {
        interface(width=16).digest,
        interface(width=17).digest,
        interface(width=16, seed=8).digest,
        interface(width=16, norm=None).digest,
        interface(width=16, options={"size": 8}).digest,
        interface(width=16, kind="hog").digest,
    }
    assert len(digests) == 6
    assert interface(width=16).digest in digests


def test_precomputed_is_the_identity():
    same = interface("precomputed", width=3)
    tokens = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(same(tokens), tokens)
    with pytest.raises(ConfigurationError, match="width 3, but the data are 4 wide"):
        same(np.zeros((2, 4), np.float32))
    with pytest.raises(ConfigurationError, match="takes vectors, found a list of 1 texts"):
        same(["text"])


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("pixel", {}, "unknown kind of interface 'pixel'; the nearest is 'pixels'"),
        ("pixels", {"sise": 8}, "unknown option of interface 'pixels' 'sise'; the nearest is 'size'"),
        ("pixels", {"size": "8"}, "must be of type int"),
        ("pixels", {"size": 0}, "must be at least 1"),
        ("pixels", {"channels": 2}, "must be 1 or 3"),
        ("hog", {"size": 28, "cell": 5}, "multiple of cell"),
        ("hashed_words", {"bucket": 4}, "the nearest is 'buckets'"),
        ("precomputed", {"size": 4}, "takes no options"),
        ("glove", {}, "needs either `file`"),
        ("backbone", {"library": "torchvison"}, "the nearest is 'torchvision'"),
    ],
)
def test_wrong_settings_are_refused(kind, options, message):
    with pytest.raises(ConfigurationError, match=message):
        interface(kind, options=options)


def test_the_wrong_modality_is_refused(pictures):
    with pytest.raises(ConfigurationError, match="'pixels' takes pictures"):
        interface()(["text"])
    with pytest.raises(ConfigurationError, match="'hashed_words' takes texts, found uint8 of shape"):
        interface("hashed_words")(pictures)


# --------------------------------------------------------------------------------------------------------------- pictures
def test_pixels_by_hand():
    grey = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    np.testing.assert_allclose(Pixels({"size": 2})(grey), [[0, 1, 0.2, 0.4]], rtol=1e-6)
    assert Pixels({"size": 2, "channels": 3})(grey).shape == (1, 12)
    red = np.zeros((1, 2, 2, 3), np.uint8)
    red[..., 0] = 255
    np.testing.assert_allclose(Pixels({"size": 2})(red), np.full((1, 4), 0.299), rtol=1e-6)


def test_resizing_keeps_the_mean_of_a_flat_picture():
    np.testing.assert_allclose(resized(np.full((1, 1, 9, 5), 0.25, np.float32), 4), np.full((1, 1, 4, 4), 0.25), rtol=1e-6)
    assert planes(np.zeros((2, 9, 5), np.uint8), 3).shape == (2, 3, 9, 5)


def test_oriented_gradients_tell_directions_apart():
    upright = np.zeros((1, 28, 28), np.uint8)
    upright[:, :, 14:] = 255
    lying = upright.transpose(0, 2, 1).copy()
    hog = OrientedGradients({})
    one, other, flat = hog(upright), hog(lying), hog(np.full((1, 28, 28), 9, np.uint8))
    assert one.shape == (1, 3 * 3 * 4 * 9)
    # A vertical edge has gradients of angle 0 (bin 0); a horizontal one of angle 90 degrees (halfway between bins 4 and 5).
    assert set(np.flatnonzero(one.reshape(-1, 9).sum(axis=0))) == {0}
    assert set(np.flatnonzero(other.reshape(-1, 9).sum(axis=0))) == {4, 5}
    np.testing.assert_array_equal(flat, 0)
    np.testing.assert_allclose(hog(upright // 3), one, rtol=1e-3)


# ------------------------------------------------------------------------------------------------------------------ texts
def test_hashed_words_by_hand():
    found = HashedWords({"buckets": 64})(["cat dog cat", "dog CAT the", "", "of the"])
    assert found.shape == (4, 64)
    np.testing.assert_array_equal(found[0], found[1])
    assert found[0].sum() == 2
    assert found[2].sum() == 0
    # Nothing but stop words: they stay, so that the text is not zero.
    assert found[3].sum() == 2
    assert HashedWords({"buckets": 64, "stop_words": False})(["dog the"]).sum() == 2


def test_pairs_of_words_keep_the_order():
    first, second = HashedWords({"buckets": 4096, "ngrams": 2})(["cat over dog", "dog over cat"])
    assert first.sum() == second.sum() == 5
    assert not np.array_equal(first, second)


def test_words_that_tell_captions_apart_are_no_stop_words():
    assert not STOP_WORDS & {"above", "below", "two", "not", "small", "a", "i", "left", "no"}


def test_a_text_interface_end_to_end():
    found = interface("hashed_words", width=8, norm=2.0, options={"buckets": 32})(["cat", "", "cat"])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], 0)


def test_raw_checksum_sees_content_shape_type_and_borders():
    checksums = [
        raw_checksum(np.zeros((2, 3), np.uint8)),
        raw_checksum(np.zeros((3, 2), np.uint8)),
        raw_checksum(np.zeros((2, 3), np.float32)),
        raw_checksum(["ab", "c"]),
        raw_checksum(["a", "bc"]),
        raw_checksum(["\udcff"]),
    ]
    assert len(set(checksums)) == len(checksums)
