"""The paper's task-heterogeneous protocol, as shipped: its bytes as `check` prints them, two rounds, and every arm of its sweeps.

Data are tiny and in the published layouts, in the places where the configuration seeks them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedsocket_flwr import cli
from fedsocket_flwr.checking import check_configuration
from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration, shipped_sweep, shipped_sweeps
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import open_client_data
from fedsocket_flwr.datasets.partitions import manifest, split_task
from fedsocket_flwr.experiments.sweep_file import Member, read_sweep
from fedsocket_flwr.plain_files import write_whole
from fedsocket_flwr.strict_yaml import dump_value
from tests.published_layouts import write_agnews, write_cifar100, write_flickr30k, write_glove, write_resnet18
from tests.toy_runs import Outcome, run_quickly

SEEDS = (101, 202, 303, 404, 505)
PAPER_SWEEPS = tuple(name for name in shipped_sweeps() if name.startswith("paper/"))
# Rows that the fixtures have; everything else of the partitions is as shipped.
FEW_ROWS = {"tasks.cifar100.partition.dev": 30, "tasks.agnews.partition.dev": 20} | {
    f"tasks.{task}.partition.minimum_size": 2 for task in ("cifar100", "agnews")
}
# Small pictures and narrow networks; clients, interfaces, Q, losses and server are as shipped.
SMALL = (
    {"run.rounds": 2, "training.warm_up_epochs": 1, "tasks.flickr30k.options.size": 32, "interfaces.image.options.size": 32}
    | {f"training.private.{key}.epochs": 1 for key in ('"image+text"', "image", "text")}
    | {f"tasks.cifar100.clients[{k}].arguments": {"width": 2, "embedding": 8} for k in range(3)}
    | {f"tasks.agnews.clients[{k}].arguments.embedding": 8 for k in range(3)}
    | {
        f"tasks.flickr30k.clients[{k}].arguments.{name}": size
        for k in range(4)
        for name, size in (("width", 2), ("embedding", 8))
    }
    | {f"tasks.{task}.text_buckets": 500 for task in ("agnews", "flickr30k")}
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    data = folder / "data"
    write_cifar100(data, 300, 100)
    write_agnews(data, 120, 40)
    write_flickr30k(data, 24, 8, 8)
    write_glove(data / "glove.6B.300d.txt")
    write_resnet18(data / "resnet18.pth")
    return folder


@pytest.fixture(autouse=True)
def beside_the_data(place: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield


def texts(settings: dict[str, object]) -> list[str]:
    """Return overrides as on the command line; weights come from a file, since nothing is downloaded here."""
    return ["interfaces.image.options.file=data/resnet18.pth", *(f"{key}={dump_value(v)}" for key, v in settings.items())]


def small(**more: object) -> Configuration:
    return read_configuration("paper/heterogeneous", texts(FEW_ROWS | SMALL | more))


def test_the_settings_are_the_paper_s() -> None:
    """FedSocket v1, Appendices A and I."""
    config = read_configuration("paper/heterogeneous")
    assert (config.run.rounds, config.training.warm_up_epochs) == (40, 10)
    assert {task: len(settings.clients) for task, settings in config.tasks.items()} == {
        "cifar100": 3,
        "agnews": 3,
        "flickr30k": 4,
    }
    private = config.training.private
    assert {key: (found.learning_rate, found.epochs) for key, found in private.items()} == {
        "image": (5e-2, 2),
        "text": (5e-4, 2),
        "image+text": (2e-4, 5),
    }
    assert config.training.q.learning_rate == 3e-4
    teaching = config.training.teaching
    assert (teaching.distil_private, teaching.fusion, teaching.distil_q) == (0.5, 0.25, 0.2)
    assert (config.evaluation.test, config.evaluation.fold_size) == ("shared", 200)
    assert {interface.width for interface in config.interfaces.values()} == {config.predictor.width} == {256}
    assert {task.partition.seed for task in config.tasks.values()} == {7}


@pytest.mark.parametrize("payload", ["full", "owned"])
def test_check_prints_the_paper_s_bytes(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    """913,003 parameters, 3.652 MB a message, 400 messages a direction and the class counts (FedSocket v1, Appendix I)."""
    overrides = texts(FEW_ROWS | {"exchange.payload": payload})
    assert cli.main(["check", "paper/heterogeneous", *(word for text in overrides for word in ("--set", text))]) == 0
    said = capsys.readouterr().out
    assert "Q: 913,003 parameters, 3.652 MB a message" in said
    lines = {line.split(":")[0].removesuffix(" (configured)"): line for line in said.splitlines() if line.startswith("payload")}
    assert "1,460,804,800 B down and 1,460,907,840 B up in 40 rounds" in lines["payload full"]
    owned = 4 * (3 * 315_493 + 3 * 290_821 + 4 * 356_353)
    # A count for each class, and one of all examples, in 8 bytes each.
    counts = 8 * (3 * 100 + 3 * 4 + 10)
    assert f"{40 * owned:,} B down and {40 * (owned + counts):,} B up in 40 rounds" in lines["payload owned"]
    assert "(configured)" in lines[f"payload {payload}"]
    for client in (*(f"cifar-{k}" for k in (1, 2, 3)), *(f"news-{k}" for k in (1, 2, 3)), *(f"flickr-{k}" for k in (1, 2, 3, 4))):
        assert client in said
    # Karpathy's pictures come with five captions each.
    assert "| flickr-4 | flickr30k | flickr_towers | 30 | 40 | 40 |" in said


def test_two_rounds(tmp_path: Path) -> None:
    found = run_quickly(small(), tmp_path / "run")
    check_outcome(found)
    assert {len(entry["best"]) for entry in found.test.values()} == {3}
    manifests_are_taken_back(tmp_path / "run" / "splits.json")


def check_outcome(found: Outcome) -> None:
    assert [row["round"] for row in found.rounds()] == [1, 2]
    assert all(row["refused"] == {} and row["missing"] == [] for row in found.history)
    assert len(found.test) == 10
    numbers = [value for entry in found.test.values() for metrics in entry["best"].values() for value in metrics.values()]
    assert numbers
    assert all(0 <= value <= 1 for value in numbers)


def manifests_are_taken_back(path: Path) -> None:
    """The splits that a run wrote, given back by `partition.manifest`, are the splits that were drawn."""
    drawn, given = (
        small(),
        small(**{f"tasks.{task}.partition.manifest": str(path) for task in ("cifar100", "agnews", "flickr30k")}),
    )
    assert manifest(given) == manifest(drawn)
    for name, task in drawn.tasks.items():
        splits = split_task(name, given.tasks[name], read_corpus(task), "shared")
        assert list(splits) == [client.name for client in task.clients]
        published = np.asarray(read_corpus(task).part)
        for split in splits.values():
            assert set(published[list(split.test)]) == {"test"}
            assert "test" not in set(published[[*split.train, *split.dev]])
        # The whole published TEST, for every client.
        assert {len(split.test) for split in splits.values()} == {int((published == "test").sum())}


def test_the_split_is_the_same_for_every_seed_and_not_even() -> None:
    first, other = manifest(small()), manifest(small(**{"run.seed": 505}))
    assert first == other
    cifar = [client["class_counts"]["train"] for client in first["tasks"]["cifar100"]["clients"].values()]
    # With alpha 0.1 most clients lack most classes.
    assert np.mean(np.array(cifar) == 0) > 0.3
    flickr = first["tasks"]["flickr30k"]["clients"].values()
    assert [len(client["train"]) for client in flickr] == [30] * 4


def test_pictures_are_read_from_their_files(tmp_path: Path) -> None:
    data = open_client_data(small(), "flickr-1", tmp_path)
    inputs = data.train.inputs["image"]
    assert inputs.shape == (6, 3, 32, 32)
    assert not isinstance(inputs, np.ndarray)
    assert data.train.features["image"].shape == (6, 256)
    assert data.train.features["text"].shape == (30, 256)


def members(sweep: str, **more: object) -> tuple[Member, ...]:
    return read_sweep(shipped_sweep(Path(sweep)), texts(FEW_ROWS | SMALL | more))[1]


def test_the_sweeps_are_the_paper_s_tables() -> None:
    assert PAPER_SWEEPS == ("paper/capacity", "paper/controls", "paper/gate_pcgrad", "paper/kd_fusion", "paper/main")
    for sweep in PAPER_SWEEPS:
        found = members(sweep)
        assert tuple(dict.fromkeys(member.seed for member in found)) == SEEDS
        assert found[0].cell.arm == "full"
        # A finished `full` of one sweep stands for that of another.
        assert found[0].configuration.digest() == small().digest()


@pytest.mark.parametrize("sweep", PAPER_SWEEPS)
def test_every_arm_builds(sweep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every arm has the interfaces of the base, which other tests build.
    monkeypatch.setattr("fedsocket_flwr.checking.require_interfaces", lambda config: None)
    arms = [member for member in members(sweep) if member.seed == SEEDS[0]]
    assert len({member.configuration.digest() for member in arms}) == len(arms) >= 3
    for member in arms:
        assert member.configuration.interfaces == small().interfaces
        exchanged = check_configuration(member.configuration).contract.blocks
        assert bool(exchanged) == (member.cell.arm not in ("local", "own_q"))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", PAPER_SWEEPS)
def test_two_rounds_of_every_arm(sweep: str, tmp_path: Path) -> None:
    for member in members(sweep):
        if member.seed == SEEDS[0] and member.cell.arm != "full":
            check_outcome(run_quickly(member.configuration, tmp_path / member.cell.arm))


def test_what_is_not_there_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "paper/heterogeneous"]) == 1
    error = capsys.readouterr().err
    assert f"data set 'cifar100': {tmp_path / 'data' / 'cifar-100-python'} is not a folder" in error
    write_whole(tmp_path / "sweep.yaml", "name: x\nbase: paper/heterogeneous\nseeds: [1]\n")
    assert cli.main(["sweep", "paper/none"]) == 1
    assert "sweeps that ship with the package: activity, demo, " in capsys.readouterr().err
