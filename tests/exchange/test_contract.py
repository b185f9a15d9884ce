import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import ACCESSES, OWNER_KINDS, SERVER, Block, Broadcast, Contract, Membership, Owner

EVERYONE = Owner("everyone")
FEW = settings(max_examples=60, deadline=None)

NAMES = st.text(min_size=1, max_size=12)
SETS = st.sets(st.sampled_from(["audio", "image", "text", "video"]), min_size=1).map(lambda found: "+".join(sorted(found)))
OWNERS = st.one_of(
    st.sampled_from([EVERYONE, Owner("participant")]),
    SETS.map(lambda key: Owner("modality_set", key)),
    st.builds(Owner, st.sampled_from(["task", "class_rows", "modality"]), NAMES),
)
BLOCKS = st.builds(
    Block,
    name=NAMES,
    shape=st.lists(st.integers(-1, 9), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float16", "int64", "bool"]),
    owner=OWNERS,
    modalities=st.lists(NAMES, max_size=2).map(tuple),
    access=st.sampled_from(ACCESSES),
    tasks=st.lists(NAMES, max_size=2).map(tuple),
)
CONTRACTS = st.lists(BLOCKS, max_size=5, unique_by=lambda block: block.name).map(lambda blocks: Contract(tuple(blocks)))
MEMBERSHIPS = st.builds(
    Membership,
    client=NAMES,
    task=NAMES,
    modalities=st.lists(NAMES, max_size=3, unique=True).map(tuple),
    examples=st.integers(0, 2**40),
    class_counts=st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
)


def names(blocks: tuple[Block, ...]) -> list[str]:
    return [block.name for block in blocks]


def block(name: str, *, shape: tuple[int, ...] = (2,), owner: Owner = EVERYONE, dtype: str = "float32", **more: object) -> Block:
    return Block(name, shape, dtype, owner, **more)  # type: ignore[arg-type]


class TestOf:
    ARRAYS: ClassVar = {"head": np.zeros((3, 2), np.float32), "count": np.zeros((), np.int64)}
    OWNERS: ClassVar = {"head": Owner("class_rows", "digits"), "count": EVERYONE}
    EXPECTED = Contract(
        (Block("head", (3, 2), "float32", Owner("class_rows", "digits")), Block("count", (), "int64", Owner("everyone")))
    )

    def test_numpy_arrays(self) -> None:
        assert Contract.of(self.ARRAYS, self.OWNERS.__getitem__) == self.EXPECTED

    def test_flowers_record(self) -> None:
        record = ArrayRecord({name: Array(array) for name, array in self.ARRAYS.items()})
        assert Contract.of(record, self.OWNERS.__getitem__) == self.EXPECTED

    def test_an_owner_that_does_not_suit_is_refused(self) -> None:
        with pytest.raises(ContractError, match="'count' is owned by class rows and must have a first axis"):
            Contract.of(self.ARRAYS, lambda name: Owner("class_rows", "digits"))


class TestJson:
    @FEW
    @given(CONTRACTS)
    def test_contract_both_ways(self, contract: Contract) -> None:
        restored = Contract.from_json(contract.to_json())
        assert restored == contract
        assert hash(restored) == hash(contract)
        assert [restored[block.name] for block in contract.blocks] == list(contract.blocks)

    @FEW
    @given(MEMBERSHIPS)
    def test_membership_both_ways(self, membership: Membership) -> None:
        assert Membership.from_json(membership.to_json()) == membership

    @pytest.mark.parametrize("read", [Contract.from_json, Membership.from_json])
    @pytest.mark.parametrize(
        "text", ["", "nonsense", "null", "3", "[3]", '"text"', '{"blocks": []}', "[null]", '{"client": "a"}', "NaN"]
    )
    def test_anything_else_is_refused(self, read: Callable[[str], object], text: str) -> None:
        with pytest.raises(ContractError, match="not a"):
            read(text)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("client", None),
            ("task", 3),
            ("modalities", "image"),
            ("modalities", [1]),
            ("examples", 2.7),
            ("examples", "5"),
            ("examples", True),
            ("examples", float("inf")),
            ("class_counts", [1.5]),
            ("class_counts", None),
        ],
    )
    def test_membership_of_other_types_is_refused(self, key: str, value: object) -> None:
        found = json.loads(Membership("a", "t", ("image",), 3, (1, 2)).to_json())
        with pytest.raises(ContractError, match="not a membership"):
            Membership.from_json(json.dumps({**found, key: value}))

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("name", 1),
            ("shape", 3),
            ("shape", [1.0]),
            ("shape", [-2]),
            ("dtype", "floaty"),
            ("modalities", "image"),
            ("access", "all"),
            ("tasks", "digits"),
        ],
    )
    def test_contract_of_other_types_is_refused(self, key: str, value: object) -> None:
        (found,) = json.loads(Contract((block("a"),)).to_json())
        with pytest.raises(ContractError):
            Contract.from_json(json.dumps([{**found, key: value}]))

    @pytest.mark.parametrize(
        "owner", [{"kind": "nobody", "key": ""}, {"kind": ["task"], "key": "a"}, {"kind": "task", "key": 1}, None]
    )
    def test_other_owners_are_refused(self, owner: object) -> None:
        (found,) = json.loads(Contract((block("a"),)).to_json())
        with pytest.raises(ContractError):
            Contract.from_json(json.dumps([{**found, "owner": owner}]))


