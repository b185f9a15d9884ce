"""The figures of a run. Every function draws one figure, or returns None where the run has nothing to show in it."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsocket_flwr.evaluation.bars import MIDDLE, MIDDLE_LABEL, MOST_SHOWN_CLIENTS, Bar, bars_figure
from fedsocket_flwr.evaluation.drawing import (
    ENDPOINT_COLOURS,
    ENDPOINT_MARKERS,
    ENDPOINT_WIDTHS,
    drawn,
    grid_of_axes,
    labels,
    new_figure,
    rounds_axis,
    style,
    to_png,
)
from fedsocket_flwr.evaluation.groups import Groups, group_label, group_results
from fedsocket_flwr.evaluation.history import History
from fedsocket_flwr.evaluation.label_plot import label_distribution
from fedsocket_flwr.evaluation.round_plots import conflicts, gates_and_weights
from fedsocket_flwr.evaluation.run_folder import RunRecord
from fedsocket_flwr.evaluation.summary import endpoint_means
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, ENDPOINTS, headline_metrics, metric_label

MARKER_SIZE = 4.5


class Picture(NamedTuple):
    """A rendered figure: file name without folder, caption, content."""

    name: str
    caption: str
    png: bytes


def run_pictures(run: RunRecord, history: History) -> list[Picture]:
    """Draw every figure that the run has data for."""
    tested = run.test is not None
    bars = "TEST at each endpoint's best DEV round" if tested else "DEV of the last model that was measured"
    drawings: tuple[tuple[str, str, Callable[[], Figure | None]], ...] = (
        (
            "endpoints.png",
            f"Private, Q and Joint per task: {bars}. Dots are clients (a line: the middle 80 % of many).",
            lambda: endpoint_bars(run, history),
        ),
        (
            "groups.png",
            "Private, Q and Joint of groups of clients: accuracy on their pooled TEST rows, at each endpoint's best DEV round.",
            lambda: group_bars(group_results(run, "best")),
        ),
        (
            "dev_curves.png",
            "DEV over the rounds: mean over a task's clients (thick), and the clients (thin, or a band where they are many).",
            lambda: dev_curves(run.tasks, history.history),
        ),
        (
            "gates_and_weights.png",
            "The gate of Q's residual, and Joint's weights (mean over the clients of a task), over the rounds.",
            lambda: gates_and_weights(run.tasks, history.history, history.rounds),
        ),
        (
            "conflicts.png",
            "Cosine between the tasks' updates of what they share; below zero they conflict.",
            lambda: conflicts(run.tasks, history.rounds),
        ),
        (
            "label_distribution.png",
            "TRAIN rows (retrieval: pairs) per client: in each class, as the area of the dot, and in all.",
            lambda: label_distribution(list(run.clients.values()), run.classes),
        ),
    )
    with style():
        drawn_figures = [(name, caption, draw()) for name, caption, draw in drawings]
        return [Picture(name, caption, to_png(figure)) for name, caption, figure in drawn_figures if figure is not None]


def _headlines(found: pd.DataFrame, tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (task, headline metric) pairs in a long-form frame, tasks in their order."""
    return [(task, metric) for task in tasks for metric in headline_metrics(found.loc[found.task == task, "metric"].unique())]


def _titles(panels: Sequence[tuple[str, str]]) -> list[str]:
    """Return ``task · metric`` for every panel."""
    tasks = list(dict.fromkeys(task for task, _ in panels))
    short = dict(zip(tasks, labels(tasks), strict=True))
    return [f"{short[task]} · {drawn(metric_label(metric))}" for task, metric in panels]


def dev_curves(tasks: Sequence[str], history: pd.DataFrame) -> Figure | None:
    """Draw DEV over the rounds of the model: a panel a task and headline metric, thick the mean, thin each client.

    Parameters
    ----------
    tasks
        Task names, in their order.
    history
        The frame of :class:`history.History`.

    Returns
    -------
    Figure or None
        None where nothing was measured.
    """
    panels = _headlines(history, tasks)
    if not panels:
        return None
    columns = 2 if len(panels) in (1, 2, 4) else 3
    figure = new_figure(height=0.6 + 2.6 * math.ceil(len(panels) / columns))
    for axes, title, (task, metric) in zip(grid_of_axes(figure, len(panels), columns), _titles(panels), panels, strict=True):
        found = history[(history.task == task) & (history.metric == metric)]
        for endpoint in ENDPOINTS:
            _curve(axes, found[found.endpoint == endpoint], endpoint)
        axes.set_title(title)
        axes.set_ylabel("DEV, %")
        rounds_axis(axes)
    _curve_legend(figure, history[history.client.notna()].groupby("task").client.nunique().tolist())
    return figure


