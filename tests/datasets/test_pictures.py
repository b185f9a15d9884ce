import os

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets import client_data
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.features import raw_checksum
from fedsocket_flwr.datasets.image_interfaces import Pixels
from fedsocket_flwr.datasets.inputs import private_inputs
from fedsocket_flwr.datasets.interfaces import require_texts
from fedsocket_flwr.datasets.pictures import Pictures, UnitPictures, read_picture
from fedsocket_flwr.errors import ConfigurationError, DataError

RED = (200, 10, 30)


def made(folder, count=6, size=5):
    files = []
    for k in range(count):
        files.append(folder / f"{k}.png")
        Image.new("RGB", (8 + k, 6), (10 * k, 0, 255)).save(files[-1])
    return Pictures(tuple(files), size)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "RGBA", "LA"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (9, 4), RED).convert(mode).save(file)
    found = read_picture(file, 6, colour=True)
    assert (found.shape, found.dtype) == ((6, 6, 3), np.uint8)
    grey = round(0.299 * RED[0] + 0.587 * RED[1] + 0.114 * RED[2])
    expected = {"L": (grey,) * 3, "LA": (grey,) * 3}.get(mode, RED)
    if mode == "P":
        # The web palette has six shades a colour, 51 apart.
        np.testing.assert_allclose(found.reshape(-1, 3), np.tile(expected, (36, 1)), atol=26)
    else:
        np.testing.assert_allclose(found.reshape(-1, 3), np.tile(expected, (36, 1)), atol=3)


def test_a_palette_with_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    image.save(tmp_path / "a.png", transparency=bytes([0, 128]))
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", 2, colour=True), np.tile(RED, (2, 2, 1)))


def test_height_and_width(tmp_path):
    Image.new("RGB", (9, 4), RED).save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png", (5, 7), colour=True).shape == (5, 7, 3)
    assert read_picture(tmp_path / "a.png", (5, 7), colour=False).shape == (5, 7)


def test_rows_are_those_of_the_files_however_they_are_asked_for(tmp_path):
    pictures = made(tmp_path)
    whole = pictures[:]
    assert (len(pictures), pictures.shape, whole.dtype) == (6, (6, 5, 5, 3), np.uint8)
    np.testing.assert_array_equal(whole[:, 0, 0, 0], [0, 10, 20, 30, 40, 50])
    np.testing.assert_array_equal(pictures[2:4], whole[2:4])
    np.testing.assert_array_equal(pictures[np.array([5, 0, 5])], whole[[5, 0, 5]])
    np.testing.assert_array_equal(pictures.subset(np.array([4, 1]))[:], whole[[4, 1]])
    assert pictures[:0].shape == (0, 5, 5, 3)
    units = UnitPictures(pictures)
    assert (len(units), units.shape) == (6, (6, 3, 5, 5))
    np.testing.assert_allclose(units[np.array([3])][0, :, 0, 0], np.array([30, 0, 255], dtype=np.float32) / 255)


def test_grey_rows(tmp_path):
    pictures = made(tmp_path)
    grey = Pictures(pictures.files, 3, colour=False)
    assert grey.shape == grey[:].shape == (6, 3, 3)
    assert UnitPictures(grey).shape == UnitPictures(grey)[:].shape == (6, 1, 3, 3)


def test_nothing_is_decoded_before_it_is_asked_for(tmp_path):
    pictures = made(tmp_path)
    pictures.files[4].write_bytes(b"\xff\xd8\xff not a picture")
    part = private_inputs("image", pictures.subset(np.arange(4)), None)
    assert part[np.arange(4)].shape == (4, 3, 5, 5)
    with pytest.raises(DataError, match=r"4\.png is not a picture that can be read"):
        pictures[:]
    pictures.files[4].unlink()
    with pytest.raises(DataError, match=r"cannot read .*4\.png"):
        pictures[3:5]


def test_the_checksum_follows_files_and_size(tmp_path):
    pictures = made(tmp_path)
    first = raw_checksum(pictures)
    assert raw_checksum(Pictures(pictures.files, 5)) == first
    assert raw_checksum(Pictures(pictures.files, 6)) != first
    assert raw_checksum(Pictures(pictures.files, 5, colour=False)) != first
    assert raw_checksum(pictures.subset(np.arange(5))) != first
    os.utime(pictures.files[0], ns=(0, 1))
    assert raw_checksum(pictures) != first


def test_interfaces_take_them_as_they_take_arrays(tmp_path):
    pictures = made(tmp_path)
    pixels = Pixels({"size": 4, "channels": 3})
    np.testing.assert_array_equal(pixels(pictures), pixels(pictures[:]))
    with pytest.raises(ConfigurationError, match="takes texts"):
        require_texts("glove", pictures)


def test_a_client_s_split_decodes_its_own_rows_only(tmp_path):
    pictures = made(tmp_path)
    task = TaskSettings.model_validate(
        {"dataset": "x", "kind": "classification", "modalities": ["image"], "clients": [{"name": "c", "model": "m"}]}
    )
    labels = np.arange(6, dtype=np.int64) % 2
    corpus = Corpus("pictures", "classification", {"image": pictures}, labels, ("a", "b"))
    features = {"image": pictures[:].reshape(6, -1)}
    reading = client_data._Reading(task, corpus, ("image",), ("image",), features, None)
    pictures.files[0].unlink()
    split = client_data._made_split(reading, np.array([1, 5]))
    np.testing.assert_allclose(split.inputs["image"][np.arange(2)][:, 0, 0, 0] * 255, [10, 50], rtol=1e-6)
    assert split.labels.tolist() == [1, 1]
