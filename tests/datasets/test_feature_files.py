import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.datasets.catalogue import checked
from fedsocket_flwr.datasets.feature_files import read, write_features
from fedsocket_flwr.errors import ConfigurationError, DataError

ROWS = 12
RANDOM = np.random.default_rng(0)
VIDEO = RANDOM.normal(size=(ROWS, 4, 5)).astype(np.float32)
AUDIO = RANDOM.normal(size=(ROWS, 3))
LABELS = np.arange(ROWS) % 3
GROUPS = [f"scene{row // 2}" for row in range(ROWS)]
PART = ["train"] * 8 + ["dev"] * 2 + ["test"] * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_features(tmp_path, "clips", ["run", "jump", "sit"], {"video": VIDEO, "audio": AUDIO}, LABELS, {"group": GROUPS}, PART)
    return tmp_path


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def replace(folder: Path, file: str, values: Any, *keys: str) -> None:
    """Put another array in a file's place, with the checksum that it has."""
    np.save(folder / file, values)

    def edit(manifest: dict[str, Any]) -> None:
        entry = manifest
        for key in keys:
            entry = entry[key]
        entry["sha256"] = sha256((folder / file).read_bytes()).hexdigest()

    change(folder, edit)


def test_what_is_written_is_read(folder: Path) -> None:
    corpus = checked(read(str(folder), {}))
    assert (corpus.name, corpus.classes, list(corpus.part or ())) == ("clips", ("run", "jump", "sit"), PART)
    np.testing.assert_array_equal(corpus.raw["video"], VIDEO)
    np.testing.assert_array_equal(corpus.raw["audio"], AUDIO.astype(np.float32))
    np.testing.assert_array_equal(corpus.labels, LABELS)
    assert corpus.columns == {"group": GROUPS}


def test_one_npz_may_hold_everything(folder: Path) -> None:
    np.savez(folder / "features.npz", video=VIDEO, audio=AUDIO, labels=LABELS, group=np.arange(ROWS) // 2)
    digest = sha256((folder / "features.npz").read_bytes()).hexdigest()

    def edit(manifest: dict[str, Any]) -> None:
        for entry, array in (
            (manifest["modalities"]["video"], "video"),
            (manifest["modalities"]["audio"], "audio"),
            (manifest["labels"], "labels"),
            (manifest["columns"]["group"], "group"),
        ):
            entry.update(file="features.npz", array=array, sha256=digest)
        del manifest["part"]

    change(folder, edit)
    corpus = read(str(folder), {})
    np.testing.assert_array_equal(corpus.raw["video"], VIDEO)
    assert corpus.columns["group"] == [str(row // 2) for row in range(ROWS)]
    assert corpus.part is None


def refused(folder: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(str(folder), {})
    assert str(folder) in str(caught.value)
    assert "docs/feature_files.md" in str(caught.value)
    assert "fedsocket-flwr data convert-fedmultimodal SOURCE TARGET" in str(caught.value)


@pytest.mark.parametrize("file", ["manifest.json", "video.npy", "labels.npy", "column-group.npy", "part.npy"])
def test_a_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    refused(folder, rf"{file}.*No such file")


@pytest.mark.parametrize("file", ["video.npy", "labels.npy", "column-group.npy"])
def test_an_altered_file(folder: Path, file: str) -> None:
    content = bytearray((folder / file).read_bytes())
    content[-1] ^= 1
    (folder / file).write_bytes(content)
    refused(folder, rf"{file}: has SHA-256 \w+, the manifest says \w+")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[]", "is of version 'list', expected 1"),
        ('{"version": 2}', "is of version 2, expected 1"),
        ('{"version": 1, "name": "x", "classes": []}', r"'classes' must be a list that is not empty, found \[\]"),
        ('{"version": 1, "name": "x", "classes": ["a"]}', "'modalities' must be a dict"),
    ],
)
def test_a_manifest_that_is_none(folder: Path, content: str, message: str) -> None:
    (folder / "manifest.json").write_text(content, encoding="utf-8")
    refused(folder, message)


def test_another_width_or_number_of_tokens(folder: Path) -> None:
    change(folder, lambda manifest: manifest["modalities"]["video"].update(width=1280))
    refused(
        folder, r"video\.npy: video is float32 of shape \(12, 4, 5\), manifest and labels say floats of shape \(12, 4, 1280\)"
    )
    change(folder, lambda manifest: manifest["modalities"]["video"].update(width=5, tokens=None))
    refused(folder, r"say floats of shape \(12, 5\)")


def test_other_rows_or_types(folder: Path) -> None:
    replace(folder, "audio.npy", AUDIO[:-1], "modalities", "audio")
    refused(folder, r"audio is float64 of shape \(11, 3\)")
    replace(folder, "audio.npy", AUDIO.astype(np.int64), "modalities", "audio")
    refused(folder, "audio is int64")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(folder: Path, value: float) -> None:
    broken = VIDEO.copy()
    broken[7, 2, 1] = value
    replace(folder, "video.npy", broken, "modalities", "video")
    refused(folder, r"video\.npy: video has values that are not finite in 1 rows, the first is row 7")


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (3, r"labels\.npy: row 4 has the label 3, but the manifest has 3 classes \(0 to 2\)"),
        (-1, "row 4 has the label -1"),
        (1.5, "labels must be integers"),
    ],
)
def test_labels_that_are_no_classes(folder: Path, label: float, message: str) -> None:
    labels = LABELS.astype(np.asarray(label).dtype)
    labels[4] = label
    replace(folder, "labels.npy", labels, "labels")
    refused(folder, message)


