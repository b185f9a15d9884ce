"""The report of a run: a pure function of the run's folder."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsocket_flwr.evaluation.history import history_frames
from fedsocket_flwr.evaluation.plots import Picture, run_pictures
from fedsocket_flwr.evaluation.run_folder import RunRecord, read_run
from fedsocket_flwr.evaluation.run_tables import group_table, interfaces_as_run, run_tables
from fedsocket_flwr.evaluation.summary import summarise
from fedsocket_flwr.evaluation.tables import Table, markdown_text, to_csv, to_latex, to_markdown
from fedsocket_flwr.plain_files import dump_json, write_whole
from fedsocket_flwr.text import show_bytes


def write_report(folder: Path) -> dict[str, Any]:
    """Write ``summary.json``, ``report.md``, ``tables/`` and ``figures/`` of the run in ``folder``; return the summary.

    The same files give the same report. A run that was cut off gets one too, which says what is missing.

    Raises
    ------
    RunError
        If ``config.yaml`` or ``run.json`` is missing, or a file is malformed; the message names the file.
    """
    run = read_run(folder)
    summary = summarise(run)
    tables = run_tables(run, summary)
    for name, table in tables.items():
        write_whole(folder / "tables" / f"{name}.csv", to_csv(table))
        write_whole(folder / "tables" / f"{name}.tex", to_latex(table))
    frames = history_frames(run)
    for name, frame in (("dev_history", frames.history), ("rounds", frames.rounds), ("client_history", frames.clients)):
        write_whole(folder / "tables" / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
    pictures = run_pictures(run, frames)
    for picture in pictures:
        write_whole(folder / "figures" / picture.name, picture.png)
    write_whole(folder / "report.md", "\n".join(_sections(run, summary, tables, pictures)))
    write_whole(folder / "summary.json", dump_json(summary, indent=2) + "\n")
    return summary


def _sections(
    run: RunRecord, summary: Mapping[str, Any], tables: Mapping[str, Table], pictures: Sequence[Picture]
) -> Iterator[str]:
    yield f"# {markdown_text(str(summary['name']))}\n"
    yield (
        f"Method {markdown_text(str(summary['method']))}, seed {summary['seed']}, "
        f"{summary['rounds_done']} of {summary['rounds']} rounds in {summary['seconds']:.1f} s, "
        f"engine {markdown_text(str(summary['engine']))}, {len(run.clients)} clients, {len(run.tasks)} tasks. "
        f"Run {markdown_text(str(summary['run']))}.\n"
    )
    if run.notes:
        yield "> **Mind:** " + "; ".join(markdown_text(note) for note in run.notes) + ".\n"
    yield from _results(run, summary, tables)
    for picture in pictures:
        yield f"![{picture.caption}](figures/{picture.name})\n\n{picture.caption}\n"
    yield "## Clients\n"
    yield to_markdown(tables["clients"])
    if tables["client_results"].rows:
        yield "TEST of each client, in percent, at each endpoint's best round by the client's own DEV:\n"
        yield to_markdown(tables["client_results"])
    yield from _communication(summary, tables)
    yield "## Settings\n"
    known = "as recorded by the run" if interfaces_as_run(run) else "as configured"
    yield f"The fixed features that Q reads, {known}:\n"
    yield to_markdown(tables["interfaces"])
    yield to_markdown(tables["settings"])
    yield "All tables are in `tables/` as CSV and LaTeX; so is the history, in `dev_history.csv` and `rounds.csv`.\n"


def _results(run: RunRecord, summary: Mapping[str, Any], tables: Mapping[str, Table]) -> Iterator[str]:
    yield "## Results\n"
    if run.test is not None:
        yield "TEST in percent, unweighted mean over a task's clients, at each endpoint's best round by the client's own DEV:\n"
        yield to_markdown(tables["endpoints"])
        yield "The same at the last round:\n"
        yield to_markdown(tables["endpoints_last"])
        yield from _groups(summary)
    elif "dev" in summary:
        number = summary["dev"]["round"]
        yield f"DEV (not TEST) in percent, mean over the clients that measured it, of the model of round {number}:\n"
        yield to_markdown(tables["dev"])
    else:
        yield "Nothing has been measured yet.\n"


def _groups(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say a task's groups: a table each, without the column that names the task."""
    for task in summary["groups"]:
        whole = group_table(summary, [task])
        yield (
            f"Groups of {markdown_text(task)}'s clients, TEST in percent, at each endpoint's best round by the client's own DEV "
            "and at the last round. A group pools the TEST rows of its clients, All those of all clients: each row weighs alike, "
            "where the tables above weigh each client alike.\n"
        )
        yield to_markdown(Table(whole.columns[1:], tuple(row[1:] for row in whole.rows), whole.compared))


def _communication(summary: Mapping[str, Any], tables: Mapping[str, Table]) -> Iterator[str]:
    yield "## Communication and participation\n"
    if summary["q_parameters"]:
        size = show_bytes(4 * summary["q_parameters"])
        yield f"Q has {summary['q_parameters']:,} parameters ({size} in float32).\n"
    yield to_markdown(tables["communication"])
    merged = summary["participation"].values()
    done = summary["rounds_done"]
    always = sum(count == done for count in merged)
    yield f"In {done} rounds {sum(merged)} updates were merged; {always} of {len(merged)} clients took part in every round.\n"
    if tables["incidents"].rows:
        yield "What did not go as planned:\n"
        yield to_markdown(tables["incidents"])
    else:
        yield "Every client was there and answered, and no update was refused or shortened.\n"
