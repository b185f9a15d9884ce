import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.file_names import file_slug

HOSTILE = [
    "a_b%",
    "x|y",
    "ba$$in",
    "News",
    "news",
    "新闻",
    "../up",
    "x" * 300,
    "x" * 301,
    "",
    ".",
    "..",
    "con",
    "CON",
    "a/b",
    "a.b",
    "a b",
]


@pytest.mark.parametrize("name", ["digits-cnn", "news", "a_b", "7"])
def test_a_plain_name_is_its_own_slug(name: str) -> None:
    assert file_slug(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_slug_stays_in_its_folder(name: str) -> None:
    slug = file_slug(name)
    assert 0 < len(slug) <= 51
    assert set(slug) <= set(string.ascii_lowercase + string.digits + "-_")
    assert slug[0] not in "-"


def test_hostile_names_do_not_meet_where_case_is_ignored() -> None:
    assert len({file_slug(name).lower() for name in HOSTILE}) == len(HOSTILE)


def test_devices_of_windows_are_not_file_names() -> None:
    assert file_slug("nul").startswith("nul-")
    assert file_slug("com1") != "com1"


def test_a_name_that_is_another_names_slug_gets_its_own() -> None:
    slug = file_slug("News")
    assert file_slug(slug) != slug


@settings(max_examples=60)
@given(st.text(max_size=60), st.text(max_size=60))
def test_two_names_have_two_slugs(first: str, second: str) -> None:
    assert (file_slug(first) == file_slug(second)) == (first == second)
