import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import write_configuration
from fedsocket_flwr.errors import ConfigurationError, FedSocketError, ResourceError, RunError
from fedsocket_flwr.plain_files import dump_json, read_json
from fedsocket_flwr.run_preparation import prepare_resume, prepare_run, q_parameters, read_run_configuration, run_facts
from fedsocket_flwr.runtime.run_files import Checkpoint, save_checkpoint, write_identity
from tests.small_federation import drawn

Configure = Callable[..., Configuration]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


class TestPrepareRun:
    def test_what_a_run_is_known_by_before_it_starts(self, tmp_path: Path, toy_config: Configure) -> None:
        config = toy_config({"run.seed": 4})
        folder = prepare_run(config, tmp_path / "run", "inprocess")
        assert files(folder) == {"config.yaml", "run.json", "environment.json", "splits.json"}
        assert read_run_configuration(folder) == config
        identity = read_json(folder / "run.json")
        assert (identity["engine"], identity["q_parameters"]) == ("inprocess", q_parameters(config))
        environment = read_json(folder / "environment.json")
        assert environment["threads"] == 1
        assert environment["interfaces"] == {"image": "pixels", "text": "hashed_words"}
        assert {"python", "packages", "machine", "code"} <= set(environment)

    def test_the_splits_are_those_of_every_client(self, tmp_path: Path, toy_config: Configure) -> None:
        config = toy_config()
        splits = read_json(prepare_run(config, tmp_path / "run", "inprocess") / "splits.json")
        assert {task: set(found["clients"]) for task, found in splits["tasks"].items()} == {
            name: {client.name for client in task.clients} for name, task in config.tasks.items()
        }

    def test_facts_for_callbacks(self, tmp_path: Path, toy_config: Configure) -> None:
        folder = prepare_run(toy_config({"run.rounds": 7}), tmp_path / "run", "inprocess")
        facts = run_facts(folder)
        assert (facts.name, facts.method, facts.seed, facts.rounds, facts.folder) == ("toy", "fedsocket", 1, 7, folder)
        assert facts.tasks == {"shapes": "classification", "words": "classification", "pairs": "retrieval"}
        assert facts.run == read_json(folder / "run.json")["run"]

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"run.method": "fedsockets"}, ConfigurationError, "did you mean 'fedsocket'"),
            ({"resources.gpus": 1.0}, ResourceError, "(?i)gpu|cuda"),
            ({"tasks.shapes.dataset": "toy_imagez"}, FedSocketError, "toy_imagez"),
            ({"tasks.shapes.partition.manifest": "no-such.json"}, FedSocketError, r"no-such\.json"),
        ],
    )
    def test_what_is_not_there_is_named_before_a_folder_is(
        self, tmp_path: Path, toy_config: Configure, settings: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        if "resources.gpus" in settings:
            torch = pytest.importorskip("torch")
            if torch.cuda.is_available():
                pytest.skip("this machine has what the configuration asks for")
        with pytest.raises(error, match=message):
            prepare_run(toy_config(settings), tmp_path / "run", "inprocess")
        assert not (tmp_path / "run").exists()

    def test_a_private_model_that_cannot_be_built_is_named_with_its_client(self, tmp_path: Path, toy_config: Configure) -> None:
        config = toy_config()
        task = config.tasks["shapes"]
        broken = task.clients[1].model_copy(update={"model": "image_mpl"})
        tasks = {**config.tasks, "shapes": task.model_copy(update={"clients": (task.clients[0], broken)})}
        with pytest.raises(ConfigurationError, match=r"tasks\.shapes, client 'shapes-mlp'.*image_mpl"):
            prepare_run(config.model_copy(update={"tasks": tasks}), tmp_path / "run", "inprocess")
        assert not (tmp_path / "run").exists()


class TestParameters:
    def test_the_whole_q_is_counted(self, toy_config: Configure) -> None:
        # Width 16, rank 4, interfaces of 16 numbers: own parts 1,121 a task, adapters 304 each, heads of 3 and 4 classes,
        # two modality embeddings, the residual.
        own = (2 * 16 + 2 * (16 * 16 + 16)) + 16 + 1 + (2 * 16 + 16 * 16 + 16)
        adapter = 2 * 16 + 16 * 16 + 16
        assert q_parameters(toy_config()) == 3 * own + 4 * adapter + (3 + 4) * 17 + 2 * 16 + 2 * 4 * 16

    def test_a_method_without_q_has_none(self, toy_config: Configure) -> None:
        assert q_parameters(toy_config({"run.method": "local"})) == 0


def write_test(folder: Path, clients: int) -> None:
    names = [client.name for _, client in read_run_configuration(folder).clients()]
    (folder / "test.json").write_text(dump_json({"clients": dict.fromkeys(names[:clients])}), encoding="utf-8")


class TestResume:
    @pytest.fixture
    def folder(self, tmp_path: Path, toy_config: Configure) -> Path:
        """A run of three rounds that was cut after two."""
        folder = tmp_path / "run"
        folder.mkdir()
        write_configuration(toy_config(), folder / "config.yaml")
        write_identity(folder, toy_config(), "inprocess", q_parameters=1)
        save_checkpoint(folder, Checkpoint(2, drawn("q"), {"versions": {}}))
        return folder

    def test_a_cut_run_has_something_left_to_do(self, folder: Path) -> None:
        assert prepare_resume(folder, None)
        assert read_run_configuration(folder).run.rounds == 3

    def test_it_can_be_given_more_rounds(self, folder: Path) -> None:
        assert prepare_resume(folder, 9)
        assert read_run_configuration(folder).run.rounds == 9

    def test_a_finished_run_has_nothing_left(self, folder: Path) -> None:
        save_checkpoint(folder, Checkpoint(3, drawn("q"), {"versions": {}}))
        write_test(folder, clients=6)
        before = (folder / "config.yaml").read_bytes()
        assert not prepare_resume(folder, None)
        assert not prepare_resume(folder, 3)
        assert (folder / "config.yaml").read_bytes() == before

    def test_a_run_that_a_client_left_before_its_test_is_not_finished(self, folder: Path) -> None:
        save_checkpoint(folder, Checkpoint(3, drawn("q"), {"versions": {}}))
        write_test(folder, clients=5)
        assert prepare_resume(folder, None)

    def test_the_test_of_a_shorter_run_goes(self, folder: Path) -> None:
        save_checkpoint(folder, Checkpoint(3, drawn("q"), {"versions": {}}))
        write_test(folder, clients=6)
        assert prepare_resume(folder, 5)
        assert not (folder / "test.json").exists()

    @pytest.mark.parametrize("rounds", [1, 0, -1])
    def test_rounds_that_are_done_stay_done(self, folder: Path, rounds: int) -> None:
        with pytest.raises(RunError, match=f"has finished 2 rounds; it cannot go back to {rounds}"):
            prepare_resume(folder, rounds)
        assert read_run_configuration(folder).run.rounds == 3

    def test_a_configuration_that_was_changed_meanwhile_is_refused_with_the_differing_keys(
        self, folder: Path, toy_config: Configure
    ) -> None:
        changed = toy_config({"training.q.learning_rate": 0.5, "tasks.words.clients[1].name": "other", "run.rounds": 7})
        write_configuration(changed, folder / "config.yaml")
        with pytest.raises(RunError) as found:
            prepare_resume(folder)
        assert re.search(r"training\.q\.learning_rate: [0-9.]+ when the run began, 0.5 now", str(found.value))
        assert "tasks.words.clients[1].name" in str(found.value)
        assert "run.rounds:" not in str(found.value)

    def test_a_configuration_that_is_given_must_be_the_runs_own(self, folder: Path, toy_config: Configure) -> None:
        assert prepare_resume(folder, given=toy_config())
        with pytest.raises(RunError, match=r"\(run.seed: 1 when the run began, 2 now\)"):
            prepare_resume(folder, given=toy_config({"run.seed": 2}))

    def test_how_long_it_waits_and_on_what_it_runs_may_change(self, folder: Path) -> None:
        assert prepare_resume(folder, overrides=["participation.round_seconds=9", "resources.workers=1", "run.rounds=4"])
        config = read_run_configuration(folder)
        assert (config.participation.round_seconds, config.resources.workers, config.run.rounds) == (9.0, 1, 4)

    def test_another_folder_is_named(self, tmp_path: Path, folder: Path) -> None:
        shutil.rmtree(folder)
        with pytest.raises(FedSocketError, match="run"):
            prepare_resume(folder, None)
