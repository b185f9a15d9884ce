"""Which round of a client is kept for each endpoint: the best by its own DEV, chosen before TEST is read.

A model after a round is the private state of some version together with the merged Q of that round. DEV is measured when that Q
arrives, so the private model is already in the store and keeping it means keeping its version.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedsocket_flwr.learning.measuring import ENDPOINTS, Measure, Measurement


@dataclass(frozen=True)
class Kept:
    """The best round of one endpoint: its number, the private version (0: none), its DEV value, and Joint's choice then."""

    round: int
    version: int
    value: float
    choice: Mapping[str, float]


@dataclass(frozen=True)
class Checkpoints:
    """The kept round of every endpoint that was measured so far."""

    kept: Mapping[str, Kept]

    def after(self, measured: Measurement, how: Measure, round_: int, version: int) -> "Checkpoints":
        """Return the checkpoints after one more measurement; of equal rounds the earlier one keeps its place."""
        kept = dict(self.kept)
        for endpoint, metrics in measured.endpoints.items():
            candidate = Kept(round_, version, how.headline(metrics), dict(measured.choice))
            if endpoint not in kept or candidate.value > kept[endpoint].value:
                kept[endpoint] = candidate
        return replace(self, kept=kept)

    def or_last(self, last: Kept, endpoints: tuple[str, ...]) -> "Checkpoints":
        """Return the checkpoints with the last round for every existing endpoint that no DEV has chosen."""
        return replace(self, kept={endpoint: self.kept.get(endpoint, last) for endpoint in endpoints})

    def versions(self) -> set[int]:
        """Return the private versions that must stay in the store."""
        return {self.kept[endpoint].version for endpoint in ("private", "joint") if endpoint in self.kept}

    def q_rounds(self) -> set[int]:
        """Return the rounds whose Q must stay in the store."""
        return {self.kept[endpoint].round for endpoint in ("q", "joint") if endpoint in self.kept}

    def to_notes(self) -> dict[str, Any]:
        """Return the checkpoints as JSON values."""
        return {endpoint: asdict(kept) for endpoint, kept in self.kept.items()}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> "Checkpoints":
        """Read what :meth:`to_notes` returned."""
        return cls({endpoint: Kept(**notes[endpoint]) for endpoint in ENDPOINTS if endpoint in notes})
