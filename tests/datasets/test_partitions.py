import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

from fedsocket_flwr.config import TaskSettings
from fedsocket_flwr.datasets import partitions
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.partitions import manifest, split_task
from fedsocket_flwr.errors import PartitionError
from tests.datasets.conftest import shipped


def rows_of(splits, which):
    return [set(getattr(split, which)) for split in splits.values()]


def assert_sound(splits, rows):
    """No row is in two splits of the task, and TRAIN is disjoint between clients."""
    train, dev, test = (set().union(*rows_of(splits, which)) for which in ("train", "dev", "test"))
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert all(0 <= row < rows for row in train | dev | test)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
@pytest.mark.parametrize("test", ["shared", "own"])
def test_sizes_and_disjoint_rows(kind, test, labelled, make_task):
    corpus = labelled([100, 60, 40])
    task = make_task(3, partition={"kind": kind, "train": 120, "dev": 30, "test": 50, "alpha": 1.0})
    splits = split_task("t", task, corpus, test)
    assert_sound(splits, 200)
    assert sum(len(part) for part in rows_of(splits, "train")) == 120
    if test == "shared":
        assert [len(split.test) for split in splits.values()] == [50, 50, 50]
        assert len({split.test for split in splits.values()}) == 1
        assert np.bincount(corpus.labels[list(splits["c0"].test)]).tolist() == [25, 15, 10]
    else:
        assert sum(len(part) for part in rows_of(splits, "test")) == 50
        assert not any(a & b for a, b in itertools.combinations(rows_of(splits, "test"), 2))


def test_own_test_follows_the_training_labels(labelled, make_task):
    corpus = labelled([300, 300, 300])
    task = make_task(2, partition={"kind": "dirichlet", "alpha": 0.5, "train": 600, "dev": 0, "test": 300, "minimum_size": 20})
    for split in split_task("t", task, corpus, "own").values():
        train = np.bincount(corpus.labels[list(split.train)], minlength=3)
        test = np.bincount(corpus.labels[list(split.test)], minlength=3)
        assert (abs(train / 2 - test) <= 1.5).all(), (train, test)


def test_all_gives_everyone_everything_and_splits_own_test_evenly(labelled, make_task):
    task = make_task(3, partition={"kind": "all", "train": 30, "dev": 9, "test": 21})
    splits = split_task("t", task, labelled([30, 30]), "own")
    assert len({split.train for split in splits.values()}) == 1
    assert len(splits["c0"].train) == 30
    assert [len(split.test) for split in splits.values()] == [7, 7, 7]


def test_default_sizes_round_down(labelled, make_task):
    splits = split_task("t", make_task(1, partition={"kind": "iid"}), labelled([4]), "shared")
    assert [len(part) for part in (splits["c0"].train, splits["c0"].dev, splits["c0"].test)] == [4, 0, 0]
    splits = split_task("t", make_task(1, partition={"kind": "iid"}), labelled([50, 50]), "shared")
    assert [len(part) for part in (splits["c0"].train, splits["c0"].dev, splits["c0"].test)] == [70, 10, 20]


def test_names_do_not_matter_but_seed_and_order_do(labelled, make_task):
    corpus = labelled([60, 60])
    partition = {"kind": "dirichlet", "train": 80, "dev": 10, "test": 20}
    first = split_task("t", make_task(2, partition=partition), corpus, "shared")
    other = [{"name": "zebra", "model": "m"}, {"name": "ant", "model": "m"}]
    renamed = split_task("t", make_task(other, partition=partition), corpus, "shared")
    assert list(renamed) == ["zebra", "ant"]
    assert list(renamed.values()) == list(first.values())
    assert split_task("t", make_task(2, partition=partition | {"seed": 8}), corpus, "shared") != first
    assert split_task("u", make_task(2, partition=partition), corpus, "shared") != first


def test_the_run_seed_plays_no_part():
    first, second = (manifest(shipped("toy", run={"seed": seed})) for seed in (1, 2**40))
    assert first == second


def test_a_published_split_is_kept(labelled, make_task):
    part = ["train"] * 50 + ["test"] * 30 + ["dev"] * 20
    corpus = labelled([40, 60], part=part)
    whole = split_task("t", make_task(2, partition={"kind": "iid"}), corpus, "shared")["c0"]
    assert whole.test == tuple(range(50, 80))
    assert whole.dev == tuple(range(80, 100))
    sized = split_task("t", make_task(2, partition={"kind": "iid", "test": 10, "dev": 5, "train": 20}), corpus, "shared")
    assert set(sized["c0"].test) < set(range(50, 80))
    assert set(sized["c0"].train) | set(sized["c1"].train) < set(range(50))
    with pytest.raises(PartitionError, match=r"partition.test asks for 31 .* only 30 are left"):
        split_task("t", make_task(2, partition={"kind": "iid", "test": 31}), corpus, "shared")


