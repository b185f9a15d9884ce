"""A client's own data: what lies where, and what is refused, naming the file and row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets import own_data
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import open_client_data, token_modalities
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.entries import DatasetEntry
from fedsocket_flwr.datasets.own_data import own_corpus, own_rows
from fedsocket_flwr.datasets.partitions import manifest
from fedsocket_flwr.errors import ConfigurationError, DataError, FedSocketError, PartitionError
from tests.own_data import SHAPES, WORDS, own_config, write_federation
from tests.toy_runs import toy_config


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_data, "_CORPORA", {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_federation(tmp_path / "data")


LETTERS = DatasetEntry(
    name="letters",
    kind="classification",
    modalities=("text",),
    reader="tests.datasets.test_own_data:read_letters",
    classes=None,
    licence="none",
    source="a test",
    how_to_get="",
    size="",
    own_splits=("{split}.letters",),
)


def read_letters(path: str, options: Mapping[str, Any]) -> Corpus:
    rows = [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    classes = sorted({label for _, label in rows})
    labels = np.array([classes.index(label) for _, label in rows], dtype=np.int64)
    return Corpus("letters", "classification", {"text": [text for text, _ in rows]}, labels, tuple(classes))


def picture(file: Path, shade: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), shade).save(file)


class TestLayouts:
    def test_pictures_lie_in_folders_of_splits_and_classes(self, root: Path, tmp_path: Path) -> None:
        data = open_client_data(own_config(root), "shapes-a", tmp_path / "cache")
        assert [split.examples for split in (data.train, data.dev, data.test)] == [36, 12, 12]
        assert data.classes == SHAPES
        assert data.train.inputs["image"].shape == (36, 1, 8, 8)
        assert data.train.features["image"].shape == (36, 16)
        file = sorted((root / "shapes-a" / "train" / "class1").iterdir())[0]
        row = int(np.flatnonzero(data.train.labels == 1)[0])
        np.testing.assert_array_equal(data.train.inputs["image"][row : row + 1][0, 0] * 255, np.asarray(Image.open(file)))

    def test_labels_count_the_configured_classes_whatever_order_the_files_have(self, root: Path) -> None:
        """`words` lists its classes as class3, class1, class0, class2; a table's own order would be by name."""
        corpus = own_corpus(own_config(root), "words-b", None)
        lines = (root / "words-b" / "train.csv").read_text(encoding="utf-8").splitlines()[1:]
        assert corpus.classes == WORDS
        assert [WORDS[label] for label in corpus.labels[: len(lines)]] == [line.split(",")[1] for line in lines]

    def test_a_split_may_lack_classes(self, tmp_path: Path) -> None:
        for part in ("train", "dev", "test"):
            picture(tmp_path / part / "class2" / "1.png", 40)
        corpus = own_corpus(own_config(None, {"tasks.shapes.partition.minimum_size": 1}), "shapes-b", tmp_path)
        assert corpus.labels.tolist() == [2, 2, 2]

    def test_arrays(self, tmp_path: Path, root: Path) -> None:
        for number, part in enumerate(("train", "dev", "test")):
            rows = 4 - number
            vectors = np.full((rows, 3), number, dtype=np.float32)
            np.savez(tmp_path / f"{part}.npz", label=np.arange(rows) % 2, audio=vectors, person=np.array(["p"] * rows))
        config = vectors_config({"tasks.words.options": {"columns": ["person"]}})
        corpus = own_corpus(config, "words-a", tmp_path)
        assert corpus.raw["audio"][:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2]
        assert corpus.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 0, 1]
        assert corpus.columns == {"person": ["p"] * 9}
        assert own_rows(corpus, 2).dev == (4, 5, 6)

    def test_pictures_with_captions(self, tmp_path: Path) -> None:
        for number, part in enumerate(("train", "dev", "test")):
            for k in range(2):
                picture(tmp_path / part / f"{k}.png", 10 * number + k)
            captions = f"file,caption\n0.png,{part} a\n0.png,{part} b\n1.png,{part} c\n"
            (tmp_path / part / "captions.csv").write_text(captions, encoding="utf-8")
        data = open_client_data(captions_config(), "pairs-a", tmp_path / "cache", tmp_path)
        for split in (data.train, data.dev, data.test):
            assert split.pairs is not None
            assert split.pairs.tolist() == [[0, 0], [0, 1], [1, 2]]
        assert (data.test.inputs["image"][np.arange(2)][:, 0, 0, 0] * 255).tolist() == [20, 21]

    def test_another_project_s_data_set(self, root: Path) -> None:
        config = own_config(root, {"tasks.words.dataset": "tests.datasets.test_own_data:LETTERS"})
        for part in ("train", "dev", "test"):
            (root / "words-a" / f"{part}.letters").write_text(f"{part} class1\n{part} class2\n", encoding="utf-8")
        corpus = own_corpus(config, "words-a", None)
        assert corpus.raw["text"] == ["train", "train", "dev", "dev", "test", "test"]
        assert corpus.labels.tolist() == [1, 3] * 3

    def test_a_folder_of_the_client_s_name_below_path_is_read_where_the_node_says_nothing(self, root: Path) -> None:
        whole, told = own_config(root), own_config(None)
        np.testing.assert_array_equal(
            own_corpus(whole, "shapes-a", None).raw["image"], own_corpus(told, "shapes-a", root / "shapes-a").raw["image"]
        )


