"""The FedSocket server (FedSocket v1, section A.7): every block is merged among its owners.

* owned by a task: the sample-weighted mean over the task's clients;
* rows of classes: the same mean, row by row, over the clients that hold the class;
* owned by a modality: the sample-weighted mean over all clients that observe it, or projected like the residual;
* owned by everyone (the shared residual): the mean over tasks of their mean updates, each projected off the other tasks'
  updates that it conflicts with (Eq. 20).

Nothing here knows a task, a data set or a model: ownership is data.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import Array, Block, Blocks, Contract, Membership, Owner, Update
from fedsocket_flwr.strategies import merging
from fedsocket_flwr.strategies.registered import RegisteredStrategy

Rule = Literal["projected", "mean"]


class TaskOwnedStrategy(RegisteredStrategy):
    """Merge blocks by ownership; see :class:`RegisteredStrategy` for registration, participation and payload.

    Parameters
    ----------
    contract
        The blocks and their owners. Every block must be exchanged (read and written).
    residual
        ``projected`` (FedSocket v1, Eq. 20) or ``mean`` for the blocks that everyone owns.
    modality
        ``mean`` over the clients of a modality, or ``projected`` over the tasks that use it.
    task_mean
        What the clients of a task (or of a modality, or of a class row) become: their sample-weighted mean, or, against clients
        that cannot be trusted, the coordinate-wise ``median`` or ``trimmed`` mean, which weigh all alike.
    trim
        The share of the replies that the trimmed mean drops at each end.
    **registered
        The parameters of :class:`RegisteredStrategy`.

    Raises
    ------
    ContractError
        A block is owned by single participants or travels one way: nothing could be merged.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        residual: Rule = "projected",
        modality: Rule = "mean",
        task_mean: merging.MeanRule = "weighted",
        trim: float = 0.1,
        **registered: Any,
    ) -> None:
        super().__init__(contract, **registered)
        unsuited = [b.name for b in contract.blocks if b.owner.kind == "participant" or b.access != "exchanged"]
        if unsuited:
            raise ContractError(f"blocks without a common owner cannot be merged: {', '.join(unsuited[:3])}")
        self.residual = residual
        self.modality = modality
        self.mean = merging.mean_of(task_mean, trim)

    def merge(self, previous: Blocks, updates: Sequence[Update]) -> tuple[Blocks, dict[str, float]]:
        """Merge by ownership; see :func:`merge_by_owner`."""
        return merge_by_owner(
            self.contract,
            previous,
            updates,
            self.roster.memberships,
            residual=self.residual,
            modality=self.modality,
            mean=self.mean,
        )


def merge_by_owner(
    contract: Contract,
    previous: Blocks,
    updates: Sequence[Update],
    memberships: Mapping[str, Membership],
    *,
    residual: Rule = "projected",
    modality: Rule = "mean",
    mean: merging.Mean = merging.weighted_mean,
) -> tuple[Blocks, dict[str, float]]:
    """Return all blocks after a round, and the cosines between tasks' updates of what everyone owns.

    Parameters
    ----------
    contract
        The blocks and their owners.
    previous
        All blocks before the round.
    updates
        The round's sound answers, sorted by client. An update without examples has no weight.
    memberships
        Client -> its membership.
    residual, modality
        How blocks owned by everyone and by a modality are merged.
    mean
        What the replies of one owner become.

    Returns
    -------
    merged, conflicts
        A block that nobody updated is the previous one, bit for bit.
    """
    weighty = [update for update in updates if update.examples > 0]
    merged = dict(previous)
    # Blocks of one owner that need the same modalities and tasks are held by the same clients, and make one vector.
    crossing: dict[tuple[Owner, tuple[str, ...], tuple[str, ...]], list[Block]] = {}
    for block in contract.blocks:
        writers = [update for update in weighty if block.name in update.blocks]
        if not writers:
            continue
        if block.owner.kind == "everyone" or (block.owner.kind == "modality" and modality == "projected"):
            crossing.setdefault((block.owner, block.modalities, block.tasks), []).append(block)
            continue
        arrays, examples = [update.blocks[block.name] for update in writers], [update.examples for update in writers]
        if block.owner.kind == "class_rows":
            counts_KC = np.array([update.class_counts for update in writers])
            merged[block.name] = merging.class_rows(mean, previous[block.name], arrays, examples, counts_KC)
        else:
            merged[block.name] = mean(arrays, examples)
    conflicts: dict[str, float] = {}
    for (owner, needed, _), blocks in crossing.items():
        everyone = owner.kind == "everyone"
        after, cosines = _merge_across_tasks(
            blocks, previous, weighty, memberships, mean, project=(residual if everyone else modality) == "projected"
        )
        merged.update(after)
        shared = "+".join(("residual", *needed)) if everyone else owner.key
        conflicts.update({f"conflict.{shared}.{pair}": cosine for pair, cosine in cosines.items()})
    return merged, conflicts


def _merge_across_tasks(
    blocks: Sequence[Block],
    previous: Blocks,
    updates: Sequence[Update],
    memberships: Mapping[str, Membership],
    mean: merging.Mean,
    *,
    project: bool,
) -> tuple[Blocks, dict[str, float]]:
    """Add the mean over participating tasks of their (projected) mean updates; tasks are taken in sorted order."""
    by_task: dict[str, list[Update]] = {}
    for update in updates:
        if blocks[0].name in update.blocks:
            by_task.setdefault(memberships[update.client].task, []).append(update)
    tasks = sorted(by_task)
    before = merging.flatten([previous[block.name] for block in blocks])
    updates_TP = np.stack([_mean_update(blocks, previous, by_task[task], mean) for task in tasks])
    cosines_TT = merging.conflict_cosines(updates_TP)
    cosines = {f"{tasks[i]}.{tasks[j]}": float(cosines_TT[i, j]) for j in range(len(tasks)) for i in range(j)}
    moved = merging.project_conflicts(updates_TP) if project else updates_TP
    after = merging.unflatten(before + moved.mean(axis=0), [previous[block.name] for block in blocks])
    return dict(zip((block.name for block in blocks), after, strict=True)), cosines


def _mean_update(blocks: Sequence[Block], previous: Blocks, updates: Sequence[Update], mean: merging.Mean) -> Array:
    """Return D[t]: the mean of a task's blocks less what they were, flat and in float64."""
    examples = [update.examples for update in updates]
    return merging.flatten(
        [
            merging.mean_update(previous[block.name], [update.blocks[block.name] for update in updates], examples, mean)
            for block in blocks
        ]
    )
