"""Broadcasts and updates as Flower records, and the one place where an answer's form is checked.

A broadcast is one ArrayRecord a source and one ConfigRecord. An answer is exactly one ArrayRecord, one ConfigRecord and one
MetricRecord, with the names, order and shapes of the broadcast's own blocks, as Flower's client-side mods expect.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Message, MetricRecord, RecordDict

from fedsocket_flwr.errors import ContractError
from fedsocket_flwr.exchange.contract import SERVER, Block, Blocks, Broadcast, Membership, Refusal, Update

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
EXAMPLES = "num-examples"
CLASS_COUNTS = "class-counts"
COUNTS = "counts/"
"""Prefix of further lists of counts among the metrics."""
COUNT_BYTES = 8
OWN_SETTINGS = ("run", "round", "phase", "base-version", "settings")
FRAME_BYTES = 2**20
"""What an answer may weigh beyond its blocks: metrics, counts, and the headers of arrays."""


def serialise(blocks: Blocks) -> dict[str, FlowerArray]:
    """Return every block as Flower's array; one serialisation serves all messages that carry it."""
    return {name: FlowerArray(np.asarray(array, order="C")) for name, array in blocks.items()}


def array_record(arrays: Mapping[str, FlowerArray]) -> ArrayRecord:
    """Return a record over already serialised arrays, without copying their bytes."""
    return ArrayRecord(dict(arrays), keep_input=False)


def read_array_record(record: ArrayRecord) -> dict[str, Any]:
    """Return the arrays of a record by name, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def write_broadcast(
    broadcast: Broadcast,
    serialised: Mapping[str, Mapping[str, FlowerArray]],
    more: Mapping[str, ConfigRecordValues] | None = None,
) -> RecordDict:
    """Return a broadcast as records.

    Parameters
    ----------
    broadcast
        What is said beside the blocks.
    serialised
        The blocks of every source, as :func:`serialise` made them.
    more
        Further settings of the round, which Flower's client-side mods read (a clipping norm).

    Raises
    ------
    ContractError
        One of ``more`` has the name of a setting of the broadcast itself.
    """
    taken = sorted(set(more or {}) & set(OWN_SETTINGS))
    if taken:
        raise ContractError(f"the round's configuration may not set {', '.join(taken)}, which every broadcast says itself")
    content = RecordDict(
        {
            CONFIG: ConfigRecord(
                {
                    "run": broadcast.run,
                    "round": broadcast.round,
                    "phase": broadcast.phase,
                    "base-version": broadcast.base_version,
                    "settings": json.dumps(dict(broadcast.settings), ensure_ascii=False),
                    **(more or {}),
                }
            )
        }
    )
    for source, blocks in serialised.items():
        content[ARRAYS if source == SERVER else f"{ARRAYS}/{source}"] = array_record(blocks)
    return content


def read_broadcast(message: Message) -> Broadcast:
    """Read what :func:`write_broadcast` wrote.

    Raises
    ------
    ContractError
        The message is no broadcast.
    """
    try:
        config = message.content.config_records[CONFIG]
        sources = {
            SERVER if name == ARRAYS else name.removeprefix(f"{ARRAYS}/"): read_array_record(record)
            for name, record in message.content.array_records.items()
        }
        return Broadcast(
            run=str(config["run"]),
            round=int(config["round"]),  # type: ignore[arg-type]
            phase=str(config["phase"]),
            base_version=int(config["base-version"]),  # type: ignore[arg-type]
            sources=sources,
            settings=json.loads(str(config["settings"])),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ContractError(f"the message of type {message.metadata.message_type!r} is no broadcast: {error!r}") from error


def write_update(update: Update, failure: str = "") -> RecordDict:
    """Return an update as records. ``failure`` says why the client's own work must not count."""
    counts = {f"{COUNTS}{name}": list(values) for name, values in update.counts.items()}
    metrics: dict[str, Any] = {EXAMPLES: update.examples, CLASS_COUNTS: list(update.class_counts), **update.metrics, **counts}
    return RecordDict(
        {
            ARRAYS: array_record(serialise(update.blocks)),
            CONFIG: ConfigRecord({"client": update.client, "round": update.round, "version": update.version, "failure": failure}),
            METRICS: MetricRecord(metrics),
        }
    )


def read_update(
    message: Message,
    membership: Membership,
    round_: int,
    expected: Sequence[Block],
    writable: frozenset[str],
    largest_bytes: int | None = None,
) -> Update | Refusal:
    """Check the form of an answer and return it, or the reason why it does not count.

    Parameters
    ----------
    message
        The reply; an error reply is a refusal.
    membership, round_
        The client that was asked, and the round it was asked for.
    expected
        The blocks whose names, order, shapes and types the answer must have.
    writable
        Names of those that count; only they are decoded.
    largest_bytes
        What the answer may weigh; None: its blocks and one MiB, or anything where a block may have any length.
    """
    client = membership.client
    if message.has_error():
        return Refusal(client, f"no answer: {message.error.reason} (code {message.error.code})")
    try:
        limit = _largest(expected) if largest_bytes is None else largest_bytes
        found = content_bytes(message.content)
        if limit is not None and found > limit:
            return Refusal(client, f"an answer of {found} bytes, expected at most {limit}")
        update, failure = _decode(message, [block.name for block in expected], writable)
        reason = failure or _first_fault(update, membership, round_, {block.name: block for block in expected})
    except ContractError as error:
        return Refusal(client, f"malformed answer: {error}")
    except Exception as error:
        # An answer is somebody else's bytes: whatever reading them raises refuses this answer and does not end the run.
        return Refusal(client, f"malformed answer: {error!r}")
    return Refusal(client, reason) if reason else update


