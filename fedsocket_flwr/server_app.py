"""The Flower ServerApp: registration, rounds, closing, TEST, report."""

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.datasets.client_data import task_classes
from fedsocket_flwr.datasets.split_manifest import deal_digest
from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.evaluation.metrics import mean_over_clients
from fedsocket_flwr.exchange.contract import Update
from fedsocket_flwr.exchange.payload import array_record, read_array_record, serialise
from fedsocket_flwr.exchange.registration import Declaration, Roster
from fedsocket_flwr.methods import ServerSide, build_server_side
from fedsocket_flwr.metric_names import ENDPOINTS, split_metric
from fedsocket_flwr.plain_files import dump_json, read_json, write_whole
from fedsocket_flwr.provenance import code_digest
from fedsocket_flwr.run_preparation import prepare_resume, prepare_run, read_run_configuration, report_what_is_there, run_facts
from fedsocket_flwr.runtime.callbacks import Callback, Callbacks, HistoryWriter, ProgressLog, TensorBoardWriter
from fedsocket_flwr.runtime.logs import log_through_flower
from fedsocket_flwr.runtime.rounds import Row, run_phase, run_rounds
from fedsocket_flwr.runtime.run_files import Checkpoint, held, load_checkpoint, read_identity, save_checkpoint

app = ServerApp()
log_through_flower()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Prepare the run that the run configuration asks for, or take up a prepared one, and serve it to its end."""
    folder = run_folder(context.run_config)
    log(INFO, "Run folder: %s", folder)
    if prepare_resume(folder):
        serve(grid, folder, [ProgressLog()])


def run_folder(run_config: Mapping[str, Any]) -> Path:
    """Return the prepared folder named by ``resume``, or prepare a new one.

    Its configuration is the text ``configuration``, which ``fedsocket-flwr run --superlink`` sends, or what ``config`` names,
    with the run's scalars.
    """
    if run_config.get("resume"):
        return Path(str(run_config["resume"]))
    if run_config.get("configuration"):
        config = Configuration.from_json(str(run_config["configuration"]))
        return prepare_run(config, _out(run_config), engine="deployment")
    overrides = [f"run.{key}={run_config[key]}" for key in ("name", "method") if run_config.get(key)] + [
        f"run.{key}={run_config[key]}" for key in ("seed", "rounds") if int(run_config.get(key, -1)) >= 0
    ]
    source = str(run_config.get("config", ""))
    if not source:
        raise ConfigurationError('the run configuration names no `config`: a path, or a shipped configuration such as "demo"')
    return prepare_run(read_configuration(source, overrides), _out(run_config), engine="flower")


def _out(run_config: Mapping[str, Any]) -> Path | None:
    return Path(str(run_config["out"])) if run_config.get("out") else None


def serve(grid: Grid, folder: Path, callbacks: Sequence[Callback] = ()) -> None:
    """Run, or continue, the run of a prepared folder until its report is written.

    Every finished round is on disk before anyone hears of it, so a run that is cut at any moment loses nothing but the round that
    was under way.
    """
    with held(folder):
        _serve(grid, folder, callbacks)


def _serve(grid: Grid, folder: Path, callbacks: Sequence[Callback]) -> None:
    config, run = read_run_configuration(folder), str(read_identity(folder)["run"])
    digests = {"code": code_digest(), "configuration": config.digest()}
    request = {"configuration": config.to_json(), "run": run, "deals": _deals(folder)}
    roster = Roster(request=request, digests=digests, declared=_declared(config))
    side = build_server_side(config, run, roster)
    checkpoint = load_checkpoint(folder)
    done = checkpoint.round if checkpoint else 0
    arrays = array_record(serialise(checkpoint.blocks if checkpoint else side.initial))
    if checkpoint:
        side.strategy.load_state(checkpoint.strategy)
    history = HistoryWriter(folder, resumed_round=done)
    facts = run_facts(folder)
    history.on_start(facts)
    if config.evaluation.tensorboard:
        callbacks = [TensorBoardWriter(folder, resumed_round=done), *callbacks]
    everyone = Callbacks(callbacks)
    everyone.on_start(facts)
    status = "interrupted"
    try:
        _train_and_close(grid, config, folder, side, arrays, done, history, everyone)
        status = "finished"
    except Exception as error:
        status = f"failed: {error}"
        raise
    finally:
        everyone.on_end(status)
        report_what_is_there(folder)


def _declared(config: Configuration) -> dict[str, Declaration]:
    """Return what the configuration says of every client, which no node may contradict."""
    return {
        client.name: (name, frozenset(config.tasks[name].held_by(client)), len(task_classes(config, name)))
        for name, client in config.clients()
    }


def _deals(folder: Path) -> str:
    """Return what a node compares data in another place with: a digest of each dealt task's splits, as JSON."""
    tasks: Mapping[str, Any] = read_json(folder / "splits.json")["tasks"]
    return dump_json({task: deal_digest(part) for task, part in tasks.items() if part["clients"]})


