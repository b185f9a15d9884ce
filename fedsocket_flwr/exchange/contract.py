"""What a method exchanges, said once for both sides: blocks, who owns them, who may read and write them.

Nothing here knows a method by name. A method is a :class:`Contract`; a participant is a :class:`Membership`; from the two follows
what is sent to the participant and which part of its answer counts.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsocket_flwr.errors import ContractError

Array = NDArray[Any]
Blocks = Mapping[str, Array]

OwnerKind = Literal["task", "class_rows", "modality", "modality_set", "participant", "everyone"]
Access = Literal["exchanged", "read", "written"]
OWNER_KINDS = ("task", "class_rows", "modality", "modality_set", "participant", "everyone")
ACCESSES = ("exchanged", "read", "written")
SERVER = "server"
LARGEST_COUNT = 2**40
"""No participant holds more examples than that; one that says so weighs a mean with a number that it made up."""


class Shaped(Protocol):
    """What :meth:`Contract.of` looks at: an array of numpy's or one of Flower's."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    def dtype(self) -> Any:
        """Type of the elements, or its name."""


@dataclass(frozen=True, order=True)
class Owner:
    """Who may update a block.

    ``task``: clients of the task ``key``. ``class_rows``: the same clients, row by row: row c belongs to those that hold class c.
    ``modality``: clients that observe ``key``. ``modality_set``: clients whose modalities are exactly ``key`` (joined by ``+``).
    ``participant``: every participant has a block of its own. ``everyone``: all.
    """

    kind: OwnerKind
    key: str = ""

    def __post_init__(self) -> None:
        if self.kind not in OWNER_KINDS:
            raise ContractError(f"unknown kind of owner {self.kind!r}; expected one of {', '.join(OWNER_KINDS)}")
        if (self.kind in ("participant", "everyone")) != (self.key == ""):
            raise ContractError(f"an owner of kind {self.kind!r} {'takes no' if self.key else 'needs a'} key, found {self.key!r}")
        if self.kind == "modality_set" and self.key != "+".join(sorted(set(self.key.split("+")))):
            raise ContractError(f"a set of modalities is written in sorted order without repeats, found {self.key!r}")


