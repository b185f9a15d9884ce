"""The command ``fedsocket-flwr``."""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from fedsocket_flwr.errors import ConfigurationError, FedSocketError, RunError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 after an error that is named on one line, 130 after an interruption."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status: int = options.command(options)
    except FedSocketError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything up to the last finished round is on disk", file=sys.stderr)
        return INTERRUPTED
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedsocket-flwr", description="Federated learning on Flower for clients that differ.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a configuration, or continue a run")
    run.add_argument("config", nargs="?", help="a YAML file, or a configuration that ships with the package, such as demo")
    run.add_argument("--engine", choices=("ray", "inprocess"), help="default: ray; a resumed run keeps its own")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in run.seed=202")
    run.add_argument("--out", type=Path, metavar="DIR", help="the run folder; default: runs/<name>-<seed>")
    run.add_argument("--resume", type=Path, metavar="DIR", help="continue the run of this folder; only run.rounds may be set")
    run.set_defaults(command=_run)
    return parser


def _run(options: argparse.Namespace) -> int:
    from fedsocket_flwr import engines
    from fedsocket_flwr.configuration_file import read_configuration
    from fedsocket_flwr.runtime.callbacks import ProgressPrinter
    from fedsocket_flwr.runtime.run_files import read_identity

    callbacks = [ProgressPrinter(sys.stdout)]
    if options.resume is not None:
        if options.config or options.out:
            raise ConfigurationError("--resume takes its configuration from the run folder; give neither CONFIG nor --out")
        folder: Path = options.resume
        engine = options.engine or read_identity(folder)["engine"]
        if not engines.resume(folder, engine, _rounds_only(options.set), callbacks):
            print(f"{folder} is finished; nothing to do")
    else:
        if not options.config:
            raise ConfigurationError("name a configuration, as in: fedsocket-flwr run demo")
        config = read_configuration(options.config, options.set)
        folder = engines.start(config, options.out, options.engine or "ray", callbacks)
    print(f"report: {folder / 'report.md'}")
    return 0


def _rounds_only(overrides: Sequence[str]) -> int | None:
    """Return the number of rounds that a resumed run is given; anything else would not be the same run."""
    rounds = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "run.rounds" or not value.isdecimal():
            raise RunError(f"a resumed run can only change run.rounds, found --set {override}")
        rounds = int(value)
    return rounds


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(main())
