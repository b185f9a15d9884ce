"""``data convert-own``: every row in one split, repeated content on one side, the same draw every time."""

import csv
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedsocket_flwr.cli import main
from fedsocket_flwr.datasets import own_conversion
from fedsocket_flwr.datasets.own_conversion import Converted, convert_own
from fedsocket_flwr.datasets.own_data import own_corpus
from fedsocket_flwr.datasets.split_manifest import SPLITS
from fedsocket_flwr.errors import ConfigurationError, DataError
from tests.own_data import own_config
from tests.toy_runs import run_quickly


def convert(source: Path, target: Path, dev: float = 0.1, test: float = 0.2, seed: int = 7) -> Converted:
    return convert_own(source, target, dev, test, seed)


def pictures(root: Path, classes: str = "ab", each: int = 10) -> Path:
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(each):
            Image.new("RGB", (4, 4), (50 * k, 10 * number, 7)).save(root / name / f"{number}.png")
    return root


def texts(file: Path, rows: list[tuple[str, str, str]]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("owner", "text", "label"), *rows])
    return file


def records(target: Path, split: str) -> list[list[str]]:
    with (target / f"{split}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))[1:]


def names(target: Path) -> dict[str, list[str]]:
    return {split: sorted(str(f.relative_to(target / split)) for f in (target / split).rglob("*.png")) for split in SPLITS}


class TestPictures:
    def test_every_picture_is_in_one_split_in_the_shares_of_its_class(self, tmp_path: Path) -> None:
        found = convert(pictures(tmp_path / "source"), tmp_path / "target")
        assert found == Converted(("a", "b"), {"train": 14, "dev": 2, "test": 4})
        split = names(tmp_path / "target")
        assert sorted(file for files in split.values() for file in files) == sorted(
            f"{name}/{k}.png" for name in "ab" for k in range(10)
        )
        for part, size in (("train", 7), ("dev", 1), ("test", 2)):
            assert Counter(file[0] for file in split[part]) == {"a": size, "b": size}

    def test_files_are_copied_as_they_are(self, tmp_path: Path) -> None:
        source = pictures(tmp_path / "source")
        convert(source, tmp_path / "target")
        for split, files in names(tmp_path / "target").items():
            for file in files:
                assert (tmp_path / "target" / split / file).read_bytes() == (source / file).read_bytes()

    def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_the_directory(self, tmp_path: Path) -> None:
        first = pictures(tmp_path / "1")
        second = tmp_path / "2"
        for file in sorted(first.rglob("*.png"), reverse=True):
            (second / file.parent.name).mkdir(parents=True, exist_ok=True)
            (second / file.parent.name / file.name).write_bytes(file.read_bytes())
        for place, source, seed in (("x", first, 7), ("y", second, 7), ("z", first, 8)):
            convert(source, tmp_path / place, seed=seed)
        assert names(tmp_path / "x") == names(tmp_path / "y")
        assert names(tmp_path / "x") != names(tmp_path / "z")

    def test_the_same_picture_in_another_file_format_goes_to_the_same_side(self, tmp_path: Path) -> None:
        source = pictures(tmp_path / "source")
        for file in list(source.rglob("*.png")):
            Image.open(file).save(file.with_suffix(".bmp"))
        convert(source, tmp_path / "target")
        for split in SPLITS:
            found = sorted(str(f.relative_to(tmp_path / "target" / split)) for f in (tmp_path / "target" / split).rglob("*.*"))
            assert [file for file in found if file.endswith("bmp")] == [f"{n[:-4]}.bmp" for n in found if n.endswith("png")]

    def test_what_is_wrong_is_named(self, tmp_path: Path) -> None:
        source = pictures(tmp_path / "source")
        (source / "b" / "3.png").write_bytes((source / "b" / "3.png").read_bytes()[:40])
        with pytest.raises(DataError, match=r"b/3\.png is not a picture that can be read"):
            convert(source, tmp_path / "target")
        assert not (tmp_path / "target").exists()
        with pytest.raises(DataError, match="must have folders with pictures"):
            convert(source / "a", tmp_path / "target")


class TestTexts:
    def test_further_columns_and_the_fields_stay_as_they_are(self, tmp_path: Path) -> None:
        rows = [(f"owner{k % 3}", f'text, "{k}"\nNA', "xy"[k % 2]) for k in range(20)]
        convert(texts(tmp_path / "mail.csv", rows), tmp_path / "target")
        found = [tuple(record) for split in SPLITS for record in records(tmp_path / "target", split)]
        assert sorted(found) == sorted(rows)

    def test_repeated_texts_are_not_torn_and_conflicting_labels_are_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        rows = [("o", f"text {k % 8}" + " " * (k // 8), "xy"[k % 2] if k != 17 else "x") for k in range(32)]
        convert(texts(tmp_path / "mail.csv", rows), tmp_path / "target", dev=0.25, test=0.25)
        sides = [{" ".join(record[1].split()) for record in records(tmp_path / "target", split)} for split in SPLITS]
        assert [len(side) for side in sides] == [4, 2, 2]
        assert set.union(*sides) == {f"text {k}" for k in range(8)}
        assert "24 of 32 rows repeat another's content" in caplog.text
        assert "1 contents are in several classes, the first is row 1 (y and x)" in caplog.text

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("text,label\na,x\nb\n", "record 2: 1 fields, expected 2"),
            ("text,class\na,x\n", "0 columns called 'label'"),
            ("text,label\na,x\nb,\n", "row 1 has no label"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, content: str, message: str) -> None:
        (tmp_path / "mail.csv").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=rf"mail\.csv.*{message}"):
            convert(tmp_path / "mail.csv", tmp_path / "target")

    def test_classes_that_train_lacks_are_said(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Of five classes with one row each TEST and DEV take one each, by the order of the classes."""
        convert(texts(tmp_path / "mail.csv", [("o", f"text {name}", name) for name in "vwxyz"]), tmp_path / "1", 0.2, 0.2)
        assert "TRAIN has no row of v, w" in caplog.text
        caplog.clear()
        convert(texts(tmp_path / "mail.csv", [("o", f"text {k}", "xy"[k % 2]) for k in range(10)]), tmp_path / "2")
        assert "TRAIN has no row" not in caplog.text


class TestArrays:
    def test_all_arrays_are_divided_together(self, tmp_path: Path) -> None:
        values = np.arange(60, dtype=np.float64).reshape(20, 3)
        source = tmp_path / "sensors.npz"
        np.savez(source, label=np.arange(20) % 2, accelerometer=values, person=np.array([f"p{k}" for k in range(20)]))
        found = convert(source, tmp_path / "target")
        assert found == Converted(("0", "1"), {"train": 14, "dev": 2, "test": 4})
        for split in SPLITS:
            with np.load(tmp_path / "target" / f"{split}.npz", allow_pickle=False) as arrays:
                rows = (arrays["accelerometer"][:, 0] // 3).astype(int)
                assert arrays["person"].tolist() == [f"p{k}" for k in rows]
                assert arrays["label"].tolist() == [k % 2 for k in rows]
                assert arrays["accelerometer"].dtype == np.float64

    def test_equal_vectors_of_different_people_are_one_content(self, tmp_path: Path) -> None:
        values = np.repeat(np.arange(10.0)[:, None], 3, axis=0)
        np.savez(tmp_path / "v.npz", label=np.zeros(30, int), audio=values, person=np.array([f"p{k}" for k in range(30)]))
        convert(tmp_path / "v.npz", tmp_path / "target")
        sides = [set(np.load(tmp_path / "target" / f"{split}.npz")["audio"][:, 0].tolist()) for split in SPLITS]
        assert [len(side) for side in sides] == [7, 1, 2]
        assert len(set.union(*sides)) == 10

    def test_what_is_wrong_is_named(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "v.npz", label=np.zeros(3, int), audio=np.array([[1.0], [np.nan], [2.0]]))
        with pytest.raises(DataError, match=r"v\.npz: row 1 of 'audio' has a value that is not finite"):
            convert(tmp_path / "v.npz", tmp_path / "target")


class TestWhatIsAskedFor:
    @pytest.mark.parametrize(("dev", "test"), [(0.0, 0.2), (0.1, 0.0), (0.5, 0.5), (-0.1, 0.2)])
    def test_shares_that_leave_a_split_empty(self, tmp_path: Path, dev: float, test: float) -> None:
        with pytest.raises(ConfigurationError, match="--dev and --test must be above 0"):
            convert(tmp_path, tmp_path / "target", dev, test)

    def test_too_few_rows(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has 4 different rows, too few for dev"):
            convert(pictures(tmp_path / "source", each=2), tmp_path / "target")

    def test_a_target_that_holds_something_and_sources_of_no_kind(self, tmp_path: Path) -> None:
        source = pictures(tmp_path / "source")
        with pytest.raises(ConfigurationError, match="source is there already"):
            convert(source, source)
        with pytest.raises(ConfigurationError, match=r"lies in .*source itself"):
            convert(source, source / "target")
        with pytest.raises(DataError, match=r"absent\.csv"):
            convert(tmp_path / "absent.csv", tmp_path / "target")
        (tmp_path / "rows.json").write_text("[]", encoding="utf-8")
        with pytest.raises(DataError, match=r"rows\.json is neither a folder of pictures"):
            convert(tmp_path / "rows.json", tmp_path / "target")

    def test_an_empty_target_is_used_and_nothing_is_left_of_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "target").mkdir()
        convert(pictures(tmp_path / "source"), tmp_path / "target")
        assert {entry.name for entry in (tmp_path / "target").iterdir()} == set(SPLITS)

        def full(*paths: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(own_conversion.shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space"):
            convert(tmp_path / "source", tmp_path / "other")
        assert {entry.name for entry in tmp_path.iterdir()} <= {"source", "target", "fedsocket-home"}


@settings(max_examples=25, deadline=None)
@given(
    contents=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), min_size=30, max_size=60),
    seed=st.integers(0, 1000),
)
def test_the_splits_are_a_partition_that_tears_no_content(contents: list[tuple[int, int]], seed: int) -> None:
    labels = np.array([label for _, label in contents])
    source = own_conversion._Source(labels, tuple("wxyz"), [str(content) for content, _ in contents], lambda *_: None)
    try:
        found = own_conversion._divide(Path("rows"), source, {"test": 0.2, "dev": 0.2}, seed)
    except DataError:
        assert len({content for content, _ in contents}) < 5
        return
    rows = [row for split in SPLITS for row in found[split]]
    assert sorted(rows) == list(range(len(contents)))
    sides = [{contents[row][0] for row in found[split]} for split in SPLITS]
    assert sum(len(side) for side in sides) == len(set.union(*sides))


def test_what_is_converted_is_what_a_client_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Round trip over the command: both clients' folders are written, the configuration takes the printed classes."""
    config = own_config(
        tmp_path,
        {"tasks.shapes.classes": ["b", "a"], "tasks.words.classes": ["y", "x"], "tasks.shapes.options": {"size": 8}},
    )
    for client in ("shapes-a", "shapes-b"):
        source = pictures(tmp_path / "sources" / client)
        assert main(["data", "convert-own", str(source), str(tmp_path / client), "--dev", "0.2", "--seed", "3"]) == 0
    assert "train 12 rows, dev 4 rows, test 4 rows\nclasses: [a, b]\n" in capsys.readouterr().out
    for client in ("words-a", "words-b"):
        rows = [("o", f"word{k} of{k % 2}", "xy"[k % 2]) for k in range(20)]
        source = texts(tmp_path / "sources" / f"{client}.csv", rows)
        assert main(["data", "convert-own", str(source), str(tmp_path / client)]) == 0
    corpus = own_corpus(config, "words-a", None)
    said = sorted(zip(corpus.raw["text"], (corpus.classes[label] for label in corpus.labels), strict=True))
    assert said == sorted((text, label) for _, text, label in rows)
    assert set(run_quickly(config, tmp_path / "run").test) == {"shapes-a", "shapes-b", "words-a", "words-b"}
    assert main(["data", "convert-own", str(source), str(tmp_path / "words-a")]) == 1
    assert "words-a is there already" in capsys.readouterr().err
