"""What did not go as planned in a run: who was away, did not answer, or sent what was refused or shortened, in which rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsocket_flwr.metric_names import ROLLED_BACK


def incidents(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return one ``{client, what, rounds}`` for everything that went wrong, sorted by client.

    Parameters
    ----------
    rows
        The lines of a history. The same thing in several rounds is one entry, whose rounds read as in ``3-5, 9``; the closing
        phase counts as ``closing``.
    """
    found: dict[tuple[str, str], list[int | str]] = {}
    for row in rows:
        when = row["round"] if row["phase"] == "train" else "closing"
        for client, what in _of_row(row):
            found.setdefault((client, what), []).append(when)
    return [{"client": client, "what": what, "rounds": spans(when)} for (client, what), when in sorted(found.items())]


def _of_row(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((client, "was not there") for client in row.get("absent") or ())
    yield from ((client, "did not answer in time") for client in row.get("missing") or ())
    yield from ((client, f"was refused: {reason}") for client, reason in (row.get("refused") or {}).items())
    yield from ((client, "sent an update that was shortened to the norm bound") for client in row.get("clipped") or {})
    for client, numbers in (row.get("clients") or {}).items():
        version = numbers.get(ROLLED_BACK)
        if version is not None:
            yield client, f"found its newest private model damaged and went on from version {int(version)}"


def spans(moments: Sequence[int | str]) -> str:
    """Return numbers in ascending order as ``1-3, 7``; what is no number stays as it is."""
    parts: list[list[int | str]] = []
    for moment in moments:
        last = parts[-1][-1] if parts else None
        if isinstance(moment, int) and isinstance(last, int) and moment == last + 1:
            parts[-1].append(moment)
        else:
            parts.append([moment])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