def test_dev_is_drawn_from_train_where_only_test_is_published(labelled, make_task):
    corpus = labelled([50, 50], part=["train"] * 80 + ["test"] * 20)
    split = split_task("t", make_task(1, partition={"kind": "iid"}), corpus, "shared")["c0"]
    assert (len(split.train), len(split.dev), split.test) == (72, 8, tuple(range(80, 100)))


# ---------------------------------------------------------------------------------------------------------------- natural
def owners(**ids):
    return [{"name": name, "model": "m", "natural_id": value} for name, value in ids.items()]


def test_natural_gives_each_its_own(labelled, make_task):
    column = ["x", "y", "z"] * 20
    corpus = labelled([30, 30], columns={"who": column})
    partition = {"kind": "natural", "column": "who", "train": 20, "dev": 8, "test": 12}
    for test in ("shared", "own"):
        splits = split_task("t", make_task(owners(b="y", a="x"), partition=partition), corpus, test)
        assert_sound(splits, 60)
        assert {column[row] for row in splits["b"].train} == {"y"}
        assert {column[row] for row in splits["a"].train} == {"x"}
        held = {column[row] for split in splits.values() for row in split.test}
        assert held == {"x", "y"}
    assert {column[row] for row in splits["a"].test} == {"x"}


@pytest.mark.parametrize(
    ("clients", "column", "message"),
    [
        ([{"name": "a", "model": "m"}], "who", r"client 'a' needs `natural_id`, one of the values of 'who': 'x', 'y'"),
        (owners(a="w"), "who", r"'who' has no value 'w'; its values: 'x', 'y'"),
        (owners(a="x", b="x"), "who", r"clients 'a' and 'b' claim the same 'x'"),
        (owners(a="x"), "what", r"no column 'what' \(columns: who\)"),
    ],
)
def test_natural_without_an_owner(clients, column, message, labelled, make_task):
    corpus = labelled([10, 10], columns={"who": ["x", "y"] * 10})
    with pytest.raises(PartitionError, match=message):
        split_task("t", make_task(clients, partition={"kind": "natural", "column": column}), corpus, "shared")


def test_an_owner_whose_rows_were_not_drawn(labelled, make_task):
    corpus = labelled([21], columns={"who": ["x"] + ["y"] * 20}, part=["test"] + ["train"] * 20)
    task = make_task(owners(a="x", b="y"), partition={"kind": "natural", "column": "who", "minimum_size": 0})
    splits = split_task("t", task, corpus, "shared")
    assert splits["a"].train == ()
    assert len(splits["b"].train) > 0
    with pytest.raises(PartitionError, match="minimum_size is 2 training rows a client, but a has 0"):
        split_task("t", make_task(owners(a="x", b="y"), partition={"kind": "natural", "column": "who"}), corpus, "shared")


# -------------------------------------------------------------------------------------------------------------- retrieval
def pictured(items: int, fonts: tuple[str, ...], captions: int = 1) -> Corpus:
    """Every item in every font, each picture with every caption of the item."""
    pairs, item, font = [], [], []
    for i in range(items):
        for f, name in enumerate(fonts):
            for c in range(captions):
                pairs.append((i * len(fonts) + f, i * captions + c))
                item.append(i)
                font.append(name)
    raw = {"image": np.zeros((items * len(fonts), 2, 2), np.uint8), "text": ["t"] * (items * captions)}
    return Corpus("made", "retrieval", raw, pairs=np.array(pairs), columns={"font": font}, item=np.array(item))


def test_retrieval_divides_by_item_and_keeps_one_image_with_all_captions(make_task):
    corpus = pictured(40, ("p", "q", "r"), captions=2)
    partition = {"kind": "natural", "column": "font", "train": 20, "dev": 6, "test": 12}
    task = make_task(owners(a="p", b="r"), kind="retrieval", dataset="toy_pairs", partition=partition)
    splits = split_task("t", task, corpus, "shared")
    items = [{int(corpus.item[row]) for row in getattr(splits["a"], which)} for which in ("train", "dev", "test")]
    assert [len(found) for found in items] == [20, 6, 12]
    assert len(set.union(*items)) == 38
    assert len(splits["a"].train) == 40
    test = list(splits["a"].test)
    assert len(test) == 24
    assert len(set(corpus.pairs[test, 0].tolist())) == 12
    # Only fonts that somebody holds, dealt in turn.
    assert [corpus.columns["font"][row] for row in test].count("p") == 12
    assert [corpus.columns["font"][row] for row in test].count("r") == 12
    assert splits["a"].test == splits["b"].test


