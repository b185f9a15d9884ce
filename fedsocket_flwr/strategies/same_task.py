"""The server of FedSocket's same-task protocol (FedSocket v1, A.7): all clients predict the same labels through one Q.

Q moves half of the way to the sample-weighted mean of the answers; no block has a smaller owner, unless class rows are gated.
After the last round one beta is chosen for the whole run, from the recipients' pooled DEV counts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import Array, Blocks, Contract, Update
from fedsocket_flwr.strategies import merging
from fedsocket_flwr.strategies.registered import CLOSE, RegisteredStrategy

CANDIDATE = "joint@"
"""A count ``best.joint@0.35`` is a DEV confusion matrix at beta 0.35, at the best round for that beta."""


class SameTaskStrategy(RegisteredStrategy):
    """Average Q over all clients, stabilised; see :class:`RegisteredStrategy` for registration, participation and payload.

    Parameters
    ----------
    contract
        Q's blocks.
    stabiliser
        The share of the way to the mean that Q goes.
    gate_class_rows
        Merge the row of a class only over the clients that hold the class. The paper averages the whole Q.
    task_mean, trim
        As in :class:`~fedsocket_flwr.strategies.task_owned.TaskOwnedStrategy`.
    betas
        The candidates for Joint's beta.
    choose_beta
        Chooses among candidates by their pooled confusion matrices (C, C).
    **registered
        The parameters of :class:`RegisteredStrategy`.
    """

    def __init__(
        self,
        contract: Contract,
        *,
        betas: Sequence[float],
        choose_beta: Callable[[Mapping[float, Array]], float],
        stabiliser: float = 0.5,
        gate_class_rows: bool = False,
        task_mean: merging.MeanRule = "weighted",
        trim: float = 0.1,
        **registered: Any,
    ) -> None:
        super().__init__(contract, **registered)
        unsuited = [block.name for block in contract.blocks if block.access != "exchanged"]
        if unsuited:
            raise ContractError(f"blocks that travel one way cannot be averaged: {', '.join(unsuited[:3])}")
        self.betas = {str(beta): beta for beta in betas}
        self.choose_beta = choose_beta
        self.stabiliser = stabiliser
        self.gate_class_rows = gate_class_rows
        self.mean = merging.mean_of(task_mean, trim)

    def merge(self, previous: Blocks, updates: Sequence[Update]) -> tuple[Blocks, dict[str, float]]:
        """Return ``phi + stabiliser * (mean - phi)`` for every block that somebody updated."""
        merged = dict(previous)
        for block in self.contract.blocks:
            writers = [update for update in updates if update.examples > 0 and block.name in update.blocks]
            if not writers:
                continue
            arrays = [update.blocks[block.name] for update in writers]
            examples = [update.examples for update in writers]
            if self.gate_class_rows and block.owner.kind == "class_rows":
                counts_KC = np.array([update.class_counts for update in writers])
                mean = merging.class_rows(self.mean, previous[block.name], arrays, examples, counts_KC)
            else:
                mean = self.mean(arrays, examples)
            merged[block.name] = merging.stabilise(previous[block.name], mean, self.stabiliser)
        return merged, {}

    def fault(self, phase: str, update: Update) -> str | None:
        """Return why counts cannot be pooled: no confusion matrix, or not one of the same rows at every beta."""
        classes = len(update.class_counts)
        for name, counts in update.counts.items():
            if len(counts) != classes**2:
                return f"{len(counts)} counts in {name!r}, expected a confusion matrix of {classes} classes"
        for moment, candidates in _candidates(update).items() if phase == CLOSE else ():
            if candidates.keys() != self.betas.keys():
                return f"{moment!r} has counts at the betas {', '.join(candidates)}, expected {', '.join(self.betas)}"
            rows_C = {tuple(matrix_CC.sum(axis=1).tolist()) for matrix_CC in candidates.values()}
            if len(rows_C) > 1:
                return f"{moment!r} has counts of other DEV rows at one beta than at another: {sorted(rows_C)[:2]}"
        return None

    def choices(self, updates: Sequence[Update]) -> dict[str, Any]:
        """Return the run's beta at the clients' best rounds and at the last one, from the recipients' pooled DEV counts.

        Where no recipient has DEV there is nothing to choose by, and each keeps the beta of a client without DEV.
        """
        pooled: dict[str, dict[float, Array]] = {}
        for update in updates:
            for moment, candidates in _candidates(update).items():
                sums = pooled.setdefault(moment, {})
                for name, matrix_CC in candidates.items():
                    sums[self.betas[name]] = sums.get(self.betas[name], 0) + matrix_CC
        return {
            f"{moment}.beta": self.choose_beta(candidates)
            for moment, candidates in sorted(pooled.items())
            if any(matrix_CC.any() for matrix_CC in candidates.values())
        }


def _candidates(update: Update) -> dict[str, dict[str, Array]]:
    """Return moment -> name of a beta -> confusion matrix (C, C), of an answer whose counts have the right length."""
    found: dict[str, dict[str, Array]] = {}
    classes = len(update.class_counts)
    for name, counts in update.counts.items():
        moment, _, endpoint = name.partition(".")
        if endpoint.startswith(CANDIDATE):
            matrix_CC = np.array(counts, dtype=np.int64).reshape(classes, classes)
            found.setdefault(moment, {})[endpoint.removeprefix(CANDIDATE)] = matrix_CC
    return found
