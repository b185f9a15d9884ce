import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import RunError
from fedsocket_flwr.plain_files import dump_json, measured, parse_json, read_json, read_json_lines, write_whole


def test_what_was_not_measured_is_absent_and_keeps_its_place_in_a_list() -> None:
    found = measured({"a": math.nan, "b": [1.0, math.inf], "c": None, "d": {"e": np.float64("nan"), "f": np.float32(0.5)}})
    assert found == {"b": [1.0, None], "c": None, "d": {"f": 0.5}}


def test_numpy_and_paths_become_plain() -> None:
    text = dump_json({"n": np.int64(3), "a": np.array([1.5, np.nan]), "p": Path("x"), 4: np.bool_(True)})
    assert json.loads(text) == {"n": 3, "a": [1.5, None], "p": "x", "4": True}
    assert "np." not in text


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "[-Infinity]", "1e999", "{"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting"):
        parse_json(text)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda v: st.dictionaries(st.text(max_size=5), v)
)


@settings(max_examples=60)
@given(values)
def test_whatever_is_dumped_is_strict(value: Any) -> None:
    assert parse_json(dump_json(value)) == measured(value)


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    with pytest.raises(RunError, match=r"test\.json: no such file"):
        read_json(path)
    path.write_text('{"a": NaN}', encoding="utf-8")
    with pytest.raises(RunError, match=r"test\.json: not strict JSON"):
        read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"test\.json: not UTF-8"):
        read_json(path)


@pytest.mark.parametrize("tail", [b'{"round": 2', '{"name": "新'.encode()[:-1], b'{"round": 2\n', b"\x00\x00\n"])
def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"round": 1}\n' + tail)
    assert read_json_lines(path) == ([{"round": 1}], True)


def test_a_whole_last_line_without_its_line_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('\ufeff{"round": 1}\r\n\n{"name": "a\u2028b"}', encoding="utf-8")
    assert read_json_lines(path) == ([{"round": 1}, {"name": "a\u2028b"}], False)


@pytest.mark.parametrize("line", ['{"round": 1', "[1]", '{"a": NaN}'])
def test_a_malformed_line_before_the_last_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": 1}\n' + line + '\n{"round": 3}\n', encoding="utf-8")
    with pytest.raises(RunError, match=r"history\.jsonl, line 2"):
        read_json_lines(path)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / ("n" * 200)
    write_whole(path, "one\nü\n")
    write_whole(path, "two\nü\n")
    assert path.read_bytes() == "two\nü\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
