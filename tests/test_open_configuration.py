"""The open federation's own file, on tiny data in the published layouts: what the full run does, in two rounds and seconds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration, shipped_sweep
from fedsocket_flwr.datasets import emoji, fashion_mnist, newsgroups20
from fedsocket_flwr.datasets.efficientnet_lite import TIMM_MODEL
from fedsocket_flwr.experiments.sweep_file import read_sweep
from tests.datasets.open_data import write_emoji, write_fashion_mnist, write_newsgroups
from tests.toy_runs import run_quickly

NAME = "open/heterogeneous"
# The federation as it is: clients, models, interfaces, exchange. Less data, fewer epochs and rounds.
QUICK = (
    "run.rounds=2",
    "training.warm_up_epochs=1",
    "tasks.clothes.options={train: 120, test: 30}",
    "tasks.clothes.partition.minimum_size=4",
    "tasks.clothes.partition.dev=20",
    "tasks.newsgroups.partition.minimum_size=4",
    "tasks.newsgroups.partition.train=100",
    "tasks.newsgroups.partition.dev=40",
    "tasks.newsgroups.partition.test=40",
    "tasks.emoji.partition.dev=8",
    "tasks.emoji.partition.test=10",
)


@pytest.fixture
def scaled_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """The open configuration, whose data sets and interface files lie in one folder each, far smaller than the published."""
    import timm

    write_fashion_mnist(tmp_path / "clothes", monkeypatch, train=120, test=30)
    write_newsgroups(tmp_path / "newsgroups", monkeypatch, train=160, test=40)
    write_emoji(tmp_path / "emoji", monkeypatch, count=40)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(timm.create_model(TIMM_MODEL, num_classes=1).state_dict(), tmp_path / "lite0.pth")
    words = sorted({word for name in newsgroups20.CLASSES for word in name.replace("-", ".").split(".")} | {"thing", "tag"})
    vectors = np.random.default_rng(0).normal(size=(len(words), 50))
    lines = (f"{word} {' '.join(f'{value:.4f}' for value in row)}" for word, row in zip(words, vectors, strict=True))
    (tmp_path / "glove.txt").write_text("\n".join(lines), encoding="utf-8")
    places = [f"tasks.{task}.path={tmp_path / task}" for task in ("clothes", "newsgroups", "emoji")]
    files = [
        f"interfaces.image.options={{size: 32, file: {tmp_path / 'lite0.pth'}}}",
        f"interfaces.text.options={{file: {tmp_path / 'glove.txt'}}}",
    ]
    return read_configuration(NAME, [*QUICK, *places, *files])


def test_two_rounds_on_the_published_layouts(scaled_down: Configuration, tmp_path: Path) -> None:
    found = run_quickly(scaled_down, tmp_path / "run")
    assert all(row["refused"] == {} and row["missing"] == [] for row in found.history)
    assert len(found.test) == 10
    for client, entry in found.test.items():
        assert set(entry["best"]) == set(entry["last"]) == {"private", "q", "joint"}
        task, _ = scaled_down.client(client)
        assert set(entry["best"]["joint"]) >= ({"i2t_r1", "t2i_r1"} if task == "emoji" else {"accuracy"})


def test_it_is_the_paper_s_federation() -> None:
    config = read_configuration(NAME)
    assert {name: len(task.clients) for name, task in config.tasks.items()} == {"clothes": 3, "newsgroups": 3, "emoji": 4}
    assert [config.tasks[name].partition.alpha for name in ("clothes", "newsgroups")] == [0.1, 0.1]
    assert (config.interfaces["image"].kind, config.interfaces["text"].kind) == ("efficientnet_lite0", "glove")
    assert {task.dataset for task in config.tasks.values()} == {fashion_mnist.NAME, newsgroups20.NAME, emoji.NAME}


def test_the_sweep_runs_every_arm_once() -> None:
    plan, members = read_sweep(shipped_sweep(Path("open")))
    assert plan.seeds == (101, 202, 303)
    assert len({member.configuration.digest() for member in members}) == len(members) == 3 * len(plan.cells)
    teaching = [member.configuration.training.teaching for member in members if member.seed == 101]
    assert {(0.0, 0.0), (0.0, 0.25), (0.5, 0.0), (0.5, 0.25)} <= {(t.distil_private, t.fusion) for t in teaching}
    merging = {(m.configuration.predictor.gate, m.configuration.merging.residual) for m in members}
    assert merging == {("fixed", "mean"), ("fixed", "projected"), ("learned", "mean"), ("learned", "projected")}
