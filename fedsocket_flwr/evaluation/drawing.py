"""How every figure looks: one style, one colour an endpoint, and text that is drawn as it is written, whatever it holds."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from fedsocket_flwr.text import one_line

WIDTH = 9.0
DOTS_PER_INCH = 140
# Okabe and Ito's palette, which readers with any colour vision tell apart; endpoints and tasks share no colour.
ENDPOINT_COLOURS = {"private": "#0072B2", "q": "#E69F00", "joint": "#009E73"}
ENDPOINT_TEXT_COLOURS = {"private": "white", "q": "black", "joint": "white"}
# The first is drawn first: where lines coincide, the wider one shows on both sides of the narrower one.
ENDPOINT_WIDTHS = {"private": 2.9, "q": 2.3, "joint": 1.7}
ENDPOINT_MARKERS = {"private": "o", "q": "s", "joint": "D"}
TASK_COLOURS = ("#CC79A7", "#3A3A3A", "#D55E00", "#56B4E9", "#7A4FA3", "#8C6D1F")
LINE_STYLES: tuple[Any, ...] = ("-", "--", ":", "-.")
_STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "figure.facecolor": "white",
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.07,
}
_BASE_FONT = "DejaVu Sans"
_FURTHER_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Arial Unicode MS",
    "Noto Sans",
    "Unifont",
)


@contextmanager
def style() -> Iterator[None]:
    """Make and render figures in the report's style; the caller's own matplotlib settings are as before afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_STYLE, "font.family": list(_fonts())})
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of the given size in inches."""
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """Render a figure; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()


@lru_cache
def _fonts() -> tuple[str, ...]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return (_BASE_FONT, *(name for name in _FURTHER_FONTS if name in installed))


@lru_cache
def _drawable_letters() -> frozenset[int]:
    letters: set[int] = set()
    for name in _fonts():
        letters.update(font_manager.get_font(font_manager.findfont(name)).get_charmap())
    return frozenset(letters)


def drawn(text: str) -> str:
    """Return text such that matplotlib draws just that: no mathematics; letters that no font has are written as code points."""
    known = _drawable_letters()
    letters = (letter if ord(letter) in known else f"\\u{ord(letter):04x}" for letter in one_line(text))
    return "".join(letters).replace("$", r"\$")


def labels(names: Sequence[str], longest: int = 24) -> list[str]:
    """Return one label for each name, no two alike and none much longer than ``longest`` letters, ready to be drawn."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        text = one_line(name)
        tail = longest // 3
        short = text if len(text) <= longest else f"{text[: longest - tail - 1]}…{text[-tail:]}"
        label, count = short, 1
        while label in taken:
            count += 1
            label = f"{short} ({count})"
        taken.add(label)
        made.append(drawn(label))
    return made


def task_styles(tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour and line of every task: the same in each figure that is given the same tasks."""
    palette, lines = len(TASK_COLOURS), len(LINE_STYLES)
    return [{"color": TASK_COLOURS[k % palette], "linestyle": LINE_STYLES[k // palette % lines]} for k in range(len(tasks))]


def named_legend(parent: Axes | Figure, handles: Sequence[Artist], names: Sequence[str], **place: Any) -> Legend:
    """Draw a legend whose names may begin with an underscore, which matplotlib takes for "leave this out"."""
    legend = parent.legend(list(handles), [str(number) for number in range(len(names))], **place)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)
    return legend


def rounds_axis(axes: Axes, label: str = "Round of the model") -> None:
    """Make the horizontal axis one of rounds: whole numbers only."""
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def grid_of_axes(figure: Figure, panels: int, most_columns: int) -> list[Axes]:
    """Return that many axes in as few rows as possible, evenly filled."""
    rows = -(-panels // most_columns)
    columns = -(-panels // rows)
    return [figure.add_subplot(rows, columns, place + 1) for place in range(panels)]
