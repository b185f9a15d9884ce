"""The server's side, one file an algorithm; numpy and flwr only, so that other projects import it without torch."""

from fedsocket_flwr.strategies.registered import RegisteredStrategy
from fedsocket_flwr.strategies.task_owned import TaskOwnedStrategy, merge_by_owner

__all__ = ["RegisteredStrategy", "TaskOwnedStrategy", "merge_by_owner"]
