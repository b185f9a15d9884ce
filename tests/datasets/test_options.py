import pytest

from fedsocket_flwr.datasets.options import choose_options, nearest
from fedsocket_flwr.errors import ConfigurationError


def test_the_nearest_name_is_always_given():
    assert nearest("hashed_word", ["pixels", "hashed_words"]) == "hashed_words"
    assert nearest("?", ["pixels"]) == "pixels"


def test_defaults_stay_and_integers_become_floats():
    assert choose_options("x", {"noise": 2}, {"noise": 1.0, "rows": 3}) == {"noise": 2.0, "rows": 3}
    assert type(choose_options("x", {"noise": 2}, {"noise": 1.0})["noise"]) is float


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rowz": 3}, "unknown option of x 'rowz'; the nearest is 'rows'"),
        ({"rows": "3"}, "must be of type int"),
        ({"rows": True}, "must be of type int"),
        ({"rows": 3.5}, "must be of type int"),
    ],
)
def test_wrong_options_are_refused(given, message):
    with pytest.raises(ConfigurationError, match=message):
        choose_options("x", given, {"rows": 1})


def test_options_where_none_are_known():
    with pytest.raises(ConfigurationError, match="takes no options, found 'a'"):
        choose_options("x", {"a": 1}, {})
