from typing import Any

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import SERVER, Block, Broadcast, Membership, Owner, Refusal, Update
from tests.small_federation import CONTRACT, MEMBERS, drawn, over_the_wire, same_bits, sent_message, update_of

MEMBER = MEMBERS["digits-1"]
SENT = CONTRACT.readable(MEMBER)
WRITABLE = frozenset(block.name for block in CONTRACT.writable(MEMBER))
FEW = settings(max_examples=40, deadline=None)
ANY_ARRAY = st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint8", "bool"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)


def sound() -> Update:
    return update_of(MEMBER, drawn("sound"), round_=3, metrics={"loss.q": 0.5})


def content_of(update: Update, failure: str = "") -> RecordDict:
    return payload.write_update(update, failure)


def read(content: RecordDict, round_: int = 3, expected: tuple[Block, ...] = SENT, writable: frozenset[str] = WRITABLE) -> Any:
    reply = over_the_wire(Message(content, reply_to=sent_message(RecordDict())))
    return payload.read_update(reply, MEMBER, round_, expected, writable)


def altered(**changes: Any) -> Update:
    return Update(**{**vars(sound()), **changes})


def refusal(content: RecordDict, **how: Any) -> str:
    found = read(content, **how)
    assert isinstance(found, Refusal), found
    assert found.client == "digits-1"
    return found.reason


class TestBroadcast:
    @FEW
    @given(
        st.dictionaries(st.text("abc/%.数", min_size=1, max_size=5), ANY_ARRAY, max_size=3),
        st.sampled_from([SERVER, "peer", "peer/2", "数字"]),
    )
    def test_blocks_of_any_shape_arrive_as_they_were(self, blocks: dict[str, np.ndarray], source: str) -> None:
        content = payload.write_broadcast(Broadcast("run", 1, "train", 0, {}), {source: payload.serialise(blocks)})
        found = payload.read_broadcast(over_the_wire(sent_message(content)))
        assert list(found.sources) == [source]
        assert same_bits(found.sources[source], blocks)

    def test_everything_else_arrives_too(self) -> None:
        broadcast = Broadcast("demo-1-ab", 7, "train", 6, {}, {"rho": 0.5, "名": [1, None]})
        found = payload.read_broadcast(over_the_wire(sent_message(payload.write_broadcast(broadcast, {}))))
        assert found == broadcast
        assert found.blocks == {}

    def test_several_sources(self) -> None:
        blocks = {source: drawn(source) for source in (SERVER, "a", "b/c")}
        written = {source: payload.serialise(found) for source, found in blocks.items()}
        content = payload.write_broadcast(Broadcast("run", 1, "train", 0, {}), written)
        found = payload.read_broadcast(over_the_wire(sent_message(content)))
        assert {source: same_bits(found.sources[source], blocks[source]) for source in found.sources} == dict.fromkeys(
            blocks, True
        )
        assert same_bits(found.blocks, blocks[SERVER])

    def test_arrays_in_column_order_keep_their_values(self) -> None:
        column_order = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        (found,) = payload.read_array_record(payload.array_record(payload.serialise({"a": column_order}))).values()
        np.testing.assert_array_equal(found, column_order)

    @pytest.mark.parametrize(
        "config",
        [{}, {"run": "r", "round": "one", "phase": "train", "base-version": 0, "settings": "{}"}, {"run": "r", "round": 1}],
    )
    def test_another_message_is_refused(self, config: dict[str, Any]) -> None:
        with pytest.raises(ContractError, match="no broadcast"):
            payload.read_broadcast(sent_message(RecordDict({payload.CONFIG: ConfigRecord(config)})))
        with pytest.raises(ContractError, match="no broadcast"):
            payload.read_broadcast(sent_message(RecordDict()))


class TestUpdate:
    def test_a_sound_update_arrives_as_it_was(self) -> None:
        found = read(content_of(sound()))
        assert isinstance(found, Update)
        assert same_bits(found.blocks, sound().blocks)
        assert (found.client, found.round, found.version) == ("digits-1", 3, 3)
        assert (found.examples, found.class_counts, dict(found.metrics)) == (10, (4, 6, 0), {"loss.q": 0.5})

    def test_it_travels_as_one_record_of_each_kind(self) -> None:
        content = content_of(sound())
        assert [len(kind) for kind in (content.array_records, content.config_records, content.metric_records)] == [1, 1, 1]

    def test_reading_changes_nothing_in_the_message(self) -> None:
        reply = Message(content_of(sound()), reply_to=sent_message(RecordDict()))
        first, second = (payload.read_update(reply, MEMBER, 3, SENT, WRITABLE) for _ in range(2))
        assert isinstance(first, Update)
        assert isinstance(second, Update)
        assert second.metrics == first.metrics

    def test_without_blocks_and_counts(self) -> None:
        pairs = MEMBERS["pairs-1"]
        content = content_of(Update("pairs-1", 3, 2, {}, 5))
        reply = over_the_wire(Message(content, reply_to=sent_message(RecordDict())))
        assert payload.read_update(reply, pairs, 3, (), frozenset()) == Update("pairs-1", 3, 2, {}, 5)

    def test_of_the_full_payload_only_writable_blocks_are_decoded(self) -> None:
        blocks = payload.serialise(drawn("full"))
        # What the client may not write is nothing to anybody: not even its bytes are looked at.
        blocks["news.body"] = FlowerArray("float32", (2,), "numpy.ndarray", b"no array at all")
        blocks["embedding.text"] = FlowerArray(np.full(2, np.nan, np.float32))
        content = content_of(altered(blocks={}))
        content[payload.ARRAYS] = payload.array_record(blocks)
        found = read(content, expected=CONTRACT.blocks)
        assert isinstance(found, Update)
        assert set(found.blocks) == WRITABLE

    def test_lists_are_not_among_the_metrics(self) -> None:
        content = content_of(sound())
        content.metric_records[payload.METRICS]["per-class"] = [1, 2]
        assert dict(read(content).metrics) == {"loss.q": 0.5}


