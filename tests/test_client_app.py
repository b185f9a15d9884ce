"""Which client a node is."""

import pytest

from fedsocket_flwr.client_app import client_name, clients_by_work
from fedsocket_flwr.configuration_file import read_configuration
from fedsocket_flwr.errors import ConfigurationError, RegistrationError
from tests.toy_runs import toy_config

TOY = toy_config()
NAMES = {client.name for _, client in TOY.clients()}


def test_a_node_that_says_its_client_is_that_client_whatever_its_number() -> None:
    assert client_name({"client": "words-bag", "partition-id": 0, "num-partitions": 2}, TOY) == "words-bag"
    with pytest.raises(ConfigurationError, match="no client is called 'word-bag'"):
        client_name({"client": "word-bag"}, TOY)


def test_simulated_nodes_are_all_the_clients_each_once() -> None:
    assert {client_name({"partition-id": number, "num-partitions": 6}, TOY) for number in range(6)} == NAMES


def test_the_longest_work_comes_first_and_equal_work_in_the_order_of_the_file() -> None:
    """Rows x epochs x modalities: a glyph client 1,875 x 2 x 2, a digits client 500 x 2, a news client 300 x 2."""
    demo = read_configuration("demo")
    assert clients_by_work(demo) == [
        *("glyphs-sans", "glyphs-bold", "glyphs-serif", "glyphs-mono"),
        *("digits-cnn", "digits-mlp", "digits-resnet"),
        *("news-bag", "news-bigru", "news-deep-bag"),
    ]
    activity = read_configuration("activity")
    assert clients_by_work(activity)[:5] == [f"donor-{number}" for number in range(1, 6)]


@pytest.mark.parametrize("node", [{"partition-id": 0, "num-partitions": 7}, {"partition-id": 6}, {"partition-id": -1}])
def test_another_number_of_nodes_is_refused_with_the_command(node: dict[str, int]) -> None:
    with pytest.raises(RegistrationError, match=r"6 clients.*flwr run \. --federation-config 'num-supernodes=6'"):
        client_name(node, TOY)


def test_a_node_that_says_nothing_is_told_both_settings() -> None:
    with pytest.raises(RegistrationError, match="`client` or `partition-id`"):
        client_name({}, TOY)
