import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsocket_flwr.datasets.safe_pickle import read_pickle
from fedsocket_flwr.errors import DataError

PATH = Path("somewhere.pkl")


class Calls:
    """Pickles as a call of ``function``, as an attack does."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_data_come_back_as_they_were(protocol: int) -> None:
    values = [
        ["dia0_utt1", "/a/b.wav", 3, np.arange(6, dtype=np.float32).reshape(2, 3)],
        {"a": (1.5, None, True, b"x", "ä"), "b": np.asfortranarray(np.ones((3, 2)))},
        np.float32(0.25),
        np.int64(-7),
        np.array(["x", "yz"]),
        np.array(["text", 1], dtype=object),
    ]
    found = read_pickle(PATH, pickle.dumps(values, protocol=protocol))
    np.testing.assert_equal(found, values)
    assert [type(value) for value in found] == [type(value) for value in values]
    assert found[0][3].dtype == np.float32


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "system"), (eval, "eval"), (exec, "exec"), (getattr, "getattr"), (__import__, "__import__"), (open, "open")],
)
def test_a_pickle_that_calls_something_is_refused(function: Any, name: str, protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = pickle.dumps([1, Calls(function, f"touch {mark}")], protocol=protocol)
    with pytest.raises(DataError, match=rf"somewhere\.pkl .* names \S+\.{name}, which data do not need"):
        read_pickle(PATH, content)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["ndarray.tofile", "core.multiarray", "load", "fromfile", "memmap"])
def test_no_other_part_of_numpy_can_be_reached(name: str) -> None:
    content = b"\x80\x04\x8c\x05numpy\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    assert [op.name for op, _, _ in pickletools.genops(content)][-2] == "STACK_GLOBAL"
    with pytest.raises(DataError, match=f"names numpy.{name}"):
        read_pickle(PATH, content)


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'echo ran'\ntR.",  # GLOBAL and REDUCE
        b"(S'echo ran'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'echo ran'\no.",  # OBJ
        b"P1\n.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension code that nobody registered
        b"c_codecs\nencode\n(Vpayload\nVzlib\ntR.",  # a codec other than Latin-1
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO\ntRC\x0812345678tR.",  # an address as an object
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I0\ntVb\ntR.",  # an array of another class
        b"cnumpy\nndarray\n}(Vtofile\nI1\nub.",  # a changed class
        b"",
        b"no pickle at all",
        pickle.dumps(np.arange(100))[:-40],
    ],
)
def test_every_other_way_in_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="was not read as a pickle of data"):
        read_pickle(PATH, content)
    assert not hasattr(np.ndarray, "I1")


def test_an_extension_code_does_not_go_round_the_list() -> None:
    import copyreg

    copyreg.add_extension("os", "system", 0x7F)
    try:
        with pytest.raises(DataError, match=r"names os\.system"):
            read_pickle(PATH, b"\x80\x02\x82\x7f.")
    finally:
        copyreg.remove_extension("os", "system", 0x7F)


def test_a_list_of_ones_own() -> None:
    content = pickle.dumps(Calls(os.getcwd))
    allowed = {(os.getcwd.__module__, "getcwd"): lambda: "not the real one"}
    assert read_pickle(PATH, content, allowed) == "not the real one"