class TestRefusals:
    def test_error_reply(self) -> None:
        reply = Message(Error(2, "ValueError: no data"), reply_to=sent_message(RecordDict()))
        found = payload.read_update(over_the_wire(reply), MEMBER, 3, SENT, WRITABLE)
        assert found == Refusal("digits-1", "no answer: ValueError: no data (code 2)")

    def test_the_clients_own_failure(self) -> None:
        assert refusal(content_of(sound(), failure="loss.q became NaN")) == "loss.q became NaN"

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"client": "digits-2"}, "answered as client 'digits-2'"),
            ({"round": 2}, "answered for round 2, expected 3"),
            ({"version": 4}, "answered with version 4 of its state, expected at most 3"),
            ({"version": -1}, "answered with version -1"),
            ({"version": 1e30}, "expected a whole number, found 1e+30"),
            ({"version": "3"}, "expected a whole number, found '3'"),
            ({"examples": -1}, "negative counts"),
            ({"class_counts": (4, -6, 0)}, "negative counts"),
            ({"class_counts": (4, 6)}, "2 class counts, expected 3"),
            ({"class_counts": ()}, "0 class counts, expected 3"),
            ({"examples": 9.5}, "whole number, found 9.5"),
            ({"examples": -0.5}, "whole number, found -0.5"),
            ({"class_counts": (4.0, 6.5, 0.0)}, "whole number, found 4.0"),
            ({"examples": 11}, "absurd counts: 11 examples, but 10 were declared at registration"),
            ({"examples": 10**15}, "absurd counts"),
            ({"class_counts": (4, 7, 0)}, "absurd counts: 7 examples of class 1, but 6 were declared at registration"),
            ({"metrics": {"loss.q": float("nan")}}, "metric 'loss.q' is nan"),
            ({"metrics": {"loss.q": float("inf")}}, "metric 'loss.q' is inf"),
        ],
    )
    def test_facts(self, change: dict[str, Any], reason: str) -> None:
        assert reason in refusal(content_of(altered(**change)))

    @pytest.mark.parametrize(
        ("name", "array", "reason"),
        [
            ("digits.body", np.zeros(3, np.float32), r"block 'digits.body' has shape (3,), expected (2,)"),
            ("digits.head", np.zeros((2, 3), np.float32), r"block 'digits.head' has shape (2, 3), expected (3, 2)"),
            ("residual.b", np.zeros(1, np.float32), "block 'residual.b' has shape (1,), expected ()"),
            ("residual.b", np.float64(0), "block 'residual.b' has type float64, expected float32"),
            ("digits.body", np.zeros(2, np.int32), "block 'digits.body' has type int32, expected float32"),
            ("digits.body", np.array([0, np.nan], np.float32), "block 'digits.body' has non-finite values"),
            ("residual.b", np.float32(-np.inf), "block 'residual.b' has non-finite values"),
        ],
    )
    def test_arrays(self, name: str, array: np.ndarray, reason: str) -> None:
        assert reason in refusal(content_of(altered(blocks={**sound().blocks, name: np.asarray(array)})))

    def test_fewer_examples_than_declared_are_sound(self) -> None:
        assert isinstance(read(content_of(altered(examples=3, class_counts=(0, 3, 0)))), Update)

    @pytest.mark.parametrize(
        "large",
        [
            {"blocks": {**sound().blocks, "digits.body": np.zeros(2**18, np.float32)}},
            {"metrics": {f"loss.{number}": 0.0 for number in range(2**16)}},
            {"counts": {"matrix": (0,) * 2**17}},
            {"client": "x" * 2**20},
        ],
        ids=["block", "metrics", "counts", "words"],
    )
    def test_an_answer_beyond_the_limit_is_not_decoded(self, large: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        def decode(*_: Any) -> Any:
            raise AssertionError("it was decoded")

        monkeypatch.setattr(payload, "_decode", decode)
        nbytes = payload.bytes_down(SENT)
        assert refusal(content_of(altered(**large))).endswith(f"expected at most {nbytes + 2**20}")

    def test_a_limit_of_ones_own(self) -> None:
        message = over_the_wire(Message(content_of(sound()), reply_to=sent_message(RecordDict())))
        size = payload.content_bytes(message.content)
        assert isinstance(payload.read_update(message, MEMBER, 3, SENT, WRITABLE, size), Update)
        found = payload.read_update(message, MEMBER, 3, SENT, WRITABLE, size - 1)
        assert found == Refusal("digits-1", f"an answer of {size} bytes, expected at most {size - 1}")

    def test_names(self) -> None:
        blocks = dict(sound().blocks)
        body = blocks.pop("digits.body")
        assert "missing ['digits.body'], unknown []" in refusal(content_of(altered(blocks=blocks)))
        assert "missing ['digits.body'], unknown ['body']" in refusal(content_of(altered(blocks={"body": body, **blocks})))
        assert "blocks differ" in refusal(content_of(altered(blocks={**blocks, "digits.body": body}))), "another order"
        assert "unknown ['news.body']" in refusal(content_of(altered(blocks={**sound().blocks, "news.body": body})))

    @pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", b"\x93NUMPY", b"\x80\x04pickle", b"x" * 200])
    def test_bytes_that_are_no_array(self, data: bytes) -> None:
        content = content_of(sound())
        content.array_records[payload.ARRAYS]["digits.body"] = FlowerArray("float32", (2,), "numpy.ndarray", data)
        assert "malformed answer" in refusal(content)

    def test_an_archive_in_place_of_an_array(self, tmp_path: Any) -> None:
        np.savez(tmp_path / "archive.npz", a=np.zeros(2, np.float32))
        content = content_of(sound())
        data = (tmp_path / "archive.npz").read_bytes()
        content.array_records[payload.ARRAYS]["digits.body"] = FlowerArray("float32", (2,), "numpy.ndarray", data)
        assert "malformed answer" in refusal(content)

    def test_a_header_that_promises_petabytes(self) -> None:
        content = content_of(sound())
        data = FlowerArray(np.zeros(2, np.float32)).data.replace(b"(2,), }                  ", b"(1000000000000000000,), }")
        assert b"1000000000000000000" in data
        content.array_records[payload.ARRAYS]["digits.body"] = FlowerArray("float32", (2,), "numpy.ndarray", data)
        assert "malformed answer" in refusal(content)

    def test_class_rows_that_the_counts_do_not_cover(self) -> None:
        """A client that declared another number of classes than the head has would break the merge of all others."""
        stray = Membership("digits-1", "digits", ("image",), 10, (4, 6))
        reply = Message(content_of(altered(class_counts=(4, 6))), reply_to=sent_message(RecordDict()))
        found = payload.read_update(reply, stray, 3, SENT, WRITABLE)
        assert isinstance(found, Refusal)
        assert "block 'digits.head' has 3 class rows, but 2 class counts" in found.reason

    @pytest.mark.parametrize(
        ("record", "kind"), [(ArrayRecord(), "array"), (ConfigRecord({"a": 1}), "config"), (MetricRecord({"a": 1}), "metric")]
    )
    def test_two_records_of_one_kind(self, record: Any, kind: str) -> None:
        content = content_of(sound())
        content["second"] = record
        assert refusal(content) == f"malformed answer: expected exactly one {kind} record, found 2"

    @pytest.mark.parametrize("record", [payload.ARRAYS, payload.CONFIG, payload.METRICS])
    def test_a_record_is_missing(self, record: str) -> None:
        content = content_of(sound())
        del content[record]
        assert "found 0" in refusal(content)

    @pytest.mark.parametrize(
        ("record", "name"),
        [
            (payload.CONFIG, "client"),
            (payload.CONFIG, "round"),
            (payload.CONFIG, "version"),
            (payload.CONFIG, "failure"),
            (payload.METRICS, payload.EXAMPLES),
            (payload.METRICS, payload.CLASS_COUNTS),
        ],
    )
    def test_a_fact_is_missing(self, record: str, name: str) -> None:
        content = content_of(sound())
        del content[record][name]  # type: ignore[union-attr]
        assert name in refusal(content)

    def test_a_round_in_words(self) -> None:
        content = content_of(sound())
        content.config_records[payload.CONFIG]["round"] = "three"
        assert "three" in refusal(content)


class TestBytes:
    def test_by_hand(self) -> None:
        # Body 2, head 6, image embedding 2, residual 2 + 1 numbers of 4 bytes; one count of examples and three of classes.
        assert payload.bytes_down(SENT) == 52
        assert payload.bytes_up(SENT, MEMBER) == 52 + 8 * 4
        assert payload.bytes_up((), MEMBERS["pairs-1"]) == 8

    def test_they_are_the_bytes_of_the_arrays(self) -> None:
        blocks = sound().blocks
        assert payload.bytes_down(SENT) == sum(array.nbytes for array in blocks.values())

    def test_a_block_of_any_length_has_no_size_in_advance(self) -> None:
        with pytest.raises(ContractError, match="no fixed size"):
            payload.bytes_down([Block("logits", (-1, 3), "float32", Owner("participant"))])
