from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsocket_flwr.exchange.contract import Block, Contract, Membership, Owner
from fedsocket_flwr.exchange.payload import bytes_down, bytes_up
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, TaskShape, gates_of, initial_predictor

PAPER = PredictorShape(
    width=256,
    residual_rank=48,
    tasks=(
        TaskShape("cifar100", "classification", ("image",), 100),
        TaskShape("agnews", "classification", ("text",), 4),
        TaskShape("flickr30k", "retrieval", ("image", "text")),
    ),
    interface_widths={"image": 256, "text": 256},
)
# Three clients of images, three of news, four of pairs (FedSocket v1, section 4).
PAPER_CLIENTS = {"cifar100": (3, ("image",), 100), "agnews": (3, ("text",), 4), "flickr30k": (4, ("image", "text"), 0)}

SMALL = PredictorShape(
    width=6,
    residual_rank=2,
    tasks=(
        TaskShape("digits", "classification", ("image",), 3),
        TaskShape("clips", "classification", ("image", "text"), 2),
        TaskShape("pairs", "retrieval", ("image", "text")),
    ),
    interface_widths={"image": 4, "text": 5},
)
HOSTILE_NAMES = ("items", "type", "a.b", "a%2Eb", "v1.5", "x|y", "x/y", "x%2Fy", "shared", "keys", "0", "数字", "forward")


def member(task: str, modalities: tuple[str, ...], classes: int = 0) -> Membership:
    return Membership("someone", task, modalities, 10, (1,) * classes)


def size(blocks: tuple[Block, ...]) -> int:
    return sum(block.size for block in blocks)


