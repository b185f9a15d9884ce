"""A round in one line of plain text."""

from collections.abc import Mapping
from typing import Any

from fedsocket_flwr.metric_names import ENDPOINTS, headline_metrics
from fedsocket_flwr.text import one_line, show_bytes


def format_progress(row: Mapping[str, Any], total_rounds: int) -> str:
    """Return one line for one object of ``history.jsonl``.

    DEV stands in percent as Private/Q/Joint beside the round of the model that it belongs to; retrieval has I2T and T2I R@1.

    Parameters
    ----------
    row
        The object (see ``docs/run_folder.md``).
    total_rounds
        Number of rounds of the run.

    Returns
    -------
    str
        Plain text without a line end, a carriage return or an escape code. Parts are two spaces apart.
    """
    parts = [f"round {row['round']}/{total_rounds}"] if row["phase"] == "train" else ["closing"]
    if "seconds" in row:
        parts.append(f"{row['seconds']:.1f} s")
    dev = row.get("dev") or {}
    if dev:
        parts.append(f"DEV of round {dev['round']}:")
        parts += [f"{task} {_task(found)}" for task, found in dev.get("tasks", {}).items()]
    sent = row.get("bytes", {})
    if sent:
        parts.append(f"up {show_bytes(sent.get('up', 0))}, down {show_bytes(sent.get('down', 0))}")
    if "asked" in row:
        parts.append(f"answered {len(row.get('answered', ()))}/{len(row['asked'])}")
    if row.get("refused"):
        parts.append("refused " + ", ".join(f"{client} ({reason})" for client, reason in row["refused"].items()))
    for key, words in (("missing", "no answer from "), ("absent", "not there: ")):
        if row.get(key):
            parts.append(words + ", ".join(row[key]))
    return one_line("  ".join(parts))


def _task(found: Mapping[str, Any]) -> str:
    """Return Private/Q/Joint of a task's headline metrics, as in ``80.0/90.0/90.2``."""
    endpoints = {name: found.get(name) or {} for name in ENDPOINTS}
    metrics = headline_metrics(metric for values in endpoints.values() for metric in values)
    shown = ["/".join(_percent(endpoints[name].get(metric)) for name in ENDPOINTS) for metric in metrics]
    return (
        " ".join(f"{metric.partition('_')[0]} {text}" for metric, text in zip(metrics, shown, strict=True))
        if len(shown) > 1
        else "".join(shown)
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def encodable(text: str, encoding: str | None) -> str:
    """Return ``text`` with every letter that ``encoding`` lacks written as an escape, so that printing it cannot fail."""
    name = encoding or "utf-8"
    return text.encode(name, "backslashreplace").decode(name)
