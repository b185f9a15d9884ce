"""Files given to a predictor become the rows that its training saw."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.datasets.image_folder import read_classes
from fedsocket_flwr.prediction import read_raw


@pytest.mark.parametrize("colour", [True, False])
def test_a_picture_is_read_as_the_data_set_reads_it(colour: bool, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, size=(13, 21, 3), dtype=np.uint8)
    files = [tmp_path / name / "1.png" for name in ("ant", "bee")]
    for file in files:
        file.parent.mkdir()
        # One is on its side, as a camera's note in the file says.
        orientation = Image.Exif()
        orientation[0x0112] = 6 if file.parent.name == "bee" else 1
        Image.fromarray(noise).save(file, exif=orientation)
    rows = read_classes(str(tmp_path), {"size": 8, "colour": colour}).raw["image"]
    facts = SimpleNamespace(modalities=("image",), input_shapes={"image": (3 if colour else 1, 8, 8)}, client="c")
    predictor: Any = SimpleNamespace(facts=facts)
    np.testing.assert_array_equal(np.asarray(read_raw(files, predictor)["image"]), np.asarray(rows))