def perturbed(q: SharedPredictor) -> SharedPredictor:
    """Move every parameter off its starting value: gates and LayerNorms begin where errors would hide."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in q.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return q


def small(shape: PredictorShape = SMALL) -> SharedPredictor:
    return perturbed(initial_predictor(shape, 1))


def draw(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def moved_by(q: SharedPredictor, loss: torch.Tensor) -> set[str]:
    """Return the names of the parameters that a loss reaches."""
    q.zero_grad(set_to_none=True)
    loss.backward()
    return {name for name, parameter in q.named_parameters() if parameter.grad is not None and bool(parameter.grad.any())}


def restricted(shape: PredictorShape, task: str, held: tuple[str, ...]) -> PredictorShape:
    """Return the shape of what a client of one task with some of its modalities builds."""
    mine = next(found for found in shape.tasks if found.name == task)
    return replace(shape, tasks=(replace(mine, modalities=tuple(m for m in mine.modalities if m in held)),))


class TestThePapersSizes:
    def test_parameters(self) -> None:
        q = SharedPredictor(PAPER)
        assert sum(parameter.numel() for parameter in q.parameters()) == 913_003
        assert size(q.contract().blocks) == 913_003
        assert bytes_down(q.contract().blocks) == 3_652_012

    def test_what_each_client_owns(self) -> None:
        contract = SharedPredictor(PAPER).contract()
        owned = {task: size(contract.writable(member(task, held))) for task, (_, held, _) in PAPER_CLIENTS.items()}
        assert owned == {"cifar100": 315_493, "agnews": 290_821, "flickr30k": 356_353}
        share = sum(number * owned[task] for task, (number, _, _) in PAPER_CLIENTS.items()) / (10 * 913_003)
        assert round(share, 3) == 0.355

    def test_bytes_of_the_whole_q_over_forty_rounds(self) -> None:
        blocks = SharedPredictor(PAPER).contract().blocks
        members = [member(task, held, c) for task, (number, held, c) in PAPER_CLIENTS.items() for _ in range(number)]
        assert 40 * sum(bytes_down(blocks) for _ in members) == 1_460_804_800
        assert 40 * sum(bytes_up(blocks, one) for one in members) == 1_460_907_840

    def test_sizes_by_hand(self) -> None:
        """Count the layers of section A.3 one by one."""
        width, rank, d = 256, 48, 256
        adapter = 2 * d + d * width + width
        own = (2 * width + 2 * (width * width + width)) + width + 1 + (2 * width + width * width + width)
        shared = 2 * rank * width
        owners = Counter[tuple[str, str]]()
        for block in SharedPredictor(PAPER).contract().blocks:
            owners[block.owner.kind, block.owner.key] += block.size
        assert owners == {
            ("task", "cifar100"): own + adapter,
            ("task", "agnews"): own + adapter,
            ("task", "flickr30k"): own + 2 * adapter,
            ("class_rows", "cifar100"): 100 * (width + 1),
            ("class_rows", "agnews"): 4 * (width + 1),
            ("modality", "image"): width,
            ("modality", "text"): width,
            ("everyone", ""): shared,
        }


class TestOwners:
    def test_each_parameter_is_one_block(self) -> None:
        q = small()
        expected = [(name, tuple(parameter.shape), "float32") for name, parameter in q.named_parameters()]
        assert [(block.name, block.shape, block.dtype) for block in q.contract().blocks] == expected
        assert list(q.state_dict()) == [name for name, _, _ in expected]

    def test_owners_by_name(self) -> None:
        contract = small().contract()

        def owner(name: str) -> tuple[Owner, tuple[str, ...]]:
            return contract[name].owner, contract[name].modalities

        clips = "branches.task/clips."
        assert owner(clips + "head.weight") == (Owner("class_rows", "clips"), ())
        assert owner(clips + "head.bias") == (Owner("class_rows", "clips"), ())
        assert owner(clips + "gate") == (Owner("task", "clips"), ())
        assert owner(clips + "embedding") == (Owner("task", "clips"), ())
        assert owner(clips + "expert.1.weight") == (Owner("task", "clips"), ())
        assert owner(clips + "trunk.1.bias") == (Owner("task", "clips"), ())
        assert owner(clips + "adapters.modality/text.linear.weight") == (Owner("task", "clips"), ("text",))
        assert owner("modality_embeddings.modality/image") == (Owner("modality", "image"), ("image",))
        assert owner("residuals.shared.0.weight") == (Owner("everyone"), ())
        assert not [block.name for block in contract.blocks if "pairs" in block.name and "head" in block.name]

    @pytest.mark.parametrize("isolated", [frozenset[str](), frozenset({"digits"}), frozenset({"digits", "clips", "pairs"})])
    def test_the_restricted_shape_has_what_the_client_can_execute(self, isolated: frozenset[str]) -> None:
        shape = replace(SMALL, isolated=isolated)
        contract = SharedPredictor(shape).contract()
        for task, held in [
            ("digits", ("image",)),
            ("clips", ("image", "text")),
            ("clips", ("text",)),
            ("pairs", ("image", "text")),
        ]:
            mine = SharedPredictor(restricted(shape, task, held))
            expected = [(block.name, block.shape, block.owner) for block in contract.readable(member(task, held))]
            assert [(block.name, block.shape, block.owner) for block in mine.contract().blocks] == expected

    def test_a_restricted_q_computes_what_the_whole_one_does(self) -> None:
        whole = small()
        mine = SharedPredictor(restricted(SMALL, "clips", ("image",)))
        mine.load_state_dict({name: value for name, value in whole.state_dict().items() if name in mine.state_dict()})
        image = draw((3, 4))
        assert torch.equal(mine.logits("clips", {"image": image}), whole.logits("clips", {"image": image}))


class TestIsolation:
    def test_isolated_tasks_share_nothing(self) -> None:
        contract = SharedPredictor(replace(SMALL, isolated=frozenset({"digits", "clips", "pairs"}))).contract()
        held = {task.name: {b.name for b in contract.executable(member(task.name, task.modalities))} for task in SMALL.tasks}
        assert sum(map(len, held.values())) == len(set[str]().union(*held.values())) == len(contract.blocks)
        assert {block.owner.kind for block in contract.blocks} == {"task", "class_rows"}

    def test_one_isolated_task_leaves_the_others_shared(self) -> None:
        contract = SharedPredictor(replace(SMALL, isolated=frozenset({"digits"}))).contract()
        digits = {b.name for b in contract.executable(member("digits", ("image",)))}
        others = {b.name for t in ("clips", "pairs") for b in contract.executable(member(t, ("image", "text")))}
        assert not digits & others
        assert Owner("everyone") in {block.owner for block in contract.blocks}

    def test_an_isolated_modality_is_made_once_for_the_others(self) -> None:
        names = SharedPredictor(replace(SMALL, isolated=frozenset({"digits"}))).modality_embeddings.keys()
        assert set(names) == {"modality/image/digits", "modality/image", "modality/text"}


class TestForward:
    def test_equations_9_and_10_by_hand(self) -> None:
        q = small()
        state = {name: value.double().numpy() for name, value in q.state_dict().items()}
        u = draw((5, 4))
        own = "branches.task/digits."

        def norm(x: np.ndarray, name: str) -> np.ndarray:
            centred = x - x.mean(-1, keepdims=True)
            scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
            return scaled * state[name + ".weight"] + state[name + ".bias"]

        def linear(x: np.ndarray, name: str) -> np.ndarray:
            return x @ state[name + ".weight"].T + state.get(name + ".bias", 0.0)

        def gelu(x: np.ndarray) -> np.ndarray:
            return x * 0.5 * (1 + torch.erf(torch.from_numpy(x) / 2**0.5).numpy())

        adapter = own + "adapters.modality/image."
        b = linear(norm(u.double().numpy(), adapter + "norm"), adapter + "linear")
        b = b + state[own + "embedding"] + state["modality_embeddings.modality/image"]
        expert = linear(gelu(linear(norm(b, own + "expert.0"), own + "expert.1")), own + "expert.3")
        residual = linear(gelu(linear(b, "residuals.shared.0")), "residuals.shared.2")
        v = expert + residual / (1 + np.exp(-state[own + "gate"]))
        logits = linear(gelu(linear(norm(v, own + "trunk.0"), own + "trunk.1")), own + "head")
        np.testing.assert_allclose(q.logits("digits", {"image": u}).detach().numpy(), logits, rtol=2e-4, atol=2e-5)

    def test_several_modalities_give_the_mean_of_their_logits(self) -> None:
        q, image, text = small(), draw((3, 4)), draw((3, 5))
        both = q.logits("clips", {"image": image, "text": text})
        torch.testing.assert_close(both, (q.logits("clips", {"image": image}) + q.logits("clips", {"text": text})) / 2)
        assert both.shape == (3, 2)

    def test_embeddings_have_length_one_and_one_head(self) -> None:
        q = small()
        image, text = q.embeddings("pairs", "image", draw((3, 4))), q.embeddings("pairs", "text", draw((7, 5)))
        assert (image.shape, text.shape) == ((3, 6), (7, 6))
        torch.testing.assert_close(image.norm(dim=1), torch.ones(3))
        torch.testing.assert_close(text.norm(dim=1), torch.ones(7))

    def test_tokens_are_pooled_by_attention(self) -> None:
        q = small(replace(SMALL, token_modalities=frozenset({"image"})))
        tokens = draw((2, 8, 4))
        logits = q.logits("digits", {"image": tokens})
        assert logits.shape == (2, 3)
        # A bag of tokens: their order says nothing, and equal tokens are one token.
        torch.testing.assert_close(q.logits("digits", {"image": tokens.flip(1)}), logits)
        repeated = q.logits("digits", {"image": tokens[:, :1].repeat(1, 8, 1)})
        torch.testing.assert_close(repeated, q.logits("digits", {"image": tokens[:, :1]}))
        assert not torch.allclose(q.logits("digits", {"image": tokens.mean(1, keepdim=True)}), logits, atol=1e-3)

    def test_token_adapters_have_one_vector_more(self) -> None:
        more = SharedPredictor(replace(SMALL, token_modalities=frozenset({"image"}))).contract()
        plain = small().contract()
        added = {block.name: block for block in more.blocks if block.name not in plain}
        assert {block.shape for block in added.values()} == {(1, 4)}
        assert {(block.owner.kind, block.modalities) for block in added.values()} == {("task", ("image",))}
        assert len(added) == 3

    def test_single_inputs(self) -> None:
        q = small()
        image = draw((3, 4))
        torch.testing.assert_close(q.logits("digits", {"image": image[:1]}), q.logits("digits", {"image": image})[:1])


class TestGradients:
    def test_a_task_reaches_its_branch_its_modality_and_the_residual(self) -> None:
        q = small()
        reached = moved_by(q, q.logits("digits", {"image": draw((5, 4))}).square().sum())
        assert reached == {block.name for block in q.contract().writable(member("digits", ("image",)))}

    def test_one_modality_leaves_the_other_alone(self) -> None:
        q = small()
        reached = moved_by(q, q.embeddings("pairs", "text", draw((5, 5)))[:, 0].sum())
        expected = {block.name for block in q.contract().writable(member("pairs", ("text",)))}
        assert reached == expected
        assert not [name for name in reached if "image" in name]

    def test_an_isolated_task_reaches_no_residual_of_others(self) -> None:
        q = small(replace(SMALL, isolated=frozenset({"digits"})))
        reached = moved_by(q, q.logits("digits", {"image": draw((5, 4))}).square().sum())
        assert {name for name in reached if name.startswith("residuals.")} == {
            "residuals.task/digits.0.weight",
            "residuals.task/digits.2.weight",
        }

    def test_a_fixed_gate_never_moves(self) -> None:
        q = small()
        q.fix_gates()
        before = {name: value.clone() for name, value in q.state_dict().items()}
        optimiser = torch.optim.AdamW(q.parameters(), lr=0.1, weight_decay=0.5)
        for _ in range(3):
            optimiser.zero_grad()
            q.logits("digits", {"image": draw((5, 4))}).square().sum().backward()
            optimiser.step()
        still = {name for name, value in q.state_dict().items() if torch.equal(value, before[name])}
        assert {f"branches.task/{task.name}.gate" for task in SMALL.tasks} <= still
        assert "branches.task/digits.embedding" not in still

    def test_a_learned_gate_moves(self) -> None:
        q = small()
        assert "branches.task/digits.gate" in moved_by(q, q.logits("digits", {"image": draw((5, 4))}).square().sum())


class TestHostileNames:
    @pytest.mark.parametrize("isolated", [frozenset[str](), frozenset(HOSTILE_NAMES)])
    def test_tasks_and_modalities_stay_apart(self, isolated: frozenset[str]) -> None:
        tasks = tuple(TaskShape(name, "classification", HOSTILE_NAMES[:4], 2) for name in HOSTILE_NAMES)
        shape = PredictorShape(4, 2, tasks, dict.fromkeys(HOSTILE_NAMES[:4], 3), isolated=isolated)
        q = small(shape)
        contract = q.contract()
        assert len({block.name for block in contract.blocks}) == len(contract.blocks)
        assert Counter(b.owner.key for b in contract.blocks if b.owner.kind == "class_rows") == dict.fromkeys(HOSTILE_NAMES, 2)
        outputs = {name: q.logits(name, {m: draw((2, 3)) for m in HOSTILE_NAMES[:4]}) for name in HOSTILE_NAMES}
        assert len({tuple(logits.flatten().tolist()) for logits in outputs.values()}) == len(HOSTILE_NAMES)
        assert Contract.from_json(contract.to_json()) == contract

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.text("ab./%2EF|", min_size=1, max_size=4), min_size=2, max_size=4, unique=True))
    def test_any_names_stay_apart(self, names: list[str]) -> None:
        tasks = tuple(TaskShape(name, "classification", (name,), 1) for name in names)
        isolated = frozenset(names[:1])
        contract = SharedPredictor(PredictorShape(2, 1, tasks, dict.fromkeys(names, 2), isolated=isolated)).contract()
        # A task: expert 6, trunk 4, head 2, adapter 4, embedding, gate and modality embedding; two residuals of 2.
        assert len(contract.blocks) == len(names) * (6 + 4 + 2 + 4 + 3) + 2 * 2

    def test_a_tasks_own_copy_is_not_another_modality(self) -> None:
        """The modality ``m`` of the isolated task ``x`` beside a modality called ``m/x``."""
        tasks = tuple(TaskShape(name, "classification", (m,), 1) for name, m in (("x", "m"), ("y", "m/x")))
        q = SharedPredictor(PredictorShape(2, 1, tasks, {"m": 2, "m/x": 2}, isolated=frozenset({"x"})))
        assert len(q.modality_embeddings) == 2
        assert {block.owner for block in q.contract().blocks if "embeddings" in block.name} == {
            Owner("task", "x"),
            Owner("modality", "m/x"),
        }

    def test_gates_by_task(self) -> None:
        tasks = tuple(TaskShape(name, "classification", ("image",), 2) for name in HOSTILE_NAMES)
        shape = PredictorShape(4, 2, tasks, {"image": 3})
        blocks = {name: value.numpy().copy() for name, value in initial_predictor(shape, 1).state_dict().items()}
        assert gates_of(shape, blocks) == dict.fromkeys(HOSTILE_NAMES, 0.5)
        (own,) = (block.name for block in SharedPredictor(shape).contract().blocks if block.name == "branches.task/a%2Eb.gate")
        blocks[own][...] = np.log(3.0)
        gates = gates_of(shape, blocks)
        assert gates["a.b"] == pytest.approx(0.75)
        assert set(gates.values()) == {0.5, gates["a.b"]}


class TestInitialPredictor:
    @pytest.fixture(autouse=True)
    def _same_generator_afterwards(self) -> Iterator[None]:
        state = torch.get_rng_state()
        yield
        torch.set_rng_state(state)

    def test_it_leaves_the_global_generator_alone(self) -> None:
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        initial_predictor(SMALL, 1)
        assert torch.equal(torch.rand(3), expected)

    def test_it_is_a_function_of_the_seed(self) -> None:
        torch.manual_seed(1)
        first = initial_predictor(SMALL, 1).state_dict()
        torch.manual_seed(2)
        again, other = initial_predictor(SMALL, 1).state_dict(), initial_predictor(SMALL, 2).state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not torch.equal(first["residuals.shared.0.weight"], other["residuals.shared.0.weight"])

    def test_gates_start_half_open(self) -> None:
        blocks = {name: value.numpy() for name, value in initial_predictor(SMALL, 1).state_dict().items()}
        assert gates_of(SMALL, blocks) == {"digits": 0.5, "clips": 0.5, "pairs": 0.5}
