"""Figures of what the method did over the rounds: gates, Joint's weights, conflicts between tasks."""

import math
from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from fedsocket_flwr.evaluation.drawing import (
    LINE_STYLES,
    grid_of_axes,
    labels,
    named_legend,
    new_figure,
    rounds_axis,
    task_styles,
)
from fedsocket_flwr.metric_names import METRIC_LABELS

# More lines than this in one panel cannot be told apart; a heat map shows them instead.
MOST_LINES = 6
MOST_NAMED_PAIRS = 60
PAIR_COLOURS = ("#332288", "#882255", "#117733", "#999933", "#44AA99", "#AA4499")
MIXTURE_LABELS = {"i2t": "I2T", "t2i": "T2I"}


def gates_and_weights(tasks: Sequence[str], history: pd.DataFrame, rounds: pd.DataFrame) -> Figure | None:
    """Draw the gate of Q's residual, the mean rho of classification and the mean mixture of retrieval, each per task.

    Parameters
    ----------
    tasks
        Task names, in their order.
    history, rounds
        The frames of :class:`history.History`.

    Returns
    -------
    Figure or None
        None where the run has neither gates nor weights.
    """
    gates = rounds[["round", *(column for column in rounds.columns if column.removeprefix("gate.") in tasks)]]
    weights = history[(history.endpoint == "joint") & history.client.notna() & ~history.metric.isin(list(METRIC_LABELS))]
    rho, mixtures = weights[weights.metric == "rho"], weights[weights.metric != "rho"]
    drawings: tuple[tuple[bool, Callable[[Axes, Sequence[str], pd.DataFrame], None], pd.DataFrame], ...] = (
        (gates.shape[1] > 1, _gates, gates),
        (len(rho) > 0, _rho, rho),
        (len(mixtures) > 0, _mixtures, mixtures),
    )
    panels = [(draw, found) for wanted, draw, found in drawings if wanted]
    if not panels:
        return None
    figure = new_figure(height=3.4)
    for axes, (draw, found) in zip(grid_of_axes(figure, len(panels), 3), panels, strict=True):
        draw(axes, tasks, found)
    handles = [Line2D([], [], linewidth=2, **look) for look in task_styles(tasks)]
    named_legend(figure, handles, labels(tasks), loc="outside upper center", ncols=min(4, len(tasks)))
    return figure


def _gates(axes: Axes, tasks: Sequence[str], gates: pd.DataFrame) -> None:
    for task, look in zip(tasks, task_styles(tasks), strict=True):
        if f"gate.{task}" in gates.columns:
            axes.plot(gates["round"], gates[f"gate.{task}"], linewidth=2, marker="o", markersize=3.5, **look)
    axes.set_title("Gate of Q's residual")
    rounds_axis(axes)


def _rho(axes: Axes, tasks: Sequence[str], found: pd.DataFrame) -> None:
    for task, look in zip(tasks, task_styles(tasks), strict=True):
        mean = found[found.task == task].groupby("round").value.mean()
        axes.plot(mean.index, mean, linewidth=2, marker="o", markersize=3.5, **look)
    # The candidates are zero and powers of two.
    axes.set_yscale("symlog", base=2, linthresh=0.125)
    axes.set_ylim(0, 1.25 * max(1.0, found.value.max()))
    axes.set_yticks([0, *(2.0**power for power in range(-3, math.ceil(math.log2(max(1.0, found.value.max()))) + 1))])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_title("Joint: rho")
    rounds_axis(axes)


