import logging
import unicodedata

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.features import raw_checksum
from fedsocket_flwr.datasets.image_folder import read_captions, read_classes
from fedsocket_flwr.errors import DataError

CAFE = "caf\u00e9.png"


def picture(file, shade, mode="RGB"):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (6, 4), shade if mode == "L" else (shade, 0, 0)).save(file, format="PNG")


def class_folder(root, backwards):
    files = [(f"{name}/{k}.png", shade + k) for name, shade in (("ant", 10), ("bee", 100)) for k in range(3)]
    files += [("ant/a.JPG", 50), ("caf\u0065\u0301/x.png", 200)]
    for name, shade in reversed(files) if backwards else files:
        picture(root / name, shade)
    (root / "empty").mkdir()
    (root / ".DS_Store").write_bytes(b"x")
    (root / "ant" / "._a.png").write_bytes(b"x")
    (root / "bee" / "Thumbs.db").write_bytes(b"x")
    return root


def test_order_of_creation_and_stray_files_do_not_matter(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    first = checked(read_classes(str(class_folder(tmp_path / "1", False)), {"size": 5}))
    text = caplog.text
    second = read_classes(str(class_folder(tmp_path / "2", True)), {"size": 5})
    assert first.classes == second.classes == ("ant", "bee", "caf\u00e9")
    assert first.labels.tolist() == second.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert raw_checksum(first.raw["image"]) == raw_checksum(second.raw["image"])
    assert first.raw["image"].shape == (8, 5, 5, 3)
    assert text.count("3 files that are no pictures are passed over") == 1
    assert "the folder empty has no pictures and is no class" in text


def test_grey_pictures(tmp_path):
    picture(tmp_path / "a" / "1.png", 7, "L")
    picture(tmp_path / "b" / "1.png", 9, "L")
    images = read_classes(str(tmp_path), {"size": 3, "colour": False}).raw["image"]
    np.testing.assert_array_equal(images, np.stack([np.full((3, 3), 7), np.full((3, 3), 9)]))


def test_broken_folders(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_classes(str(tmp_path / "absent"), {})
    picture(tmp_path / "a" / "1.png", 7)
    with pytest.raises(DataError, match="at least two folders with pictures, one a class; found 1"):
        read_classes(str(tmp_path), {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").write_bytes((tmp_path / "a" / "1.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"1.png is not a picture that can be read"):
        read_classes(str(tmp_path), {})


def test_captions_match_names_in_every_form(tmp_path, caplog):
    picture(tmp_path / unicodedata.normalize("NFD", CAFE), 1)
    picture(tmp_path / "b.JPG", 2)
    picture(tmp_path / "bare.png", 3)
    (tmp_path / "captions.csv").write_text(
        f"file,caption\n{CAFE},a place\nb.JPG,NA\n{CAFE},another\ngone.png,what\ngone2.png,what\n", encoding="utf-8"
    )
    corpus = checked(read_captions(str(tmp_path), {"size": 4}))
    assert corpus.raw["text"] == ["NA", "a place", "another"]
    assert corpus.pairs.tolist() == [[0, 0], [1, 1], [1, 2]]
    assert corpus.item.tolist() == [0, 1, 1]
    assert corpus.raw["image"].shape == (2, 4, 4, 3)
    assert "2 captions are of pictures that are not there, the first is gone.png" in caplog.text
    assert "1 pictures have no caption and are left out, the first is bare.png" in caplog.text


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (None, "cannot read .*captions.csv"),
        ("name,caption\nb.png,x\n", "must have the columns file and caption"),
        ("file,caption\nb.png\n", "record 1: 1 fields, expected 2"),
        ("file,caption\nc.png,x\n", "no caption has its picture"),
    ],
)
def test_broken_captions(captions, message, tmp_path):
    picture(tmp_path / "b.png", 2)
    if captions is not None:
        (tmp_path / "captions.csv").write_text(captions, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_captions(str(tmp_path), {})
