"""``fedsocket-flwr evaluate``: a finished run's predictors, with their frozen choices, on other data of the same kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsocket_flwr.config import Configuration, TaskSettings
from fedsocket_flwr.datasets.catalogue import CATALOGUE, read_corpus
from fedsocket_flwr.datasets.client_data import open_split
from fedsocket_flwr.datasets.corpus import Corpus
from fedsocket_flwr.datasets.own_data import own_corpus
from fedsocket_flwr.datasets.split_manifest import SPLITS, ClientSplit, deal_digest, number_of_rows, task_manifest
from fedsocket_flwr.endpoints import Moment, existing_endpoints, load_predictor
from fedsocket_flwr.errors import ConfigurationError, DataError
from fedsocket_flwr.evaluation.metrics import mean_over_clients
from fedsocket_flwr.evaluation.tables import Cell, Column, Table, to_markdown
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.import_paths import is_import_path
from fedsocket_flwr.methods import feature_directory
from fedsocket_flwr.plain_files import dump_json, read_json, write_whole
from fedsocket_flwr.run_preparation import read_run_configuration
from fedsocket_flwr.runtime.store import state_directory

EVALUATIONS = "evaluations"
MOMENTS: tuple[Moment, ...] = ("best", "last")
OWN_ROWS = "each client's TEST rows of the run"
PUBLISHED_ROWS = "the rows of the published TEST"
ALL_ROWS = "all rows"


@dataclass(frozen=True)
class Evaluation:
    """What was measured of a run on other data.

    Attributes
    ----------
    facts
        The task, the data set, its path and options, and which of its rows were measured.
    clients
        Client -> ``examples``, and for ``best`` and ``last`` the metrics of each endpoint, as in ``test.json``.
    tested
        What the run's ``test.json`` has of the same clients.
    """

    facts: Mapping[str, Any]
    clients: Mapping[str, Mapping[str, Any]]
    tested: Mapping[str, Mapping[str, Any]]

    def table(self) -> Table:
        """Return the metrics of the rounds that DEV chose, with the difference of the first one from the run's own TEST."""
        metrics = list(dict.fromkeys(name for row in self.clients.values() for found in row["best"].values() for name in found))
        first = metrics[0]
        columns = (
            Column("client"),
            Column("rows", "integer"),
            Column("endpoint"),
            *(Column(name, "percent") for name in metrics),
            Column(f"{first} less the run's TEST", "points"),
        )
        rows: list[tuple[Cell, ...]] = []
        for client, row in self.clients.items():
            for endpoint, found in row["best"].items():
                own = self.tested.get(client, {}).get("best", {}).get(endpoint, {}).get(first)
                less = None if own is None or first not in found else found[first] - own
                rows.append((client, row["examples"], endpoint, *(found.get(name) for name in metrics), less))
        if len(self.clients) > 1:
            for endpoint in dict.fromkeys(endpoint for row in self.clients.values() for endpoint in row["best"]):
                mean = mean_over_clients(row["best"].get(endpoint, {}) for row in self.clients.values())
                rows.append(("mean of the clients", None, endpoint, *(mean.get(name) for name in metrics), None))
        return Table(columns, tuple(rows))

    def markdown(self) -> str:
        """Return facts and table as Markdown."""
        facts = "\n".join(f"* {name}: {value}" for name, value in self.facts.items() if value)
        return f"{facts}\n\n{to_markdown(self.table())}"


