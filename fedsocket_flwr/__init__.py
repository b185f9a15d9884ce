"""Federated learning on Flower for clients that differ in what they observe, how they model it and what they predict."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsocket_flwr.configuration_file import read_configuration
    from fedsocket_flwr.endpoints import load_predictor
    from fedsocket_flwr.runs import Run, open_run, run

__all__ = ["Run", "load_predictor", "open_run", "read_configuration", "run"]

_HOMES = {
    "Run": "runs",
    "load_predictor": "endpoints",
    "open_run": "runs",
    "read_configuration": "configuration_file",
    "run": "runs",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing a strategy must not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
