"""Private, Q and Joint as bars side by side, with the clients that their mean goes over."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsocket_flwr.evaluation.drawing import ENDPOINT_COLOURS, ENDPOINT_TEXT_COLOURS, new_figure
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, ENDPOINTS

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


class Bar(NamedTuple):
    """The value of an endpoint, and those of the clients that are drawn over it; fractions."""

    value: float
    clients: tuple[float, ...] = ()


def bars_figure(ticks: Sequence[str], places: Sequence[Mapping[str, Bar]], what: str) -> Figure:
    """Draw up to three bars at each place.

    Parameters
    ----------
    ticks
        What stands below each place, ready to be drawn; one or two lines.
    places
        Endpoint -> bar, for each place; at least one place.
    what
        What the bars measure, as in ``TEST, %``.
    """
    rows = math.ceil(len(places) / BARS_PER_ROW)
    figure = new_figure(height=0.5 + 3.1 * rows)
    per_row = math.ceil(len(places) / rows)
    for row in range(rows):
        axes = figure.add_subplot(rows, 1, row + 1)
        shown = slice(row * per_row, (row + 1) * per_row)
        _bar_row(axes, ticks[shown], places[shown], per_row)
        axes.set_ylabel(what)
    handles: list[Artist] = [Patch(color=ENDPOINT_COLOURS[endpoint], label=ENDPOINT_LABELS[endpoint]) for endpoint in ENDPOINTS]
    numbers = [len(bar.clients) for bars in places for bar in bars.values()]
    if any(0 < number <= MOST_SHOWN_CLIENTS for number in numbers):
        handles.append(Line2D([], [], label="each client", **CLIENT_DOT))
    if any(number > MOST_SHOWN_CLIENTS for number in numbers):
        handles.append(Line2D([], [], color="#222222", linewidth=1.6, label=MIDDLE_LABEL))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure


def _bar_row(axes: Axes, ticks: Sequence[str], places: Sequence[Mapping[str, Bar]], room_for: int) -> None:
    width = 0.27
    bars = [
        (place + offset, endpoint, by_endpoint[endpoint])
        for place, by_endpoint in enumerate(places)
        for offset, endpoint in zip((-width, 0.0, width), ENDPOINTS, strict=True)
        if endpoint in by_endpoint
    ]
    axes.bar(
        [at for at, _, _ in bars],
        [100 * bar.value for *_, bar in bars],
        width * 0.94,
        color=[ENDPOINT_COLOURS[e] for _, e, _ in bars],
    )
    tops = [_bar_clients(axes, at, width, bar) for at, _, bar in bars]
    for (at, endpoint, bar), top in zip(bars, tops, strict=True):
        # The number stands at the foot of its bar, away from the clients' dots, unless the bar is too low for it.
        inside = 100 * bar.value > 0.15 * max(tops)
        axes.annotate(
            f"{100 * bar.value:.1f}",
            (at, 0 if inside else top),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            fontweight="bold",
            color=ENDPOINT_TEXT_COLOURS[endpoint] if inside else "black",
        )
    axes.set_xticks(range(len(places)), ticks)
    axes.set_xlim(-0.6, room_for - 0.4)
    axes.set_ylim(0, 1.06 * max(max(tops), 0.01))
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _bar_clients(axes: Axes, place: float, width: float, bar: Bar) -> float:
    """Draw the clients over their mean, one dot each or their spread, and return how high they reach."""
    values = 100 * np.array(bar.clients)
    if len(values) > MOST_SHOWN_CLIENTS:
        low, high = np.quantile(values, MIDDLE)
        axes.vlines(place, low, high, color="#222222", linewidth=1.6)
        return float(max(high, 100 * bar.value))
    across = np.linspace(-0.3, 0.3, len(values)) * width if len(values) > 1 else np.zeros(len(values))
    axes.plot(place + across, values, **CLIENT_DOT)
    return float(max(100 * bar.value, values.max(initial=0.0)))
