"""The repository as a Flower app: what `flwr build` bundles, and `flwr run .` itself."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import RunError
from fedsocket_flwr.runtime.superlink import local_superlink
from tests.toy_runs import assert_same_outcome, read_outcome, run_quickly

REPOSITORY = Path(__file__).parents[1]
ONE_CPU = "client-resources-num-cpus=1"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a copy of what Flower looks at, in a folder whose name it accepts."""
    folder = tmp_path / "app"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, folder / name)
    for name in ("fedsocket_flwr", "tests", "docs"):
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
        names = [name for name in archive.namelist() if not name.startswith(".info")]
    assert {name for name in names if not name.startswith("fedsocket_flwr/")} == {"pyproject.toml", "README.md"}
    assert {Path(name).suffix for name in names if name.startswith("fedsocket_flwr/")} == {".py", ".yaml"}
    assert "fedsocket_flwr/configs/demo.yaml" in names


@pytest.mark.slow
def test_flwr_run_does_what_the_run_configuration_says_and_gives_the_bits_of_a_run_in_process(app: Path, tmp_path: Path) -> None:
    out = tmp_path / "by flower"
    with local_superlink() as flower:
        scalars = f'config="configs/toy.yaml" seed=5 rounds=2 name="scalars" out="{out}"'
        flower.run(app, f"num-supernodes=6 {ONE_CPU}", scalars)
        with pytest.raises(RunError, match="num-supernodes=6"):
            flower.run(app, f"num-supernodes=7 {ONE_CPU}", f'config="toy" out="{tmp_path / "seven"}"')
    config = read_configuration("toy", ["run.seed=5", "run.rounds=2", "run.name=scalars"])
    assert_same_outcome(read_outcome(out), run_quickly(config, tmp_path / "in process"))
