from fedsocket_flwr.runtime.progress import encodable, format_progress
from tests.evaluation.fake_run import closing_row, history_rows


def row(**more: object) -> dict[str, object]:
    return {
        "phase": "train",
        "round": 3,
        "seconds": 7.44,
        "asked": ["a", "b", "c"],
        "answered": ["a", "b"],
        "bytes": {"up": 1_460_907_840, "down": 999},
        **more,
    }


def test_a_line_holds_round_time_bytes_and_participation() -> None:
    assert format_progress(row(), 8) == "round 3/8  7.4 s  up 1.46 GB, down 999 B  answered 2/3"


def test_dev_stands_beside_the_round_of_its_model() -> None:
    tasks = {
        "digits": {
            "clients": 3,
            "private": {"accuracy": 0.8, "macro_f1": 0.1},
            "q": {"accuracy": 0.9},
            "joint": {"accuracy": 0.905},
        },
        "glyphs": {"private": {"i2t_r1": 0.3, "t2i_r1": 0.25, "mean_r": 0.6}, "q": {"i2t_r1": 0.4}},
    }
    line = format_progress(row(dev={"round": 2, "tasks": tasks}), 8)
    assert "  DEV of round 2:  digits 80.0/90.0/90.5  glyphs i2t 30.0/40.0/- t2i 25.0/-/-  " in line


def test_refusals_are_named_with_their_reason_on_the_same_line() -> None:
    line = format_progress(row(refused={"b": "NaN in\r\nblock \x1b[31mR"}), 8)
    assert line.endswith("refused b (NaN in  block  [31mR)")
    assert not set("\r\n\x1b") & set(line)


def test_a_task_that_nobody_measured_shows_nothing_instead_of_failing() -> None:
    assert "  digits   up" in format_progress(row(dev={"round": 2, "tasks": {"digits": {"clients": 0}}}), 8)


def test_every_row_of_a_run_is_one_line() -> None:
    for made in [*history_rows(), closing_row()]:
        assert "\n" not in format_progress(made, 8)
    assert format_progress(closing_row(), 8).startswith("closing  1.2 s  DEV of round 8:  digits ")


def test_letters_that_an_encoding_lacks_become_escapes() -> None:
    assert encodable("é 新", "ascii") == "\\xe9 \\u65b0"
    assert encodable("é 新", None) == "é 新"
    assert encodable("\ud800", "utf-8") == "\\ud800"
