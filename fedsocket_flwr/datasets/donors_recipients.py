"""The partition of the same-task protocol: people of TEST, of DEV, of each donor and of the recipients are different people.

A group (a person, a dialogue) is never divided between TEST, DEV, a donor and the recipients. The recipients share the groups
that are left, by units (a bout of one activity) that are dealt whole.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedsocket_flwr.config import PartitionSettings, Role
from fedsocket_flwr.datasets.corpus import Array, Corpus
from fedsocket_flwr.datasets.draws import apportion, deal_in_proportion, stratified
from fedsocket_flwr.datasets.groups import column_values
from fedsocket_flwr.errors import PartitionError
from fedsocket_flwr.seeds import numpy_generator

DIRICHLET_TRIES = 100


class DonorsAndRecipients:
    """One task's draw: :attr:`test` and :attr:`dev` are the rows of whole groups, drawn by the partition's seed.

    Parameters
    ----------
    name, partition, corpus
        The task's name, the settings of kind ``donors_recipients``, and the data.
    clients, roles
        Names of the clients and what each is, in the order of the file.

    Raises
    ------
    PartitionError
        The data have no such columns or too few groups.
    """

    def __init__(
        self, name: str, partition: PartitionSettings, corpus: Corpus, clients: Sequence[str], roles: Sequence[Role]
    ) -> None:
        self.name, self.partition, self.clients = name, partition, tuple(clients)
        self.donors = [k for k, role in enumerate(roles) if role == "donor"]
        self.recipients = [k for k, role in enumerate(roles) if role == "recipient"]
        if corpus.labels is None:
            raise self._error("a donors_recipients partition needs labels, which retrieval has not")
        if corpus.part is not None:
            raise self._error(f"a donors_recipients partition would mix the published split of {corpus.name!r}; use another kind")
        self.labels = corpus.labels
        self.groups = column_values(corpus, partition.group or "", name)
        self.units = np.arange(len(self.labels))
        if partition.unit is not None:
            self.units = np.unique(column_values(corpus, partition.unit, name), return_inverse=True)[1]
        sizes = (partition.test_groups, partition.dev_groups, len(self.donors) * partition.donor_groups)
        names = np.unique(self.groups)
        if sum(sizes) >= len(names):
            raise self._error(
                f"column {partition.group!r} has {len(names)} groups; {sizes[0]} for TEST, {sizes[1]} for DEV and "
                f"{partition.donor_groups} for each of {len(self.donors)} donors leave none for the recipients; lower "
                "partition.test_groups, dev_groups or donor_groups"
            )
        order = self._generator("groups").permutation(names)
        test, dev, self._of_donors, of_recipients = np.split(order, np.cumsum(sizes))
        self.test, self.dev, self._pool = (self._rows_of(groups) for groups in (test, dev, of_recipients))

    def _generator(self, *purpose: str | int) -> np.random.Generator:
        return numpy_generator("partition", self.partition.seed, self.name, *purpose)

    def _error(self, message: str) -> PartitionError:
        return PartitionError(f"task {self.name!r}: {message}")

    def _rows_of(self, groups: Array) -> Array:
        return np.flatnonzero(np.isin(self.groups, groups))

    def train(self) -> tuple[list[Array], list[Array]]:
        """Return the training rows of each client, and the rows that each was dealt, before a recipient kept a part of them.

        The k-th donor holds all rows of the k-th ``donor_groups`` groups. The units of the recipients' groups are dealt class by
        class (a unit's class is its most frequent one) in proportions drawn from a Dirichlet distribution with ``alpha``, in
        whole numbers by the largest remainder; then a recipient keeps the share ``keep`` of its units, rounded, every class in
        its proportion.

        Raises
        ------
        PartitionError
            A client has fewer rows than ``minimum_size`` in every one of :data:`DIRICHLET_TRIES` draws.
        """
        kept = [self.test[:0]] * len(self.clients)
        for donor, groups in zip(self.donors, np.split(self._of_donors, len(self.donors)), strict=True):
            kept[donor] = self._rows_of(groups)
        dealt = list(kept)
        for attempt in range(DIRICHLET_TRIES):
            for recipient, (whole, part) in zip(self.recipients, self._to_recipients(attempt), strict=True):
                dealt[recipient], kept[recipient] = whole, part
            small = [
                (name, len(rows))
                for name, rows in zip(self.clients, kept, strict=True)
                if len(rows) < self.partition.minimum_size
            ]
            if not small:
                return kept, dealt
        found = ", ".join(f"{client} has {size}" for client, size in small)
        raise self._error(
            f"partition.minimum_size is {self.partition.minimum_size} training rows a client, but {found} (the last of "
            f"{DIRICHLET_TRIES} draws); lower minimum_size, raise alpha or keep, or have fewer clients or groups held out"
        )

    def _to_recipients(self, attempt: int) -> list[tuple[Array, Array]]:
        """Return the rows that each recipient was dealt, and those of them that it keeps."""
        generator = self._generator("dirichlet", attempt)
        units, of_row = np.unique(self.units[self._pool], return_inverse=True)
        labels = self.labels[self._pool]
        counts = np.zeros((len(units), int(labels.max()) + 1), dtype=np.int64)
        np.add.at(counts, (of_row, labels), 1)
        classes = counts.argmax(axis=1)
        dealt: list[list[Array]] = [[] for _ in self.recipients]
        for label in np.unique(classes):
            mine = generator.permutation(np.flatnonzero(classes == label))
            sizes = apportion(len(mine), generator.dirichlet(np.full(len(dealt), self.partition.alpha)))
            for part, piece in zip(dealt, np.split(mine, np.cumsum(sizes)[:-1]), strict=True):
                part.append(piece)
        found = []
        for pieces in dealt:
            whole = np.sort(np.concatenate(pieces))
            kept = stratified(whole, classes[whole], self._kept(len(whole)), generator)
            found.append((self._pool[np.isin(of_row, whole)], self._pool[np.isin(of_row, kept)]))
        return found

    def _kept(self, units: int) -> int:
        """Return how many of its units a recipient keeps: the share rounded, and one where there is any."""
        return max(min(units, 1), int(np.floor(self.partition.keep * units + 0.5)))

    def own(self, split: Literal["dev", "test"], dealt: list[Array]) -> list[Array]:
        """Deal DEV or TEST into disjoint parts.

        Each class is dealt in proportion to the training rows of that class that each client was dealt, donors and recipients
        alike; a recipient's are counted before it kept a part of them, so that few labels do not also mean few test rows. A class
        that nobody was dealt goes by the number of all training rows.

        Parameters
        ----------
        split
            Which of both.
        dealt
            The second of what :meth:`train` returned.
        """
        rows = self.test if split == "test" else self.dev
        total = np.array([len(part) for part in dealt], dtype=np.float64)
        weights = {
            int(label): np.array([np.sum(self.labels[part] == label) for part in dealt], dtype=np.float64)
            for label in np.unique(self.labels[rows])
        }
        return deal_in_proportion(rows, self.labels[rows], weights, total, self._generator(split, "own"))
