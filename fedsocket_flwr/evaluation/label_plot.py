"""Which client holds how much of which class."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsocket_flwr.evaluation.drawing import TASK_COLOURS, labels, new_figure
from fedsocket_flwr.evaluation.run_folder import ClientFacts

ROW_HEIGHT = 0.27
MOST_NAMED_CLASSES = 20
MOST_NAMED_CLIENTS = 40
# Inches for the clients of a task that are too many to be named.
CROWDED_PANEL = 5.0


def label_distribution(clients: Sequence[ClientFacts], classes: Mapping[str, Sequence[str]]) -> Figure | None:
    """Draw TRAIN: a row a client, a dot a class whose area is the number of rows, and a bar for all rows.

    Parameters
    ----------
    clients
        The clients with their sizes; those whose size is not known are left out.
    classes
        Task -> names of its classes.

    Returns
    -------
    Figure or None
        None where no size is known.
    """
    sized = [client for client in clients if client.train is not None]
    tasks = list(dict.fromkeys(client.task for client in sized))
    if not tasks:
        return None
    members = [[client for client in sized if client.task == task] for task in tasks]
    heights = [0.75 + _panel_height(len(own)) for own in members]
    figure = new_figure(height=sum(heights) + 0.3)
    grid = figure.add_gridspec(len(tasks), 2, height_ratios=heights, width_ratios=(3, 1))
    most = max(client.train or 0 for client in sized)
    titles = labels(tasks, longest=40)
    for place, (task, own) in enumerate(zip(tasks, members, strict=True)):
        colour = TASK_COLOURS[place % len(TASK_COLOURS)]
        dots = figure.add_subplot(grid[place, 0])
        bars = figure.add_subplot(grid[place, 1], sharey=dots)
        _dots(dots, own, labels(list(classes.get(task, ())), longest=16), colour)
        _bars(bars, own, most, colour)
        largest = max((max(client.class_counts, default=0) for client in own), default=0)
        dots.set_title(titles[place] + (f"  (largest dot: {largest:,} rows)" if largest else ""))
    figure.axes[1].set_title("TRAIN, in all")
    return figure


def _panel_height(clients: int) -> float:
    return ROW_HEIGHT * max(2, clients) if clients <= MOST_NAMED_CLIENTS else CROWDED_PANEL


def _dots(axes: Axes, clients: Sequence[ClientFacts], classes: Sequence[str], colour: str) -> None:
    number = max((len(client.class_counts) for client in clients), default=0)
    counts_KC = np.array([[*client.class_counts, *[0] * (number - len(client.class_counts))] for client in clients])
    if counts_KC.size and counts_KC.max() > 0:
        row, column = np.nonzero(counts_KC)
        # The largest dot just fits between its neighbours, across and down.
        space = min(380.0 / number, 72 * _panel_height(len(clients)) / len(clients), 72 * ROW_HEIGHT)
        area = (0.92 * space) ** 2
        axes.scatter(column, row, s=area * counts_KC[row, column] / counts_KC.max(), color=colour, linewidths=0, alpha=0.85)
        _class_axis(axes, number, classes)
    else:
        axes.text(
            0.5, 0.5, "no classes (pairs of image and text)", ha="center", va="center", transform=axes.transAxes, color="#777777"
        )
        axes.set_xticks([])
        axes.grid(visible=False)
    named = len(clients) <= MOST_NAMED_CLIENTS
    axes.set_yticks(range(len(clients)) if named else [], labels([c.name for c in clients]) if named else [])
    axes.set_ylabel("" if named else f"{len(clients)} clients")
    axes.set_ylim(len(clients) - 0.5, -0.5)
    axes.tick_params(length=0)


def _class_axis(axes: Axes, number: int, classes: Sequence[str]) -> None:
    step = math.ceil(number / MOST_NAMED_CLASSES)
    places = list(range(0, number, step))
    names = [classes[place] if place < len(classes) else str(place) for place in places]
    crowded = (max(map(len, names)) + 1) * len(names) > 72
    axes.set_xticks(places, names, rotation=35 if crowded else 0, ha="right" if crowded else "center", rotation_mode="anchor")
    axes.set_xlim(-0.6, number - 0.4)


def _bars(axes: Axes, clients: Sequence[ClientFacts], most: int, colour: str) -> None:
    sizes = [client.train or 0 for client in clients]
    axes.barh(range(len(clients)), sizes, color=colour, height=0.62, alpha=0.85)
    if len(clients) <= MOST_NAMED_CLIENTS:
        for place, size in enumerate(sizes):
            axes.annotate(f"{size:,}", (size, place), (3, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, 1.3 * max(most, 1))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.tick_params(labelleft=False, length=0)
    axes.spines["bottom"].set_visible(False)
