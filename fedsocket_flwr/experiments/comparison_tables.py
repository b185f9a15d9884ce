"""A sweep's comparison as Markdown, CSV and LaTeX."""

from collections.abc import Iterable
from pathlib import Path

from fedsocket_flwr.evaluation.tables import Column, Table, markdown_text, to_csv, to_latex, to_markdown
from fedsocket_flwr.experiments.comparison import ArmResult, Comparison, ContrastResult
from fedsocket_flwr.metric_names import ENDPOINT_LABELS, metric_label
from fedsocket_flwr.plain_files import write_whole

_EXPLANATION = (
    "Percentages on TEST; mean and sample standard deviation (SD) over seeds. Differences are in percentage points, minuend less "
    "subtrahend, paired by seed over the seeds that both sides have: mean, 95 % t interval, exact two-sided sign-flip p value, "
    "and wins, the number of seeds with a difference above zero."
)


_GROUPS = (
    "A name such as `activity: recipients` is a group of a task's clients, measured over the pooled TEST rows of its clients; a "
    "task itself is the unweighted mean over its clients."
)


def write_tables(comparison: Comparison, out: Path) -> None:
    """Write ``comparison.md``, ``comparison.csv``, ``comparison.tex`` and ``contrasts.csv``."""
    arms, contrasts = arm_table(comparison), contrast_table(comparison)
    write_whole(out / "comparison.md", _markdown(comparison, arms, contrasts))
    write_whole(out / "comparison.tex", "\n".join(to_latex(table) for table in (arms, contrasts) if table.rows))
    write_whole(out / "comparison.csv", to_csv(_arm_records(comparison)))
    write_whole(out / "contrasts.csv", to_csv(_contrast_records(comparison)))


def arm_table(comparison: Comparison) -> Table:
    """Return arms, tasks and metrics as rows, and mean and SD of every endpoint as columns."""
    columns = [Column("Arm"), Column("Task"), Column("Metric")]
    for label in ENDPOINT_LABELS.values():
        columns += [Column(label, "percent"), Column(f"SD {label}", "percent")]
    grouped: dict[tuple[str, str, str], dict[str, ArmResult]] = {}
    for result in comparison.arms:
        grouped.setdefault((result.cell, result.task, result.metric), {})[result.endpoint] = result
    rows = []
    for (cell, task, metric), by_endpoint in grouped.items():
        numbers: list[float | None] = []
        for endpoint in ENDPOINT_LABELS:
            sample = by_endpoint[endpoint].sample if endpoint in by_endpoint else None
            numbers += [sample.mean, sample.standard_deviation] if sample else [None, None]
        seeds = dict.fromkeys(_joined(result.seeds) for result in by_endpoint.values())
        rows.append((cell, task, metric_label(metric), *numbers, " / ".join(seeds)))
    return Table((*columns, Column("Seeds")), tuple(rows), tuple(ENDPOINT_LABELS.values()))


def contrast_table(comparison: Comparison) -> Table:
    """Return one row for each contrast, task and metric."""
    points = [
        Column("Difference", "points"),
        Column("SD", "percent"),
        Column("95 % low", "points"),
        Column("95 % high", "points"),
    ]
    columns = (Column("Contrast"), Column("Task"), Column("Metric"), *points, Column("p", "number"), Column("Wins"))
    rows = []
    for result in comparison.contrasts:
        wins = f"{result.difference.wins} of {len(result.seeds)}" if result.difference else None
        names = (result.name, result.task, metric_label(result.metric))
        rows.append((*names, *_numbers(result), wins, _joined(result.seeds), _joined(result.left_out)))
    return Table((*columns, Column("Seeds"), Column("Not on both sides")), tuple(rows))


def _arm_records(comparison: Comparison) -> Table:
    numbers = [Column(name, "number") for name in ("mean", "sd", "low", "high")]
    columns = (
        *map(Column, ("arm", "task", "metric", "endpoint")),
        Column("n", "integer"),
        *numbers,
        Column("seeds"),
        Column("values"),
    )
    rows = []
    for result in comparison.arms:
        sample, interval = result.sample, result.sample.interval
        ends = (interval.low, interval.high) if interval else (None, None)
        names = (result.cell, result.task, result.metric, result.endpoint)
        lists = (_joined(result.seeds), _joined(result.values))
        rows.append((*names, sample.count, sample.mean, sample.standard_deviation, *ends, *lists))
    return Table(columns, tuple(rows))


def _contrast_records(comparison: Comparison) -> Table:
    numbers = [Column(name, "number") for name in ("mean", "sd", "low", "high", "p")]
    lists = [Column(name) for name in ("seeds", "left_out", "differences")]
    columns = (*map(Column, ("contrast", "task", "metric")), Column("n", "integer"), *numbers, Column("wins", "integer"), *lists)
    rows = []
    for result in comparison.contrasts:
        wins = result.difference.wins if result.difference else None
        listed = (_joined(result.seeds), _joined(result.left_out), _joined(result.values))
        rows.append((result.name, result.task, result.metric, len(result.seeds), *_numbers(result), wins, *listed))
    return Table(columns, tuple(rows))


def _numbers(result: ContrastResult) -> tuple[float | None, float | None, float | None, float | None, float | None]:
    """Return mean, SD, low, high and p of a contrast."""
    if result.difference is None:
        return None, None, None, None, None
    sample = result.difference.differences
    low, high = (sample.interval.low, sample.interval.high) if sample.interval else (None, None)
    return sample.mean, sample.standard_deviation, low, high, result.difference.p_value


def _markdown(comparison: Comparison, arms: Table, contrasts: Table) -> str:
    plan = comparison.plan
    parts = [f"# {markdown_text(plan.name)}", _EXPLANATION, *([_GROUPS] if comparison.groups else [])]
    parts.append(to_markdown(arms).rstrip() if arms.rows else "No member is finished yet.")
    if plan.contrasts:
        parts += ["## Contrasts", "\n".join(_spelled_out(comparison)), to_markdown(contrasts).rstrip()]
    if comparison.unfinished:
        parts += [
            "Not finished, and so not counted:",
            "\n".join(f"* {markdown_text(member)}" for member in comparison.unfinished),
        ]
    if unmeasured := [metric for metric in plan.metrics if metric not in {result.metric for result in comparison.arms}]:
        parts.append("No finished member has the metric " + ", ".join(map(markdown_text, unmeasured)) + ".")
    return "\n\n".join(parts) + "\n"


def _spelled_out(comparison: Comparison) -> Iterable[str]:
    labels = {**ENDPOINT_LABELS, "better_branch": "the better of Private and Q"}
    for contrast in comparison.plan.contrasts:
        sides = [f"{labels[side.endpoint]} of {side.arm}" for side in (contrast.minuend, contrast.subtrahend)]
        yield f"* {markdown_text(contrast.name)}: {markdown_text(' less '.join(sides))}"


def _joined(values: Iterable[float]) -> str:
    return " ".join(repr(value) for value in values)
