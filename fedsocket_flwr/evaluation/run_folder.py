"""Reading a run folder (its layout: ``docs/run_folder.md``): everything a report needs, from plain files only."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsocket_flwr.errors import ConfigurationError, RunError
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
    run = _mapping(folder / "run.json", read_json(folder / "run.json"))
    environment = _optional(folder / "environment.json", notes, "the environment is unknown")
    splits = _optional(folder / "splits.json", notes, "sizes and label counts are unknown")
    rows = _read_rows(folder / "history.jsonl", notes)
    test = _read_test(folder / "test.json")
    clients = _clients(config, splits, folder / "splits.json")
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
        clients=clients,
        classes={task: tuple(str(c) for c in found.get("classes", ())) for task, found in _split_tasks(splits)},
        rows=rows,
        test=test,
        q_parameters=_count_parameters(folder / "q.safetensors"),
        notes=tuple(notes),
    )


def _mapping(path: Path, found: object) -> Record:
    if not isinstance(found, dict):
        raise RunError(f"{path}: expected an object with named entries, found {type(found).__name__}")
    return found


def _optional(path: Path, notes: list[str], consequence: str) -> Record:
    if not path.exists():
        notes.append(f"{path.name} is missing: {consequence}")
        return {}
    return _mapping(path, read_json(path))


def _read_config(path: Path) -> Record:
    try:
        config = parse_yaml(read_text(path), str(path))
    except ConfigurationError as error:
        raise RunError(str(error)) from error
    tasks = config.get("tasks")
    if not isinstance(config.get("run"), dict) or not isinstance(config["run"].get("rounds"), int):
        raise RunError(f"{path}: `run.rounds` is missing or not a whole number")
    if not isinstance(tasks, dict) or not all(isinstance(t, dict) and isinstance(t.get("clients"), list) for t in tasks.values()):
        raise RunError(f"{path}: `tasks` is missing or a task in it has no list of clients")
    return {**config, "tasks": {str(name): task for name, task in tasks.items()}}


def _read_rows(path: Path, notes: list[str]) -> tuple[Record, ...]:
    if not path.exists():
        notes.append("history.jsonl is missing: no round was finished")
        return ()
    rows, cut = read_json_lines(path)
    if cut:
        notes.append("the last line of history.jsonl was cut off and is left out")
    rounds: dict[int, Record] = {}
    closing: Record | None = None
    for number, row in enumerate(rows, start=1):
        _check_row(f"{path}, row {number}", row)
        if row["phase"] == "train":
            rounds[row["round"]] = row
        else:
            closing = row
    ordered = [rounds[number] for number in sorted(rounds)]
    return (*ordered, *([closing] if closing else []))


def _check_row(where: str, row: Record) -> None:
    if row.get("phase") not in ("train", "close"):
        raise RunError(f"{where}: phase is {row.get('phase')!r}, expected 'train' or 'close'")
    if row["phase"] == "train" and not isinstance(row.get("round"), int):
        raise RunError(f"{where}: round is {row.get('round')!r}, expected a whole number")
    dev = row.get("dev")
    if dev and not (isinstance(dev, dict) and isinstance(dev.get("round"), int)):
        raise RunError(f"{where}: `dev` does not say which round's model it measured")


def _read_test(path: Path) -> Mapping[str, Record] | None:
    if not path.exists():
        return None
    clients = _mapping(path, read_json(path)).get("clients")
    if not isinstance(clients, dict) or not all(isinstance(c, dict) and isinstance(c.get("task"), str) for c in clients.values()):
        raise RunError(f"{path}: expected `clients`, each with its `task`")
    return clients


def _split_tasks(splits: Record) -> Iterator[tuple[str, Record]]:
    yield from (splits.get("tasks") or {}).items()


def _clients(config: Record, splits: Record, path: Path) -> dict[str, ClientFacts]:
    dealt = {task: found.get("clients", {}) for task, found in _split_tasks(splits)}
    clients: dict[str, ClientFacts] = {}
    for task, settings in config["tasks"].items():
        for client in settings["clients"]:
            name = str(client["name"])
            split = dealt.get(task, {}).get(name, {})
            sizes = {part: len(split[part]) for part in ("train", "dev", "test") if part in split}
            try:
                counts = tuple(int(count) for count in split.get("class_counts", {}).get("train", ()))
            except (TypeError, ValueError, AttributeError) as error:
                raise RunError(f"{path}: class_counts.train of client {name!r} are not whole numbers ({error})") from error
            clients[name] = ClientFacts(name, task, str(client.get("model", "")), **sizes, class_counts=counts)
    return clients


def _count_parameters(path: Path) -> int:
    """Count the elements named in a safetensors header, without reading the tensors; no file means no Q."""
    if not path.exists():
        return 0
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, path.stat().st_size)))
        header.pop("__metadata__", None)
        return sum(math.prod(int(length) for length in tensor["shape"]) for tensor in header.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: not a safetensors file ({error})") from error