def _train_and_close(
    grid: Grid,
    config: Configuration,
    folder: Path,
    side: ServerSide,
    arrays: ArrayRecord,
    done: int,
    history: HistoryWriter,
    callbacks: Callbacks,
) -> None:
    strategy = side.strategy

    def on_round(row: Row, after: ArrayRecord) -> None:
        blocks = read_array_record(after)
        if row["round"] == done + 1 and not row["answered"]:
            reasons = row["refused"] | dict.fromkeys(row["missing"], "no answer in time")
            raise RunError("no client could do its first round: " + "; ".join(f"{c}: {why}" for c, why in reasons.items()))
        row["strategy"].update(side.probe(blocks))
        _add_task_means(row, strategy.roster.memberships)
        # The history first: a cut between the two repeats the round to the same bits and drops the row that was early.
        history.on_phase(row)
        save_checkpoint(folder, Checkpoint(row["round"], blocks, strategy.state()))
        callbacks.on_phase(row)

    seconds = config.participation.round_seconds
    strategy.register(grid)
    arrays = run_rounds(grid, strategy, arrays, first=done + 1, last=config.run.rounds, seconds=seconds, on_round=on_round)
    strategy.register(grid)
    clients = sorted(strategy.roster.nodes)
    row, closed = run_phase(grid, strategy, "close", config.run.rounds, arrays, clients, seconds)
    _add_task_means(row, strategy.roster.memberships)
    history.on_phase(row)
    callbacks.on_phase(row)
    reasons = _reasons(strategy.report)
    choices = strategy.choices(closed)
    frozen = [update.client for update in closed]
    _, updates = run_phase(grid, strategy, "test", config.run.rounds, arrays, frozen, seconds, choices)
    reasons |= _reasons(strategy.report)
    tested = _tested_before(folder)
    tested |= {update.client: _test_entry(strategy.roster.memberships[update.client].task, update) for update in updates}
    write_whole(folder / "test.json", dump_json({"clients": tested}, indent=2) + "\n")
    everyone = [client.name for _, client in config.clients()]
    absent = {client: reasons.get(client, "not online") for client in everyone if client not in tested}
    if absent:
        listed = "; ".join(f"{client}: {reason}" for client, reason in sorted(absent.items()))
        needed = config.participation.minimum_clients
        if needed is None or len(tested) < needed:
            raise RunError(f"TEST is incomplete: {listed}")
        log(WARNING, "TEST is without %s; resume the run to measure them when they are back", listed)


def _reasons(report: Any) -> dict[str, str]:
    """Return why clients gave no answer that counts, of those that were asked."""
    reasons: dict[str, str] = report.refused | dict.fromkeys(report.missing, "no answer")
    return reasons


def _tested_before(folder: Path) -> dict[str, Any]:
    """Return the TEST of clients that were measured before some others were back; a run that was given more rounds has none."""
    path = folder / "test.json"
    return dict(read_json(path)["clients"]) if path.exists() else {}


def _add_task_means(row: Row, memberships: Mapping[str, Any]) -> None:
    """Add to a row's DEV the unweighted mean over each task's clients that measured something."""
    if "dev" not in row:
        return
    by_task: dict[str, list[Mapping[str, float]]] = {}
    for client, numbers in row["dev"]["clients"].items():
        by_task.setdefault(memberships[client].task, []).append(numbers)
    row["dev"]["tasks"] = {}
    for task, rows in sorted(by_task.items()):
        means: dict[str, Any] = {endpoint: {} for endpoint in ENDPOINTS}
        for name, value in mean_over_clients(rows).items():
            endpoint, metric = split_metric(name)
            means[endpoint][metric] = value
        row["dev"]["tasks"][task] = {"clients": len(rows)} | {e: found for e, found in means.items() if found}


def _test_entry(task: str, update: Update) -> dict[str, Any]:
    """Return a client's entry of ``test.json`` from the flat metrics of its answer; a name of none of its parts is left out."""
    entry: dict[str, Any] = {"task": task, "best": {}, "last": {}, "choices": {}}
    for name, value in update.metrics.items():
        moment, _, rest = name.partition(".")
        if moment == "choices":
            which, _, choice = rest.partition(".")
            if which == "best":
                entry["choices"][choice] = int(value) if choice.endswith(".round") else value
            elif which == "last" and not choice.endswith(".round"):
                entry["choices"][f"last.{choice.removeprefix('joint.')}"] = value
        elif moment in ("best", "last") and split_metric(rest)[0] in ENDPOINTS:
            endpoint, metric = split_metric(rest)
            entry[moment].setdefault(endpoint, {})[metric] = value
    if update.counts:
        entry["confusion"] = {name: list(counts) for name, counts in update.counts.items()}
    return entry
