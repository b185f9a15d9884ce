"""Which round of a client is kept for each endpoint: the best by its own DEV, chosen before TEST is read.

A model after a round is the private state of some version together with the merged Q of that round. DEV is measured when that Q
arrives, so the private model is already in the store and keeping it means keeping its version.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedsocket_flwr.learning.measuring import Measure, Measurement


@dataclass(frozen=True)
class Kept:
    """A round kept for one endpoint.

    Attributes
    ----------
    round, version
        The round of the model, and the version of its Private (0: none).
    value
        Its DEV value; 0 where there is no DEV.
    choice
        What Joint was measured with.
    counts
        The DEV confusion matrix, row by row, where the choice is made by the server from pooled counts.
    """

    round: int
    version: int
    value: float
    choice: Mapping[str, float] = field(default_factory=dict)
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checkpoints:
    """The kept round of every endpoint."""

    kept: Mapping[str, Kept]

    @classmethod
    def of(cls, measured: Measurement, how: Measure, round_: int, version: int) -> "Checkpoints":
        """Return one measured round as the kept one of all its endpoints."""
        return cls(
            {
                endpoint: Kept(
                    round_,
                    version,
                    how.headline(metrics),
                    dict(measured.choices.get(endpoint, {})),
                    tuple(measured.counts.get(endpoint, ())),
                )
                for endpoint, metrics in measured.endpoints.items()
            }
        )

    def improved_by(self, later: "Checkpoints") -> "Checkpoints":
        """Return for each endpoint the better of the two rounds; of equal ones the earlier keeps its place."""
        kept = dict(self.kept)
        for endpoint, candidate in later.kept.items():
            if endpoint not in kept or candidate.value > kept[endpoint].value:
                kept[endpoint] = candidate
        return Checkpoints(kept)

    def completed_by(self, defaults: "Checkpoints") -> "Checkpoints":
        """Return the checkpoints with a default for every endpoint that no DEV has chosen."""
        return Checkpoints({**defaults.kept, **self.kept})

    def versions(self) -> set[int]:
        """Return the private versions that must stay in the store."""
        return {kept.version for endpoint, kept in self.kept.items() if endpoint != "q"}

    def q_rounds(self) -> set[int]:
        """Return the rounds whose Q must stay in the store."""
        return {kept.round for endpoint, kept in self.kept.items() if endpoint != "private"}

    def to_notes(self) -> dict[str, Any]:
        """Return the checkpoints as JSON values."""
        return {endpoint: asdict(kept) for endpoint, kept in self.kept.items()}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> "Checkpoints":
        """Read what :meth:`to_notes` returned."""
        return cls({endpoint: Kept(**{**kept, "counts": tuple(kept["counts"])}) for endpoint, kept in notes.items()})
