"""The repository as a Flower app: what `flwr build` bundles, the run configuration, and `flwr run .` itself with its log."""

import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedsocket_flwr import client_app, server_app
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.provenance import WORKSTATION_ONLY
from fedsocket_flwr.run_preparation import read_run_configuration
from fedsocket_flwr.runtime.inprocess import InProcessGrid
from fedsocket_flwr.runtime.superlink import Flower, executable, flower_environment, local_superlink
from tests.toy_runs import assert_same_outcome, quick, read_outcome, run_quickly

REPOSITORY = Path(__file__).parents[1]
ONE_CPU = "client-resources-num-cpus=1"
RUN_CONFIG = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
SAID_BY_WORKERS = """
import logging
import os
logging.getLogger(__name__).info("process %d opens the app", os.getpid())
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a copy of what Flower looks at, in a folder whose name it accepts."""
    folder = tmp_path / "app"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, folder / name)
    for name in ("fedsocket_flwr", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_bundle_holds_the_package_the_configurations_and_the_readme(app: Path) -> None:
    flwr = Path(sys.executable).parent / "flwr"
    subprocess.run(
        [flwr, "build", "--app", str(app)],
        cwd=app,
        check=True,
        capture_output=True,
        env={
            **os.environ,
            "FLWR_HOME": str(app.parent / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        },
    )
    (bundle,) = app.glob("*.fab")
    assert bundle.stat().st_size < 1_000_000
    with zipfile.ZipFile(bundle) as archive:
        names = {name for name in archive.namelist() if not name.startswith(".info")}
    # Every file that a run needs: Flower drops without a word what it takes for a test (test_*.py, *_test.py) or does not know.
    package = [path.relative_to(app).as_posix() for path in (app / "fedsocket_flwr").rglob("*") if path.is_file()]
    left_out = tuple(f"fedsocket_flwr/{part}" for part in (*WORKSTATION_ONLY, "py.typed"))
    needed = {name for name in package if not name.startswith(left_out) and "/sweeps/" not in name}
    assert names == {"pyproject.toml", "README.md", *needed}
    assert {"fedsocket_flwr/server_app.py", "fedsocket_flwr/configs/demo.yaml"} <= needed
    assert {Path(name).suffix for name in package} == {".py", ".yaml", ".typed"}


class TestRunConfiguration:
    """Every key of ``flwr run . --run-config``."""

    @pytest.mark.parametrize(("key", "value"), [("name", "mine"), ("method", "local"), ("seed", 0), ("seed", 7), ("rounds", 2)])
    def test_a_scalar_overrides_the_section_run(self, key: str, value: object, tmp_path: Path) -> None:
        folder = server_app.run_folder({**RUN_CONFIG, "config": "toy", "out": str(tmp_path / "run"), key: value})
        assert read_run_configuration(folder) == read_configuration("toy", [f"run.{key}={value}"])

    def test_what_is_left_out_is_as_in_the_file_and_the_folder_is_named_after_run_and_seed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        folder = server_app.run_folder({**RUN_CONFIG, "config": "toy"})
        assert folder.resolve() == tmp_path / "runs" / "toy-1"
        assert read_run_configuration(folder) == read_configuration("toy")

    def test_a_configuration_of_ones_own_is_a_path(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        shutil.copy(REPOSITORY / "fedsocket_flwr" / "configs" / "toy.yaml", path)
        folder = server_app.run_folder({**RUN_CONFIG, "config": str(path), "out": str(tmp_path / "run")})
        assert read_run_configuration(folder) == read_configuration("toy")

    def test_without_keys_it_is_the_demo(self) -> None:
        assert RUN_CONFIG["config"] == "demo"
        with pytest.raises(ConfigurationError, match="names no `config`"):
            server_app.run_folder({**RUN_CONFIG, "config": ""})

    def test_resume_goes_on_with_a_folder_and_reads_no_other_key(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        run_app({**RUN_CONFIG, "config": "toy", "rounds": 1, "out": str(folder)})
        (folder / "test.json").unlink()
        run_app({**RUN_CONFIG, "resume": str(folder), "config": "no such file", "seed": 9})
        assert_same_outcome(read_outcome(folder), run_quickly(read_configuration("toy", ["run.rounds=1"]), tmp_path / "whole"))

    def test_no_key_is_left_untested(self) -> None:
        assert set(RUN_CONFIG) == {"config", "name", "method", "seed", "rounds", "out", "resume"}


def run_app(run_config: dict[str, Any]) -> None:
    """Call the ServerApp as Flower does, with the toy configuration's six nodes in this process."""
    grid = InProcessGrid(client_app.app, [{"partition-id": number, "num-partitions": 6} for number in range(6)])
    with quick():
        server_app.app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config))


def test_a_run_says_every_line_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run_app({**RUN_CONFIG, "config": "toy", "rounds": 2, "out": str(tmp_path / "run")})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(("fedsocket_flwr", "flwr"))]
    assert_every_line_once(lines, rounds=2)
    assert len(lines) == len(set(lines))


def assert_every_line_once(lines: list[str], rounds: int) -> None:
    """Check that registration, start, rounds and end are said, each once."""
    clients = [client.name for _, client in read_configuration("toy").clients()]
    expected = [f"Client {name} registered for task" for name in clients]
    expected += [
        "fedsocket, seed ",
        *(f"round {number}/{rounds}  " for number in range(1, rounds + 1)),
        "closing  ",
        "run finished",
    ]
    assert {start: sum(start in line for line in lines) for start in expected} == dict.fromkeys(expected, 1)


def log_of(flower: Flower, run_id: str) -> list[str]:
    """Return what ``flwr log`` shows of a run, without colours."""
    command = [executable("flwr"), "log", run_id, "--show"]
    shown = subprocess.run(
        command, env=flower_environment(flower.home), capture_output=True, text=True, encoding="utf-8", check=True
    ).stdout
    return re.sub(r"\x1b\[\d*m", "", shown).splitlines()


@pytest.mark.slow
def test_flwr_run_does_what_the_run_configuration_says_and_gives_the_bits_of_a_run_in_process(app: Path, tmp_path: Path) -> None:
    out = tmp_path / "by flower"
    with (app / "fedsocket_flwr" / "client_app.py").open("a", encoding="utf-8") as file:
        file.write(SAID_BY_WORKERS)
    with local_superlink() as flower:
        scalars = f'config="configs/toy.yaml" seed=5 rounds=2 name="scalars" out="{out}"'
        run_id = flower.start(app, f"num-supernodes=6 {ONE_CPU}", scalars)
        assert flower.wait(run_id)["status"] == "finished:completed"
        lines = log_of(flower, run_id)
        with pytest.raises(RunError, match="num-supernodes=6"):
            flower.run(app, f"num-supernodes=7 {ONE_CPU}", f'config="toy" out="{tmp_path / "seven"}"')
    config = read_configuration("toy", ["run.seed=5", "run.rounds=2", "run.name=scalars"])
    assert_same_outcome(read_outcome(out), run_quickly(config, tmp_path / "in process"))
    assert_every_line_once(lines, rounds=2)
    ours = [line for line in lines if re.search(r"registered for task|round \d/2  |closing  |run finished|opens the app", line)]
    assert all(re.search(r"INFO +: ", line) for line in ours)
    processes = re.findall(r"process (\d+) opens the app", "\n".join(lines))
    assert processes
    assert len(processes) == len(set(processes))