@pytest.mark.parametrize("test", ["shared", "own"])
def test_retrieval_iid_keeps_an_item_with_one_client(test, make_task):
    corpus = pictured(30, ("p",), captions=3)
    task = make_task(3, kind="retrieval", dataset="toy_pairs", partition={"kind": "iid", "train": 15, "dev": 6, "test": 9})
    splits = split_task("t", task, corpus, test)
    held = [{int(corpus.item[row]) for row in split.train} for split in splits.values()]
    assert [len(found) for found in held] == [5, 5, 5]
    assert not any(a & b for a, b in itertools.combinations(held, 2))
    assert all(len(split.train) == 15 for split in splits.values())
    assert [len(split.test) for split in splits.values()] == ([27] * 3 if test == "shared" else [9] * 3)


def test_own_test_of_a_natural_retrieval(make_task):
    corpus = pictured(30, ("p", "q"))
    partition = {"kind": "natural", "column": "font", "train": 15, "dev": 5, "test": 10}
    task = make_task(owners(a="p", b="q"), kind="retrieval", dataset="toy_pairs", partition=partition)
    splits = split_task("t", task, corpus, "own")
    assert [len(split.test) for split in splits.values()] == [10, 10]
    assert not set(splits["a"].test) & set(splits["b"].test)


def test_dirichlet_needs_labels(make_task):
    task = make_task(2, kind="retrieval", dataset="toy_pairs", partition={"kind": "dirichlet"})
    with pytest.raises(
        PartitionError, match="dirichlet partition needs labels, which retrieval has not; use iid, natural or all"
    ):
        split_task("t", task, pictured(30, ("p",)), "shared")


# -------------------------------------------------------------------------------------------------------------- bad splits
def test_alpha_too_small_is_one_clear_error(labelled, make_task, capfd):
    task = make_task(8, partition={"kind": "dirichlet", "alpha": 0.001, "train": 90, "dev": 0, "test": 0, "minimum_size": 5})
    with pytest.raises(PartitionError, match=r"alpha 0.001 .* 8 clients at least 5 of 90 .* raise partition.alpha, lower"):
        split_task("t", task, labelled([50, 50]), "shared")
    assert capfd.readouterr() == ("", "")


def test_more_than_there_is(labelled, make_task):
    with pytest.raises(PartitionError, match=r"partition.train asks for 90 of 'made', but only 80 are left \(in all 100\)"):
        split_task("t", make_task(2, partition={"train": 90, "dev": 10, "test": 10}), labelled([50, 50]), "shared")
    with pytest.raises(PartitionError, match="no training rows are left"):
        split_task("t", make_task(2, partition={"dev": 50, "test": 50}), labelled([50, 50]), "shared")
    with pytest.raises(PartitionError, match="3 training rows cannot be dealt to 5 clients"):
        split_task("t", make_task(5, partition={"train": 3, "minimum_size": 0}), labelled([50, 50]), "shared")


def test_minimum_size(labelled, make_task):
    with pytest.raises(PartitionError, match="minimum_size is 40 training rows a client, but c0 has 30, c1 has 30"):
        split_task("t", make_task(2, partition={"train": 60, "minimum_size": 40}), labelled([50, 50]), "shared")


def test_clients_with_one_row_or_none_by_explicit_choice(labelled, make_task):
    splits = split_task("t", make_task(3, partition={"train": 3, "minimum_size": 1}), labelled([50, 50]), "shared")
    assert [len(split.train) for split in splits.values()] == [1, 1, 1]
    partition = {"kind": "dirichlet", "alpha": 0.01, "train": 30, "dev": 5, "test": 5, "minimum_size": 0}
    sizes = [len(s.train) for s in split_task("t", make_task(10, partition=partition), labelled([50, 50]), "own").values()]
    assert sum(sizes) == 30
    assert min(sizes) == 0


def test_a_class_that_nobody_holds(labelled, make_task):
    # One row of class c, and all of TEST, DEV and TRAIN are shares of 101 rows: the largest remainder leaves it out.
    task = make_task(2, partition={"train": 60, "dev": 10, "test": 20})
    splits = split_task("t", task, labelled([50, 50, 1]), "own")
    assert sum(len(split.test) for split in splits.values()) == 20


# ---------------------------------------------------------------------------------------------------------------- manifest
def test_a_manifest_given_back_gives_the_same_splits(toy, tmp_path):
    written = manifest(toy)
    file = tmp_path / "splits.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    tasks = {}
    for name, task in toy.tasks.items():
        partition = task.partition.model_copy(update={"manifest": str(file), "kind": "iid", "seed": 99})
        tasks[name] = task.model_copy(update={"partition": partition})
    again = manifest(toy.model_copy(update={"tasks": tasks}))
    assert again == written
    shapes = written["tasks"]["shapes"]["clients"]["shapes-cnn"]
    corpus = read_corpus(toy.tasks["shapes"])
    assert shapes["class_counts"]["train"] == np.bincount(corpus.labels[shapes["train"]], minlength=3).tolist()