class TestDeclarations:
    def test_duplicate_names_are_refused(self) -> None:
        with pytest.raises(ContractError, match=r"declared twice: \['a', 'c'\]"):
            Contract((block("a"), block("b"), block("a"), block("c"), block("c")))

    def test_lookup(self) -> None:
        contract = Contract((block("a"), block("b")))
        assert contract["b"].name == "b"
        assert "a" in contract
        assert "z" not in contract

    @pytest.mark.parametrize("kind", OWNER_KINDS)
    def test_owners_have_a_key_where_one_is_meant(self, kind: str) -> None:
        keyless = kind in ("participant", "everyone")
        Owner(kind, "" if keyless else "a")  # type: ignore[arg-type]
        with pytest.raises(ContractError, match="takes no key" if keyless else "needs a key"):
            Owner(kind, "a" if keyless else "")  # type: ignore[arg-type]

    @pytest.mark.parametrize("key", ["text+image", "image+image", "video+audio+text"])
    def test_a_set_of_modalities_has_one_spelling(self, key: str) -> None:
        with pytest.raises(ContractError, match="sorted"):
            Owner("modality_set", key)

    def test_blocks_are_checked(self) -> None:
        with pytest.raises(ContractError, match="first axis"):
            block("head", shape=(), owner=Owner("class_rows", "t"))
        with pytest.raises(ContractError, match="floaty"):
            block("a", dtype="floaty")
        with pytest.raises(ContractError, match="-2"):
            block("a", shape=(-2, 3))

    def test_sizes(self) -> None:
        assert (block("a", shape=(3, 4)).size, block("a", shape=(3, 4)).nbytes) == (12, 48)
        assert (block("a", shape=()).size, block("a", shape=(0, 4)).size) == (1, 0)
        assert block("a", shape=(5,), dtype="bool").nbytes == 5
        with pytest.raises(ContractError, match="no fixed size"):
            _ = block("logits", shape=(-1, 10)).nbytes

    def test_mismatch(self) -> None:
        declared = block("a", shape=(-1, 3))
        for rows in (0, 1, 7):
            assert declared.mismatch(np.zeros((rows, 3), np.float32)) is None
        for array in (np.zeros((2, 4), np.float32), np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32)):
            assert "has shape" in str(declared.mismatch(array))
        assert declared.mismatch(np.zeros((2, 3))) == "block 'a' has type float64, expected float32"
        assert block("g", shape=()).mismatch(np.zeros(1, np.float32)) == "block 'g' has shape (1,), expected ()"

    @pytest.mark.parametrize(("examples", "counts"), [(-1, ()), (3, (4, -1))])
    def test_negative_counts_are_refused(self, examples: int, counts: tuple[int, ...]) -> None:
        with pytest.raises(ContractError, match="negative"):
            Membership("a", "t", ("image",), examples, counts)

    def test_a_modality_twice_is_refused(self) -> None:
        with pytest.raises(ContractError, match="twice"):
            Membership("a", "t", ("image", "image"), 1)


