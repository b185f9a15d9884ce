"""A Flower Strategy over registered clients: who is asked, what is sent, which answers count.

What is done with the answers is the subclass's :meth:`RegisteredStrategy.merge`, a function of named arrays. Everything here
works under Flower's own ``Strategy.start`` too: the first ``configure_train`` registers the nodes.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import SERVER, Block, Blocks, Broadcast, Contract, Membership, Refusal, Update
from fedsocket_flwr.exchange.registration import UNREACHED, Roster
from fedsocket_flwr.seeds import derive_seed
from fedsocket_flwr.strategies import merging

TRAIN, CLOSE, TEST = "train", "close", "test"


@dataclass
class RoundReport:
    """What happened in one phase, for the history.

    Who was asked, who answered, whose answer was refused and why, who did not answer, who was not there to be asked, whose update
    was shortened and from what norm, bytes, and what clients measured.
    """

    asked: list[str] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    clipped: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    clients: dict[str, dict[str, float]] = field(default_factory=dict)
    strategy: dict[str, float] = field(default_factory=dict)


class RegisteredStrategy(Strategy):
    """Registers clients, sends each what it can execute, and merges the answers that are sound.

    Parameters
    ----------
    contract
        The blocks of the method and their owners.
    roster
        Who is who; made empty, it carries what registration sends along.
    run, seed
        The run's name, sent in every broadcast, and the seed of the choice of clients.
    payload_mode
        ``owned`` sends a client only what it can execute, ``full`` all blocks; only owned blocks count either way.
    share, task_shares
        The share of each task's clients asked a round (at least one); ``task_shares`` overrides it by task.
    expected_clients
        Clients that must register before the first round; None starts with whoever is there.
    registration_seconds
        How long to wait for them.
    minimum_clients
        The fewest to begin with when that time is over, and the fewest that a later round waits as long for; None begins with
        all, and goes on with whoever is there.
    largest_answer
        The most bytes that an answer may have; None: its blocks and one MiB.
    norm_bound
        The largest L2 norm of a client's update; a longer one is shortened to it. None bounds nothing.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        roster: Roster | None = None,
        run: str = "run",
        seed: int = 0,
        payload_mode: Literal["owned", "full"] = "owned",
        share: float = 1.0,
        task_shares: Mapping[str, float] | None = None,
        expected_clients: Collection[str] | None = None,
        registration_seconds: float = 300.0,
        minimum_clients: int | None = None,
        largest_answer: int | None = None,
        norm_bound: float | None = None,
    ) -> None:
        self.contract = contract
        self.roster = Roster() if roster is None else roster
        self.run = run
        self.seed = seed
        self.payload_mode = payload_mode
        self.share = share
        self.task_shares = dict(task_shares or {})
        self.expected_clients = expected_clients
        self.registration_seconds = registration_seconds
        self.minimum_clients = minimum_clients
        self.largest_answer = largest_answer
        self.norm_bound = norm_bound
        self.versions: dict[str, int] = {}
        self.report = RoundReport()
        self._arrays: dict[str, Any] = {}
        self._messages: dict[str, Message] = {}
        self._phase = TRAIN

    @abstractmethod
    def merge(self, previous: Blocks, updates: Sequence[Update]) -> tuple[Blocks, dict[str, float]]:
        """Return all blocks after the round and numbers for the history.

        ``updates`` are sound and sorted by client; each holds only blocks that its client may write.
        """

    def fault(self, phase: str, update: Update) -> str | None:
        """Return why an answer of sound form does not count for this method, or None: a method may ask more of its counts."""
        return None

    # --- what is kept between rounds --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the arrays, as JSON values."""
        return {"versions": dict(self.versions)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state` returned."""
        self.versions = {str(client): int(version) for client, version in state["versions"].items()}

    # --- a round ----------------------------------------------------------------------------------------------------------------

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Register new nodes, choose this round's clients and address a broadcast to each."""
        self.register(grid)
        return self.configure_phase(TRAIN, server_round, arrays, self.choose(server_round), more=config)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge the sound answers; blocks that nobody updated stay as they were."""
        updates = self.read_phase(server_round, replies)
        for update in updates:
            self.versions[update.client] = update.version
        merged, numbers = self.merge(self._arrays, updates)
        self.report.strategy = numbers
        metrics = MetricRecord({"answered": len(updates), "refused": len(self.report.refused), **numbers})
        return payload.array_record(payload.serialise(merged)), metrics

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Ask nobody: clients measure DEV when the next broadcast arrives."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing; see :meth:`configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Log the strategy's settings."""
        log(
            INFO,
            "%s: %d blocks, payload %s, share %s",
            type(self).__name__,
            len(self.contract.blocks),
            self.payload_mode,
            self.share,
        )

    # --- its parts --------------------------------------------------------------------------------------------------------------

    def register(self, grid: Grid) -> None:
        """Ask nodes that are not known yet; the first time, wait for the expected clients."""
        expected = None if self.roster.memberships else self.expected_clients
        self.roster.register(grid, expected, self.registration_seconds, self.minimum_clients)

    def choose(self, server_round: int) -> list[str]:
        """Return the clients of a round, sorted: of each task the share with the smallest hashes of (seed, round, client)."""
        by_task: dict[str, list[str]] = {}
        for client in sorted(self.roster.nodes):
            by_task.setdefault(self.roster.memberships[client].task, []).append(client)
        chosen: list[str] = []
        for task, clients in by_task.items():
            number = max(1, round(self.task_shares.get(task, self.share) * len(clients)))
            ranked = sorted(clients, key=lambda client: derive_seed(self.seed, "participation", server_round, client))
            chosen += ranked[:number]
        return sorted(chosen)

    def sent_blocks(self, phase: str, membership: Membership) -> tuple[Block, ...]:
        """Return the blocks that travel to a client: none for TEST, whose Q came with the phase before."""
        if phase == TEST:
            return ()
        return self.contract.blocks if self.payload_mode == "full" else self.contract.readable(membership)

    def answered_blocks(self, phase: str, membership: Membership) -> tuple[Block, ...]:
        """Return the blocks that a client sends back: those it was sent, when it trained."""
        return self.sent_blocks(phase, membership) if phase == TRAIN else ()

    def choices(self, updates: Sequence[Update]) -> dict[str, Any]:
        """Return choices that belong to the federation, from the answers of the closing phase; TEST is asked with them."""
        return {}

    def configure_phase(
        self,
        phase: str,
        server_round: int,
        arrays: ArrayRecord,
        clients: Iterable[str],
        settings: Mapping[str, Any] | None = None,
        more: Mapping[str, ConfigRecordValues] | None = None,
    ) -> list[Message]:
        """Return one message a client, sorted by client: the blocks of ``server_round - 1``, for ``phase`` with its settings.

        ``more`` goes into the message's configuration as it is, for Flower's client-side mods.

        Raises
        ------
        ContractError
            The arrays are not the blocks of the contract.
        """
        if list(arrays) != [block.name for block in self.contract.blocks]:
            raise ContractError("the arrays are not the blocks of the contract, in its order")
        self._arrays = payload.read_array_record(arrays)
        message_type = MessageType.TRAIN if phase == TRAIN else f"{MessageType.QUERY}.{phase}"
        messages: dict[str, Message] = {}
        self._phase = phase
        absent = sorted({*self.roster.memberships, *(self.expected_clients or ())} - set(self.roster.nodes))
        self.report = RoundReport(absent=absent, bytes={"up": 0, "down": 0, "up_full": 0, "down_full": 0})
        for client in sorted(clients):
            membership = self.roster.memberships[client]
            sent = self.sent_blocks(phase, membership)
            broadcast = Broadcast(self.run, server_round, phase, self.versions.get(client, 0), {}, settings or {})
            content: RecordDict = payload.write_broadcast(broadcast, {SERVER: {b.name: arrays[b.name] for b in sent}}, more)
            messages[client] = Message(content, message_type=message_type, dst_node_id=self.roster.nodes[client])
            self.report.asked.append(client)
            self.report.bytes["down"] += payload.bytes_down(sent)
            self.report.bytes["down_full"] += payload.bytes_down(self.contract.blocks if sent else ())
        self._messages = messages
        return list(messages.values())

    def read_phase(self, server_round: int, replies: Iterable[Message]) -> list[Update]:
        """Return the sound answers sorted by client; refusals and absentees go to the report and the log."""
        asked = {message.metadata.message_id: client for client, message in self._messages.items()}
        answers: dict[str, Update | Refusal] = {}
        for reply in replies:
            client = asked.get(reply.metadata.reply_to_message_id)
            if client is None:
                log(WARNING, "Ignored an answer to a message that was not sent in this round")
            elif client in answers:
                log(WARNING, "Ignored a second answer of client %s: the first one counts", client)
            elif reply.has_error() and reply.error.code in UNREACHED:
                log(WARNING, "Client %s was not reached: %s", client, reply.error.reason)
            else:
                answers[client] = self._read(client, server_round, reply)
        report = self.report
        updates: list[Update] = []
        for client in report.asked:
            answer = answers.get(client)
            if isinstance(answer, Update):
                updates.append(answer)
                report.answered.append(client)
                report.clients[client] = dict(answer.metrics)
            elif isinstance(answer, Refusal):
                report.refused[client] = answer.reason
                log(WARNING, "Refused the answer of client %s: %s", client, answer.reason)
            else:
                report.missing.append(client)
                log(WARNING, "Client %s did not answer in time", client)
        return updates

    def _read(self, client: str, server_round: int, reply: Message) -> Update | Refusal:
        membership = self.roster.memberships[client]
        expected = self.answered_blocks(self._phase, membership)
        writable = frozenset(block.name for block in self.contract.writable(membership))
        if reply.has_content():
            self.report.bytes["up"] += payload.bytes_up(expected, membership)
            self.report.bytes["up_full"] += payload.bytes_up(self.contract.blocks if expected else (), membership)
        answer = payload.read_update(reply, membership, server_round, expected, writable, self.largest_answer)
        if isinstance(answer, Refusal):
            return answer
        fault = self.fault(self._phase, answer)
        return Refusal(client, fault) if fault else self._bounded(answer)

    def _bounded(self, update: Update) -> Update:
        """Shorten an update that is longer than the bound, and note its norm."""
        if self.norm_bound is None or not update.blocks:
            return update
        before = [self._arrays[name] for name in update.blocks]
        clipped, norm = merging.clip_update(before, list(update.blocks.values()), self.norm_bound)
        if norm > self.norm_bound:
            self.report.clipped[update.client] = norm
            log(WARNING, "Client %s: an update of norm %.4g was shortened to %.4g", update.client, norm, self.norm_bound)
        return replace(update, blocks=dict(zip(update.blocks, clipped, strict=True)))
