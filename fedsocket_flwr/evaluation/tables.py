"""Tables that are computed once and written as Markdown, CSV and LaTeX, whatever the names in them hold."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedsocket_flwr.text import one_line, show_bytes

Cell = str | int | float | None
Kind = Literal["text", "integer", "percent", "points", "number", "bytes"]
ABSENT = "–"

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # Babel makes `"` active in some languages.
    '"': r"\symbol{34}",
    "`": r"\symbol{96}",
    # Two hyphens would join into a dash; a bracket or an asterisk at the start of a row would belong to the line end before it.
    "-": "{-}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\ldots{}",
    "−": r"\ensuremath{-}",
    "×": r"\ensuremath{\times}",
}
# pdfTeX stops at letters that its fonts lack, XeTeX and LuaTeX do not: the former is given the code points.
_LATEX_PREAMBLE = r"\providecommand{\unicodetext}[2]{\ifdefined\Umathcode#1\else\texttt{#2}\fi}" + "\n"
# An underscore between letters is no markup.
_MARKDOWN = re.compile(r"[\\`*{}\[\]<>#|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Column:
    """A column: its heading and how its numbers are shown to people (CSV holds them in full)."""

    heading: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """Rows under columns; ``compared`` are the headings among which a row's highest number is set in bold."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    compared: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row}")

    def best_cells(self, row: tuple[Cell, ...]) -> set[int]:
        """Return the places of the row's highest numbers among the compared columns, as far as the shown digits tell."""
        places = [i for i, column in enumerate(self.columns) if column.heading in self.compared]
        shown = {i: round(float(cell), 3) for i in places if isinstance(cell := row[i], (int, float))}
        return {i for i, number in shown.items() if number == max(shown.values())} if len(shown) > 1 else set()


def show(cell: Cell, kind: Kind) -> str:
    """Return a cell for people: percentages from fractions, bytes with a unit, and a dash for what was not measured."""
    if cell is None:
        return ABSENT
    if isinstance(cell, str):
        return cell
    match kind:
        case "percent":
            return f"{100 * cell:.1f}"
        case "points":
            return f"{100 * cell:+.1f}"
        case "bytes":
            return show_bytes(cell)
        case "number":
            return f"{cell:.4g}"
        case _:
            return f"{cell:,}"


def markdown_text(text: str) -> str:
    """Escape text for a Markdown table: one line, no markup, no mathematics, no column of its own."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", one_line(text).replace("&", "&amp;"))
    # GitHub reads dollars as mathematics even behind a backslash.
    return escaped.replace("$", "&#36;")


def latex_text(text: str) -> str:
    """Escape text for LaTeX so that it compiles with every engine."""
    return _grouped(one_line(text))


def _grouped(text: str) -> str:
    """Escape letter by letter; a run of foreign ones becomes one call of the macro of the preamble."""
    parts: list[str] = []
    foreign = ""
    for letter in (*text, ""):
        if letter and letter not in _LATEX and not _latin(letter):
            foreign += letter
            continue
        if foreign:
            parts.append(f"\\unicodetext{{{foreign}}}{{{' '.join(f'U+{ord(one):04X}' for one in foreign)}}}")
            foreign = ""
        parts.append(_LATEX.get(letter, letter))
    return "".join(parts)


def _latin(letter: str) -> bool:
    """Say whether every engine and font encoding sets the letter: ASCII, or a Latin-1 letter that is one plus an accent."""
    return letter.isascii() or (letter <= "ÿ" and len(unicodedata.normalize("NFD", letter)) == 2)


def to_markdown(table: Table) -> str:
    """Return the table in GitHub's Markdown."""
    align = ["---" if column.kind == "text" else "---:" for column in table.columns]
    lines = [_markdown_row([markdown_text(column.heading) for column in table.columns]), _markdown_row(align)]
    lines += [_markdown_row(cells) for cells in _shown(table, markdown_text, "**{}**")]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def to_latex(table: Table) -> str:
    """Return the table as a LaTeX ``tabular`` that needs no package."""
    layout = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    heading = " & ".join(latex_text(column.heading) for column in table.columns)
    body = [" & ".join(cells) + r" \\" for cells in _shown(table, latex_text, r"\textbf{{{}}}")]
    lines = [rf"\begin{{tabular}}{{{layout}}}", r"\hline", heading + r" \\", r"\hline", *body, r"\hline", r"\end{tabular}"]
    return _LATEX_PREAMBLE + "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Return the table as CSV: numbers in full, an empty field for what was not measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.heading for column in table.columns])
    for row in table.rows:
        writer.writerow([_plain(cell) for cell in row])
    return text.getvalue()


def _plain(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return one_line(cell)
    # float() first: NumPy's own numbers print their type.
    return repr(float(cell)) if isinstance(cell, float) else str(int(cell))


def _shown(table: Table, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    lines = []
    for row in table.rows:
        best = table.best_cells(row)
        cells = [escape(show(cell, column.kind)) for cell, column in zip(row, table.columns, strict=True)]
        lines.append([bold.format(cell) if place in best else cell for place, cell in enumerate(cells)])
    return lines
