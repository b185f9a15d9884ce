"""A sweep's comparison as pictures: every seed a point, with the mean and its 95 % interval."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedsocket_flwr.evaluation.drawing import (
    ENDPOINT_COLOURS,
    ENDPOINT_MARKERS,
    TASK_COLOURS,
    WIDTH,
    drawn,
    grid_of_axes,
    labels,
    new_figure,
    style,
    to_png,
)
from fedsocket_flwr.evaluation.statistics import Sample
from fedsocket_flwr.experiments.comparison import ArmResult, Comparison, ContrastResult
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, headline_metrics, metric_label
from fedsocket_flwr.plain_files import write_whole

_OFFSETS = {"private": -0.25, "q": 0.0, "joint": 0.25}
_MOST_UPRIGHT = 3


def write_figures(comparison: Comparison, folder: Path) -> None:
    """Write one picture a task or group, one of the tasks' contrasts if there are any, and one of each group's.

    They show the metrics that the sweep names, or else those that stand for a task; the tables have all of them.
    """
    contrasts = [result for result in comparison.contrasts if result.seeds and _shown(comparison, result.task, result.metric)]
    pictures: dict[str, list[ContrastResult]] = {}
    for result in contrasts:
        name = f"contrasts-{file_slug(result.task)}" if result.task in comparison.groups else "contrasts"
        pictures.setdefault(name, []).append(result)
    with style():
        for task in comparison.tasks:
            write_whole(folder / f"task-{file_slug(task)}.png", to_png(task_figure(comparison, task)))
        for name, results in pictures.items():
            write_whole(folder / f"{name}.png", to_png(contrast_figure(results)))


def task_figure(comparison: Comparison, task: str) -> Figure:
    """Draw a task: a panel a metric, in it every arm with its endpoints side by side."""
    metrics = [metric for metric in comparison.metrics(task) if _shown(comparison, task, metric)]
    cells = [cell.label for cell in comparison.plan.compared]
    # Many arms need a panel's whole width.
    most_columns = 2 if len(cells) <= 2 * _MOST_UPRIGHT else 1
    rows = -(-len(metrics) // most_columns)
    figure = new_figure(0.9 + 3.1 * rows)
    for panel, metric in zip(grid_of_axes(figure, len(metrics), most_columns), metrics, strict=True):
        _draw_metric(panel, [r for r in comparison.arms if (r.task, r.metric) == (task, metric)], cells)
        panel.set_ylabel(f"{drawn(metric_label(metric))} (%)")
    figure.suptitle(drawn(f"{task}: seeds, mean and 95 % interval"), fontsize=10.5)
    handles = [
        Line2D([], [], marker=ENDPOINT_MARKERS[endpoint], linestyle="", color=ENDPOINT_COLOURS[endpoint], label=label)
        for endpoint, label in ENDPOINT_LABELS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def contrast_figure(results: Sequence[ContrastResult]) -> Figure:
    """Draw contrasts: a row for each contrast, task and metric, in percentage points."""
    figure = new_figure(1.0 + 0.5 * len(results), WIDTH)
    panel = figure.subplots()
    for place, result in enumerate(results):
        panel.scatter(
            [100 * value for value in result.values], [place] * len(result.values), s=16, color=TASK_COLOURS[1], alpha=0.5
        )
        if result.difference is not None:
            sample = result.difference.differences
            mean, reach, colour = [100 * sample.mean], _reach(sample), TASK_COLOURS[2]
            panel.errorbar(mean, [place], xerr=reach, fmt="D", color=colour, markersize=5, capsize=3)
    names = [f"{name}\n{drawn(r.task)}, {metric_label(r.metric)}" for name, r in zip(_names(results), results, strict=True)]
    panel.set_yticks(range(len(results)), names, fontsize=8.5)
    panel.set_ylim(len(results) - 0.5, -0.5)
    low, high = panel.get_xlim()
    panel.set_xlim(max(low, -100.0), min(high, 100.0))
    panel.axvline(0, color="black", linewidth=0.8)
    panel.grid(axis="y", visible=False)
    panel.set_xlabel("Difference in percentage points: seeds, mean and 95 % interval")
    return figure


def _names(results: Sequence[ContrastResult]) -> list[str]:
    unique = list(dict.fromkeys(result.name for result in results))
    by_name = dict(zip(unique, labels(unique, longest=40), strict=True))
    return [by_name[result.name] for result in results]


def _shown(comparison: Comparison, task: str, metric: str) -> bool:
    return metric in (comparison.plan.metrics or headline_metrics(comparison.metrics(task)))


def _draw_metric(panel: Axes, results: Sequence[ArmResult], cells: Sequence[str]) -> None:
    for result in results:
        colour = ENDPOINT_COLOURS[result.endpoint]
        place = cells.index(result.cell) + _OFFSETS[result.endpoint]
        panel.scatter(
            [place + 0.07] * len(result.values), [100 * value for value in result.values], s=12, color=colour, alpha=0.5
        )
        mean, reach, marker = [100 * result.sample.mean], _reach(result.sample), ENDPOINT_MARKERS[result.endpoint]
        panel.errorbar([place - 0.04], mean, yerr=reach, fmt=marker, color=colour, markersize=6, capsize=3)
    slanted = len(cells) > _MOST_UPRIGHT
    names = labels(cells, longest=40 if slanted else 24)
    panel.set_xticks(range(len(cells)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
    panel.set_xlim(-0.5, len(cells) - 0.5)
    # An interval from two seeds can reach far beyond what a percentage can be, and would press the seeds into a line.
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -2.0), min(high, 102.0))
    panel.grid(axis="x", visible=False)


def _reach(sample: Sample) -> float | None:
    """Return half the width of the interval in percentage points; one seed has none."""
    return 100 * (sample.interval.high - sample.mean) if sample.interval else None