class TestAccess:
    @pytest.mark.parametrize(
        ("owner", "expected"),
        [
            (Owner("task", "t"), True),
            (Owner("task", "s"), False),
            (Owner("class_rows", "t"), True),
            (Owner("class_rows", "s"), False),
            (Owner("modality", "text"), True),
            (Owner("modality", "audio"), False),
            (Owner("modality_set", "image+text"), True),
            (Owner("modality_set", "image"), False),
            (Owner("modality_set", "audio+image+text"), False),
            (Owner("participant"), True),
            (EVERYONE, True),
        ],
    )
    def test_may_update(self, owner: Owner, expected: bool) -> None:
        assert Membership("a", "t", ("text", "image"), 3).may_update(owner) is expected

    def test_directions_and_modalities(self) -> None:
        contract = Contract(
            (
                block("both"),
                block("down", access="read"),
                block("up", access="written"),
                block("seen", modalities=("image",)),
                block("unseen", modalities=("image", "audio")),
                block("foreign", owner=Owner("task", "s")),
            )
        )
        member = Membership("a", "t", ("image",), 3)
        assert names(contract.executable(member)) == ["both", "down", "up", "seen"]
        assert names(contract.readable(member)) == ["both", "down", "seen"]
        assert names(contract.writable(member)) == ["both", "up", "seen"]

    def test_what_only_some_tasks_share(self) -> None:
        contract = Contract(
            (
                block("all"),
                block("some", tasks=("digits", "clips")),
                block("image", owner=Owner("modality", "image"), tasks=("news",)),
            )
        )
        executed = {
            task: names(contract.executable(Membership("a", task, ("image",), 1))) for task in ("digits", "news", "other")
        }
        assert executed == {"digits": ["all", "some"], "news": ["all", "image"], "other": ["all"]}

    @FEW
    @given(CONTRACTS, MEMBERSHIPS)
    def test_every_executable_block_travels_and_no_other(self, contract: Contract, member: Membership) -> None:
        readable, writable = contract.readable(member), contract.writable(member)
        assert set(readable) | set(writable) == set(contract.executable(member))
        assert all(member.may_update(block.owner) and set(block.modalities) <= set(member.modalities) for block in writable)
        assert names(readable) == [name for name in names(contract.blocks) if name in names(readable)]


class TestOtherMethods:
    """A contract serves methods that exchange something else: declared here without using them."""

    def test_logits_for_a_model(self) -> None:
        contract = Contract(
            (
                block("model/weight", shape=(12, 64), access="read"),
                block("model/bias", shape=(12,), access="read"),
                block("logits", shape=(-1, 12), owner=Owner("participant"), access="written"),
            )
        )
        assert Contract.from_json(contract.to_json()) == contract
        for member in (Membership("a", "digits", ("image",), 10), Membership("b", "news", ("text",), 0)):
            assert names(contract.readable(member)) == ["model/weight", "model/bias"]
            assert names(contract.writable(member)) == ["logits"]
        assert contract["logits"].mismatch(np.zeros((2048, 12), np.float32)) is None
        assert contract["logits"].mismatch(np.zeros((2048, 10), np.float32)) is not None

    def test_slices_of_peers(self) -> None:
        both = Owner("modality_set", "accelerometer+gyroscope")
        contract = Contract(
            (
                *(block(f"redundant/{m}", owner=Owner("modality", m)) for m in ("accelerometer", "gyroscope")),
                *(block(f"unique/{m}", owner=Owner("modality", m)) for m in ("accelerometer", "gyroscope")),
                *(block(f"synergistic/{m}", owner=both) for m in ("accelerometer", "gyroscope")),
                block("synergistic head", owner=both),
            )
        )
        one = Membership("agent-1", "activities", ("gyroscope",), 5)
        two = Membership("agent-2", "activities", ("gyroscope", "accelerometer"), 5)
        assert names(contract.writable(one)) == ["redundant/gyroscope", "unique/gyroscope"]
        assert contract.writable(two) == contract.readable(two) == contract.blocks

        def published(value: float) -> dict[str, np.ndarray]:
            return {block.name: np.full(block.shape, value, block.dtype) for block in contract.writable(one)}

        broadcast = Broadcast("run", 3, "train", 2, sources={"agent-2": published(2.0), "agent-7": published(7.0)})
        assert list(broadcast.sources) == ["agent-2", "agent-7"]
        assert broadcast.blocks == {}
        assert all(contract[name].mismatch(array) is None for name, array in broadcast.sources["agent-7"].items())

    def test_blocks_of_the_server(self) -> None:
        sent = {"a": np.ones(2, np.float32)}
        assert Broadcast("run", 1, "train", 0, sources={SERVER: sent}).blocks is sent


