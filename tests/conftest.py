from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr import engines
from fedsocket_flwr.config import Configuration
from tests import toy_runs
from tests.toy_runs import Outcome


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the state directory of whoever runs the tests."""
    monkeypatch.setenv("FEDSOCKET_HOME", str(tmp_path / "fedsocket-home"))


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of the runs that several tests look at."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def toy_config() -> Callable[..., Configuration]:
    """The toy configuration with settings changed by key path."""
    return toy_runs.toy_config


@pytest.fixture(scope="session")
def outcome(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Run the toy configuration with changed settings; equal settings run once for all tests."""
    known: dict[str, Outcome] = {}

    def of(settings: Mapping[str, Any] | None = None) -> Outcome:
        config = toy_runs.toy_config(settings)
        key = config.digest()
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("FEDSOCKET_HOME", str(shared_home))
                known[key] = toy_runs.run_quickly(config, tmp_path_factory.mktemp("outcome") / "run")
        return known[key]

    return of


@pytest.fixture(scope="session")
def finished_run(shared_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one toy run with its report; tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSOCKET_HOME", str(shared_home))
        return engines.start(toy_runs.toy_config(), tmp_path_factory.mktemp("finished") / "run", "inprocess")


@pytest.fixture
def toy_run(finished_run: Path, shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The finished toy run, with the state directory in which its private models lie."""
    monkeypatch.setenv("FEDSOCKET_HOME", str(shared_home))
    return finished_run
