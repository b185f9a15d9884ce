"""The command ``fedsocket-flwr``: one function a command, each importing what it needs when it is called."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fedsocket_flwr.cli_parser import ENGINES, build_parser
from fedsocket_flwr.errors import ConfigurationError, FedSocketError

if TYPE_CHECKING:
    from fedsocket_flwr.config import Configuration

FAILED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 after an error that is named on one line, 130 after an interruption."""
    options = build_parser().parse_args(arguments)
    _speak_safely()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = COMMANDS[options.command](options)
        sys.stdout.flush()
    except FedSocketError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted; everything up to the last finished round is on disk", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has enough, as `head` does; what is left must go somewhere, or Python complains when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _speak_safely() -> None:
    """Print letters that the terminal's encoding lacks as escapes, and what the project has to say as plain lines."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    log = logging.getLogger("fedsocket_flwr")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)


def _quieten_flower() -> None:
    """Let Flower print warnings only, in colour on a terminal only; importing it would overwrite what was set before."""
    from flwr.common.logger import update_console_handler

    update_console_handler(level=logging.WARNING, colored=sys.stderr.isatty() and not os.environ.get("NO_COLOR"))


# --- commands -------------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from fedsocket_flwr import engines
    from fedsocket_flwr.run_preparation import prepare_run
    from fedsocket_flwr.runtime.callbacks import ProgressPrinter
    from fedsocket_flwr.runtime.feature_progress import feature_progress
    from fedsocket_flwr.runtime.run_files import read_identity

    _quieten_flower()
    if options.resume is not None and options.out:
        raise ConfigurationError("--resume goes on in the run folder itself; give no --out")
    if options.superlink:
        return _submit(options)
    callbacks = [ProgressPrinter(sys.stdout)]
    engine: engines.Engine
    if options.resume is not None:
        folder: Path = options.resume
        given = _configuration(options) if options.config else None
        engine = options.engine or read_identity(folder)["engine"]
        if engine not in ENGINES:
            raise ConfigurationError(
                f"{folder} was carried out by a SuperLink: continue it with --superlink NAME, or, where its private models are "
                "on this machine, with --engine"
            )
        if not engines.resume(folder, engine, None, callbacks, options.set, given):
            print(f"{folder} is finished; nothing to do")
    else:
        engine = options.engine or "ray"
        folder = prepare_run(_configuration(options), options.out, engine)
        with feature_progress(sys.stderr) as progress:
            engines.compute_features(folder, progress)
        engines.carry_out(folder, engine, callbacks)
    print(f"report: {folder / 'report.md'}")
    return 0


def _submit(options: argparse.Namespace) -> int:
    """Hand a run to a SuperLink that is up; all folders are on its host, and so is the report."""
    from fedsocket_flwr import engines

    given = {"out": options.out, "resume": options.resume}
    folders = {name: str(path) for name, path in given.items() if path is not None}
    relative = [path for path in folders.values() if not path.startswith("/")]
    if options.engine or relative or (options.resume and (options.config or options.set)):
        raise ConfigurationError(
            "with --superlink a run is carried out on the SuperLink's host: give no --engine, absolute folders of that host, and "
            f"with --resume nothing else, found {relative[0] if relative else '--engine, CONFIG or --set'}"
        )
    settings = folders if options.resume else {"configuration": _configuration(options).to_json(), **folders}
    engines.submit(options.superlink, **settings)
    return 0


def _configuration(options: argparse.Namespace) -> "Configuration":
    from fedsocket_flwr.configuration_file import read_configuration, shipped_configurations

    if not options.config:
        raise ConfigurationError(f"name a configuration: a YAML file, or one of {', '.join(shipped_configurations())}")
    return read_configuration(options.config, options.set)


def _local_deployment(options: argparse.Namespace) -> int:
    from fedsocket_flwr import engines
    from fedsocket_flwr.experiments.local_deployment import LocalDeployment, chosen_clients
    from fedsocket_flwr.run_preparation import prepare_run
    from fedsocket_flwr.runtime.callbacks import ProgressPrinter
    from fedsocket_flwr.runtime.feature_progress import feature_progress

    _quieten_flower()
    config, clients = chosen_clients(_configuration(options), options.clients.split(",") if options.clients else None)
    folder = prepare_run(config, options.out, "deployment")
    with feature_progress(sys.stderr) as progress:
        engines.compute_features(folder, progress)
    with LocalDeployment(clients) as deployment:
        print(f"SuperLink at {deployment.address} with TLS; SuperNodes of {', '.join(clients)}", flush=True)
        deployment.carry_out(folder, [ProgressPrinter(sys.stdout)])
    print(f"report: {folder / 'report.md'}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from fedsocket_flwr.checking import check_configuration

    check = check_configuration(_configuration(options))
    for line in check.lines():
        print(line)
    if options.plot:
        check.write_plot(options.plot)
        print(f"plot: {options.plot}")
    return 0


def _profile(options: argparse.Namespace) -> int:
    from fedsocket_flwr.evaluation.tables import to_markdown
    from fedsocket_flwr.experiments.profile import cost_table, profile, write_profile

    costs = profile(_configuration(options), options.batch)
    print(to_markdown(cost_table(costs)))
    if options.out:
        write_profile(costs, options.batch, options.out)
        print(f"profile: {options.out / 'profile.json'}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from fedsocket_flwr import engines
    from fedsocket_flwr.configuration_file import shipped_sweep
    from fedsocket_flwr.experiments.sweep import compare, run_sweep
    from fedsocket_flwr.runtime.callbacks import ProgressPrinter

    if options.compare:
        compare(options.sweep)
        print(f"comparison: {options.sweep / 'comparison.md'}")
        return 0

    _quieten_flower()

    def runner(config: "Configuration", folder: Path) -> None:
        print(f"member {folder}", flush=True)
        callbacks = [ProgressPrinter(sys.stdout)]
        if folder.exists():
            engines.resume(folder, options.engine, None, callbacks)
        else:
            engines.start(config, folder, options.engine, callbacks)

    result = run_sweep(shipped_sweep(options.sweep), options.out, runner, options.fail_fast, options.set)
    for member, reason in result.failed.items():
        print(f"failed: {member}: {reason}", file=sys.stderr)
    print(f"{len(result.ran)} run, {len(result.kept)} kept, {len(result.failed)} failed, {len(result.not_started)} not started")
    print(f"comparison: {result.out / 'comparison.md'}")
    return result.exit_code


def _report(options: argparse.Namespace) -> int:
    from fedsocket_flwr.evaluation.report import write_report

    write_report(options.run)
    print(f"report: {options.run / 'report.md'}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from fedsocket_flwr.prediction import predict_files

    predict_files(options.run, options.client, options.endpoint, options.files, options.top, sys.stdout)
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from fedsocket_flwr.other_data import evaluate_run
    from fedsocket_flwr.strict_yaml import parse_yaml

    chosen: dict[str, object] = {}
    for text in options.option:
        chosen |= parse_yaml(text.replace("=", ": ", 1), f"--option {text}")
    evaluation = evaluate_run(options.run, options.data, options.client, options.task, chosen, options.name)
    print(evaluation.markdown())
    return 0


def _data_list(options: argparse.Namespace) -> int:
    from fedsocket_flwr.datasets.catalogue import availability
    from fedsocket_flwr.evaluation.tables import Column, Table, to_markdown

    rows = availability()
    print(to_markdown(Table(tuple(Column(name) for name in rows[0]), tuple(tuple(row.values()) for row in rows))))
    return 0


def _data_prepare(options: argparse.Namespace) -> int:
    from fedsocket_flwr.datasets.catalogue import fetch, prepare

    for name, value in (fetch(options.name) if options.fetch else prepare(options.name, options.path)).items():
        print(f"{name}: {value}")
    return 0


def _data_convert(options: argparse.Namespace) -> int:
    from fedsocket_flwr.datasets.fed_multimodal import convert

    convert(options.source, options.target, options.variant)
    print(f"features: {options.target}")
    return 0


def _data_convert_own(options: argparse.Namespace) -> int:
    from fedsocket_flwr.datasets.own_conversion import convert_own
    from fedsocket_flwr.strict_yaml import dump_value

    converted = convert_own(options.source, options.target, options.dev, options.test, options.seed)
    print(f"data-dir: {options.target.absolute()}")
    print(", ".join(f"{split} {size} rows" for split, size in converted.sizes.items()))
    print(f"classes: {dump_value(list(converted.classes))}")
    return 0


def _store_list(options: argparse.Namespace) -> int:
    from fedsocket_flwr.runtime.store import list_runs, state_directory
    from fedsocket_flwr.text import show_bytes

    for row in list_runs(state_directory({})):
        changed = datetime.fromtimestamp(row.changed).strftime("%Y-%m-%d %H:%M")
        print(f"{row.run}  {row.clients} clients  {show_bytes(row.bytes)}  last change {changed}")
    return 0


def _store_prune(options: argparse.Namespace) -> int:
    from fedsocket_flwr.runtime.store import prune, state_directory

    if not options.runs and options.older_than is None:
        raise ConfigurationError("name the runs to remove, or give --older-than DAYS")
    for run in prune(state_directory({}), options.runs, options.older_than):
        print(f"removed {run}")
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "local-deployment": _local_deployment,
    "check": _check,
    "profile": _profile,
    "sweep": _sweep,
    "report": _report,
    "predict": _predict,
    "evaluate": _evaluate,
    "data list": _data_list,
    "data prepare": _data_prepare,
    "data convert": _data_convert,
    "data convert own": _data_convert_own,
    "store list": _store_list,
    "store prune": _store_prune,
}


if __name__ == "__main__":
    sys.exit(main())
