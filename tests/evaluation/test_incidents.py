from typing import Any

import pytest

from fedsocket_flwr.evaluation.incidents import incidents, spans


@pytest.mark.parametrize(
    ("moments", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 2, 3], "1-3"),
        ([1, 3, 4, 9], "1, 3-4, 9"),
        ([2, 3, "closing"], "2-3, closing"),
        (["closing"], "closing"),
    ],
)
def test_rounds_are_said_in_spans(moments: list[int | str], text: str) -> None:
    assert spans(moments) == text


def test_a_run_without_trouble_has_none() -> None:
    assert incidents([{"phase": "train", "round": 1, "refused": {}, "missing": [], "absent": [], "clipped": {}}]) == []


def test_everything_is_said_once_a_client_and_kind() -> None:
    rows: list[dict[str, Any]] = [
        {"phase": "train", "round": 1, "absent": ["b"], "missing": ["a"]},
        {"phase": "train", "round": 2, "absent": ["b"], "refused": {"a": "NaN"}},
        {"phase": "train", "round": 3, "clipped": {"a": 7.5}, "clients": {"c": {"rolled_back_to": 1.0}}},
        {"phase": "train", "round": 4, "missing": ["a"]},
        {"phase": "close", "round": 4, "absent": ["b"]},
    ]
    assert incidents(rows) == [
        {"client": "a", "what": "did not answer in time", "rounds": "1, 4"},
        {"client": "a", "what": "sent an update that was shortened to the norm bound", "rounds": "3"},
        {"client": "a", "what": "was refused: NaN", "rounds": "2"},
        {"client": "b", "what": "was not there", "rounds": "1-2, closing"},
        {"client": "c", "what": "found its newest private model damaged and went on from version 1", "rounds": "3"},
    ]
