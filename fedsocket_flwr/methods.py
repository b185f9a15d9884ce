"""Which strategy and client make a method, and whether they share Q: one row each, resolved only when needed.

Adding a method means adding its strategy file, its client file and its row here. Another project's method needs no row: the
configuration names it as ``package.module:name`` of a :class:`Method`.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.exchange.contract import Blocks, Contract
from fedsocket_flwr.exchange.registration import Roster
from fedsocket_flwr.import_paths import is_import_path, load
from fedsocket_flwr.strategies.registered import RegisteredStrategy

if TYPE_CHECKING:
    from fedsocket_flwr.clients.participant import Participant
    from fedsocket_flwr.models.predictor import PredictorShape


def merging_rules(config: Configuration) -> dict[str, Any]:
    """Return the settings of ``merging``, as :class:`~fedsocket_flwr.strategies.task_owned.TaskOwnedStrategy` takes them."""
    merging = config.merging
    return {"residual": merging.residual, "modality": merging.modality, "task_mean": merging.task_mean, "trim": merging.trim}


def same_task_rules(config: Configuration) -> dict[str, Any]:
    """Return what :class:`~fedsocket_flwr.strategies.same_task.SameTaskStrategy` takes; beta is chosen by the learning room."""
    from fedsocket_flwr.learning.calibration import choose_beta

    merging = config.merging
    return {
        "stabiliser": merging.stabiliser,
        "gate_class_rows": merging.gate_class_rows,
        "task_mean": merging.task_mean,
        "trim": merging.trim,
        "betas": config.evaluation.betas,
        "choose_beta": choose_beta,
    }


def same_task_needs(config: Configuration) -> None:
    """Raise a :class:`FedSocketError` where the same-task protocol cannot run: it has one task, and donors need groups.

    A donor's teacher is cross-fitted by group, so that every donor with training rows needs as many groups as there are folds.
    """
    from fedsocket_flwr.datasets.client_data import require_groups
    from fedsocket_flwr.learning.crossfit import FOLDS

    kinds = [task.kind for task in config.tasks.values()]
    if kinds != ["classification"]:
        raise ConfigurationError(
            f"run.method {config.run.method!r} needs one task, of kind classification, found {', '.join(kinds)}"
        )
    if config.training.teaching.cross_fit:
        require_groups(config, [client.name for _, client in config.clients() if config.role(client.name) == "donor"], FOLDS)


def no_options(config: Configuration) -> dict[str, Any]:
    """Return nothing: a strategy that takes what every strategy takes."""
    return {}


def no_needs(config: Configuration) -> None:
    """Ask nothing beyond what every method asks."""


@dataclass(frozen=True)
class Method:
    """The parts of a method.

    Attributes
    ----------
    strategy, client
        ``module:name`` of a :class:`~fedsocket_flwr.strategies.registered.RegisteredStrategy` and of a
        :class:`~fedsocket_flwr.clients.participant.Participant`.
    shares_q
        Whether its clients share Q.
    options
        What the strategy's constructor takes of the configuration beyond what every strategy takes.
    needs
        Raises a :class:`FedSocketError` before the run where the configuration, or its data, do not suit the method.
    """

    strategy: str
    client: str
    shares_q: bool
    options: Callable[[Configuration], Mapping[str, Any]] = no_options
    needs: Callable[[Configuration], None] = no_needs


METHODS: dict[str, Method] = {
    "fedsocket": Method(
        strategy="fedsocket_flwr.strategies.task_owned:TaskOwnedStrategy",
        client="fedsocket_flwr.clients.fedsocket:FedSocketClient",
        shares_q=True,
        options=merging_rules,
    ),
    "same_task": Method(
        strategy="fedsocket_flwr.strategies.same_task:SameTaskStrategy",
        client="fedsocket_flwr.clients.same_task:SameTaskClient",
        shares_q=True,
        options=same_task_rules,
        needs=same_task_needs,
    ),
    "local": Method(
        strategy="fedsocket_flwr.strategies.task_owned:TaskOwnedStrategy",
        client="fedsocket_flwr.clients.local:LocalClient",
        shares_q=False,
    ),
}


@dataclass(frozen=True)
class ServerSide:
    """What the server needs to run a method: its strategy, the first arrays, and numbers to note about arrays."""

    strategy: RegisteredStrategy
    initial: Blocks
    probe: Callable[[Blocks], Mapping[str, float]]


def find_method(name: str) -> Method:
    """Return a method's row, or what an import path names; :class:`ConfigurationError` where there is no such method."""
    if is_import_path(name):
        found = load(name, f"run.method {name!r}")
        if not isinstance(found, Method):
            raise ConfigurationError(f"run.method: {name!r} is a {type(found).__name__}, expected a Method")
        return found
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(METHODS)}"
        raise ConfigurationError(f"run.method: no method is called {name!r}{hint}")
    return METHODS[name]


