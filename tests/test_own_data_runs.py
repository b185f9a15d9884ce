"""Runs on clients' own data: the server never reads a row, and a node that cannot take part is refused at registration."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr import client_app, server_app
from fedsocket_flwr.checking import check_configuration
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.datasets import client_data, own_data, partitions, toy
from fedsocket_flwr.errors import ConfigurationError, RegistrationError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.evaluation.run_folder import read_run
from fedsocket_flwr.methods import build_client
from fedsocket_flwr.plain_files import read_json
from fedsocket_flwr.run_preparation import prepare_run
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from tests.own_data import PARTS, own_config, write_federation
from tests.toy_runs import assert_same_arrays, quick, read_outcome, run_quickly, same_task_config, timeless, toy_config

CLIENTS = ("shapes-a", "shapes-b", "words-a", "words-b")
Nodes = list[dict[str, Any]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(own_data, "_CORPORA", {})
    client_app._open_client.cache_clear()
    return write_federation(tmp_path / "data")


def nodes_of(root: Path) -> Nodes:
    return [{"client": client, "data-dir": str(root / client)} for client in CLIENTS]


def serve(config: Configuration, nodes: Nodes, folder: Path) -> None:
    prepare_run(config, folder, "inprocess")
    with quick():
        server_app.serve(InProcessGrid(client_app.app, nodes), folder)


@pytest.fixture
def no_data_set_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: Any) -> Any:
        raise AssertionError(f"the data of {task.dataset} were read")

    for module in (client_data, partitions):
        monkeypatch.setattr(module, "read_corpus", refuse)
    monkeypatch.setattr("fedsocket_flwr.run_preparation.read_corpus", refuse)


@pytest.mark.usefixtures("no_data_set_is_read_whole")
def test_the_server_needs_no_data_and_the_bits_are_those_of_one_process(root: Path, tmp_path: Path) -> None:
    elsewhere = own_config(Path("/nowhere/at/all"))
    serve(elsewhere, nodes_of(root), tmp_path / "run")
    client_app._open_client.cache_clear()
    deployed, together = read_outcome(tmp_path / "run"), run_quickly(own_config(root), tmp_path / "together")
    assert set(deployed.test) == set(CLIENTS)
    assert_same_arrays(deployed.q, together.q)
    assert deployed.test == together.test
    assert timeless(deployed.history) == timeless(together.history)


def test_a_report_leaves_out_what_only_clients_know(root: Path, tmp_path: Path) -> None:
    serve(own_config(None), nodes_of(root), tmp_path / "run")
    splits = read_json(tmp_path / "run" / "splits.json")
    assert [found["clients"] for found in splits["tasks"].values()] == [{}, {}]
    run = read_run(tmp_path / "run")
    assert {(client.train, client.dev, client.test) for client in run.clients.values()} == {(None, None, None)}
    assert run.classes["words"] == ("class3", "class1", "class0", "class2")
    write_report(tmp_path / "run")
    assert "| words-a | words | text_bag | – | – | – | 2 |" in (tmp_path / "run" / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_data_set_is_read_whole")
def test_check_says_what_is_known_before_registration(tmp_path: Path) -> None:
    check = check_configuration(own_config(Path("/nowhere")))
    lines = list(check.lines())
    assert "data of words: table (yours), 4 classes; every client's own, known at registration" in lines
    assert any(line.startswith("| words-a | words | text_bag | – | – | – |") for line in "\n".join(lines).splitlines())
    assert {member.class_counts for member in check.memberships} == {(0, 0, 0), (0, 0, 0, 0)}
    check.write_plot(tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def without_node_setting(root: Path, nodes: Nodes) -> None:
    del nodes[2]["data-dir"]


def without_a_split(root: Path, nodes: Nodes) -> None:
    (root / "words-a" / "dev.csv").unlink()


def with_an_unknown_class(root: Path, nodes: Nodes) -> None:
    (root / "words-a" / "test.csv").write_text("text,label\na word,class9\n", encoding="utf-8")


def with_another_layout(root: Path, nodes: Nodes) -> None:
    nodes[2]["data-dir"] = str(root / "shapes-a")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_node_setting, "set `data-dir` in the node configuration"),
        (without_a_split, r"lacks dev\.csv"),
        (with_an_unknown_class, r"test\.csv: row 0 has the class 'class9'"),
        (with_another_layout, r"shapes-a lacks train\.csv"),
    ],
)
def test_a_node_is_refused_by_name_with_the_reason(
    root: Path, tmp_path: Path, spoil: Callable[[Path, Nodes], None], reason: str
) -> None:
    nodes = nodes_of(root)
    spoil(root, nodes)
    with pytest.raises(RegistrationError, match=rf"no node registered as words-a.*client 'words-a' cannot take part: .*{reason}"):
        serve(own_config(None), nodes, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tasks.words.clients[0].model": "image_cnn"}, "image_cnn"),
        ({"tasks.words.clients[0].arguments": {"layers": -3}}, "text_bag"),
        ({"interfaces.text": {"kind": "pixels", "width": 16}}, "interfaces.text: "),
    ],
)
def test_models_and_interfaces_are_tried_at_registration(
    root: Path, tmp_path: Path, settings: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(RegistrationError, match=rf"client 'words-a' cannot take part: .*{reason}"):
        serve(own_config(None, settings), nodes_of(root), tmp_path / "run")


def test_a_run_goes_on_without_a_client_whose_data_are_wrong(root: Path, tmp_path: Path) -> None:
    without_a_split(root, [])
    settings = {"participation.minimum_clients": 3, "participation.registration_seconds": 0.5}
    serve(own_config(None, settings), nodes_of(root), tmp_path / "run")
    assert set(read_outcome(tmp_path / "run").test) == {*CLIENTS} - {"words-a"}


def test_files_are_mended_and_the_run_goes_on(root: Path, tmp_path: Path) -> None:
    file = root / "words-a" / "dev.csv"
    kept = file.read_bytes()
    without_a_split(root, [])
    with pytest.raises(RegistrationError, match="words-a"):
        serve(own_config(None), nodes_of(root), tmp_path / "run")
    file.write_bytes(kept)
    with quick():
        server_app.serve(InProcessGrid(client_app.app, nodes_of(root)), tmp_path / "run")
    assert set(read_outcome(tmp_path / "run").test) == set(CLIENTS)


def same_task_own(folder: Path, donor_groups: int) -> Configuration:
    """Two donors and two recipients of the same-task protocol, each with arrays of its own and a column of groups."""
    corpus = toy.read_vectors(None, {"rows": 240})
    config = same_task_config()
    task = config.tasks["scene"].model_dump(mode="json")
    for number, client in enumerate(task["clients"]):
        for part, (first, last) in PARTS.items():
            rows = np.arange(60 * number + int(60 * first), 60 * number + int(60 * last)) % 240
            groups = np.array([f"g{row % donor_groups}" for row in rows])
            # Q of own data reads vectors: the mean of the tokens.
            arrays = {m: np.asarray(corpus.raw[m])[rows].mean(axis=1) for m in ("video", "audio")}
            (folder / client["name"]).mkdir(parents=True, exist_ok=True)
            labels = np.array([corpus.classes[label] for label in np.asarray(corpus.labels)[rows]])
            np.savez(folder / client["name"] / f"{part}.npz", label=labels, group=groups, **arrays)
        client |= {"model": "tests.datasets.vector_model:VectorModel", "arguments": {}}
    task |= {"dataset": "table", "path": str(folder), "classes": list(corpus.classes), "options": {"columns": ["group"]}}
    task["partition"] = {"kind": "own", "group": "group"}
    return same_task_config({"tasks.scene": task, "evaluation.test": "own", "run.rounds": 1})


def test_donors_and_recipients_have_data_of_their_own(root: Path, tmp_path: Path) -> None:
    config = same_task_own(tmp_path / "scenes", donor_groups=3)
    assert set(run_quickly(config, tmp_path / "run").test) == {client.name for _, client in config.clients()}


def test_a_donor_with_too_few_groups_is_refused_at_registration(root: Path, tmp_path: Path) -> None:
    config = same_task_own(tmp_path / "scenes", donor_groups=1)
    donor = next(client.name for _, client in config.clients() if config.role(client.name) == "donor")
    with pytest.raises(RegistrationError, match=rf"client '{donor}' cannot take part: cross-fitting needs at least 2 groups"):
        run_quickly(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation.test": "shared"}, r"tasks\.shapes: partition.kind own gives every client its own TEST"),
        ({"tasks.words.classes": None}, "partition.kind own needs `classes`"),
        ({"tasks.words.classes": ["a", "a"]}, "`classes` must differ"),
        ({"tasks.words.partition": {"kind": "own", "train": 5}}, "train say how rows are dealt"),
        ({"tasks.words.partition": {"kind": "iid"}}, "`classes` belong to classification with partition.kind own"),
        ({"tasks.words.partition": {"kind": "own", "manifest": "x.json"}}, "manifest say how rows are dealt"),
    ],
)
def test_configurations_that_do_not_go_with_own_data(settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        own_config(None, settings)


def test_a_client_reads_no_other_task_s_data(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, read = client_data.read_corpus, []
    monkeypatch.setattr(client_data, "read_corpus", lambda task: read.append(task.dataset) or real(task))
    client = build_client(toy_config(), "words-bag", "run", tmp_path / "state")
    assert set(read) == {"toy_texts"}
    assert client.membership().class_counts == client.data.class_counts()
    assert np.sum(client.membership().class_counts) == client.data.train.examples


class TestDealtDataInAnotherPlace:
    """Task `words` of a table; the nodes have a copy of their own, under another name."""

    def config(self, folder: Path) -> Configuration:
        lines = ["text,label", *(f"word{row} of{row % 3},{'ab'[row % 2]}" for row in range(40))]
        for name in ("server.csv", "node.csv"):
            (folder / name).write_text("\n".join(lines), encoding="utf-8")
        tasks = {"words": toy_config().tasks["words"].model_dump(mode="json")}
        tasks["words"] |= {"dataset": "table", "path": str(folder / "server.csv"), "options": {}, "partition": {"kind": "iid"}}
        return toy_config({"tasks": tasks, "run.rounds": 1})

    def test_the_bits_are_the_same(self, tmp_path: Path) -> None:
        config = self.config(tmp_path)
        nodes: Nodes = [{"client": name, "data-dir": str(tmp_path / "node.csv")} for name in ("words-bag", "words-bigru")]
        serve(config, nodes, tmp_path / "run")
        client_app._open_client.cache_clear()
        there, here = read_outcome(tmp_path / "run"), run_quickly(config, tmp_path / "here")
        assert there.test == here.test
        assert_same_arrays(there.q, here.q)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("word7 of1,a\n", "its 41 rows in 2 classes"),
            ("word7 of1,c\n", "its 41 rows in 3 classes"),
            (None, "cannot read .*node"),
        ],
    )
    def test_another_data_set_is_refused_by_name(self, tmp_path: Path, change: str | None, reason: str) -> None:
        config = self.config(tmp_path)
        file = tmp_path / "node.csv"
        if change is None:
            file.unlink()
        else:
            file.write_text(file.read_text(encoding="utf-8") + "\n" + change, encoding="utf-8")
        nodes: Nodes = [{"client": "words-bag", "data-dir": str(file)}, {"client": "words-bigru"}]
        with pytest.raises(RegistrationError, match=rf"client 'words-bag' cannot take part: .*{reason}"):
            serve(config, nodes, tmp_path / "run")

    def test_the_same_rows_with_other_labels_are_refused(self, tmp_path: Path) -> None:
        config = self.config(tmp_path)
        file = tmp_path / "node.csv"
        lines = file.read_text(encoding="utf-8").splitlines()
        file.write_text("\n".join([lines[0], *lines[2:], lines[1]]), encoding="utf-8")
        nodes: Nodes = [{"client": "words-bag", "data-dir": str(file)}, {"client": "words-bigru"}]
        with pytest.raises(RegistrationError, match=r"node\.csv holds another data set than the server's for task 'words'"):
            serve(config, nodes, tmp_path / "run")
