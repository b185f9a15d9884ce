"""A strategy: of what every owner's clients send back, the median of each number. It needs numpy and flwr only."""

from collections.abc import Sequence

import numpy as np

from fedsocket_flwr.exchange.contract import Array, Block, Blocks, Update
from fedsocket_flwr.strategies.registered import RegisteredStrategy


class MedianStrategy(RegisteredStrategy):
    """Registration, participation, payload, refusals and the resumption of cut runs are those of the base class."""

    def merge(self, previous: Blocks, updates: Sequence[Update]) -> tuple[Blocks, dict[str, float]]:
        """Return all blocks after the round, and numbers for the history.

        ``updates`` are sound, sorted by client, and hold only what their client may write.
        """
        merged = dict(previous)
        for block in self.contract.blocks:
            writers = [update for update in updates if block.name in update.blocks and update.examples > 0]
            if writers:
                merged[block.name] = _median(block, previous[block.name], writers)
        return merged, {"median_of": len(updates)}


def _median(block: Block, previous: Array, writers: Sequence[Update]) -> Array:
    answers = np.stack([update.blocks[block.name] for update in writers])
    if block.owner.kind != "class_rows":
        middle: Array = np.median(answers, axis=0).astype(previous.dtype)
        return middle
    # A row of the classifier belongs to the clients that have examples of its class.
    rows = previous.copy()
    holds = np.array([update.class_counts for update in writers]) > 0
    for row in np.flatnonzero(holds.any(axis=0)):
        rows[row] = np.median(answers[holds[:, row], row], axis=0)
    return rows
