"""What happens before a run starts: everything is checked, then a folder is claimed and the run's facts are written into it."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsocket_flwr.config import Configuration, differing_settings
from fedsocket_flwr.configuration_file import read_configuration, write_configuration
from fedsocket_flwr.datasets.catalogue import read_corpus
from fedsocket_flwr.datasets.client_data import dealt_tasks, private_input_shapes, shared_interface
from fedsocket_flwr.datasets.own_data import require_own_reader
from fedsocket_flwr.datasets.partitions import manifest
from fedsocket_flwr.errors import ConfigurationError, RunError
from fedsocket_flwr.evaluation.report import write_report
from fedsocket_flwr.methods import feature_directory, find_method, shared_shape
from fedsocket_flwr.plain_files import dump_json, read_json, write_whole
from fedsocket_flwr.provenance import environment
from fedsocket_flwr.runtime.callbacks import RunFacts
from fedsocket_flwr.runtime.device import require_devices
from fedsocket_flwr.runtime.run_files import claim_folder, held, load_checkpoint, read_identity, write_identity
from fedsocket_flwr.runtime.store import state_directory

CONFIGURATION = "config.yaml"
MAY_CHANGE = (
    "run.rounds",
    "participation.registration_seconds",
    "participation.round_seconds",
    "participation.minimum_clients",
    "participation.largest_answer",
    "resources.workers",
    "resources.cpus",
    "resources.gpus",
    "evaluation.tensorboard",
)
"""Settings that a resumed run may change: how far it goes, how long it waits and on what it runs, not what it computes."""


def prepare_run(config: Configuration, out: Path | None, engine: str) -> Path:
    """Check what a run needs, claim its folder, write its facts, and return the folder.

    Raises
    ------
    FedSocketError
        Something that the configuration asks for is not there; nothing but caches has been written then.
    """
    method = find_method(config.run.method)
    require_devices(config.resources)
    splits = manifest(config, feature_directory(state_directory({})))
    method.needs(config)
    require_interfaces(config)
    require_private_models(config)
    parameters = q_parameters(config)
    folder = claim_folder(out, config)
    write_configuration(config, folder / CONFIGURATION)
    write_whole(folder / "splits.json", json.dumps(splits, ensure_ascii=False) + "\n")
    interfaces = {name: interface.kind for name, interface in config.interfaces.items()}
    facts = environment() | {"interfaces": interfaces, "threads": config.resources.threads}
    write_whole(folder / "environment.json", dump_json(facts, indent=2) + "\n")
    write_identity(folder, config, engine, parameters)
    return folder


def read_run_configuration(folder: Path) -> Configuration:
    """Return the resolved configuration of a run folder, or raise :class:`RunError` where there is none."""
    if not (folder / CONFIGURATION).exists():
        raise RunError(f"{folder} is no run folder: it has no {CONFIGURATION}")
    return read_configuration(folder / CONFIGURATION)


def prepare_resume(
    folder: Path, rounds: int | None = None, overrides: Sequence[str] = (), given: Configuration | None = None
) -> bool:
    """Make a cut or finished run ready to go on, with more rounds or changed waiting if asked; return whether anything is left.

    Parameters
    ----------
    folder
        The run folder.
    rounds
        The number of rounds to go on to; None: as configured.
    overrides
        Settings as on the command line, such as ``run.rounds=20``.
    given
        The configuration that the caller takes the run to have; it must be the run's own.

    Raises
    ------
    RunError
        Fewer rounds than are already done, or none; or a setting that made what was learned differs from the run's own.
    """
    read_run_configuration(folder)
    with held(folder):
        return _prepare_resume(folder, rounds, overrides, given)


def _prepare_resume(folder: Path, rounds: int | None, overrides: Sequence[str], given: Configuration | None) -> bool:
    config, checkpoint = read_configuration(folder / CONFIGURATION, overrides), load_checkpoint(folder)
    if rounds is not None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"rounds": rounds})})
    began = read_identity(folder).get("configuration")
    for found in (config, given):
        if found is not None and began is not None:
            _require_same(folder, began, found)
    done = checkpoint.round if checkpoint else 0
    wanted = config.run.rounds
    if wanted < max(done, 1):
        raise RunError(f"{folder} has finished {done} rounds; it cannot go back to {wanted}")
    if wanted > done:
        # What was measured at the end belonged to the shorter run. It goes first: a cut between the two loses nothing.
        (folder / "test.json").unlink(missing_ok=True)
    if config != read_run_configuration(folder):
        write_configuration(config, folder / CONFIGURATION)
    return not _tested(folder, config)


def _require_same(folder: Path, began: Mapping[str, Any], config: Configuration) -> None:
    """Refuse a configuration that differs from the one that the run began with in more than may change on the way."""
    differing = differing_settings(began, config.model_dump(mode="json"))
    wrong = {key: values for key, values in differing.items() if key not in MAY_CHANGE}
    if wrong:
        listed = "; ".join(f"{key}: {then!r} when the run began, {now!r} now" for key, (then, now) in wrong.items())
        raise RunError(f"{folder} cannot go on with another configuration ({listed}); only {', '.join(MAY_CHANGE)} may change")


def _tested(folder: Path, config: Configuration) -> bool:
    """Say whether TEST of every client is there: one that was not online at the end is asked again by a resumed run."""
    path = folder / "test.json"
    return path.exists() and all(client.name in read_json(path)["clients"] for _, client in config.clients())


def require_interfaces(config: Configuration) -> None:
    """Try every interface on a row that it will read, or raise :class:`ConfigurationError` naming it and what is wrong.

    A client's own rows are tried at its node, when it registers; here their data set must be one that a client can have.
    """
    for name, task in config.tasks.items():
        if task.has_own_data:
            require_own_reader(name, task)
    for name, task in dealt_tasks(config).items():
        corpus = read_corpus(task)
        for modality in task.interface_modalities:
            try:
                shared_interface(config.interfaces[modality])(corpus.raw[modality][:1])
            except ConfigurationError as error:
                raise ConfigurationError(f"interfaces.{modality}, for task {name!r}: {error}") from error


def require_private_models(config: Configuration) -> None:
    """Build every private model once, or raise :class:`ConfigurationError` naming a client that has it and what is wrong.

    Those on clients' own data, whose shapes are not known here, are built when their nodes register.
    """
    import torch

    from fedsocket_flwr.models.private import ModelFacts
    from fedsocket_flwr.models.registry import build_private_model

    checked: set[tuple[str, str, str, tuple[str, ...]]] = set()
    for name, client in config.clients():
        task = config.tasks[name]
        key = (name, client.model, json.dumps(client.arguments, sort_keys=True), task.held_by(client))
        if key in checked or task.has_own_data:
            continue
        checked.add(key)
        corpus = read_corpus(task)
        facts = ModelFacts(task.kind, len(corpus.classes), private_input_shapes(config, client.name), task.text_buckets)
        try:
            with torch.random.fork_rng(devices=[]):
                build_private_model(client.model, client.arguments, facts)
        except ConfigurationError as error:
            raise ConfigurationError(f"tasks.{name}, client {client.name!r}: {error}") from error


def run_facts(folder: Path) -> RunFacts:
    """Return what callbacks are told of a prepared run."""
    config = read_run_configuration(folder)
    return RunFacts(
        run=str(read_identity(folder)["run"]),
        name=config.run.name,
        method=config.run.method,
        seed=config.run.seed,
        rounds=config.run.rounds,
        tasks={name: task.kind for name, task in config.tasks.items()},
        folder=folder,
    )


def report_what_is_there(folder: Path) -> None:
    """Write the report of a run that has ended, however it ended; trouble with that is logged and hides no other error."""
    try:
        write_report(folder)
    except Exception:
        logging.getLogger(__name__).exception("the report of %s could not be written", folder)


def q_parameters(config: Configuration) -> int:
    """Return the number of parameters of the whole Q, 0 for a method without."""
    shape = shared_shape(config)
    if shape is None:
        return 0
    from fedsocket_flwr.models.predictor import initial_predictor

    return sum(parameter.numel() for parameter in initial_predictor(shape, config.run.seed).parameters())
