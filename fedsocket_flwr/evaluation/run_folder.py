"""Reading a run folder (its layout: ``docs/run_folder.md``): everything a report needs, from plain files only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.evaluation.run_schema import AnyForm, ConfigForm, RowForm, SplitsForm, TestForm, check_form
from fedsocket_flwr.plain_files import read_json, read_json_lines, read_text
from fedsocket_flwr.strict_yaml import parse_yaml

Record = Mapping[str, Any]


@dataclass(frozen=True)
class ClientFacts:
    """One client as it was configured and as its data were dealt; a number that nobody wrote is None."""

    name: str
    task: str
    model: str
    train: int | None = None
    dev: int | None = None
    test: int | None = None
    class_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """A run folder as read.

    Attributes
    ----------
    folder
        Where it lies.
    config, run, environment
        The files of these names; ``environment`` is empty where it was not written.
    clients
        Client name -> facts, in the order of the configuration.
    classes
        Task -> names of its classes, where ``splits.json`` has them.
    rows
        The lines of ``history.jsonl``: rounds in order, each once, then the closing line.
    test
        Client -> its part of ``test.json``, or None if the run has not been tested.
    q_parameters
        Number of parameters of Q.
    notes
        What is missing, for people.
    """

    folder: Path
    config: Record
    run: Record
    environment: Record
    clients: Mapping[str, ClientFacts]
    classes: Mapping[str, tuple[str, ...]]
    rows: tuple[Record, ...]
    test: Mapping[str, Record] | None
    q_parameters: int
    notes: tuple[str, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Task names, in the order of the configuration."""
        return tuple(self.config["tasks"])

    @property
    def rounds(self) -> tuple[Record, ...]:
        """The lines of the rounds, without the closing one."""
        return tuple(row for row in self.rows if row["phase"] == "train")

    @property
    def rounds_wanted(self) -> int:
        """Number of rounds that the configuration asks for."""
        return int(self.config["run"]["rounds"])

    @property
    def complete(self) -> bool:
        """True if every round was run and TEST was read."""
        return self.test is not None and len(self.rounds) >= self.rounds_wanted

    def of_task(self, task: str) -> tuple[ClientFacts, ...]:
        """Return the clients of one task."""
        return tuple(client for client in self.clients.values() if client.task == task)

    def dev(self) -> Iterator[tuple[int, Record]]:
        """Yield ``(round of the model, what was measured on DEV)``, in the order of the rounds."""
        measured = {int(row["dev"]["round"]): row["dev"] for row in self.rows if row.get("dev")}
        yield from sorted(measured.items())


def read_run(folder: Path) -> RunRecord:
    """Read a run folder.

    The history, TEST, the environment and the splits may be absent, as they are in a run that was cut off early; the record's
    ``notes`` say so. The last line of the history may be cut off.

    Raises
    ------
    RunError
        If ``config.yaml`` or ``run.json`` is missing, or any file is malformed; the message names the file.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    notes: list[str] = []
    config = _read_config(folder / "config.yaml")
    run = _read(folder / "run.json", AnyForm)
    environment = _optional(folder / "environment.json", AnyForm, notes, "the environment is unknown")
    splits = _optional(folder / "splits.json", SplitsForm, notes, "sizes and label counts are unknown").get("tasks", {})
    rows = _read_rows(folder / "history.jsonl", notes)
    test = _read(folder / "test.json", TestForm)["clients"] if (folder / "test.json").exists() else None
    done = sum(row["phase"] == "train" for row in rows)
    if done < int(config["run"]["rounds"]):
        notes.append(f"the run is unfinished: {done} of {config['run']['rounds']} rounds")
    if test is None:
        notes.append("TEST has not been read; the tables show DEV")
    return RunRecord(
        folder=folder,
        config=config,
        run=run,
        environment=environment,
        clients=_clients(config, splits),
        classes={task: tuple(str(name) for name in found.get("classes", ())) for task, found in splits.items()},
        rows=rows,
        test=test,
        q_parameters=int(run.get("q_parameters", 0)),
        notes=tuple(notes),
    )


def _optional(path: Path, form: type[BaseModel], notes: list[str], consequence: str) -> Record:
    if not path.exists():
        notes.append(f"{path.name} is missing: {consequence}")
        return {}
    return _read(path, form)


def _read(path: Path, form: type[BaseModel]) -> Record:
    found: Record = read_json(path)
    check_form(form, found, path)
    return found


def _read_config(path: Path) -> Record:
    try:
        config = parse_yaml(read_text(path), str(path))
    except ConfigurationError as error:
        raise RunError(str(error)) from error
    check_form(ConfigForm, config, path)
    return config


def _read_rows(path: Path, notes: list[str]) -> tuple[Record, ...]:
    if not path.exists():
        notes.append("history.jsonl is missing: no round was finished")
        return ()
    rows, cut = read_json_lines(path)
    if cut:
        notes.append("the last line of history.jsonl was cut off and is left out")
    for number, row in enumerate(rows, start=1):
        check_form(RowForm, row, f"{path}, row {number}")
    # A row that was written again replaces the first one; so does the closing row, which is put last.
    newest = {(row["phase"] == "close", 0 if row["phase"] == "close" else row["round"]): row for row in rows}
    return tuple(newest[key] for key in sorted(newest))


def _clients(config: Record, splits: Record) -> dict[str, ClientFacts]:
    dealt = {(task, client): split for task, found in splits.items() for client, split in found.get("clients", {}).items()}
    clients: dict[str, ClientFacts] = {}
    for task, settings in config["tasks"].items():
        for client in settings["clients"]:
            split = dealt.get((task, client["name"]), {})
            sizes = {part: len(split[part]) for part in ("train", "dev", "test") if part in split}
            counts = tuple(split.get("class_counts", {}).get("train", ()))
            clients[client["name"]] = ClientFacts(client["name"], task, client.get("model", ""), **sizes, class_counts=counts)
    return clients
