"""The form of a run folder's files, as far as a report relies on it. Other keys may stand beside these."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsocket_flwr.errors import RunError

Metrics = dict[str, float | None]
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Client(_Part):
    name: str
    model: str = ""
    modalities: list[str] | None = None


class _Task(_Part):
    modalities: list[str] = []
    shared: list[str] | None = None
    clients: list[_Client]


class _Run(_Part):
    rounds: Annotated[int, Field(ge=1)]


class ConfigForm(_Part):
    """``config.yaml``."""

    run: _Run
    tasks: dict[str, _Task]


class _Dev(_Part):
    round: Count
    clients: dict[str, Metrics] = {}
    tasks: dict[str, dict[str, Metrics | int]] = {}


class RowForm(_Part):
    """One line of ``history.jsonl``."""

    phase: Literal["train", "close"]
    round: Count
    seconds: float = 0.0
    asked: list[str] = []
    answered: list[str] = []
    refused: dict[str, str] = {}
    missing: list[str] = []
    absent: list[str] = []
    clipped: dict[str, float] = {}
    bytes: dict[str, Count] = {}
    clients: dict[str, Metrics] = {}
    strategy: Metrics = {}
    dev: _Dev | None = None


class _Tested(_Part):
    task: str
    best: dict[str, Metrics] = {}
    last: dict[str, Metrics] = {}
    choices: dict[str, float | int | str | None] = {}
    confusion: dict[str, list[Count]] = {}


class TestForm(_Part):
    """``test.json``."""

    clients: dict[str, _Tested]


class _Split(_Part):
    train: list[int] = []
    dev: list[int] = []
    test: list[int] = []
    class_counts: dict[str, list[Count]] = {}


class _TaskSplits(_Part):
    classes: list[str | int | float | bool] = []
    clients: dict[str, _Split] = {}


class SplitsForm(_Part):
    """``splits.json``."""

    tasks: dict[str, _TaskSplits] = {}


class AnyForm(_Part):
    """A file with named entries, whatever they are."""


def check_form(form: type[BaseModel], found: Any, where: str | Path) -> None:
    """Raise :class:`RunError` that names the file, the place in it and the cause, unless ``found`` has the form."""
    try:
        form.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        value = repr(first["input"])
        shown = value if len(value) <= 80 else value[:80] + "…"
        raise RunError(f"{where}: {place + ': ' if place else ''}{first['msg']}, found {shown}") from None
