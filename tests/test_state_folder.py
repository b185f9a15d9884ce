from pathlib import Path

import pytest

from fedsocket_flwr.state_folder import state_folder


@pytest.mark.parametrize(
    ("node", "environment", "expected"),
    [
        ({"state-dir": "/a"}, "/b", "/a"),
        ({}, "/b", "/b"),
        (None, "/b", "/b"),
        ({"state-dir": ""}, "", "/home/me/.fedsocket"),
        (None, "~/c", "/home/me/c"),
    ],
)
def test_the_nearest_setting_counts(monkeypatch, node, environment, expected):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("FEDSOCKET_HOME", environment)
    assert state_folder(node) == Path(expected)


def test_a_relative_folder_is_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert state_folder({"state-dir": "state"}) == tmp_path / "state"