def _mixtures(axes: Axes, tasks: Sequence[str], found: pd.DataFrame) -> None:
    names = sorted(found.metric.unique())
    for task, look in zip(tasks, task_styles(tasks), strict=True):
        for name, line in zip(names, LINE_STYLES * len(names), strict=False):
            mean = found[(found.task == task) & (found.metric == name)].groupby("round").value.mean()
            axes.plot(mean.index, mean, linewidth=2, marker="o", markersize=3.5, color=look["color"], linestyle=line)
    axes.set_ylim(-0.03, 1.03)
    handles = [Line2D([], [], color="#777777", linestyle=line) for line in (LINE_STYLES * len(names))[: len(names)]]
    named_legend(axes, handles, [MIXTURE_LABELS.get(name, name) for name in names], loc="best")
    axes.set_title("Joint: weight of Q")
    rounds_axis(axes)


def conflicts(tasks: Sequence[str], rounds: pd.DataFrame) -> Figure | None:
    """Draw the cosine between every two tasks' updates over the rounds, a panel for each block that tasks share.

    Parameters
    ----------
    tasks
        Task names, in their order.
    rounds
        The frame of :class:`history.History`.

    Returns
    -------
    Figure or None
        None where the strategy reported no cosines.
    """
    blocks = _conflict_blocks(tasks, [column for column in rounds.columns if column.startswith("conflict.")])
    if not blocks:
        return None
    most = max(len(pairs) for pairs in blocks.values())
    height = 3.2 if most <= MOST_LINES else 1.2 + 0.22 * min(MOST_NAMED_PAIRS, most)
    figure = new_figure(height=height * len(blocks))
    for axes, block, pairs in zip(grid_of_axes(figure, len(blocks), 1), labels(list(blocks)), blocks.values(), strict=True):
        names = labels([pair for pair, _ in pairs], longest=44)
        cosines = rounds[[column for _, column in pairs]]
        if len(pairs) <= MOST_LINES:
            _cosine_lines(axes, rounds["round"], cosines, names)
        else:
            _cosine_map(figure, axes, rounds["round"], cosines, names)
        axes.set_title(f"Cosine between the tasks' updates of: {block}")
        rounds_axis(axes, "Round")
    return figure


def _conflict_blocks(tasks: Sequence[str], columns: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return block -> (pair for people, column). Task names may hold dots, so they are recognised, not split off."""
    pairs = {f".{a}.{b}": f"{a} – {b}" for a in tasks for b in tasks if a != b}
    blocks: dict[str, list[tuple[str, str]]] = {}
    for column in columns:
        ending = max((ending for ending in pairs if column.endswith(ending)), key=len, default=None)
        if ending is not None:
            block = column.removeprefix("conflict.").removesuffix(ending)
            blocks.setdefault(block, []).append((pairs[ending], column))
    return blocks


def _cosine_lines(axes: Axes, rounds: pd.Series, cosines: pd.DataFrame, names: Sequence[str]) -> None:
    lines = []
    for place, column in enumerate(cosines.columns):
        colour, style = PAIR_COLOURS[place % len(PAIR_COLOURS)], LINE_STYLES[place % 2]
        lines += axes.plot(rounds, cosines[column], linewidth=2, marker="o", markersize=3.5, color=colour, linestyle=style)
    axes.axhline(0, color="#777777", linewidth=1)
    reach = max(0.1, 1.15 * cosines.abs().to_numpy().max(initial=0.0, where=cosines.notna().to_numpy()))
    axes.set_ylim(-reach, reach)
    axes.set_ylabel("cosine (< 0: conflict)")
    named_legend(axes, lines, names, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _cosine_map(figure: Figure, axes: Axes, rounds: pd.Series, cosines: pd.DataFrame, names: Sequence[str]) -> None:
    reach = max(0.1, cosines.abs().to_numpy().max(initial=0.0, where=cosines.notna().to_numpy()))
    extent = (rounds.min() - 0.5, rounds.max() + 0.5, len(names) - 0.5, -0.5)
    image = axes.imshow(cosines.T, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest", extent=extent)
    axes.grid(visible=False)
    if len(names) <= MOST_NAMED_PAIRS:
        axes.set_yticks(range(len(names)), names)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(names)} pairs of tasks")
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, pad=0.01)
    bar.set_label("cosine (< 0: conflict)")