def linear(
    name: str, inputs: int, outputs: int, owner: Owner, modalities: tuple[str, ...] = (), bias: bool = True
) -> list[Block]:
    weight = Block(f"{name}.weight", (outputs, inputs), "float32", owner, modalities)
    return [weight, Block(f"{name}.bias", (outputs,), "float32", owner, modalities)] if bias else [weight]


def norm(name: str, width: int, owner: Owner, modalities: tuple[str, ...] = ()) -> list[Block]:
    return [Block(f"{name}.{part}", (width,), "float32", owner, modalities) for part in ("weight", "bias")]


def paper_contract() -> Contract:
    """Write out the blocks of the paper's Q: width 256, residual rank 48, three tasks, interface features of 256."""
    tasks = {"cifar100": (("image",), 100), "agnews": (("text",), 4), "flickr30k": (("image", "text"), 0)}
    blocks = [Block(f"modality.{m}", (256,), "float32", Owner("modality", m), (m,)) for m in ("image", "text")]
    blocks += [*linear("residual.0", 256, 48, EVERYONE, bias=False), *linear("residual.1", 48, 256, EVERYONE, bias=False)]
    for task, (modalities, classes) in tasks.items():
        own = Owner("task", task)
        for m in modalities:
            blocks += [*norm(f"{task}.{m}.norm", 256, own, (m,)), *linear(f"{task}.{m}.linear", 256, 256, own, (m,))]
        blocks += [*norm(f"{task}.expert.norm", 256, own)]
        blocks += [*linear(f"{task}.expert.0", 256, 256, own), *linear(f"{task}.expert.1", 256, 256, own)]
        blocks += [Block(f"{task}.embedding", (256,), "float32", own), Block(f"{task}.gate", (), "float32", own)]
        blocks += [*norm(f"{task}.trunk.norm", 256, own), *linear(f"{task}.trunk", 256, 256, own)]
        if classes:
            blocks += linear(f"{task}.head", 256, classes, Owner("class_rows", task))
    return Contract(tuple(blocks))


class TestPaperFederation:
    def test_whole_predictor(self) -> None:
        assert sum(block.size for block in paper_contract().blocks) == 913_003
        assert sum(block.nbytes for block in paper_contract().blocks) == 3_652_012

    @pytest.mark.parametrize(
        ("task", "modalities", "expected"),
        [("cifar100", ("image",), 315_493), ("agnews", ("text",), 290_821), ("flickr30k", ("image", "text"), 356_353)],
    )
    def test_owned_payload(self, task: str, modalities: tuple[str, ...], expected: int) -> None:
        contract, member = paper_contract(), Membership("a", task, modalities, 10)
        assert sum(block.size for block in contract.readable(member)) == expected
        assert contract.readable(member) == contract.writable(member)

    def test_share_of_the_papers_bytes(self) -> None:
        owned = 3 * 315_493 + 3 * 290_821 + 4 * 356_353
        assert round(owned / (10 * 913_003), 3) == 0.355

    def test_a_client_with_one_modality_of_two_gets_one_adapter(self) -> None:
        member = Membership("a", "flickr30k", ("image",), 10)
        readable = paper_contract().readable(member)
        assert sum(block.size for block in readable) == 356_353 - 66_304 - 256
        assert not any("text" in block.name for block in readable)
