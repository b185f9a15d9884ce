import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedsocket_flwr.evaluation.drawing import ENDPOINT_COLOURS, drawn, labels, style, to_png
from fedsocket_flwr.evaluation.history import load_history
from fedsocket_flwr.evaluation.label_plot import label_distribution
from fedsocket_flwr.evaluation.plots import dev_curves, endpoint_bars, run_pictures
from fedsocket_flwr.evaluation.round_plots import conflicts, gates_and_weights
from fedsocket_flwr.evaluation.run_folder import RunRecord, read_run
from tests.evaluation.fake_run import DEMO, HOSTILE, LONG, make_run

ALL = {"endpoints.png", "dev_curves.png", "gates_and_weights.png", "conflicts.png", "label_distribution.png"}


@pytest.fixture(scope="module", params=[DEMO, HOSTILE], ids=["plain", "hostile"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return read_run(make_run(tmp_path_factory.mktemp("run"), request.param))


def figures(run: RunRecord) -> Iterator[Figure]:
    history = load_history(run.folder)
    with style():
        for figure in (
            endpoint_bars(run, history),
            dev_curves(run.tasks, history.history),
            gates_and_weights(run.tasks, history.history, history.rounds),
            conflicts(run.tasks, history.rounds),
            label_distribution(list(run.clients.values()), run.classes),
        ):
            assert figure is not None
            to_png(figure)
            yield figure


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Return the texts that are seen with their boxes in pixels; ticks outside the view are made but not drawn."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    axises = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    unseen = {
        id(tick.label1)
        for axis in axises
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    seen = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in unseen]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in seen]


def test_every_figure_is_drawn_as_png_at_the_width_of_a_readme(run: RunRecord) -> None:
    before = dict(matplotlib.rcParams)
    pictures = run_pictures(run, load_history(run.folder))
    assert {picture.name for picture in pictures} == ALL
    for picture in pictures:
        assert picture.png.startswith(b"\x89PNG\r\n")
        assert struct.unpack(">I", picture.png[16:20])[0] == 1260
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.pyplot.get_fignums() == []


def test_equal_runs_give_equal_figures(run: RunRecord) -> None:
    history = load_history(run.folder)
    assert run_pictures(run, history) == run_pictures(run, history)


def test_no_text_covers_another_or_leaves_the_figure(run: RunRecord) -> None:
    for figure in figures(run):
        found = texts(figure)
        assert len(found) > 10
        for place, (text, box) in enumerate(found):
            assert box.x0 >= -1, text
            assert box.x1 <= figure.bbox.width + 1, text
            for other, other_box in found[place + 1 :]:
                if text != other:
                    width = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
                    height = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
                    # Boxes of rotated labels overlap where their letters do not.
                    assert min(width, height) <= 2 or "class" in text, f"{text!r} over {other!r}"


def test_endpoints_have_their_colours_in_curves_and_bars(run: RunRecord) -> None:
    history = load_history(run.folder)
    with style():
        curves, bars = dev_curves(run.tasks, history.history), endpoint_bars(run, history)
    assert curves is not None
    assert bars is not None
    lines = {line.get_color() for line in curves.axes[0].lines}
    assert lines == set(ENDPOINT_COLOURS.values())
    assert {matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars.axes[0].patches} == set(  # type: ignore[attr-defined]
        ENDPOINT_COLOURS.values()
    )


def test_bars_show_what_test_says(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    with style():
        figure = endpoint_bars(run, load_history(run.folder))
    assert figure is not None
    assert run.test is not None
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    expected = [run.test[c]["best"]["private"]["accuracy"] for c in DEMO["digits"][1]]
    assert heights[0] == pytest.approx(100 * sum(expected) / 3)
    assert len(heights) == 4 * 3
    assert figure.axes[0].get_ylim()[0] == 0


def test_curves_hold_every_round_of_the_model(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    history = load_history(run.folder).history
    with style():
        figure = dev_curves(run.tasks, history)
    assert figure is not None
    means = [line for line in figure.axes[0].lines if line.get_linewidth() > 1]
    assert [list(line.get_xdata()) for line in means] == [list(range(1, 9))] * 3
    # The client without DEV has no line: three endpoints of two clients, and three means.
    assert len(figure.axes[0].lines) == 9


def test_a_run_that_measured_nothing_has_only_its_split(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, rounds=1, finished=False))
    names = {picture.name for picture in run_pictures(run, load_history(run.folder))}
    assert names == {"gates_and_weights.png", "conflicts.png", "label_distribution.png"}


def test_many_tasks_and_clients_are_drawn(tmp_path: Path) -> None:
    tasks: dict[str, Any] = {f"task.{t}": ("classification", {f"t{t}-{c}": "m" for c in range(4)}) for t in range(8)}
    tasks["pictures"] = ("retrieval", {f"p{c}": "m" for c in range(60)})
    run = read_run(make_run(tmp_path, tasks, rounds=2))
    assert {picture.name for picture in run_pictures(run, load_history(run.folder))} == ALL


def test_tasks_with_dots_in_their_names_keep_their_conflicts_apart(tmp_path: Path) -> None:
    run = read_run(
        make_run(
            tmp_path, {name: ("classification", {f"{name}-1": "m", f"{name}-2": "m"}) for name in ("b", "a.b", "c")}, rounds=3
        )
    )
    with style():
        figure = conflicts(run.tasks, load_history(run.folder).rounds)
    assert figure is not None
    assert len(figure.axes) == 1
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["b – a.b", "b – c", "a.b – c"]


def test_labels_are_short_and_no_two_are_alike() -> None:
    made = labels([LONG, LONG + "x", "News", "news", "a\nb", "a b"])
    assert len(set(made)) == 6
    assert max(map(len, made)) <= 28


def test_text_is_drawn_as_it_is_written() -> None:
    figure = Figure()
    for text in ("ba$$in", "$x_{1}$", r"\frac{1}", "_hidden", r"a\$b$"):
        shown = figure.text(0, 0, drawn(text))
        parsed, is_math = shown._preprocess_math(shown.get_text())  # type: ignore[attr-defined]
        assert (parsed, is_math) == (text, False)


def test_letters_without_a_glyph_are_written_as_code_points() -> None:
    assert drawn("a\U0010fffdb") == "a\\u10fffdb"


def test_a_legend_keeps_names_that_begin_with_an_underscore(tmp_path: Path) -> None:
    run = read_run(
        make_run(tmp_path, {name: ("classification", {f"{name}-1": "m", f"{name}-2": "m"}) for name in ("_a", "_b")}, rounds=3)
    )
    history = load_history(run.folder)
    with style():
        figure = gates_and_weights(run.tasks, history.history, history.rounds)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["_a", "_b"]