def shared_shape(config: Configuration) -> "PredictorShape | None":
    """Return the shape of the predictor that the configured method shares, or None."""
    if not find_method(config.run.method).shares_q:
        return None
    from fedsocket_flwr.datasets.client_data import task_classes, token_modalities
    from fedsocket_flwr.models.predictor import TaskShape, configured_shape

    tasks = [
        TaskShape(name, task.kind, task.q_modalities, len(task_classes(config, name))) for name, task in config.tasks.items()
    ]
    return configured_shape(config, tasks, token_modalities(config))


def build_server_side(config: Configuration, run: str, roster: Roster) -> ServerSide:
    """Return the strategy of the configured method with its first arrays; where every Q is a client's own, none is exchanged."""
    shape = shared_shape(config)
    contract, initial = Contract(()), {}

    def probe(blocks: Blocks) -> Mapping[str, float]:
        return {}

    if shape is not None and config.exchange.sharing == "shared":
        from fedsocket_flwr.models.predictor import gates_of, initial_predictor

        q = initial_predictor(shape, config.run.seed)
        contract = q.contract()
        initial = {name: tensor.numpy() for name, tensor in q.state_dict().items()}

        def probe(blocks: Blocks) -> Mapping[str, float]:
            return {f"gate.{task}": gate for task, gate in gates_of(shape, blocks).items()}

    method = find_method(config.run.method)
    strategy = load(method.strategy, f"strategy of {config.run.method!r}")(
        contract,
        **method.options(config),
        roster=roster,
        run=run,
        seed=config.run.seed,
        payload_mode=config.exchange.payload,
        share=config.participation.share,
        task_shares=config.participation.tasks,
        expected_clients=[client.name for _, client in config.clients()],
        registration_seconds=config.participation.registration_seconds,
        minimum_clients=config.participation.minimum_clients,
        largest_answer=config.participation.largest_answer,
        norm_bound=config.merging.norm_bound,
    )
    return ServerSide(strategy, initial, probe)


def build_client(
    config: Configuration, client: str, run: str, state_directory: Path, data_directory: Path | None = None
) -> "Participant":
    """Return a client of the configured method with its data and its place in the store.

    ``data_directory`` is that of :func:`~fedsocket_flwr.datasets.client_data.open_client_data`.
    """
    from fedsocket_flwr.clients.branches import BranchFacts, executed_shape
    from fedsocket_flwr.datasets.client_data import open_client_data
    from fedsocket_flwr.runtime.device import choose_device
    from fedsocket_flwr.runtime.store import ClientStore

    method = find_method(config.run.method)
    data = open_client_data(config, client, feature_directory(state_directory), data_directory)
    shape: PredictorShape | None = None
    if method.shares_q:
        # A client whose Q comes from the server needs no other task's data.
        own = config.exchange.sharing == "own"
        shape = shared_shape(config) if own else executed_shape(config, BranchFacts.of(data))
    participant: Participant = load(method.client, f"client of {config.run.method!r}")(
        config,
        data,
        ClientStore(state_directory, run, client),
        shape,
        choose_device(config.resources.gpus),
    )
    return participant


def feature_directory(state_directory: Path) -> Path:
    """Return where interface features are kept, shared by all clients and runs of a machine."""
    return state_directory / "features"