def _decode(message: Message, names: list[str], writable: frozenset[str]) -> tuple[Update, str]:
    content = message.content
    for kind, records in (
        ("array", content.array_records),
        ("config", content.config_records),
        ("metric", content.metric_records),
    ):
        if len(records) != 1:
            raise ContractError(f"expected exactly one {kind} record, found {len(records)}")
    (arrays,) = content.array_records.values()
    (config,) = content.config_records.values()
    (metrics,) = content.metric_records.values()
    if list(arrays) != names:
        missing, unknown = sorted(set(names) - set(arrays)), sorted(set(arrays) - set(names))
        raise ContractError(f"blocks differ from those sent: missing {missing[:3]}, unknown {unknown[:3]}")
    numbers = dict(metrics)
    examples, counts = numbers.pop(EXAMPLES), numbers.pop(CLASS_COUNTS)
    update = Update(
        client=str(config["client"]),
        round=_whole(config["round"]),
        version=_whole(config["version"]),
        blocks={name: arrays[name].numpy() for name in names if name in writable},
        examples=_whole(examples),
        class_counts=tuple(_whole(count) for count in counts),  # type: ignore[union-attr]
        metrics={name: float(value) for name, value in numbers.items() if isinstance(value, int | float)},
        counts={
            name.removeprefix(COUNTS): tuple(_whole(count) for count in values)
            for name, values in numbers.items()
            if isinstance(values, list)
        },
    )
    return update, str(config["failure"])


def _whole(count: object) -> int:
    if not isinstance(count, int):
        raise ContractError(f"expected a whole number, found {count!r}")
    return count


def _first_fault(update: Update, membership: Membership, round_: int, blocks: Mapping[str, Block]) -> str | None:
    if update.client != membership.client:
        return f"answered as client {update.client!r}"
    if update.round != round_:
        return f"answered for round {update.round}, expected {round_}"
    if not 0 <= update.version <= round_:
        return f"answered with version {update.version} of its state, expected at most {round_}"
    if update.examples < 0 or any(count < 0 for count in update.class_counts):
        return f"negative counts: {update.examples} examples, {update.class_counts}"
    if update.examples > membership.examples:
        return f"absurd counts: {update.examples} examples, but {membership.examples} were declared at registration"
    for name, counts in update.counts.items():
        if any(count < 0 for count in counts):
            return f"negative counts in {name!r}"
    if len(update.class_counts) != len(membership.class_counts):
        return f"{len(update.class_counts)} class counts, expected {len(membership.class_counts)}"
    for number, (found, declared) in enumerate(zip(update.class_counts, membership.class_counts, strict=True)):
        if found > declared:
            return f"absurd counts: {found} examples of class {number}, but {declared} were declared at registration"
    for name, array in update.blocks.items():
        mismatch = blocks[name].mismatch(array)
        if mismatch:
            return mismatch
        if blocks[name].owner.kind == "class_rows" and len(array) != len(update.class_counts):
            return f"block {name!r} has {len(array)} class rows, but {len(update.class_counts)} class counts came with it"
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            return f"block {name!r} has non-finite values"
    for name, value in update.metrics.items():
        if not np.isfinite(value):
            return f"metric {name!r} is {value}"
    return None


def _largest(blocks: Sequence[Block]) -> int | None:
    return None if any(-1 in block.shape for block in blocks) else bytes_down(blocks) + FRAME_BYTES


def content_bytes(content: RecordDict) -> int:
    """Return about what the records weigh: bytes of arrays, eight a number, and the letters of names and texts."""
    arrays = sum(len(name) + len(array.data) for record in content.array_records.values() for name, array in record.items())
    numbers = sum(len(name) + _weight(value) for record in content.metric_records.values() for name, value in record.items())
    texts = sum(len(name) + _weight(value) for record in content.config_records.values() for name, value in record.items())
    return arrays + numbers + texts


def _weight(value: object) -> int:
    if isinstance(value, list):
        return sum(_weight(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else COUNT_BYTES


def bytes_down(blocks: Iterable[Block]) -> int:
    """Return the bytes of the arrays in one broadcast."""
    return sum(block.nbytes for block in blocks)


def bytes_up(blocks: Iterable[Block], membership: Membership) -> int:
    """Return the bytes of the arrays in one answer, plus eight for each count that goes with them."""
    return sum(block.nbytes for block in blocks) + COUNT_BYTES * (1 + len(membership.class_counts))