@dataclass(frozen=True)
class Membership:
    """What a participant declares when it registers: its task, what it observes, and how many training examples it holds.

    ``class_counts`` has one number a class for classification and is empty otherwise.
    """

    client: str
    task: str
    modalities: tuple[str, ...]
    examples: int
    class_counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.examples < 0 or any(count < 0 for count in self.class_counts):
            raise ContractError(f"client {self.client!r} declares negative counts: {self.examples}, {self.class_counts}")
        if max(self.examples, *self.class_counts, 0) > LARGEST_COUNT:
            raise ContractError(f"client {self.client!r} declares absurd counts: {self.examples}, {self.class_counts}")
        if len(set(self.modalities)) != len(self.modalities):
            raise ContractError(f"client {self.client!r} declares a modality twice: {self.modalities}")

    def may_update(self, owner: Owner) -> bool:
        """Say whether this participant belongs to the owner."""
        match owner.kind:
            case "task" | "class_rows":
                return owner.key == self.task
            case "modality":
                return owner.key in self.modalities
            case "modality_set":
                return owner.key == "+".join(sorted(self.modalities))
            case _:
                return True

    def to_json(self) -> str:
        """Return the membership as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Membership":
        """Read what :meth:`to_json` wrote; anything else raises :class:`ContractError`."""
        try:
            found = json.loads(text)
            return cls(
                client=_text(found["client"]),
                task=_text(found["task"]),
                modalities=tuple(_text(modality) for modality in _list(found["modalities"])),
                examples=_whole(found["examples"]),
                class_counts=tuple(_whole(count) for count in _list(found["class_counts"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(f"not a membership: {text[:200]!r} ({error})") from error


@dataclass(frozen=True)
class Block:
    """One named array of the exchange.

    ``modalities`` lists what a participant must observe to execute the block, beyond what ownership says, and ``tasks``, unless
    it is empty, the tasks whose participants execute it: a task that keeps a copy of its own does not. ``access`` tells the
    direction: ``exchanged`` is read and written, ``read`` only comes down, ``written`` only goes up. A dimension of -1 may have
    any length.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    owner: Owner
    modalities: tuple[str, ...] = ()
    access: Access = "exchanged"
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.access not in ACCESSES:
            raise ContractError(f"block {self.name!r}: unknown access {self.access!r}; expected one of {', '.join(ACCESSES)}")
        try:
            np.dtype(self.dtype)
        except TypeError as error:
            raise ContractError(f"block {self.name!r}: unknown type of array {self.dtype!r}") from error
        if any(length < -1 for length in self.shape):
            raise ContractError(f"block {self.name!r}: a length is at least 0, or -1 for any, found {self.shape}")
        if self.owner.kind == "class_rows" and not self.shape:
            raise ContractError(f"block {self.name!r} is owned by class rows and must have a first axis of classes")

    @property
    def size(self) -> int:
        """Number of elements; :class:`ContractError` where a dimension may have any length."""
        if -1 in self.shape:
            raise ContractError(f"block {self.name!r} of shape {self.shape} has no fixed size")
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself."""
        return self.size * np.dtype(self.dtype).itemsize

    def executable_by(self, membership: Membership) -> bool:
        """Say whether a participant can execute the block: it belongs to the owner, observes the modalities, has such a task."""
        held, tasks = set(membership.modalities), self.tasks or (membership.task,)
        return membership.may_update(self.owner) and held.issuperset(self.modalities) and membership.task in tasks

    def mismatch(self, array: Array) -> str | None:
        """Say how an array differs from the block in shape or type, or return None."""
        fits = len(array.shape) == len(self.shape) and all(
            want in (-1, got) for want, got in zip(self.shape, array.shape, strict=True)
        )
        if not fits:
            return f"block {self.name!r} has shape {tuple(array.shape)}, expected {self.shape}"
        if array.dtype != np.dtype(self.dtype):
            return f"block {self.name!r} has type {array.dtype}, expected {self.dtype}"
        return None


@dataclass(frozen=True)
class Contract:
    """All blocks of a method, in a fixed order."""

    blocks: tuple[Block, ...]
    _by_name: dict[str, Block] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {block.name: block for block in self.blocks}
        if len(by_name) != len(self.blocks):
            names = [block.name for block in self.blocks]
            raise ContractError(f"blocks declared twice: {sorted({n for n in names if names.count(n) > 1})}")
        object.__setattr__(self, "_by_name", by_name)

    @classmethod
    def of(cls, arrays: Mapping[str, Shaped], owner_of: Callable[[str], Owner]) -> "Contract":
        """Return a contract in which every named array is a block, exchanged with all clients of the owner of its name.

        ``arrays`` is a dictionary of numpy arrays, or Flower's ``ArrayRecord``, as it is made of a PyTorch ``state_dict``.
        """
        return cls(
            tuple(Block(name, tuple(array.shape), np.dtype(array.dtype).name, owner_of(name)) for name, array in arrays.items())
        )

    def __getitem__(self, name: str) -> Block:
        """Return the block of that name."""
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        """Say whether a block of that name exists."""
        return name in self._by_name

    def executable(self, membership: Membership) -> tuple[Block, ...]:
        """Return the blocks that this participant can execute (see :class:`Block`)."""
        return tuple(block for block in self.blocks if block.executable_by(membership))

    def readable(self, membership: Membership) -> tuple[Block, ...]:
        """Return the blocks that are sent to this participant."""
        return tuple(b for b in self.executable(membership) if b.access != "written")

    def writable(self, membership: Membership) -> tuple[Block, ...]:
        """Return the blocks that this participant may update."""
        return tuple(b for b in self.executable(membership) if b.access != "read")

    def to_json(self) -> str:
        """Return the contract as JSON."""
        return json.dumps([asdict(block) for block in self.blocks], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Contract":
        """Read what :meth:`to_json` wrote; anything else raises :class:`ContractError`."""
        try:
            return cls(
                tuple(
                    Block(
                        name=_text(b["name"]),
                        shape=tuple(_whole(length) for length in _list(b["shape"])),
                        dtype=_text(b["dtype"]),
                        owner=Owner(b["owner"]["kind"], _text(b["owner"]["key"])),
                        modalities=tuple(_text(modality) for modality in _list(b["modalities"])),
                        access=b["access"],
                        tasks=tuple(_text(task) for task in _list(b["tasks"])),
                    )
                    for b in _list(json.loads(text))
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ContractError(f"not a contract: {text[:200]!r} ({error})") from error


@dataclass(frozen=True)
class Broadcast:
    """What a participant receives: blocks from one or several sources, and where it stands.

    ``round`` is the round to be trained; the blocks are those of ``round - 1``. ``base_version`` is the version of the
    participant's own state that the sender last saw (0: none). ``sources`` maps a source (the server, or peers) to its blocks.
    """

    run: str
    round: int
    phase: str
    base_version: int
    sources: Mapping[str, Blocks]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def blocks(self) -> Blocks:
        """Blocks of the server, for methods that have no other source."""
        return self.sources.get(SERVER, {})


@dataclass(frozen=True)
class Update:
    """What a participant answers.

    ``version`` is the version of its own state that this answer belongs to. ``metrics`` are single numbers, ``counts`` named
    lists of whole numbers (a confusion matrix, row by row).
    """

    client: str
    round: int
    version: int
    blocks: Blocks
    examples: int
    class_counts: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Why an answer does not count; named in the log and in the history."""

    client: str
    reason: str


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {value!r}")
    return value
