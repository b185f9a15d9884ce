import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.seeds import derive_seed, numpy_generator

PARTS = st.lists(st.one_of(st.integers(0, 2**63 - 1), st.text(max_size=8)), min_size=1, max_size=4)


@given(PARTS)
@settings(max_examples=50)
def test_a_seed_fits_numpy_and_torch(parts: list[int | str]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63


@given(PARTS, PARTS)
@settings(max_examples=50)
def test_other_parts_give_another_seed(first: list[int | str], second: list[int | str]) -> None:
    assert (derive_seed(*first) == derive_seed(*second)) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1,), (1 + 2**32,)),
        ((1, "23"), ("12", 3)),
        (("ab", "c"), ("a", "bc")),
        ((7,), ("7",)),
        ((1, 2), (2, 1)),
        ((4294967296, "client"), (0, "client")),
    ],
)
def test_parts_that_look_alike_differ(first: tuple[int | str, ...], second: tuple[int | str, ...]) -> None:
    assert derive_seed(*first) != derive_seed(*second)


def test_a_seed_is_the_same_in_another_process() -> None:
    code = "from fedsocket_flwr.seeds import derive_seed; print(derive_seed(101, 'digits-cnn', 3, 'batches'))"
    command = [sys.executable, "-c", code]
    outputs = {
        subprocess.run(command, env={"PYTHONHASHSEED": s}, capture_output=True, check=True, text=True).stdout for s in "12"
    }
    assert outputs == {f"{derive_seed(101, 'digits-cnn', 3, 'batches')}\n"}


def test_the_derivation_stays_as_it_is() -> None:
    # Stored runs depend on it: another value means that an old run cannot be repeated.
    assert derive_seed(101, "digits-cnn", 3, "batches") == 2365155930473395912


def test_generators_draw_what_their_parts_say() -> None:
    draws = numpy_generator(1, "a").random(4)
    np.testing.assert_array_equal(draws, numpy_generator(1, "a").random(4))
    assert not np.array_equal(draws, numpy_generator(1, "b").random(4))