def test_columns_and_parts(folder: Path) -> None:
    replace(folder, "part.npy", np.array([*PART[:-1], "validation"]), "part")
    refused(folder, r"part\.npy: names the part 'validation', expected one of train, dev, test")
    replace(folder, "part.npy", np.array(PART[:-1]), "part")
    refused(folder, r"must hold 12 texts or integers, one a row, found <U5 of shape \(11,\)")


def test_files_outside_the_folder_and_pickles_are_not_opened(folder: Path) -> None:
    change(folder, lambda manifest: manifest["labels"].update(file="../labels.npy"))
    refused(folder, r"files lie in the folder itself, found '\.\./labels\.npy'")
    change(folder, lambda manifest: manifest["labels"].update(file="labels.npy"))
    np.save(folder / "column-group.npy", np.array([*GROUPS[:-1], {}], dtype=object), allow_pickle=True)
    digest = sha256((folder / "column-group.npy").read_bytes()).hexdigest()
    change(folder, lambda manifest: manifest["columns"]["group"].update(sha256=digest))
    refused(folder, r"column-group\.npy: holds no array of numbers or texts")
    change(folder, lambda manifest: manifest["columns"].update(group="group.npy"))
    refused(folder, r"every array needs `file` and `sha256`, found 'group\.npy'")


def test_a_page_in_a_file_s_place(folder: Path) -> None:
    (folder / "video.npy").write_bytes(b"<!DOCTYPE html><html>")
    refused(folder, r"video\.npy is an HTML page")


def test_no_path_and_options() -> None:
    with pytest.raises(ConfigurationError, match=r"needs `path`, a folder with manifest\.json; the layout is in docs"):
        read(None, {})
    with pytest.raises(ConfigurationError, match="takes no options"):
        read("x", {"width": 3})


def test_the_layout_s_page_is_there() -> None:
    assert (Path(__file__).parents[2] / "docs" / "feature_files.md").exists()


def test_nothing_wrong_gets_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2 has the label 2, but the manifest has 2 classes"):
        write_features(tmp_path, "clips", ["run", "jump"], {"audio": AUDIO}, LABELS)
    assert not (tmp_path / "manifest.json").exists()
