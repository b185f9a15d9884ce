import csv
import io
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.evaluation.tables import Column, Table, latex_text, markdown_text, show, to_csv, to_latex, to_markdown
from fedsocket_flwr.text import show_bytes

TABLE = Table(
    (Column("Task"), Column("Private", "percent"), Column("Q", "percent"), Column("Rows", "integer")),
    (("a_b%", 0.8, 0.9049, 1234), ("x|y", None, np.float64(0.5), 7), ("line\nend", 0.90041, 0.90044, None)),
    compared=("Private", "Q"),
)


def test_markdown_is_for_people() -> None:
    assert to_markdown(TABLE) == (
        "| Task | Private | Q | Rows |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a_b% | 80.0 | **90.5** | 1,234 |\n"
        "| x\\|y | – | 50.0 | 7 |\n"
        "| line end | **90.0** | **90.0** | – |\n"
    )


def test_csv_is_exact_and_leaves_absent_numbers_empty() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [
        ["Task", "Private", "Q", "Rows"],
        ["a_b%", "0.8", "0.9049", "1234"],
        ["x|y", "", "0.5", "7"],
        ["line end", "0.90041", "0.90044", ""],
    ]


def test_latex_is_a_tabular() -> None:
    lines = to_latex(TABLE).splitlines()
    assert lines[1:5] == [r"\begin{tabular}{lrrr}", r"\hline", r"Task & Private & Q & Rows \\", r"\hline"]
    assert lines[5] == r"a\_b\% & 80.0 & \textbf{90.5} & 1,234 \\"
    assert lines[6] == r"x\textbar{}y & \textendash{} & 50.0 & 7 \\"


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells in a table of 1 columns"):
        Table((Column("a"),), (("x", "y"),))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("image_cnn", "image_cnn"),
        ("_x_", r"\_x\_"),
        ("ba$$in", "ba&#36;&#36;in"),
        ("a|b", r"a\|b"),
        ("<b>&amp;", r"\<b\>&amp;amp;"),
        ("新闻", "新闻"),
        ("`[x](y)`", r"\`\[x\](y)\`"),
    ],
)
def test_markdown_text(name: str, expected: str) -> None:
    assert markdown_text(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a_b%", r"a\_b\%"),
        ("ba$$in", r"ba\$\$in"),
        (r"\frac{1}", r"\textbackslash{}frac\{1\}"),
        ("[5pt]", "{[}5pt{]}"),
        ("--", "{-}{-}"),
        ("café", "café"),
        ("新闻 x", r"\unicodetext{新闻}{U+65B0 U+95FB} x"),
    ],
)
def test_latex_text(name: str, expected: str) -> None:
    assert latex_text(name) == expected


@settings(max_examples=80)
@given(st.text(max_size=30))
def test_no_text_can_break_a_table(name: str) -> None:
    table = Table((Column("a"), Column("b")), ((name, name),))
    row = to_markdown(table).splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert len(list(csv.reader(io.StringIO(to_csv(table))))) == 2
    left_alone = re.sub(r"\\(?:[a-z]+|[{}$&#%_])", "", latex_text(name))
    assert not set(left_alone) & set('\\$&#%_^~<>|"`\n\r')
    assert left_alone.count("{") == left_alone.count("}")


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1_460_907_840, "1.46 GB"), (4e15, "4e+03 TB")],
)
def test_bytes(count: float, expected: str) -> None:
    assert show_bytes(count) == expected


def test_kinds() -> None:
    assert [show(0.0315, kind) for kind in ("percent", "points", "number")] == ["3.1", "+3.1", "0.0315"]
    assert show(-0.004, "points") == "-0.4"
    assert show(None, "bytes") == "–"