def _curve_legend(figure: Figure, clients: Sequence[int]) -> None:
    """Explain the lines; ``clients`` are the numbers of clients that were measured, one a task."""
    handles: list[Artist] = []
    for endpoint in ENDPOINTS:
        line = Line2D([], [], linewidth=ENDPOINT_WIDTHS[endpoint], marker=ENDPOINT_MARKERS[endpoint], markersize=MARKER_SIZE)
        line.set(color=ENDPOINT_COLOURS[endpoint], label=ENDPOINT_LABELS[endpoint])
        handles.append(line)
    if any(number <= MOST_SHOWN_CLIENTS for number in clients):
        handles.append(Line2D([], [], color="#777777", linewidth=0.8, alpha=0.7, label="each client"))
    if any(number > MOST_SHOWN_CLIENTS for number in clients):
        handles.append(Patch(color="#777777", alpha=0.3, linewidth=0, label=MIDDLE_LABEL))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))


def _curve(axes: Axes, found: pd.DataFrame, endpoint: str) -> None:
    colour = ENDPOINT_COLOURS[endpoint]
    own = found[found.client.notna()]
    if own.client.nunique() > MOST_SHOWN_CLIENTS:
        low, high = (100 * own.groupby("round").value.quantile(share) for share in MIDDLE)
        axes.fill_between(low.index, low, high, color=colour, alpha=0.2, linewidth=0)
    else:
        for _, client in own.groupby("client", sort=True):
            axes.plot(client["round"], 100 * client.value, color=colour, linewidth=0.8, alpha=0.35)
    mean = found[found.client.isna()]
    (line,) = axes.plot(mean["round"], 100 * mean.value, color=colour, zorder=3)
    line.set(linewidth=ENDPOINT_WIDTHS[endpoint], marker=ENDPOINT_MARKERS[endpoint], markersize=MARKER_SIZE)


def endpoint_bars(run: RunRecord, history: History) -> Figure | None:
    """Draw Private, Q and Joint side by side for each task and headline metric: TEST, or the last DEV of a run without TEST."""
    values = _tested_bars(run) if run.test is not None else _measured_bars(run, history.history)
    panels = list(dict.fromkeys((task, metric) for task, metric, _ in values))
    if not panels:
        return None
    places = [{e: values[task, metric, e] for e in ENDPOINTS if (task, metric, e) in values} for task, metric in panels]
    ticks = [title.replace(" · ", "\n") for title in _titles(panels)]
    return bars_figure(ticks, places, "TEST, %" if run.test is not None else "DEV, %")


def group_bars(groups: Groups) -> Figure | None:
    """Draw Private, Q and Joint side by side for each group: the headline metric of its pooled TEST rows.

    Parameters
    ----------
    groups
        What :func:`groups.group_results` returns.
    """
    tasks = labels(list(groups))
    ticks: list[str] = []
    places: list[dict[str, Bar]] = []
    for task, found in zip(tasks, groups.values(), strict=True):
        for name, pooled in zip(labels([group_label(group) for group in found], longest=32), found.values(), strict=True):
            ticks.append((f"{task}\n" if len(tasks) > 1 else "") + name.replace(": ", ":\n"))
            places.append({endpoint: Bar(metrics["accuracy"]) for endpoint, metrics in pooled["endpoints"].items()})
    return bars_figure(ticks, places, "Accuracy on TEST, %") if places else None


def _tested_bars(run: RunRecord) -> dict[tuple[str, str, str], Bar]:
    bars = {}
    for task, endpoints in endpoint_means(run, "best").items():
        own = [client["best"] for client in (run.test or {}).values() if client["task"] == task]
        for metric in headline_metrics({metric for metrics in endpoints.values() for metric in metrics}):
            for endpoint, metrics in endpoints.items():
                if metric in metrics:
                    clients = tuple(float(c[endpoint][metric]) for c in own if metric in (c.get(endpoint) or {}))
                    bars[task, metric, endpoint] = Bar(metrics[metric], clients)
    return bars


def _measured_bars(run: RunRecord, history: pd.DataFrame) -> dict[tuple[str, str, str], Bar]:
    last = history[history["round"] == history["round"].max()]
    bars = {}
    for task, metric in _headlines(last, run.tasks):
        found = last[(last.task == task) & (last.metric == metric)]
        for endpoint, rows in found.groupby("endpoint"):
            mean = rows[rows.client.isna()].value
            if len(mean):
                bars[task, metric, str(endpoint)] = Bar(float(mean.iloc[0]), tuple(rows[rows.client.notna()].value))
    return bars
