"""What was trained can be used: from the run's folder, without its data, with TEST's own numbers."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets import catalogue
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.endpoints import load_predictor
from fedsocket_flwr.errors import ConfigurationError, FedSocketError, MeasurementError, RunError, StoreError
from fedsocket_flwr.evaluation.metrics import classification_metrics
from fedsocket_flwr.evaluation.retrieval import retrieval_metrics
from fedsocket_flwr.plain_files import read_json
from fedsocket_flwr.run_preparation import prepare_resume, read_run_configuration
from tests.toy_runs import Cut, run_quickly, store_of, toy_config

CLIENTS = tuple((task, client.name) for task, client in toy_config().clients())
ENDPOINTS = ("private", "q", "joint")


@pytest.fixture(scope="session")
def corpora() -> dict[str, Corpus]:
    return {name: catalogue.read_corpus(task) for name, task in toy_config().tasks.items()}


@pytest.fixture
def moved(toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpora: dict[str, Corpus]) -> Path:
    """The run in another place, on a machine that has no data."""

    def refuse(task: TaskSettings) -> Corpus:
        raise AssertionError("the data were read")

    monkeypatch.setattr(catalogue, "read_corpus", refuse)
    monkeypatch.setattr("fedsocket_flwr.datasets.client_data.read_corpus", refuse)
    monkeypatch.setattr("fedsocket_flwr.datasets.partitions.read_corpus", refuse)
    return Path(shutil.copytree(toy_run, tmp_path / "another place"))


def taken(raw: Any, rows: Sequence[int]) -> Any:
    return raw[np.asarray(rows)] if isinstance(raw, np.ndarray) else [raw[row] for row in rows]


def test_rows(folder: Path, task: str, client: str) -> list[int]:
    rows: list[int] = read_json(folder / "splits.json")["tasks"][task]["clients"][client]["test"]
    return rows


test_rows.__test__ = False  # type: ignore[attr-defined]


def measured(predictor: Any, corpus: Corpus, rows: list[int], fold_size: int) -> Mapping[str, float]:
    if corpus.labels is not None:
        (modality,) = corpus.raw
        probabilities = predictor.probabilities({modality: taken(corpus.raw[modality], rows)})
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
        return classification_metrics(probabilities, corpus.labels[rows], len(corpus.classes))
    assert corpus.pairs is not None
    images, image_rows = np.unique(corpus.pairs[rows, 0], return_inverse=True)
    texts, text_rows = np.unique(corpus.pairs[rows, 1], return_inverse=True)
    scores = predictor.scores(taken(corpus.raw["image"], images), taken(corpus.raw["text"], texts))
    text_ids = np.empty(len(texts), dtype=np.int64)
    text_ids[text_rows] = image_rows
    found = {way: retrieval_metrics(scores[way], np.arange(len(images)), text_ids, fold_size) for way in ("i2t", "t2i")}
    return {name: value for way, numbers in found.items() for name, value in numbers.items() if name.startswith(way)}


@pytest.mark.parametrize(("task", "client"), CLIENTS)
@pytest.mark.parametrize("moment", ["best", "last"])
def test_a_predictor_gives_the_runs_own_test_metrics(
    moved: Path, corpora: dict[str, Corpus], task: str, client: str, moment: Any
) -> None:
    fold_size = read_run_configuration(moved).evaluation.fold_size
    expected = read_json(moved / "test.json")["clients"][client][moment]
    assert set(expected) == set(ENDPOINTS)
    for endpoint in ENDPOINTS:
        predictor = load_predictor(moved, client, endpoint, moment)  # type: ignore[arg-type]
        found = measured(predictor, corpora[task], test_rows(moved, task, client), fold_size)
        assert found == {name: expected[endpoint][name] for name in found}
        assert len(found) == (2 if corpora[task].labels is not None else 6)


def test_a_row_has_the_same_answer_alone_and_among_others(moved: Path, corpora: dict[str, Corpus]) -> None:
    predictor = load_predictor(moved, "shapes-cnn")
    images = corpora["shapes"].raw["image"]
    together = predictor.probabilities({"image": images[:20]})
    alone = np.concatenate([predictor.probabilities({"image": images[row : row + 1]}) for row in range(20)])
    np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_classes_are_named_and_rankings_are_best_first(moved: Path, corpora: dict[str, Corpus]) -> None:
    texts = corpora["words"].raw["text"][:7]
    predictor = load_predictor(moved, "words-bag", "q")
    best = predictor.probabilities({"text": texts}).argmax(axis=1)
    assert predictor.classes({"text": texts}) == [corpora["words"].classes[row] for row in best]

    retriever = load_predictor(moved, "pairs-a")
    images, captions = corpora["pairs"].raw["image"][:3], corpora["pairs"].raw["text"][:8]
    scores = retriever.scores(images, captions)
    assert scores["i2t"].shape == scores["t2i"].shape == (3, 8)
    ranked = retriever.rank_texts(images, captions)
    assert ranked.shape == (3, 8)
    assert (np.diff(np.take_along_axis(scores["i2t"], ranked, axis=1), axis=1) <= 0).all()
    ranked = retriever.rank_images(images, captions)
    assert ranked.shape == (8, 3)
    assert (np.diff(np.take_along_axis(scores["t2i"].T, ranked, axis=1), axis=1) <= 0).all()


def test_further_modalities_are_left_alone_and_no_rows_have_no_answers(moved: Path, corpora: dict[str, Corpus]) -> None:
    predictor = load_predictor(moved, "words-bigru", "q")
    assert predictor.probabilities({"text": ["a word"], "image": corpora["shapes"].raw["image"][:5]}).shape == (1, 4)
    assert load_predictor(moved, "shapes-mlp").probabilities({"image": corpora["shapes"].raw["image"][:0]}).shape == (0, 3)


def test_using_a_predictor_leaves_torchs_threads_as_they_were(moved: Path, corpora: dict[str, Corpus]) -> None:
    before = torch.get_num_threads()
    load_predictor(moved, "shapes-mlp").probabilities({"image": corpora["shapes"].raw["image"][:2]})
    assert torch.get_num_threads() == before


# --- faults ---


def test_what_is_wrong_with_the_inputs_is_named(moved: Path, corpora: dict[str, Corpus]) -> None:
    classifier, retriever = load_predictor(moved, "shapes-mlp"), load_predictor(moved, "pairs-a")
    with pytest.raises(MeasurementError, match="'shapes-mlp' reads image; missing: image"):
        classifier.probabilities({"text": ["a"]})
    with pytest.raises(MeasurementError, match=r"image inputs have shape \(1, 9, 9\), the model was trained on \(1, 8, 8\)"):
        classifier.probabilities({"image": np.zeros((2, 9, 9), dtype=np.uint8)})
    with pytest.raises(FedSocketError, match="uint8"):
        classifier.probabilities({"image": np.zeros((2, 8, 8), dtype=np.int64)})
    with pytest.raises(ConfigurationError, match="'pairs-a' retrieves; call `scores`"):
        retriever.probabilities({"image": corpora["pairs"].raw["image"][:1], "text": ["a"]})
    with pytest.raises(ConfigurationError, match="'shapes-mlp' classifies; call `probabilities`"):
        classifier.scores(corpora["shapes"].raw["image"][:1], ["a"])


def test_a_client_or_endpoint_that_is_not_there_is_named(toy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no client is called 'shapes-cn'"):
        load_predictor(toy_run, "shapes-cn")
    with pytest.raises(RunError, match="has no endpoint 'both'; it has private, q, joint"):
        load_predictor(toy_run, "shapes-cnn", "both")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="no moment is called 'first'"):
        load_predictor(toy_run, "shapes-cnn", "q", "first")  # type: ignore[arg-type]
    with pytest.raises(FedSocketError, match=r"no such file|is no run folder"):
        load_predictor(tmp_path, "shapes-cnn")


def test_local_has_no_q(tmp_path: Path) -> None:
    run_quickly(toy_config({"run.method": "local", "run.rounds": 1}), tmp_path / "run")
    assert load_predictor(tmp_path / "run", "words-bag", "private").classes({"text": ["topic0word1"]})
    for endpoint in ("q", "joint"):
        with pytest.raises(RunError, match=f"'words-bag' has no endpoint '{endpoint}'; it has private"):
            load_predictor(tmp_path / "run", "words-bag", endpoint)  # type: ignore[arg-type]


def test_an_own_q_can_be_used_too(tmp_path: Path, corpora: dict[str, Corpus]) -> None:
    settings = {"exchange.sharing": "own", "run.rounds": 2}
    folder = run_quickly(toy_config(settings), tmp_path / "run").folder
    expected = read_json(folder / "test.json")["clients"]["shapes-mlp"]["best"]
    for endpoint in ENDPOINTS:
        predictor = load_predictor(folder, "shapes-mlp", endpoint)  # type: ignore[arg-type]
        assert measured(predictor, corpora["shapes"], test_rows(folder, "shapes", "shapes-mlp"), 10) == expected[endpoint]


def test_a_run_that_is_not_finished_has_no_predictors(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_quickly(toy_config(), tmp_path / "run", [Cut(after=1)])
    with pytest.raises(RunError, match="is not finished; continue it with --resume"):
        load_predictor(tmp_path / "run", "shapes-cnn")


def test_the_choices_of_a_shorter_run_do_not_pass_for_those_of_a_longer_one(tmp_path: Path) -> None:
    run_quickly(toy_config({"run.rounds": 1}), tmp_path / "run")
    load_predictor(tmp_path / "run", "shapes-cnn")
    prepare_resume(tmp_path / "run", rounds=2)
    with pytest.raises(RunError, match="is not finished"):
        load_predictor(tmp_path / "run", "shapes-cnn")


def test_private_state_that_is_elsewhere_is_named(toy_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"'shapes-cnn' of .* has frozen no choices on this machine"):
        load_predictor(toy_run, "shapes-cnn", state=tmp_path)


def test_a_checkpoint_that_was_pruned_is_named(tmp_path: Path) -> None:
    folder = run_quickly(toy_config({"run.rounds": 1}), tmp_path / "run").folder
    for path in store_of(folder, "shapes-cnn")._folder.glob("version-*"):
        path.unlink()
    with pytest.raises(StoreError, match=r"'shapes-cnn' of run .* has no version 1"):
        load_predictor(folder, "shapes-cnn", "private")