def evaluate_run(
    run: Path,
    data: str,
    client: str | None = None,
    task: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Evaluation:
    """Measure a finished run's predictors on other data and write ``evaluations/NAME.json`` and ``.md`` into its folder.

    Data that are dealt as the run's own (the same rows with the same labels, such as a shifted copy) are measured on each
    client's TEST rows, so that no training row is among them. Of other data it is the rows of the published TEST where there is
    one, else all rows.

    Parameters
    ----------
    run
        The run folder; the clients' private models must be on this machine.
    data
        A data set's name, or a path at which the task's own data set is read; with clients' own data the folder of such data.
    client, task
        Whose predictors; None: all clients of the task, which may be left out where only one comes into question.
    options
        Options of the data set that differ from the task's, or from its defaults where it is another data set.
    name
        What the evaluation is called; None: after ``data``.

    Raises
    ------
    ConfigurationError
        It is not clear which task is meant, or the data are of another kind or lack a modality.
    DataError
        They are missing or damaged, have classes that the run does not know, or no rows to measure.
    RunError, StoreError
        The run is not finished, or its private models are not here.
    """
    config = read_run_configuration(run)
    chosen = _chosen_task(config, data, client, task)
    config = _with_data(config, chosen, data, options or {})
    settings = config.tasks[chosen]
    names = [client] if client else [found.name for found in settings.clients]
    part = read_json(run / "splits.json")["tasks"][chosen]
    clients, which = {}, ""
    for each in names:
        corpus = _corpus(config, settings, each, tuple(part["classes"]), data)
        rows, which = _rows(corpus, part, each)
        clients[each] = _measure(run, config, each, corpus, rows)
    facts = {"task": chosen, "data set": settings.dataset, "path": settings.path, "options": dict(settings.options)}
    tested = read_json(run / "test.json")["clients"]
    evaluation = Evaluation(facts | {"rows": which}, clients, {each: tested[each] for each in names if each in tested})
    place = run / EVALUATIONS / file_slug(name or Path(data).name)
    write_whole(place.with_name(f"{place.name}.json"), dump_json({"data": evaluation.facts, "clients": clients}, indent=2) + "\n")
    write_whole(place.with_name(f"{place.name}.md"), evaluation.markdown())
    return evaluation


def _chosen_task(config: Configuration, data: str, client: str | None, task: str | None) -> str:
    """Return the task that the data are for."""
    of_client = config.client(client)[0] if client else None
    if task is not None and task not in config.tasks:
        raise ConfigurationError(f"no task is called {task!r}; the run has {', '.join(config.tasks)}")
    if task and of_client and task != of_client:
        raise ConfigurationError(f"client {client!r} is of task {of_client!r}, not {task!r}")
    reading = [name for name, settings in config.tasks.items() if settings.dataset == data]
    possible = [found for found in (task, of_client) if found] or (reading if len(reading) == 1 else list(config.tasks))
    if len(set(possible)) > 1:
        raise ConfigurationError(
            f"the run has the tasks {', '.join(config.tasks)}: say with --task, or --client, whose data these are"
        )
    return possible[0]


def _with_data(config: Configuration, name: str, data: str, options: Mapping[str, Any]) -> Configuration:
    """Return the configuration with other data in a task's place."""
    task = config.tasks[name]
    # Nothing is trained: no rows are cross-fitted by group.
    changed: dict[str, Any] = {"partition": task.partition.model_copy(update={"group": None})}
    if data in CATALOGUE or is_import_path(data):
        same = data == task.dataset
        changed |= {
            "dataset": data,
            "path": task.path if same else None,
            "options": {**(task.options if same else {}), **options},
        }
    elif Path(data).exists():
        changed |= {"path": str(Path(data).absolute()), "options": {**task.options, **options}}
    else:
        raise DataError(f"{data} is neither a path nor a data set; `fedsocket-flwr data list` shows the data sets")
    return config.model_copy(update={"tasks": {**config.tasks, name: task.model_copy(update=changed)}})


def _corpus(config: Configuration, task: TaskSettings, client: str, classes: tuple[str, ...], data: str) -> Corpus:
    """Return the data with their labels in the order of the run's classes."""
    corpus = own_corpus(config, client, Path(data).absolute()) if task.has_own_data else read_corpus(task)
    if corpus.labels is None or corpus.classes == classes:
        return corpus
    unknown = [name for name in corpus.classes if name not in classes]
    if unknown:
        raise DataError(
            f"{data} has classes that the run does not know: {', '.join(map(repr, unknown[:5]))}"
            f"{', ...' if len(unknown) > 5 else ''}; the run's are {', '.join(map(repr, classes))}"
        )
    places = np.array([classes.index(name) for name in corpus.classes], dtype=np.int64)
    return replace(corpus, labels=places[corpus.labels], classes=classes)


def _rows(corpus: Corpus, part: Mapping[str, Any], client: str) -> tuple[tuple[int, ...], str]:
    """Return the rows that are measured for a client, and in words which they are."""
    if part["clients"] and number_of_rows(corpus) == part["rows"]:
        splits = {name: ClientSplit(*(tuple(held[split]) for split in SPLITS)) for name, held in part["clients"].items()}
        if deal_digest(task_manifest(corpus, splits)) == deal_digest(part):
            return splits[client].test, OWN_ROWS
    if corpus.part is not None and "test" in corpus.part:
        return tuple(np.flatnonzero(np.asarray(corpus.part) == "test").tolist()), PUBLISHED_ROWS
    return tuple(range(number_of_rows(corpus))), ALL_ROWS


def _measure(run: Path, config: Configuration, client: str, corpus: Corpus, rows: Sequence[int]) -> dict[str, Any]:
    """Return one client's entry: the number of rows, and the metrics of the endpoints that it has."""
    split = open_split(config, client, corpus, rows, feature_directory(state_directory({})))
    found: dict[str, Any] = {"examples": split.examples}
    for moment in MOMENTS:
        predictors = ((one, load_predictor(run, client, one, moment)) for one in existing_endpoints(run, client, moment))
        found[moment] = {endpoint: predictor.measure(split) for endpoint, predictor in predictors}
    return found
