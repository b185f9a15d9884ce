"""The Flower ClientApp: a message arrives, the client that this node is opens, works, and answers.

Nothing is kept in Flower's context. Registration brings the configuration, which the node's state directory keeps for the run;
private models live in the store.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from fedsocket_flwr.config import ClientSettings, Configuration, TaskSettings, modality_key
from fedsocket_flwr.datasets.client_data import require_same_deal
from fedsocket_flwr.errors import FedSocketError, RegistrationError, StoreError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Broadcast, Update
from fedsocket_flwr.exchange.registration import RECORD, answer_registration
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.methods import build_client, feature_directory
from fedsocket_flwr.plain_files import parse_json, write_whole
from fedsocket_flwr.provenance import code_digest
from fedsocket_flwr.runtime.device import limited_threads, release_memory
from fedsocket_flwr.runtime.logs import log_through_flower
from fedsocket_flwr.runtime.store import state_directory

if TYPE_CHECKING:
    from fedsocket_flwr.clients.participant import Participant

DATA_DIRECTORY_KEY = "data-dir"
CLIENT_KEY = "client"
OPEN_CLIENTS = 32
"""Clients whose data a process keeps ready; a federation of thousands shares few processes."""


def build_app(train_mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the ClientApp.

    Parameters
    ----------
    train_mods
        Flower's client-side mods, or one's own, around the messages of a round, such as ``LocalDpMod``. They see what is
        exchanged there, Q's blocks; registration, closing and TEST carry no arrays up and pass them by.
    """
    made = ClientApp()
    made.query("register")(_register)
    made.train(mods=list(train_mods))(_train)
    made.query("close")(_close)
    made.query("test")(_test)
    return made


def _register(message: Message, context: Context) -> Message:
    """Keep the run's configuration and declare which client this node is."""
    request = message.content.config_records[RECORD]
    text, run = str(request["configuration"]), str(request["run"])
    config = _configuration(text)
    state = state_directory(context.node_config)
    path = _configuration_path(state, run)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text)
    name = client_name(context.node_config, config)
    try:
        with limited_threads(config.resources.threads):
            data = _data_directory(context.node_config)
            client = _open_client(text, name, run, state, data)
            if config.tasks[client.data.task].has_own_data:
                client.require_models()
            elif "deals" in request and (data is not None or CLIENT_KEY in context.node_config):
                expected = parse_json(str(request["deals"]))[client.data.task]
                require_same_deal(config, name, feature_directory(state), data, expected)
    except (FedSocketError, OSError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise RegistrationError(f"client {name!r} cannot take part: {reason}") from error
    membership = client.membership()
    digests = {"code": code_digest(), "configuration": config.digest()}
    return Message(answer_registration(membership, digests), reply_to=message)


def _train(message: Message, context: Context) -> Message:
    """Work on one round."""
    return _answer(message, context, lambda client, broadcast: client.train(broadcast))


def _close(message: Message, context: Context) -> Message:
    """Measure DEV of the last model and freeze every choice."""
    return _answer(message, context, lambda client, broadcast: (client.close(broadcast), ""))


def _test(message: Message, context: Context) -> Message:
    """Measure TEST with the frozen choices."""
    return _answer(message, context, lambda client, broadcast: (client.test(broadcast), ""))


def client_name(node_config: Mapping[str, Any], config: Configuration) -> str:
    """Return which client a node is: its ``client`` setting, else its place, ``partition-id``, among the simulated nodes.

    Raises
    ------
    RegistrationError
        Neither is there, or a simulation has another number of nodes than the configuration has clients.
    """
    if CLIENT_KEY in node_config:
        return config.client(str(node_config[CLIENT_KEY]))[1].name
    names = clients_by_work(config)
    if "partition-id" not in node_config:
        raise RegistrationError(
            "this node does not say which client it is; set `client` or `partition-id` in its node configuration"
        )
    number, nodes = int(node_config["partition-id"]), int(node_config.get("num-partitions", len(names)))
    if nodes != len(names) or not 0 <= number < len(names):
        raise RegistrationError(
            f"the configuration has {len(names)} clients, but there are {nodes} nodes; "
            f"start it with: flwr run . --federation-config 'num-supernodes={len(names)}'"
        )
    return names[number]


def _data_directory(node_config: Mapping[str, Any]) -> Path | None:
    """Return where a node says that its data are; None: where the configuration says."""
    chosen = node_config.get(DATA_DIRECTORY_KEY)
    return Path(str(chosen)).expanduser().absolute() if chosen else None


def clients_by_work(config: Configuration) -> list[str]:
    """Return the clients' names, those that a round is expected to cost most first, equal ones in the order of the file.

    What it costs is taken as training rows times epochs times modalities. Simulated nodes are numbered so, because Flower's
    simulation hands out their messages in that order: with the longest first, workers finish together.
    """

    def work(task: TaskSettings, client: ClientSettings) -> float:
        modalities = task.held_by(client)
        dealt = 1 if task.partition.kind in ("natural", "all", "own") else len(task.clients)
        rows = (task.partition.train or 1) / dealt
        return rows * config.training.private[modality_key(modalities)].epochs * len(modalities)

    ranked = sorted(config.clients(), key=lambda found: -work(config.tasks[found[0]], found[1]))
    return [client.name for _, client in ranked]


def _answer(message: Message, context: Context, work: Callable[["Participant", Broadcast], tuple[Update, str]]) -> Message:
    broadcast = payload.read_broadcast(message)
    state = state_directory(context.node_config)
    path = _configuration_path(state, broadcast.run)
    if not path.exists():
        raise StoreError(f"run {broadcast.run!r} never registered at this node: {path} is missing")
    text = path.read_text(encoding="utf-8")
    config = _configuration(text)
    with limited_threads(config.resources.threads):
        name, data = client_name(context.node_config, config), _data_directory(context.node_config)
        client = _open_client(text, name, broadcast.run, state, data)
        update, failure = work(client, broadcast)
        release_memory(client.device)
    return Message(payload.write_update(update, failure), reply_to=message)


def _configuration_path(state: Path, run: str) -> Path:
    return state / "runs" / file_slug(run) / "configuration.json"


@functools.lru_cache(maxsize=8)
def _configuration(text: str) -> Configuration:
    return Configuration.from_json(text)


@functools.lru_cache(maxsize=OPEN_CLIENTS)
def _open_client(text: str, client: str, run: str, state: Path, data: Path | None) -> "Participant":
    return build_client(_configuration(text), client, run, state, data)


log_through_flower()
app = build_app()
