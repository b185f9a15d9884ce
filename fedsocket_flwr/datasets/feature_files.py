"""``features``: a folder of feature files and their manifest, the layout of ``docs/feature_files.md``.

A user's own features come as arrays whose widths, classes, groups and split a manifest states, so that a file that does not fit
is refused by name and not found out by a strange result.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.options import choose_options
from fedsocket_flwr.datasets.sources import require_real_file
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.plain_files import write_whole

VERSION = 1
MANIFEST = "manifest.json"
PARTS = ("train", "dev", "test")
LAYOUT = "docs/feature_files.md"
HOW_TO_GET = (
    f"the layout is in {LAYOUT}; `fedsocket-flwr data convert-fedmultimodal SOURCE TARGET` makes such a folder of the features "
    "of FedMultimodal, and fedsocket_flwr.datasets.feature_files.write_features of arrays of your own"
)


def read(path: str | None, options: Mapping[str, Any]) -> Corpus:
    """Read a folder of features.

    Parameters
    ----------
    path
        The folder.
    options
        None are known.

    Returns
    -------
    Corpus
        Under the manifest's name. Modalities are ``float32`` (N, width) or (N, tokens, width), mapped from their files.

    Raises
    ------
    DataError
        A file is missing, damaged or not as the manifest says; a value is not finite; a label is no class. The message names the
        file, the layout and the command that makes it.
    """
    choose_options("data set 'features'", options, {})
    if path is None:
        raise ConfigurationError(f"data set 'features' needs `path`, a folder with {MANIFEST}; {HOW_TO_GET}")
    return _Folder(Path(path)).corpus()


def write_features(
    folder: Path,
    name: str,
    classes: Sequence[str],
    modalities: Mapping[str, Array],
    labels: Array,
    columns: Mapping[str, Sequence[str]] | None = None,
    part: Sequence[str] | None = None,
) -> None:
    """Write arrays in the layout that :func:`read` reads.

    Parameters
    ----------
    folder
        Where to; made if absent.
    name
        Name of the data set.
    classes
        Names of the C classes, in the order of the labels.
    modalities
        Name -> floats (N, width), or (N, tokens, width).
    labels
        Integers (N,), 0 to C - 1.
    columns
        Name -> one text a row: groups for cross-fitting (dialogue, video), owners for a natural partition.
    part
        ``train``, ``dev`` or ``test`` for each row, where the split is published.

    Raises
    ------
    DataError
        The arrays are not as described; what is written is read back before the manifest gets its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {modality: np.asarray(values, dtype=np.float32) for modality, values in modalities.items()}
    manifest: dict[str, Any] = {"version": VERSION, "name": name, "classes": list(classes)}
    manifest["modalities"] = {
        modality: {"width": int(values.shape[-1]), "tokens": int(values.shape[1]) if values.ndim == 3 else None}
        | _write(folder, f"{modality}.npy", values)
        for modality, values in arrays.items()
    }
    manifest["labels"] = _write(folder, "labels.npy", np.asarray(labels, dtype=np.int64))
    manifest["columns"] = {
        column: _write(folder, f"column-{column}.npy", np.asarray([str(value) for value in values]))
        for column, values in (columns or {}).items()
    }
    if part is not None:
        manifest["part"] = _write(folder, "part.npy", np.asarray(list(part)))
    _Folder(folder, manifest).corpus()
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def _write(folder: Path, file: str, values: Array) -> dict[str, str]:
    np.save(folder / file, values, allow_pickle=False)
    return {"file": file, "sha256": _checksum(folder / file)}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Folder:
    """A folder and its manifest, read part by part."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.manifest = self._read_manifest() if manifest is None else manifest
        self._seen: dict[str, str] = {}

    def _error(self, file: str, what: str) -> DataError:
        return DataError(f"{self.folder / file}: {what}; {HOW_TO_GET}")

    def _read_manifest(self) -> Mapping[str, Any]:
        try:
            found = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except OSError as error:
            raise self._error(MANIFEST, f"cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise self._error(MANIFEST, f"is not JSON ({error})") from error
        if not isinstance(found, dict) or found.get("version") != VERSION:
            version = found.get("version") if isinstance(found, dict) else type(found).__name__
            raise self._error(MANIFEST, f"is of version {version!r}, expected {VERSION}")
        shapes = {"name": str, "classes": list, "modalities": dict, "labels": dict}
        for key, kind in shapes.items():
            if not isinstance(found.get(key), kind) or not found[key]:
                raise self._error(MANIFEST, f"{key!r} must be a {kind.__name__} that is not empty, found {found.get(key)!r}")
        return found

    def corpus(self) -> Corpus:
        """Return the whole data set, checked."""
        labels = self._labels()
        raw = {modality: self._features(modality, entry, len(labels)) for modality, entry in self.manifest["modalities"].items()}
        columns = {column: self._texts(entry, len(labels)) for column, entry in self.manifest.get("columns", {}).items()}
        part = self._texts(self.manifest["part"], len(labels)) if self.manifest.get("part") else None
        wrong = sorted(set(part or ()) - set(PARTS))
        if wrong:
            raise self._error(self.manifest["part"]["file"], f"names the part {wrong[0]!r}, expected one of {', '.join(PARTS)}")
        classes = tuple(str(name) for name in self.manifest["classes"])
        return Corpus(self.manifest["name"], "classification", raw, labels, classes, columns=columns, part=part)

    def _array(self, entry: Any) -> tuple[str, Array]:
        """Return the file and the array that an entry of the manifest names, after its checksum."""
        if not isinstance(entry, dict) or not isinstance(entry.get("file"), str) or not isinstance(entry.get("sha256"), str):
            raise self._error(MANIFEST, f"every array needs `file` and `sha256`, found {entry!r}")
        file = entry["file"]
        path = self.folder / file
        if Path(file).name != file:
            raise self._error(MANIFEST, f"files lie in the folder itself, found {file!r}")
        try:
            require_real_file(path)
        except DataError as error:
            raise DataError(f"{error}; {HOW_TO_GET}") from error
        if file not in self._seen:
            self._seen[file] = _checksum(path)
        if self._seen[file] != entry["sha256"]:
            raise self._error(file, f"has SHA-256 {self._seen[file]}, the manifest says {entry['sha256']}")
        try:
            if path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as arrays:
                    return file, arrays[entry.get("array", "")]
            return file, np.load(path, mmap_mode="r", allow_pickle=False)
        except KeyError as error:
            raise self._error(file, f"has no array {entry.get('array', '')!r}") from error
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._error(file, f"holds no array of numbers or texts ({error})") from error

    def _labels(self) -> Array:
        file, labels = self._array(self.manifest["labels"])
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
            raise self._error(file, f"labels must be integers of shape (N,), found {labels.dtype} of shape {labels.shape}")
        classes = len(self.manifest["classes"])
        outside = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(outside):
            row = outside[0]
            raise self._error(
                file, f"row {row} has the label {labels[row]}, but the manifest has {classes} classes (0 to {classes - 1})"
            )
        return labels.astype(np.int64)

    def _features(self, modality: str, entry: Any, rows: int) -> Array:
        file, values = self._array(entry)
        tokens, width = entry.get("tokens"), entry.get("width")
        expected = (rows, width) if tokens is None else (rows, tokens, width)
        if values.dtype.kind != "f" or values.shape != expected:
            raise self._error(
                file,
                f"{modality} is {values.dtype} of shape {values.shape}, manifest and labels say floats of shape {expected}",
            )
        broken = np.flatnonzero(~np.isfinite(values).reshape(rows, -1).all(axis=1))
        if len(broken):
            raise self._error(
                file, f"{modality} has values that are not finite in {len(broken)} rows, the first is row {broken[0]}"
            )
        return values.astype(np.float32, copy=False)

    def _texts(self, entry: Any, rows: int) -> list[str]:
        file, values = self._array(entry)
        if values.shape != (rows,) or values.dtype.kind not in "Uiu":
            raise self._error(
                file, f"must hold {rows} texts or integers, one a row, found {values.dtype} of shape {values.shape}"
            )
        return [str(value) for value in values.tolist()]
