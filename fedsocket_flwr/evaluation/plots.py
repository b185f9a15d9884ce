"""The figures of a run. Every function draws one figure, or returns None where the run has nothing to show in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsocket_flwr.evaluation.drawing import (
    ENDPOINT_COLOURS,
    ENDPOINT_MARKERS,
    ENDPOINT_TEXT_COLOURS,
    ENDPOINT_WIDTHS,
    drawn,
    grid_of_axes,
    labels,
    new_figure,
    rounds_axis,
    style,
    to_png,
)
from fedsocket_flwr.evaluation.history import History
from fedsocket_flwr.evaluation.label_plot import label_distribution
from fedsocket_flwr.evaluation.round_plots import conflicts, gates_and_weights
from fedsocket_flwr.evaluation.run_folder import RunRecord
from fedsocket_flwr.evaluation.summary import endpoint_means
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, ENDPOINTS, headline_metrics, metric_label

BARS_PER_ROW = 6
CLIENT_DOT: dict[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "markersize": 3.5,
    "color": "#222222",
    "markerfacecolor": "white",
    "markeredgewidth": 0.7,
}
# Of more clients than this, a figure shows the spread instead of each one.
MOST_SHOWN_CLIENTS = 30
MIDDLE = (0.1, 0.9)
MIDDLE_LABEL = "middle 80 % of clients"
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


class _Bar(NamedTuple):
    mean: float
    clients: tuple[float, ...]


def endpoint_bars(run: RunRecord, history: History) -> Figure | None:
    """Draw Private, Q and Joint side by side for each task and headline metric: TEST, or the last DEV of a run without TEST."""
    values = _tested_bars(run) if run.test is not None else _measured_bars(run, history.history)
    panels = list(dict.fromkeys((task, metric) for task, metric, _ in values))
    if not panels:
        return None
    rows = math.ceil(len(panels) / BARS_PER_ROW)
    figure = new_figure(height=0.5 + 3.1 * rows)
    per_row = math.ceil(len(panels) / rows)
    titles = _titles(panels)
    for row in range(rows):
        axes = figure.add_subplot(rows, 1, row + 1)
        shown = slice(row * per_row, (row + 1) * per_row)
        _bar_row(axes, panels[shown], titles[shown], values, per_row)
        axes.set_ylabel("TEST, %" if run.test is not None else "DEV, %")
    handles: list[Artist] = [Patch(color=ENDPOINT_COLOURS[endpoint], label=ENDPOINT_LABELS[endpoint]) for endpoint in ENDPOINTS]
    numbers = [len(bar.clients) for bar in values.values()]
    if any(number <= MOST_SHOWN_CLIENTS for number in numbers):
        handles.append(Line2D([], [], label="each client", **CLIENT_DOT))
    if any(number > MOST_SHOWN_CLIENTS for number in numbers):
        handles.append(Line2D([], [], color="#222222", linewidth=1.6, label=MIDDLE_LABEL))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _bar_row(
    axes: Axes, panels: list[tuple[str, str]], titles: list[str], values: Mapping[tuple[str, str, str], _Bar], places: int
) -> None:
    width = 0.27
    bars = [
        (place + offset, endpoint, bar)
        for place, (task, metric) in enumerate(panels)
        for offset, endpoint in zip((-width, 0.0, width), ENDPOINTS, strict=True)
        if (bar := values.get((task, metric, endpoint))) is not None
    ]
    axes.bar(
        [at for at, _, _ in bars],
        [100 * bar.mean for *_, bar in bars],
        width * 0.94,
        color=[ENDPOINT_COLOURS[e] for _, e, _ in bars],
    )
    tops = [_bar_clients(axes, at, width, bar) for at, _, bar in bars]
    for (at, endpoint, bar), top in zip(bars, tops, strict=True):
        # The number stands at the foot of its bar, away from the clients' dots, unless the bar is too low for it.
        inside = 100 * bar.mean > 0.15 * max(tops)
        axes.annotate(
            f"{100 * bar.mean:.1f}",
            (at, 0 if inside else top),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            fontweight="bold",
            color=ENDPOINT_TEXT_COLOURS[endpoint] if inside else "black",
        )
    axes.set_xticks(range(len(panels)), [title.replace(" · ", "\n") for title in titles])
    axes.set_xlim(-0.6, places - 0.4)
    axes.set_ylim(0, 1.06 * max(max(tops), 0.01))
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _bar_clients(axes: Axes, place: float, width: float, bar: _Bar) -> float:
    """Draw the clients over their mean, one dot each or their spread, and return how high they reach."""
    values = 100 * np.array(bar.clients)
    if len(values) > MOST_SHOWN_CLIENTS:
        low, high = np.quantile(values, MIDDLE)
        axes.vlines(place, low, high, color="#222222", linewidth=1.6)
        return float(max(high, 100 * bar.mean))
    across = np.linspace(-0.3, 0.3, len(values)) * width if len(values) > 1 else np.zeros(len(values))
    axes.plot(place + across, values, **CLIENT_DOT)
    return float(max(100 * bar.mean, values.max(initial=0.0)))


def _tested_bars(run: RunRecord) -> dict[tuple[str, str, str], _Bar]:
    bars = {}
    for task, endpoints in endpoint_means(run, "best").items():
        own = [client["best"] for client in (run.test or {}).values() if client["task"] == task]
        for metric in headline_metrics({metric for metrics in endpoints.values() for metric in metrics}):
            for endpoint, metrics in endpoints.items():
                if metric in metrics:
                    clients = tuple(float(c[endpoint][metric]) for c in own if metric in (c.get(endpoint) or {}))
                    bars[task, metric, endpoint] = _Bar(metrics[metric], clients)
    return bars


def _measured_bars(run: RunRecord, history: pd.DataFrame) -> dict[tuple[str, str, str], _Bar]:
    last = history[history["round"] == history["round"].max()]
    bars = {}
    for task, metric in _headlines(last, run.tasks):
        found = last[(last.task == task) & (last.metric == metric)]
        for endpoint, rows in found.groupby("endpoint"):
            mean = rows[rows.client.isna()].value
            if len(mean):
                bars[task, metric, str(endpoint)] = _Bar(float(mean.iloc[0]), tuple(rows[rows.client.notna()].value))
    return bars
