import json
import unicodedata

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.flickr30k import read
from fedsocket_flwr.datasets.pictures import Pictures
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.published_layouts import flickr30k_captions, write_flickr30k


def change(root, alter):
    """Rewrite the split file's entries."""
    file = root / "dataset_flickr30k.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    alter(content["images"])
    file.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("original", [False, True])
def test_both_layouts_give_the_same(original, tmp_path):
    corpus = checked(read(str(write_flickr30k(tmp_path, original=original)), {"size": 16}))
    captions = flickr30k_captions(80)
    assert isinstance(corpus.raw["image"], Pictures)
    assert corpus.raw["image"].shape == (80, 16, 16, 3)
    assert [file.name for file in corpus.raw["image"].files] == sorted(captions)
    assert corpus.raw["text"] == [caption for name in sorted(captions) for caption in captions[name]]
    assert corpus.pairs.tolist() == [[k // 5, k] for k in range(400)]
    assert corpus.item.tolist() == [k // 5 for k in range(400)]
    assert [corpus.part.count(split) for split in ("train", "dev", "test")] == [240, 60, 100]


def test_nothing_is_decoded_at_reading(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    name = sorted(flickr30k_captions(8))[3]
    (root / "flickr30k-images" / name).write_bytes(b"\xff\xd8\xff\xe0 cut")
    images = read(str(root), {"size": 8}).raw["image"]
    assert images[:3].shape == (3, 8, 8, 3)
    with pytest.raises(DataError, match=rf"{name} is not a picture that can be read"):
        images[:]


def test_pictures_of_every_mode_become_rgb(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    names = sorted(flickr30k_captions(8))
    for name, mode in zip(names, ("L", "P", "CMYK"), strict=False):
        image = Image.new("RGB", (30, 20), (60, 60, 60)).convert(mode)
        image.save(root / "flickr30k-images" / name, "PNG" if mode == "P" else "JPEG")
    found = read(str(root), {"size": 4}).raw["image"][:3]
    assert found.shape == (3, 4, 4, 3)
    np.testing.assert_allclose(found, 60, atol=12)


def test_what_lacks_the_other_is_left_out_counted_and_named(tmp_path, caplog):
    root = write_flickr30k(tmp_path, 6, 2, 2)
    names = sorted(flickr30k_captions(10))
    (root / "flickr30k-images" / names[1]).unlink()
    Image.new("RGB", (4, 4)).save(root / "flickr30k-images" / "unsaid.jpg")

    def alter(entries):
        entries[2]["sentences"] = []
        entries[4]["sentences"] = entries[4]["sentences"][:4]
        entries[5]["sentences"][2]["raw"] = "  "

    change(root, alter)
    corpus = checked(read(str(root), {"size": 4}))
    shown = [file.name for file in corpus.raw["image"].files]
    assert shown == [name for k, name in enumerate(names) if k not in (1, 2)]
    assert len(corpus.raw["text"]) == 5 * 8 - 1
    assert f"5 captions are of pictures that are not there, the first is {names[1]}" in caplog.text
    assert f"2 pictures have no caption and are left out, the first is {names[2]}" in caplog.text
    assert f"1 pictures have not 5 captions, the first is {names[4]}" in caplog.text
    assert f"1 captions are empty, the first is of {names[5]}; they are kept" in caplog.text


def test_names_match_in_every_unicode_form(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    first = sorted(flickr30k_captions(8))[0]
    (root / "flickr30k-images" / first).rename(root / "flickr30k-images" / unicodedata.normalize("NFD", "zoé.jpg"))
    change(root, lambda entries: entries[0].update(filename=unicodedata.normalize("NFC", "zoé.jpg")))
    assert len(read(str(root), {}).raw["image"]) == 8


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda e: e[1].pop("filename"), r"images\[1\] lacks filename, split or sentences\[\].raw \('filename'\)"),
        (lambda e: e[1]["sentences"][0].pop("raw"), r"images\[1\] lacks .* \('raw'\)"),
        (lambda e: e[1].update(split="validation"), r"images\[1\] \(1000092796.jpg\) has the split 'validation'"),
        (lambda e: e[1].update(filename=e[0]["filename"]), r"images\[1\] names 1000092795.jpg for the second time"),
        (lambda e: e[1]["sentences"][0].update(raw=3), r"images\[1\] .* has a caption that is no text"),
        (lambda e: [one.update(filename=f"x{k}.jpg") for k, one in enumerate(e)], "no caption has its picture in"),
    ],
)
def test_a_split_file_of_another_layout(alter, message, tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    change(root, alter)
    with pytest.raises(DataError, match=message):
        read(str(root), {})


def test_files_that_are_not_there_or_something_else(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2)
    (root / "dataset_flickr30k.json").write_text("[1, 2", encoding="utf-8")
    with pytest.raises(DataError, match=r"dataset_flickr30k.json is not a split file with `images`"):
        read(str(root), {})
    (root / "dataset_flickr30k.json").unlink()
    with pytest.raises(DataError, match=r"has no dataset_flickr30k.json and no results_20130124.token"):
        read(str(root), {})
    with pytest.raises(DataError, match=r"has no mine.json"):
        read(str(root), {"captions": "mine.json"})
    with pytest.raises(DataError, match="elsewhere is not a folder; expected the pictures there"):
        read(str(root), {"images": "elsewhere"})
    with pytest.raises(ConfigurationError, match="needs `path`, a folder with flickr30k-images and"):
        read(None, {})
    with pytest.raises(ConfigurationError, match="unknown option of data set 'flickr30k' 'sise'"):
        read(str(root), {"sise": 3})


def test_without_lists_the_original_layout_has_no_split(tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2, original=True)
    for split in ("train", "val", "test"):
        (root / f"{split}.txt").unlink()
    assert read(str(root), {}).part is None


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results_20130124.token", "1000092795.jpg#0\tA dog .\n1000092796.jpg A dog .\n", "line 2: expected NAME.jpg#NUMBER"),
        ("results_20130124.token", "1000092795.jpg\tA dog .\n", "line 1: expected"),
        ("results_20130124.token", b"1000092795.jpg#0\tcaf\xe9\n", "is not UTF-8: byte 0xe9 at 20"),
        ("val.txt", None, r"cannot read .*val.txt"),
        ("val.txt", "1000092799\n1000092795.jpg\n", r"val.txt, line 2: 1000092795.jpg is listed for train already"),
    ],
)  # fmt: skip
def test_the_original_layout_with_mistakes(file, content, message, tmp_path):
    root = write_flickr30k(tmp_path, 4, 2, 2, original=True)
    if content is None:
        (root / file).unlink()
    else:
        (root / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        read(str(root), {})


def test_pictures_in_no_list_are_left_out(tmp_path, caplog):
    root = write_flickr30k(tmp_path, 4, 2, 2, original=True)
    (root / "test.txt").write_text("1000092801\n", encoding="utf-8")
    corpus = checked(read(str(root), {}))
    assert len(corpus.raw["image"]) == 7
    assert "1 pictures are in no split and are left out, the first is 1000092802.jpg" in caplog.text
    for split in ("train", "val", "test"):
        (root / f"{split}.txt").write_text("", encoding="utf-8")
    (root / "train.txt").write_text("7\n", encoding="utf-8")
    (root / "val.txt").write_text("8\n", encoding="utf-8")
    (root / "test.txt").write_text("9\n", encoding="utf-8")
    with pytest.raises(DataError, match="no picture with a caption is in a split"):
        read(str(root), {})
