"""What merging costs: 10, 100 and 1,000 replies of the paper's Q (913,003 float32 parameters) against a bare running sum.

The bare sum is ``np.add(total64, reply32, out=total64)`` over the same decoded arrays, block by block. It is compared with

* the block mean: ``merging.weighted_mean`` of every block over replies that carry the whole Q;
* the strategy: ``merge_by_owner`` (task means, class rows, modality embeddings, projected residual) over replies that carry what
  their clients own; three clients of the first task, three of the second and four of the third in every ten.

Times are medians of repeats, interleaved in one process. A pool of 20 distinct decoded replies (73 MB, larger than most caches)
is reused for 100 and 1,000 replies, so that memory stays below 1 GB. Decoding replies from Flower's records is timed apart.

Run ``python benchmarks/merge_cost.py``; it prints a Markdown table.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from fedsocket_flwr.exchange import payload
from fedsocket_flwr.exchange.contract import Blocks, Contract, Membership, Update
from fedsocket_flwr.models.predictor import PredictorShape, SharedPredictor, TaskShape
from fedsocket_flwr.seeds import numpy_generator
from fedsocket_flwr.strategies.merging import weighted_mean
from fedsocket_flwr.strategies.task_owned import merge_by_owner

PARAMETERS = 913_003
POOL = 20
REPEATS = {10: 45, 100: 7, 1000: 3}
TASKS = (
    TaskShape("cifar100", "classification", ("image",), 100),
    TaskShape("agnews", "classification", ("text",), 4),
    TaskShape("flickr30k", "retrieval", ("image", "text")),
)
# The tasks of ten clients in turn.
TURNS = (0, 1, 2, 0, 1, 2, 0, 1, 2, 2)


def paper_contract() -> Contract:
    shape = PredictorShape(width=256, residual_rank=48, tasks=TASKS, interface_widths={"image": 256, "text": 256})
    contract = SharedPredictor(shape).contract()
    assert sum(block.size for block in contract.blocks) == PARAMETERS
    return contract


def draw_blocks(contract: Contract, index: int) -> Blocks:
    generator = numpy_generator("merge cost", index)
    return {block.name: generator.standard_normal(block.shape, dtype=np.float32) for block in contract.blocks}


def draw_members(replies: int) -> list[Membership]:
    members = []
    for index in range(replies):
        task = TASKS[TURNS[index % len(TURNS)]]
        # Every client holds about nine of ten classes, so that class rows differ in who holds them.
        counts = numpy_generator("counts", index).integers(0, 10, task.classes)
        members.append(Membership(f"client-{index:04d}", task.name, task.modalities, 100 + index, tuple(counts.tolist())))
    return members


def owned_updates(contract: Contract, members: Sequence[Membership], pool: Sequence[Blocks]) -> list[Update]:
    # The pool's size is a multiple of the turns, so a buffer always serves clients of one task.
    return [
        Update(
            client=member.client,
            round=1,
            version=1,
            blocks={block.name: pool[index % POOL][block.name] for block in contract.writable(member)},
            examples=member.examples,
            class_counts=member.class_counts,
        )
        for index, member in enumerate(members)
    ]


def bare_sum(contract: Contract, replies: Sequence[Blocks]) -> None:
    for block in contract.blocks:
        total64 = np.zeros(block.shape)
        for reply in replies:
            if block.name in reply:
                np.add(total64, reply[block.name], out=total64)


def block_mean(contract: Contract, replies: Sequence[Blocks], weights: Sequence[float]) -> None:
    for block in contract.blocks:
        weighted_mean([reply[block.name] for reply in replies], weights)


def interleaved_medians(repeats: int, *actions: Callable[[], object]) -> list[float]:
    """Return the median milliseconds of each action, taking turns."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, taken in zip(actions, seconds, strict=True):
            begin = time.perf_counter()
            action()
            taken.append(time.perf_counter() - begin)
    return [1000 * statistics.median(taken) for taken in seconds]


def main() -> None:
    contract = paper_contract()
    pool = [draw_blocks(contract, index) for index in range(POOL)]
    previous = draw_blocks(contract, POOL)
    record = payload.array_record(payload.serialise(pool[0]))
    (decoding,) = interleaved_medians(15, lambda: payload.read_array_record(record))

    print(
        "| replies | bare sum, ms | block mean, ms | ratio | bare sum of owned blocks, ms | strategy, ms | ratio | decoding, ms |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for replies, repeats in REPEATS.items():
        members = draw_members(replies)
        whole = [pool[index % POOL] for index in range(replies)]
        weights = [member.examples for member in members]
        updates = owned_updates(contract, members, pool)
        owned = [update.blocks for update in updates]
        memberships = {member.client: member for member in members}
        bare, mean, bare_owned, strategy = interleaved_medians(
            repeats,
            lambda whole=whole: bare_sum(contract, whole),
            lambda whole=whole, weights=weights: block_mean(contract, whole, weights),
            lambda owned=owned: bare_sum(contract, owned),
            lambda updates=updates, memberships=memberships: merge_by_owner(contract, previous, updates, memberships),
        )
        print(
            f"| {replies:,} | {bare:.1f} | {mean:.1f} | {mean / bare:.2f} "
            f"| {bare_owned:.1f} | {strategy:.1f} | {strategy / bare_owned:.2f} | {decoding * replies:.0f} |"
        )
    print(f"\nQ of {PARAMETERS:,} parameters in {len(contract.blocks)} blocks; decoding is {replies:,} times one whole reply's.")


if __name__ == "__main__":
    main()
