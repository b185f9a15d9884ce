"""The server's side: Flower's own loop over rounds, around a strategy that merges every block among its owners."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsocket_flwr.strategies import TaskOwnedStrategy
from waves_and_pictures import model
from waves_and_pictures.data import MEMBERS, TASKS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write what came out to the file ``out`` of the run configuration."""
    strategy = TaskOwnedStrategy(model.CONTRACT, expected_clients=list(MEMBERS))
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid, model.initial_arrays(), num_rounds=rounds, evaluate_fn=measure)
    found = {
        "answered": {number: metrics["answered"] for number, metrics in result.train_metrics_clientapp.items()},
        "accuracy": {number: dict(metrics) for number, metrics in (result.evaluate_metrics_serverapp or {}).items()},
        "blocks": {name: array.numpy().tolist() for name, array in result.arrays.items()},
    }
    Path(str(context.run_config["out"])).write_text(json.dumps(found), encoding="utf-8")


def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return every task's accuracy after a round (0: before the first)."""
    blocks = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({task: model.accuracy(task, blocks) for task in TASKS})
