"""A Flower Grid without Ray: messages go straight to a ClientApp in this process, one after the other.

For debugging, tests, platforms without Ray, and the comparison with a bare loop. The ServerApp and ClientApp functions are the
same as in simulation and deployment.
"""

import itertools
from collections.abc import Iterable, Mapping
from logging import ERROR
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1


class InProcessGrid(Grid):
    """Deliver messages to ``client_app``.

    Parameters
    ----------
    client_app
        The app that answers for every node.
    node_configs
        One node a mapping: what a SuperNode would have in ``--node-config``.
    """

    def __init__(self, client_app: ClientApp, node_configs: Iterable[Mapping[str, Any]]) -> None:
        # Flower creates messages only inside a task; this process is the task.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = RUN_ID, 1, 1
        self._client_app = client_app
        self._contexts = {
            node: Context(run_id=RUN_ID, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})
            for node, config in enumerate(node_configs, start=2)
        }
        self._numbers = itertools.count(1)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """Refuse: a run in process has no record at a SuperLink."""
        raise NotImplementedError("a run in process has no record at a SuperLink")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message (Flower deprecates this in favour of ``Message``)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer every message now; the replies wait for :meth:`pull_messages`."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = message_id
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out the replies to these messages, each once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Deliver the messages in order and return the replies; there is nothing to wait for."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._client_app(message, context)
        except Exception as error:
            # As Flower does: a client that raises is an error reply, and the run goes on.
            log(ERROR, "ClientApp of node %d raised", message.metadata.dst_node_id, exc_info=error)
            failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")
            return Message(failure, reply_to=message)