def vectors_config(settings: Mapping[str, Any] | None = None) -> Configuration:
    """Return the federation with `words` of vectors from tables of arrays."""
    changed = {
        "interfaces.audio": {"kind": "precomputed", "width": 3, "norm": None},
        "tasks.words.modalities": ["audio"],
        "tasks.words.classes": ["0", "1"],
        "tasks.words.clients": [{"name": "words-a", "model": "tests.datasets.vector_model:VectorModel"}],
        "training.private.audio": {"optimiser": "sgd", "learning_rate": 0.1},
    }
    return own_config(None, changed | dict(settings or {}))


def captions_config() -> Configuration:
    pairs = {
        "dataset": "image_captions",
        "kind": "retrieval",
        "modalities": ["image", "text"],
        "options": {"size": 8, "colour": False},
        "partition": {"kind": "own"},
        "clients": [{"name": "pairs-a", "model": "image_text_towers"}],
    }
    return own_config(None, {"tasks.pairs": pairs})


class TestRefusals:
    def refused(self, root: Path, client: str, message: str, error: type[FedSocketError] = DataError) -> None:
        config = own_config(root)
        with pytest.raises(error, match=message):
            own_rows(own_corpus(config, client, None), 2)

    def test_no_folder_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"set `data-dir` in the node configuration .*tasks\.words\.path"):
            own_corpus(own_config(None), "words-a", None)
        self.refused(tmp_path, "words-a", r"words-a is not a folder with the client's own data \(.*no `data-dir`\)")

    def test_every_missing_split_is_named(self, root: Path) -> None:
        (root / "words-a" / "dev.csv").unlink()
        (root / "words-a" / "test.csv").rename(root / "words-a" / "tests.csv")
        self.refused(root, "words-a", r"words-a lacks dev\.csv or dev\.npz, test\.csv or test\.npz;")

    def test_two_files_for_one_split(self, root: Path) -> None:
        (root / "words-a" / "dev.npz").write_bytes(b"")
        self.refused(root, "words-a", r"both dev\.csv and dev\.npz")

    def test_another_layout(self, root: Path) -> None:
        for file in (root / "shapes-a" / "dev").rglob("*.png"):
            file.rename(root / "shapes-a" / "dev" / file.name)
        self.refused(root, "shapes-a", r"shapes-a/dev must have folders with pictures, one a class; found none")

    def test_an_unknown_class_with_file_and_row(self, root: Path) -> None:
        file = root / "words-a" / "dev.csv"
        file.write_text(file.read_text(encoding="utf-8") + "a word,class7\n", encoding="utf-8")
        self.refused(
            root, "words-a", r"dev\.csv: row 12 has the class 'class7', which is none of .*class3, class1, class0, class2"
        )

    def test_a_damaged_picture(self, root: Path) -> None:
        file = next((root / "shapes-a" / "test").rglob("*.png"))
        file.write_bytes(file.read_bytes()[:30])
        self.refused(root, "shapes-a", rf"{file.name} is not a picture that can be read")

    def test_an_empty_split(self, root: Path) -> None:
        (root / "words-a" / "test.csv").write_text("text,label\n", encoding="utf-8")
        self.refused(root, "words-a", "it has no rows")

    def test_splits_of_other_shapes(self, tmp_path: Path) -> None:
        for part, width in (("train", 3), ("dev", 3), ("test", 4)):
            np.savez(tmp_path / f"{part}.npz", label=np.array([0, 1]), audio=np.ones((2, width), np.float32))
        with pytest.raises(
            DataError, match=r"test\.npz: audio is float32 of shape \(4,\), but float32 of shape \(3,\) in .*train"
        ):
            own_corpus(vectors_config(), "words-a", tmp_path)

    def test_a_modality_that_the_client_should_hold(self, tmp_path: Path) -> None:
        for part in ("train", "dev", "test"):
            np.savez(tmp_path / f"{part}.npz", label=np.array([0, 1]), video=np.ones((2, 3), np.float32))
        with pytest.raises(DataError, match=r"train\.npz has no modality audio \(it has video\)"):
            own_corpus(vectors_config(), "words-a", tmp_path)

    def test_too_few_rows_to_train(self, root: Path) -> None:
        (root / "words-a" / "train.csv").write_text("text,label\nlone,class1\n", encoding="utf-8")
        self.refused(root, "words-a", "1 training rows, but partition.minimum_size is 2", PartitionError)

    def test_vectors_of_another_width_than_the_interface(self, tmp_path: Path) -> None:
        for part in ("train", "dev", "test"):
            np.savez(tmp_path / f"{part}.npz", label=np.array([0, 1]), audio=np.ones((2, 5), np.float32))
        with pytest.raises(FedSocketError, match=r"(?s)audio.*5.*3|audio.*3.*5"):
            open_client_data(vectors_config(), "words-a", tmp_path / "cache", tmp_path)

    def test_tokens(self, tmp_path: Path) -> None:
        for part in ("train", "dev", "test"):
            np.savez(tmp_path / f"{part}.npz", label=np.array([0, 1]), audio=np.ones((2, 4, 3), np.float32))
        with pytest.raises(ConfigurationError, match=r"interfaces\.audio gives tokens of shape \(4, 3\)"):
            open_client_data(vectors_config(), "words-a", tmp_path / "cache", tmp_path)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"tasks.words.dataset": "bbc"}, "'bbc' cannot be a client's own"),
            ({"tasks.words.options": {"class_names": ["a", "b"]}}, "option 'class_names' does not go with partition.kind own"),
            ({"tasks.words.options": {"part": "split"}}, "option 'part' does not go with partition.kind own"),
        ],
    )
    def test_data_sets_that_are_published_whole(self, root: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            own_corpus(own_config(root, settings), "words-a", None)


def test_the_server_knows_the_names_of_classes_and_no_row() -> None:
    config = own_config(Path("/nowhere"))
    assert token_modalities(config) == frozenset()
    assert manifest(config)["tasks"]["words"] == {"dataset": "table", "classes": list(WORDS), "clients": {}}


def test_dealt_data_are_dealt_alike_in_another_place(tmp_path: Path) -> None:
    lines = ["text,label", *(f"word{row} of{row % 3},{'ab'[row % 2]}" for row in range(40))]
    for place in ("server", "node"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mail.csv").write_text("\n".join(lines), encoding="utf-8")
    words = {"dataset": "table", "path": str(tmp_path / "server" / "mail.csv"), "options": {}}
    config = toy_config(
        {f"tasks.words.{key}": value for key, value in words.items()} | {"tasks.words.partition": {"kind": "iid"}}
    )
    expected = open_client_data(config, "words-bag", tmp_path / "cache")
    (tmp_path / "server" / "mail.csv").unlink()
    found = open_client_data(config, "words-bag", tmp_path / "other", tmp_path / "node" / "mail.csv")
    for split in ("train", "dev", "test"):
        np.testing.assert_array_equal(getattr(found, split).labels, getattr(expected, split).labels)
        np.testing.assert_array_equal(getattr(found, split).inputs["text"], getattr(expected, split).inputs["text"])
    with pytest.raises(DataError, match=r"absent\.csv"):
        open_client_data(config, "words-bag", tmp_path / "cache", tmp_path / "absent.csv")
    assert read_corpus(config.tasks["words"]).classes == ("a", "b")
