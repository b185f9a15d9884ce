import itertools
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.datasets.feature_files import read
from fedsocket_flwr.datasets.fed_multimodal import convert
from fedsocket_flwr.errors import DataError

RANDOM = np.random.default_rng(0)


def dump(root: Path, place: str, client: str, rows: Any) -> None:
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{client}.pkl").write_bytes(pickle.dumps(rows, protocol=pickle.HIGHEST_PROTOCOL))


def frames(length: int, width: int) -> Any:
    return RANDOM.normal(size=(length, width)).astype(np.float32)


def meld(root: Path) -> dict[str, list[Any]]:
    """The benchmark's layout of MELD: no folds, an utterance's text replaced by its features, of shape (1, words, 512)."""
    made: dict[str, list[Any]] = {}
    for client, dialogues in (("0", (1, 1, 2)), ("1", (2, 3)), ("dev", (1,)), ("test", (1, 2))):
        text, audio = [], []
        for number, dialogue in enumerate(dialogues):
            key, label = f"dia{dialogue}_utt{number}", (number + dialogue) % 4
            text.append([key, f"/raw/{key}.wav", label, frames(3 + number, 6)[None]])
            audio.append([key, f"/raw/{key}.wav", label, frames(40, 5)])
        made[client] = text
        dump(root, "text/mobilebert/meld", client, text)
        dump(root, "audio/mfcc/meld", client, audio)
    return made


def test_meld(tmp_path: Path) -> None:
    made = meld(tmp_path / "output" / "feature")
    convert(tmp_path / "output", tmp_path / "target")
    corpus = read(str(tmp_path / "target"), {})
    assert (corpus.name, corpus.classes) == ("meld", ("neutral", "sadness", "joy", "anger"))
    assert {modality: raw.shape for modality, raw in corpus.raw.items()} == {"transcript": (8, 6), "audio": (8, 5)}
    assert corpus.columns["client"] == ["0", "0", "0", "1", "1", "dev", "test", "test"]
    assert list(corpus.part or ()) == ["train"] * 5 + ["dev", "test", "test"]
    # Dialogues are counted anew in DEV and TEST; one dialogue of two speakers is one group.
    assert corpus.columns["group"] == ["dia1", "dia1", "dia2", "dia2", "dia3", "dev-dia1", "test-dia1", "test-dia2"]
    assert corpus.labels is not None
    assert corpus.labels.tolist()[:3] == [1, 2, 0]
    np.testing.assert_allclose(corpus.raw["transcript"][1], made["0"][1][-1][0].mean(axis=0), rtol=1e-6)


def videos(root: Path, place: str, keys: list[str], labels: list[int]) -> list[Any]:
    rows = [[key, f"/raw/{key}", label, frames(20, 4)] for key, label in zip(keys, labels, strict=True)]
    dump(root, f"video/mobilenet_v2/{place}", "0", rows)
    dump(root, f"audio/mfcc/{place}", "0", [[key, path, label, frames(9, 3)] for key, path, label, _ in rows])
    for held_out in ("dev", "test"):
        dump(root, f"video/mobilenet_v2/{place}", held_out, [])
        dump(root, f"audio/mfcc/{place}", held_out, [])
    return rows


def test_a_video_becomes_eight_means_over_equal_stretches(tmp_path: Path) -> None:
    rows = videos(tmp_path, "crema_d/fold1", ["1001_DFA_ANG_XX", "1001_DFA_SAD_XX", "1002_IEO_HAP_HI"], [0, 1, 2])
    convert(tmp_path, tmp_path / "target")
    corpus = read(str(tmp_path / "target"), {})
    assert corpus.raw["video"].shape == (3, 8, 4)
    bounds = [0, 2, 5, 7, 10, 12, 15, 17, 20]
    expected = [rows[0][-1][start:end].mean(axis=0) for start, end in itertools.pairwise(bounds)]
    np.testing.assert_allclose(corpus.raw["video"][0], expected, rtol=1e-5)
    assert corpus.columns["group"] == ["1001_DFA", "1001_DFA", "1002_IEO"]


def test_a_short_video_repeats_its_frames_and_classes_come_of_keys(tmp_path: Path) -> None:
    keys = ["Archery/v_Archery_g08_c01", "Archery/v_Archery_g08_c02", "Bowling/v_Bowling_g25_c03"]
    place = "ucf101/alpha01/fold1"
    rows = videos(tmp_path, place, keys, [0, 0, 1])
    short = frames(3, 4)
    dump(tmp_path, f"video/mobilenet_v2/{place}", "0", [[*rows[0][:3], short], *rows[1:]])
    convert(tmp_path, tmp_path / "target", variant=place)
    corpus = read(str(tmp_path / "target"), {})
    np.testing.assert_array_equal(corpus.raw["video"][0], short[[0, 0, 0, 1, 1, 1, 2, 2]])
    assert corpus.classes == ("Archery", "Bowling")
    assert corpus.columns["group"] == ["v_Archery_g08", "v_Archery_g08", "v_Bowling_g25"]


