"""The names of endpoints and metrics, and which metric stands for a task."""

from collections.abc import Iterable

ENDPOINTS = ("private", "q", "joint")
ENDPOINT_LABELS = {"private": "Private", "q": "Q", "joint": "Joint"}
METRIC_LABELS = {
    "accuracy": "Accuracy",
    "macro_f1": "Macro F1",
    "uar": "UAR",
    "i2t_r1": "I2T R@1",
    "i2t_r5": "I2T R@5",
    "i2t_r10": "I2T R@10",
    "t2i_r1": "T2I R@1",
    "t2i_r5": "T2I R@5",
    "t2i_r10": "T2I R@10",
    "mean_r": "Mean R",
}
ROLLED_BACK = "rolled_back_to"
"""A client's number: its newest private model was damaged or lost, and it went on from this version."""
_HEADLINES = (("accuracy",), ("i2t_r1", "t2i_r1"))


def headline_metrics(present: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that stand for a task, from the names of those it has.

    Accuracy for classification, R@1 in both directions for retrieval; where a task has neither, its first metric in sorted order;
    nothing for no metrics.
    """
    names = set(present)
    for metrics in _HEADLINES:
        found = tuple(metric for metric in metrics if metric in names)
        if found:
            return found
    return tuple(sorted(names)[:1])


def metric_label(metric: str) -> str:
    """Return a metric's name for people."""
    return METRIC_LABELS.get(metric, metric)


def split_metric(name: str) -> tuple[str, str]:
    """Split ``private.accuracy`` into endpoint and metric; a name without an endpoint has the endpoint ``""``."""
    endpoint, dot, metric = name.partition(".")
    return (endpoint, metric) if dot and endpoint in ENDPOINTS else ("", name)
