"""A runner that writes what a run leaves, and sweeps that use it."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import write_configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.experiments.comparison import Comparison
from fedsocket_flwr.experiments.sweep import SweepResult, compare, run_sweep

ARMS: dict[str, Any] = {"full": {}, "label_q": {"training.teaching.distil_q": 0}}
CONTRASTS: list[dict[str, Any]] = [
    {"name": "gain", "minuend": {"arm": "full", "endpoint": "joint"}, "subtrahend": {"arm": "full", "endpoint": "better_branch"}},
    {"name": "teaching", "minuend": {"arm": "full", "endpoint": "q"}, "subtrahend": {"arm": "label_q", "endpoint": "q"}},
]
Endpoints = Mapping[str, Mapping[str, Mapping[str, float]]]


def endpoints(config: Configuration) -> Endpoints:
    """Return numbers that follow from the configuration: Joint beats both branches, Label Q takes 0.1 off Q."""
    seed = (config.run.seed % 7) / 100
    q = 0.6 + seed - (0.1 if config.training.teaching.distil_q == 0 else 0.0)
    return {"shapes": {"private": {"accuracy": 0.5 + 2 * seed}, "q": {"accuracy": q}, "joint": {"accuracy": 0.8 + seed}}}


class FakeRunner:
    """Writes what a run leaves; remembers what it ran; fails where it is told to."""

    def __init__(self, fails: Callable[[Configuration], bool] = lambda config: False) -> None:
        self.fails = fails
        self.ran: list[str] = []
        self.resumed: list[str] = []

    def __call__(self, config: Configuration, folder: Path) -> None:
        name = f"{folder.parent.name}/{folder.name}"
        self.ran.append(name)
        if folder.exists():
            assert (folder / "q.safetensors").exists()
            self.resumed.append(name)
        folder.mkdir(exist_ok=True)
        write_configuration(config, folder / "config.yaml")
        if self.fails(config):
            raise ConfigurationError("tasks.shapes.clients[0].model: found 'image_cmm',\nexpected image_cnn")
        write_summary(folder, endpoints(config))


def write_summary(folder: Path, found: Any, **more: Any) -> None:
    (folder / "summary.json").write_text(json.dumps({"endpoints": found, "status": "complete", **more}), "utf-8")


def write_sweep(folder: Path, **sections: Any) -> Path:
    """Write a sweep's file; JSON is YAML."""
    path = folder / "sweep.yaml"
    content = {"name": "trial", "base": "toy", "seeds": [101, 202, 303], "arms": ARMS, **sections}
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in content.items()), "utf-8")
    return path


def sweep(folder: Path, runner: Callable[[Configuration, Path], None], fail_fast: bool = False, **sections: Any) -> SweepResult:
    return run_sweep(write_sweep(folder, **sections), folder / "out", runner, fail_fast)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def members(*names: str) -> list[str]:
    return [f"{name}/{seed}" for name in names for seed in (101, 202, 303)]


def sweep_and_compare(folder: Path, runner: Callable[[Configuration, Path], None], **sections: Any) -> Comparison:
    sweep(folder, runner, **sections)
    return compare(folder / "out")