def test_rows_without_a_modality_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = videos(tmp_path, "crema_d/fold1", ["1001_DFA_ANG_XX", "1001_IEO_SAD_XX", "1002_IEO_HAP_HI"], [0, 1, 2])
    dump(tmp_path, "video/mobilenet_v2/crema_d/fold1", "0", [[*rows[0][:3], None], *rows[1:]])
    with caplog.at_level(logging.WARNING):
        convert(tmp_path, tmp_path / "target")
    assert "1 rows of crema_d lack a modality and were left out" in caplog.text
    assert read(str(tmp_path / "target"), {}).columns["key"] == ["1001_IEO_SAD_XX", "1002_IEO_HAP_HI"]


def test_of_several_folds_one_must_be_named(tmp_path: Path) -> None:
    for fold in (1, 2):
        videos(tmp_path, f"crema_d/fold{fold}", [f"100{fold}_DFA_ANG_XX"], [0])
    with pytest.raises(DataError, match=r"of one data set .*, found crema_d/fold1, crema_d/fold2; name one as variant"):
        convert(tmp_path, tmp_path / "target")
    convert(tmp_path, tmp_path / "target", variant="crema_d/fold2")
    assert read(str(tmp_path / "target"), {}).columns["key"] == ["1002_DFA_ANG_XX"]
    with pytest.raises(DataError, match="found none called 'crema_d/fold9'"):
        convert(tmp_path, tmp_path / "target", variant="crema_d/fold9")
    with pytest.raises(DataError, match="found none; name one"):
        convert(tmp_path / "nowhere", tmp_path / "target")


class TestFilesOfAnotherForm:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        meld(tmp_path)
        return tmp_path

    def refused(self, source: Path, rows: Any, message: str) -> None:
        dump(source, "audio/mfcc/meld", "1", rows)
        with pytest.raises(DataError, match=message):
            convert(source, source / "target")
        assert not (source / "target").exists()

    def test_a_pickle_that_runs_something(self, source: Path) -> None:
        class Attack:
            def __reduce__(self) -> Any:
                return os.system, (f"touch {source / 'ran'}",)

        self.refused(source, [["dia2_utt0", "x", 1, Attack()]], r"1\.pkl .* names posix\.system, which data do not need")
        assert not (source / "ran").exists()

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ({"dia2_utt0": 1}, "holds a dict, expected a list"),
            ([["dia2_utt0", 1]], r"row 0 is not \[key, path, label, \.\.\., features\] but \['str', 'int'\]"),
            ([["dia2_utt0", "x", 1.5, frames(2, 5)]], "row 0 is not"),
            ([["dia2_utt0", "x", 1, [1, 2]]], "row 0 has features list"),
            ([["dia2_utt0", "x", 1, np.zeros((2, 5), dtype=int)]], "row 0 has features ndarray"),
            ([["dia2_utt0", "x", 1, np.zeros((0, 5), dtype=np.float32)]], r"row 0 has features ndarray \(0, 5\)"),
            ([["dia2_utt0", "x", 1, frames(2, 5)]] * 2, "the key 'dia2_utt0' stands twice"),
        ],
    )
    def test_rows(self, source: Path, rows: Any, message: str) -> None:
        self.refused(source, rows, message)

    def test_a_client_of_one_modality(self, source: Path) -> None:
        (source / "audio/mfcc/meld/1.pkl").unlink()
        with pytest.raises(DataError, match="client '1' has features of one modality only"):
            convert(source, source / "target")

    def test_two_kinds_of_features_or_none(self, source: Path) -> None:
        dump(source, "audio/whisper_tiny/meld", "test", [])
        with pytest.raises(DataError, match=r"meld needs features of one kind for audio, found .*mfcc.*, .*whisper_tiny"):
            convert(source, source / "target")

    def test_a_key_without_a_group(self, source: Path) -> None:
        for place, width in (("audio/mfcc/meld", 5), ("text/mobilebert/meld", 6)):
            dump(source, place, "1", [["utterance5", "x", 1, frames(2, width)]])
        with pytest.raises(DataError, match="the key 'utterance5' of client '1' names no group"):
            convert(source, source / "target")
