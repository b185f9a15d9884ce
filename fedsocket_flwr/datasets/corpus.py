"""The shapes in which data moves through the project: a whole data set, one split of it, one client's three splits.

Legend: ``N`` rows, ``P`` image-caption pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.datasets.pictures import Pictures, UnitPictures

Array = NDArray[Any]
Raw = Array | Pictures | Sequence[str]
Inputs = Array | UnitPictures


@dataclass(frozen=True)
class Corpus:
    """A data set as read: raw rows of every modality, and what they mean.

    Attributes
    ----------
    name, kind
        The data set's name; ``classification`` or ``retrieval``.
    raw
        Modality -> rows. Images are ``uint8`` of shape (N, height, width[, 3]), or files that are decoded when asked for (see
        :mod:`~fedsocket_flwr.datasets.pictures`); texts are a sequence of ``str``; vectors and tokens are ``float32`` of shape
        (N, D) or (N, tokens, D). In classification the rows of all modalities are aligned.
    labels
        Classification: ``int64`` class of each row, 0 to C - 1. Retrieval: None.
    classes
        Names of the classes, in the order of the labels; empty for retrieval.
    pairs
        Retrieval: ``int64`` of shape (P, 2): row of the image, row of a caption that belongs to it. Classification: None.
    columns
        Further per-row facts by which a natural partition can divide (the font, the speaker); for retrieval, a fact per pair.
    part
        Optional per-row (per-pair) name of the published split: ``train``, ``dev`` or ``test``.
    item
        Retrieval: ``int64`` of length P, the thing that a pair shows (a glyph's name whatever the font). TRAIN, DEV and TEST are
        divided by item, so that no item is in two of them.
    """

    name: str
    kind: Literal["classification", "retrieval"]
    raw: Mapping[str, Raw]
    labels: Array | None = None
    classes: tuple[str, ...] = ()
    pairs: Array | None = None
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    part: Sequence[str] | None = None
    item: Array | None = None


@dataclass(frozen=True)
class Split:
    """One split of one client.

    Attributes
    ----------
    inputs
        Modality that the client holds -> what private models take: images ``float32`` (N, 1 or 3, height, width) in [0, 1],
        decoded at indexing where the corpus has files; texts ``int64`` token ids (N, length), 0 is padding; vectors as they are.
        With ``private_inputs: features`` the interface features.
    features
        Modality that the client holds and Q reads -> what Q takes: ``float32`` interface features (N, D) or (N, tokens, D).
    labels
        Classification: ``int64`` (N,). Retrieval: None.
    pairs
        Retrieval: ``int64`` (P, 2), rows of ``inputs["image"]`` and of ``inputs["text"]``. Classification: None.
    groups
        ``int64`` group of each row (pair), where ``partition.group`` names a column: its value's place among all sorted values of
        the data set. Else None.
    """

    inputs: Mapping[str, Inputs]
    features: Mapping[str, Array]
    labels: Array | None = None
    pairs: Array | None = None
    groups: Array | None = None

    @property
    def examples(self) -> int:
        """Number of training examples: rows, or pairs."""
        known = self.labels if self.labels is not None else self.pairs
        return 0 if known is None else len(known)


@dataclass(frozen=True)
class ClientData:
    """A client's data, ready for training and measuring; ``modalities`` are its own, ``classes`` is empty for retrieval."""

    client: str
    task: str
    kind: Literal["classification", "retrieval"]
    modalities: tuple[str, ...]
    classes: tuple[str, ...]
    train: Split
    dev: Split
    test: Split

    def class_counts(self) -> tuple[int, ...]:
        """Return the training histogram over the classes (empty for retrieval)."""
        if self.train.labels is None:
            return ()
        return tuple(int(n) for n in np.bincount(self.train.labels, minlength=len(self.classes)))