@pytest.fixture
def changed_manifest(toy, tmp_path):
    def read(change):
        content = json.loads(json.dumps(manifest(toy)))
        change(content["tasks"]["shapes"])
        file = tmp_path / "splits.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        task: TaskSettings = toy.tasks["shapes"]
        task = task.model_copy(update={"partition": task.partition.model_copy(update={"manifest": str(file)})})
        return split_task("shapes", task, read_corpus(task), "shared")

    return read


def _client(task, name="shapes-cnn"):
    return task["clients"][name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda task: task["clients"].update(stranger=_client(task)), "client 'stranger' is not in the configuration"),
        (lambda task: task["clients"].pop("shapes-mlp"), "client 'shapes-mlp' of the configuration is missing"),
        (lambda task: _client(task)["train"].append(150), "row 150 in train, but rows go from 0 to 149"),
        (lambda task: _client(task)["train"].append(-1), "row -1 in train"),
        (lambda task: _client(task)["train"].append(_client(task)["train"][0]), "twice in train"),
        (lambda task: _client(task)["train"].append("3"), "needs a list of row numbers under 'train'"),
        (lambda task: _client(task).pop("dev"), "needs a list of row numbers under 'dev'"),
        (lambda task: _client(task)["train"].append(_client(task, "shapes-mlp")["test"][0]), "1 rows are in TRAIN and in TEST"),
        (lambda task: _client(task)["test"].pop(), "do not fit its checksum; remove `checksum`"),
        (lambda task: task.update(rows=149), "made for 149 rows of 'toy_images', the task reads 150 rows"),
        (lambda task: task.pop("clients"), "is not a split manifest with tasks.shapes.clients"),
    ],
)
def test_a_wrong_manifest_is_one_partition_error(change, message, changed_manifest):
    with pytest.raises(PartitionError, match=message):
        changed_manifest(change)


def test_a_manifest_changed_on_purpose(changed_manifest):
    def change(task):
        del task["checksum"]
        _client(task)["test"].pop()

    assert len(changed_manifest(change)["shapes-cnn"].test) == 29


def test_a_manifest_with_all_faults_names_them_all(changed_manifest):
    def change(task):
        task["clients"]["stranger"] = {}
        _client(task)["train"].append(1000)

    with pytest.raises(PartitionError, match=r"'stranger' is not in the configuration; .*row 1000"):
        changed_manifest(change)


@pytest.mark.parametrize("content", [None, b"", b"[1]", b"{", b"\xff\xfe", b'{"tasks": null}'])
def test_a_file_that_is_no_manifest(content, tmp_path, labelled, make_task):
    file = tmp_path / "splits.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PartitionError, match=r"splits\.json"):
        split_task("t", make_task(1, partition={"manifest": str(file)}), labelled([10]), "shared")


@pytest.mark.slow
def test_the_same_in_another_process(demo):
    code = (
        "from tests.datasets.conftest import shipped; from fedsocket_flwr.datasets.partitions import manifest;"
        "print([t['checksum'] for t in manifest(shipped('demo'))['tasks'].values()])"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "3"})
    assert other.stdout.strip() == str([task["checksum"] for task in manifest(demo)["tasks"].values()])


# ------------------------------------------------------------------------------------------------------------------- cache
def test_splits_are_kept_for_other_processes(toy, tmp_path, monkeypatch):
    drawn = []
    real = partitions.split_task
    monkeypatch.setattr(partitions, "split_task", lambda *args: drawn.append(args[0]) or real(*args))

    def fresh(config=toy, folder=tmp_path):
        monkeypatch.setattr(partitions, "_SPLITS", {})
        return partitions.task_splits(config, "shapes", folder)

    first = fresh()
    assert fresh() == first
    assert drawn == ["shapes"]
    (kept,) = tmp_path.iterdir()
    for damaged in (kept.read_bytes()[:-40], b"", kept.read_bytes().replace(b'"test": [', b'"test": [149, ', 1)):
        kept.write_bytes(damaged)
        assert fresh() == first
    assert drawn == ["shapes"] * 4
    assert fresh() == first
    assert drawn == ["shapes"] * 4
    other = toy.tasks["shapes"].model_copy(update={"options": {"rows": 150, "classes": 3, "size": 8, "seed": 5}})
    assert fresh(toy.model_copy(update={"tasks": toy.tasks | {"shapes": other}})) != first
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert fresh(folder=tmp_path / "file" / "cache") == first
