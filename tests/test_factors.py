"""Every factor by its effect: what must not change does not change by a bit, and what must change does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.toy_runs import Outcome, assert_same_arrays, same_bits, toy_config

Run = Callable[..., Outcome]
CLIENTS = tuple(client.name for _, client in toy_config().clients())
SHORT = {"run.rounds": 2}
OTHER_ARCHITECTURES = {
    "tasks.shapes.clients[0].model": "image_mlp",
    "tasks.shapes.clients[0].arguments": {"hidden": 8},
    "tasks.words.clients[1].model": "text_bag",
    "tasks.words.clients[1].arguments": {"width": 4},
    "tasks.pairs.clients[0].arguments": {"width": 12, "embedding": 8, "text": "bigru"},
}
NO_RETURN = {"training.teaching.distil_private": 0.0, "training.teaching.fusion": 0.0}
OTHER_WORDS = {"tasks.words.partition.seed": 8, "tasks.words.options": {"rows": 120, "classes": 4, "seed": 5}}


def differs(found: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(not same_bits(found[name], other[name]) for name in other)


def blocks_of(outcome: Outcome, task: str) -> dict[str, Any]:
    return {name: array for name, array in outcome.q.items() if f"task/{task}" in name}


# --- Private -> Q ---


def test_label_q_does_not_depend_on_private(outcome: Run) -> None:
    label_q = SHORT | {"training.teaching.distil_q": 0.0}
    assert_same_arrays(outcome(label_q | OTHER_ARCHITECTURES).q, outcome(label_q).q)
    assert_same_arrays(outcome(label_q | {"training.warm_up_epochs": 0}).q, outcome(label_q).q)


def test_with_teaching_q_depends_on_private_in_every_task(outcome: Run) -> None:
    for task in ("shapes", "words", "pairs"):
        assert differs(blocks_of(outcome(SHORT | OTHER_ARCHITECTURES), task), blocks_of(outcome(SHORT), task))
        assert differs(blocks_of(outcome(SHORT | {"training.teaching.distil_q": 0.0}), task), blocks_of(outcome(SHORT), task))


# --- Q -> Private ---


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_return_leaves_private_as_local_training_does(outcome: Run, rounds: int) -> None:
    no_return = outcome(NO_RETURN | {"run.rounds": rounds})
    local = outcome({"run.method": "local", "run.rounds": rounds})
    for client in CLIENTS:
        assert_same_arrays(no_return.private(client), local.private(client))


def test_distillation_and_fusion_each_change_private(outcome: Run) -> None:
    both, neither = outcome(SHORT), outcome(SHORT | NO_RETURN)
    distillation = outcome(SHORT | {"training.teaching.fusion": 0.0})
    fusion = outcome(SHORT | {"training.teaching.distil_private": 0.0})
    for client in CLIENTS:
        arms = [arm.private(client) for arm in (both, neither, distillation, fusion)]
        assert all(differs(arms[i], arms[j]) for i in range(4) for j in range(i))


def test_only_fusion_moves_the_fusion_gate_and_only_in_classification(outcome: Run) -> None:
    fusion, distillation = outcome(SHORT), outcome(SHORT | {"training.teaching.fusion": 0.0})
    for client in CLIENTS:
        assert distillation.states[client]["fusion_gate"] == 0
        assert (fusion.states[client]["fusion_gate"] != 0) == (not client.startswith("pairs"))


# --- what is shared ---


@pytest.mark.parametrize("isolated", ["all", ["shapes"]])
def test_an_isolated_task_does_not_see_the_data_of_another(outcome: Run, isolated: Any) -> None:
    settings = SHORT | {"exchange.isolated": isolated}
    here, elsewhere = outcome(settings), outcome(settings | OTHER_WORDS)
    assert_same_arrays(blocks_of(elsewhere, "shapes"), blocks_of(here, "shapes"))
    assert any("residuals" in name for name in blocks_of(here, "shapes"))
    assert differs(blocks_of(elsewhere, "words"), blocks_of(here, "words"))
    for client in ("shapes-cnn", "shapes-mlp"):
        assert_same_arrays(elsewhere.states[client], here.states[client])
        assert elsewhere.test[client] == here.test[client]


def test_a_task_that_shares_sees_the_data_of_another(outcome: Run) -> None:
    here, elsewhere = outcome(SHORT), outcome(SHORT | OTHER_WORDS)
    assert differs(blocks_of(elsewhere, "shapes"), blocks_of(here, "shapes"))


def test_isolating_two_tasks_keeps_the_third_alone_with_its_own(outcome: Run) -> None:
    q = outcome(SHORT | {"exchange.isolated": ["words"]}).q
    assert [name for name in q if name.startswith("residuals.shared")]
    assert [name for name in q if name.startswith("residuals.task/words")]
    assert {name for name in q if name.startswith("modality_embeddings")} == {
        "modality_embeddings.modality/image",
        "modality_embeddings.modality/text",
        "modality_embeddings.modality/text/words",
    }


def test_an_own_q_depends_on_no_other_client_and_nothing_travels(outcome: Run) -> None:
    own = SHORT | {"exchange.sharing": "own"}
    here, elsewhere = outcome(own), outcome(own | OTHER_WORDS | OTHER_ARCHITECTURES)
    # Not even a client of the same task: shapes-cnn has become another model.
    for client in ("shapes-mlp", "pairs-b"):
        assert here.own_q(client)
        assert_same_arrays(elsewhere.own_q(client), here.own_q(client))
        assert elsewhere.test[client] == here.test[client]
    assert differs(elsewhere.own_q("words-bag"), here.own_q("words-bag"))
    assert differs(here.own_q("shapes-cnn"), here.own_q("shapes-mlp"))
    assert here.q == {}
    counts = {"shapes": 1 + 3, "words": 1 + 4, "pairs": 1}
    for row in here.rounds():
        assert row["bytes"] == {
            "down": 0,
            "down_full": 0,
            "up": 8 * 2 * sum(counts.values()),
            "up_full": 8 * 2 * sum(counts.values()),
        }


def test_an_own_q_begins_where_a_shared_one_does(outcome: Run) -> None:
    """In the first round nothing has been merged yet: Private learns from the same Q."""
    own, shared = outcome({"run.rounds": 1, "exchange.sharing": "own"}), outcome({"run.rounds": 1})
    for client in CLIENTS:
        assert_same_arrays(own.private(client), shared.private(client))


def test_local_has_no_q_at_all(outcome: Run) -> None:
    local = outcome(SHORT | {"run.method": "local"})
    assert local.q == {}
    assert all(row["bytes"]["down"] == 0 for row in local.history)
    assert all(set(entry["best"]) == {"private"} for entry in local.test.values())


# --- merging ---


def test_a_fixed_gate_never_moves(outcome: Run) -> None:
    fixed, learned = outcome(SHORT | {"predictor.gate": "fixed"}), outcome(SHORT)
    gates = [name for name in fixed.q if name.endswith(".gate")]
    assert len(gates) == 3
    for name in gates:
        assert same_bits(fixed.q[name], np.zeros(1, dtype=np.float32))
        assert learned.q[name] != 0
    assert all(row["strategy"][f"gate.{task}"] == 0.5 for row in fixed.rounds() for task in ("shapes", "words", "pairs"))
    assert differs(fixed.q, learned.q)


def test_projection_changes_only_what_conflicts(outcome: Run) -> None:
    one = {"run.rounds": 1}
    projected, mean = outcome(one | {"merging.residual": "projected"}), outcome(one | {"merging.residual": "mean"})
    conflicts = [value for name, value in projected.rounds()[0]["strategy"].items() if name.startswith("conflict.residual")]
    assert len(conflicts) == 3
    assert min(conflicts) < 0
    changed = {name for name in mean.q if not same_bits(projected.q[name], mean.q[name])}
    assert changed == {name for name in mean.q if name.startswith("residuals.shared")}


def test_with_a_single_task_there_is_nothing_to_project(outcome: Run) -> None:
    one_task = SHORT | {"tasks": {"words": toy_config().model_dump(mode="json")["tasks"]["words"]}}
    projected, mean = outcome(one_task), outcome(one_task | {"merging.residual": "mean"})
    assert_same_arrays(projected.q, mean.q)


def test_modality_embeddings_can_be_projected_too(outcome: Run) -> None:
    one = {"run.rounds": 1}
    mean, projected = outcome(one), outcome(one | {"merging.modality": "projected"})
    changed = {name for name in mean.q if not same_bits(projected.q[name], mean.q[name])}
    assert changed
    assert changed <= {name for name in mean.q if name.startswith("modality_embeddings")}


def test_the_payload_changes_bytes_and_nothing_else(outcome: Run) -> None:
    owned, full = outcome(SHORT), outcome(SHORT | {"exchange.payload": "full"})
    assert_same_arrays(full.q, owned.q)
    for client in CLIENTS:
        assert_same_arrays(full.states[client], owned.states[client])
    assert full.test == owned.test
    for row_full, row_owned in zip(full.rounds(), owned.rounds(), strict=True):
        assert row_full["dev"] == row_owned["dev"] if "dev" in row_owned else "dev" not in row_full
        assert row_full["bytes"]["down"] == row_full["bytes"]["down_full"] == row_owned["bytes"]["down_full"]
        assert row_full["bytes"]["up"] == row_full["bytes"]["up_full"] == row_owned["bytes"]["up_full"]
        assert row_owned["bytes"]["down"] < row_full["bytes"]["down"]
        assert row_owned["bytes"]["up"] < row_full["bytes"]["up"]


# --- optimisers and participation ---


def test_q_optimisers_are_kept_or_reset(outcome: Run) -> None:
    reset, keep = outcome(SHORT), outcome(SHORT | {"training.q_optimiser": "keep"})
    for client in CLIENTS:
        assert any(name.startswith("q_optimiser/") for name in keep.states[client])
        assert not any(name.startswith("q_optimiser/") for name in reset.states[client])
    assert differs(keep.q, reset.q)
    first = {"run.rounds": 1}
    assert_same_arrays(outcome(first | {"training.q_optimiser": "keep"}).q, outcome(first).q)


def test_private_optimisers_are_kept_or_reset(outcome: Run) -> None:
    keep, reset = outcome(SHORT), outcome(SHORT | {"training.private_optimiser": "reset"})
    for client in CLIENTS:
        assert any(name.startswith("optimiser/") for name in keep.states[client])
        assert not any(name.startswith("optimiser/") for name in reset.states[client])
        assert differs(keep.private(client), reset.private(client))


def test_half_of_the_clients_of_every_task_take_part(outcome: Run) -> None:
    half = outcome({"run.rounds": 3, "participation.share": 0.5})
    for row in half.rounds():
        assert [name.split("-")[0] for name in row["asked"]] == ["pairs", "shapes", "words"]
        assert row["answered"] == row["asked"]
    asked = {name for row in half.rounds() for name in row["asked"]}
    assert len(asked) > 3
    # All are asked when the run closes, and who never trained has Q only.
    for client in CLIENTS:
        endpoints = {"private", "q", "joint"} if client in asked else {"q"}
        assert set(half.test[client]["best"]) == set(half.test[client]["last"]) == endpoints


def test_a_task_can_have_a_share_of_its_own(outcome: Run) -> None:
    some = outcome(SHORT | {"participation.tasks": {"words": 0.5}})
    for row in some.rounds():
        assert [name.split("-")[0] for name in row["asked"]] == ["pairs", "pairs", "shapes", "shapes", "words"]
