"""How a node becomes a client: the question, the answer, and the roster that remembers who is who.

Flower's node ids are random and a node alone knows which client it is, so every node not yet known is asked once. Order and seeds
use client ids only; a client that returns under a new node id is the same client.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedsocket_flwr.errors import ContractError, RegistrationError
from fedsocket_flwr.exchange.contract import Membership

REGISTER = f"{MessageType.QUERY}.register"
RECORD = "registration"
POLL_SECONDS = 0.2
AGAIN_SECONDS = 2.0
"""How long a node that could not be reached is left alone."""
ANSWER_SECONDS = 30.0
"""How long a node that was just asked is waited for when everybody else is there; in deployment an answer takes seconds."""
UNREACHED = frozenset({ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE})
"""Errors of the way to a node and back; such a node has not answered yet and is asked again."""


Declaration = tuple[str, frozenset[str], int]


def answer_registration(membership: Membership, digests: Mapping[str, str]) -> RecordDict:
    """Return a node's answer: what it declares, and digests of what it runs."""
    return RecordDict({RECORD: ConfigRecord({"membership": membership.to_json(), **digests})})


@dataclass
class Roster:
    """Which node is which client.

    Attributes
    ----------
    request
        What the question carries (a configuration, a run's name). A digest in ``digests`` must come back equal.
    declared
        Client -> what a configuration says of it: task, modalities, number of classes. Who declares something else, or is not
        among them, is refused. None leaves that to the clients.
    memberships, nodes
        Client -> what it declared; client -> its present node.
    refused
        Node -> why it may not take part.
    """

    request: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Declaration] | None = None
    memberships: dict[str, Membership] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    _questions: dict[str, int] = field(default_factory=dict, repr=False)
    _asked_at: dict[int, float] = field(default_factory=dict, repr=False)
    _again_at: dict[int, float] = field(default_factory=dict, repr=False)

    def register(self, grid: Grid, expected: Collection[str] | None, seconds: float, minimum: int | None = None) -> None:
        """Ask every unknown node, and wait for the expected clients, or for as many as a round needs.

        Parameters
        ----------
        grid
            Where the nodes are.
        expected
            Clients to wait for; None waits for nobody in particular.
        seconds
            How long to wait. A node that does not answer holds nobody up beyond that, nor beyond 30 seconds once the expected
            clients are there; its answer counts whenever it comes.
        minimum
            The fewest clients to go on with when the time is over; None needs all that are expected, and at least one.

        Raises
        ------
        RegistrationError
            Fewer clients than ``minimum`` are there when the time is over; the message names the missing and every refused node.
        """
        deadline = time.monotonic() + seconds
        wanted = set(expected or ())
        least = max(1, len(wanted)) if minimum is None else minimum
        while True:
            online = set(grid.get_node_ids())
            self._release_absent(online)
            unknown = online - set(self.nodes.values()) - set(self.refused) - set(self._questions.values())
            self._ask(grid, sorted(node for node in unknown if self._again_at.get(node, 0.0) <= time.monotonic()))
            self._hear(grid)
            missing = sorted(wanted - set(self.nodes))
            enough = len(self.nodes) >= least and not (minimum is None and missing)
            over = time.monotonic() >= deadline
            if enough and (over or not (missing or self._awaits_an_answer())):
                if missing:
                    log(WARNING, "Going on without %s: no node registered so within %g seconds", ", ".join(missing), seconds)
                return
            # With as many nodes online as clients are expected, one that was refused takes the place of one that is missing.
            displaced = minimum is None and wanted and missing and self.refused.keys() & online and len(online) >= len(wanted)
            if over or (displaced and not self._awaits_an_answer()):
                # Nodes of one simulation give one reason.
                refusals = "; ".join(dict.fromkeys(self.refused.values())) or "none was refused"
                fewest = "" if minimum is None else f"; {least} clients are needed, {len(self.nodes)} registered"
                raise RegistrationError(
                    f"{len(online)} nodes are online, but no node registered as {', '.join(missing) or 'a client'} "
                    f"({refusals}){fewest}"
                )
            time.sleep(POLL_SECONDS)

    def _release_absent(self, online: Collection[int]) -> None:
        """Forget the nodes that left; who was refused may claim the freed client, so it is asked again."""
        held = {client: node for client, node in self.nodes.items() if node in online}
        self._questions = {question: node for question, node in self._questions.items() if node in online}
        if len(held) < len(self.nodes):
            self.refused.clear()
        self.nodes = held

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        messages = [
            Message(RecordDict({RECORD: ConfigRecord(dict(self.request))}), message_type=REGISTER, dst_node_id=node)
            for node in nodes
        ]
        ids = list(grid.push_messages(messages)) if messages else []
        self._questions.update(zip(ids, nodes, strict=True))
        self._asked_at.update(dict.fromkeys(nodes, time.monotonic()))

    def _hear(self, grid: Grid) -> None:
        """Take in the answers that have come."""
        replies = list(grid.pull_messages(list(self._questions))) if self._questions else []
        # A question of a node that has left meanwhile is answered by nobody.
        found = [(self._questions.pop(reply.metadata.reply_to_message_id, None), reply) for reply in replies]
        for node, reply in sorted(((n, r) for n, r in found if n is not None), key=lambda node_reply: node_reply[0]):
            if reply.has_error() and reply.error.code in UNREACHED:
                log(WARNING, "Node %d was not reached: %s", node, reply.error.reason)
                self._again_at[node] = time.monotonic() + AGAIN_SECONDS
                continue
            try:
                self._admit(node, reply)
            except RegistrationError as error:
                self.refused[node] = str(error)
                log(WARNING, "Node %d refused: %s", node, error)

    def _awaits_an_answer(self) -> bool:
        """Say whether a node was asked so recently that it is worth a wait."""
        return any(time.monotonic() - self._asked_at[node] < ANSWER_SECONDS for node in self._questions.values())

    def _admit(self, node: int, reply: Message) -> None:
        if reply.has_error():
            raise RegistrationError(_last_line(reply.error.reason))
        try:
            answer = reply.content.config_records[RECORD]
            membership = Membership.from_json(str(answer["membership"]))
        except (KeyError, ContractError) as error:
            raise RegistrationError(f"node {node} does not answer as a client: {error}") from error
        client = membership.client
        for name, expected in self.digests.items():
            if answer.get(name) != expected:
                found = str(answer.get(name))
                raise RegistrationError(f"client {client!r} runs another {name}: {found[:12]}, expected {expected[:12]}")
        if self.declared is not None:
            said = (membership.task, frozenset(membership.modalities), len(membership.class_counts))
            if client not in self.declared:
                raise RegistrationError(f"node {node} claims client {client!r}, which the configuration does not have")
            if said != self.declared[client]:
                raise RegistrationError(f"client {client!r} declares {_words(said)}, expected {_words(self.declared[client])}")
        holder = self.nodes.get(client)
        if holder is not None and holder != node:
            raise RegistrationError(f"node {node} claims client {client!r}, which is node {holder}")
        self.nodes[client] = node
        self.memberships[client] = membership
        log(INFO, "Client %s registered for task %s with %d examples", client, membership.task, membership.examples)


def _words(declared: Declaration) -> str:
    task, modalities, classes = declared
    return f"task {task!r}, {'+'.join(sorted(modalities))}, {classes} classes"


def _last_line(text: str | None) -> str:
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
