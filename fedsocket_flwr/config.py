"""The configuration of a run: typed, frozen, and refused with the path of what is wrong.

The sections mirror what a run is made of: who takes part and on which data (``tasks``), the fixed features that Q reads
(``interfaces``), Q itself (``predictor``), what travels (``exchange``), how clients learn (``training``), how the server merges
(``merging``), who is asked each round (``participation``), how it is measured (``evaluation``), on what it runs (``resources``).
Reading and writing the file, with YAML's own traps, is the work of :mod:`fedsocket_flwr.configuration_file`.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.field_types import (
    Fraction,
    FreeMapping,
    Name,
    Names,
    NonNegative,
    Positive,
    Seed,
    Settings,
    sequence_as_tuple,
)
from fedsocket_flwr.learning_settings import TrainingSettings
from fedsocket_flwr.protocol_settings import EvaluationSettings, ExchangeSettings, MergingSettings, ParticipationSettings

Role = Literal["donor", "recipient"]


class RunSettings(Settings):
    """What the run is called, which method it runs, from which seed and for how long."""

    name: Name = "run"
    method: str = "fedsocket"
    seed: Seed = 101
    rounds: Annotated[int, Field(ge=1)] = 8


class InterfaceSettings(Settings):
    """One fixed map h_m from a raw modality to Q's input; ``options`` belong to the kind (see ``datasets/interfaces.py``).

    ``storage`` is how features lie on disk: half precision takes half the space; Q reads float32 from either.
    """

    kind: str
    width: Annotated[int, Field(ge=1)] = 256
    norm: Positive | None = 16.0
    storage: Literal["float32", "float16"] = "float32"
    seed: Seed = 7
    options: FreeMapping = {}


class PartitionSettings(Settings):
    """How a task's rows are dealt to its clients; its seed is apart from the run's, so a sweep over seeds keeps the split.

    ``group`` names the column of what must not be torn between two folds (a person, a dialogue, a video). ``donors_recipients``
    divides by it: whole groups are TEST (``test_groups``), DEV (``dev_groups``) and each donor's (``donor_groups``); of the other
    groups the recipients are dealt units of the column ``unit`` (none: single rows), of which they keep the share ``keep``.
    With ``own`` nothing is dealt: every client reads TRAIN, DEV and TEST of its own.
    """

    kind: Literal["dirichlet", "iid", "natural", "all", "donors_recipients", "own"] = "iid"
    seed: Seed = 7
    alpha: Positive = 0.5
    column: str | None = None
    group: str | None = None
    unit: str | None = None
    test_groups: Annotated[int, Field(ge=0)] = 0
    dev_groups: Annotated[int, Field(ge=0)] = 0
    donor_groups: Annotated[int, Field(ge=0)] = 0
    keep: Fraction = 1.0
    train: Annotated[int, Field(ge=1)] | None = None
    dev: Annotated[int, Field(ge=0)] | None = None
    test: Annotated[int, Field(ge=0)] | None = None
    minimum_size: Annotated[int, Field(ge=0)] = 2
    manifest: str | None = None

    @model_validator(mode="after")
    def _natural_needs_a_column(self) -> Self:
        if self.kind == "natural" and self.column is None:
            raise ValueError("a natural partition needs `column`, the data set's column that names the owner of a row")
        return self

    @model_validator(mode="after")
    def _own_data_are_not_dealt(self) -> Self:
        dealing = ("seed", "alpha", "column", "train", "dev", "test", "manifest")
        given = [name for name in dealing if getattr(self, name) != type(self).model_fields[name].default]
        if self.kind == "own" and given:
            raise ValueError(f"{', '.join(given)} say how rows are dealt, which those of kind own are not")
        return self

    @model_validator(mode="after")
    def _whole_groups_go_with_their_kind(self) -> Self:
        if self.kind == "donors_recipients":
            if self.group is None or not self.donor_groups:
                raise ValueError("a donors_recipients partition needs `group`, a column, and `donor_groups` of at least 1")
            sizes = [name for name in ("train", "dev", "test") if getattr(self, name) is not None]
            if sizes:
                raise ValueError(
                    f"a donors_recipients partition counts groups: use test_groups and dev_groups instead of {', '.join(sizes)}"
                )
            return self
        own = {"unit": None, "test_groups": 0, "dev_groups": 0, "donor_groups": 0, "keep": 1.0}
        given = [name for name, default in own.items() if getattr(self, name) != default]
        if given:
            raise ValueError(f"{', '.join(given)} belong to kind donors_recipients, found kind {self.kind}")
        return self


class ClientSettings(Settings):
    """One participant: its name, its private model and, for a natural partition, the value of the column that is its own.

    ``modalities`` are those that it holds; none given: all of its task's.
    """

    name: Name
    model: str
    arguments: FreeMapping = {}
    natural_id: str | None = None
    modalities: Annotated[Names, Field(min_length=1)] | None = None


class TaskSettings(Settings):
    """A task: data, modalities, split and clients.

    ``shared`` are the modalities that Q reads, and every client holds them; none given: Q reads of each client what it holds.
    Private models read the data themselves (``private_inputs: raw``) or interface features of their modalities (``features``).
    ``classes`` names the classes, in the order of the labels, where clients have data of their own (``partition.kind: own``).
    """

    dataset: str
    kind: Literal["classification", "retrieval"]
    modalities: Annotated[Names, Field(min_length=1)]
    shared: Annotated[Names, Field(min_length=1)] | None = None
    private_inputs: Literal["raw", "features"] = "raw"
    path: str | None = None
    options: FreeMapping = {}
    classes: Annotated[Names, Field(min_length=2)] | None = None
    text_buckets: Annotated[int, Field(ge=16)] = 8192
    text_length: Annotated[int, Field(ge=1)] = 64
    partition: PartitionSettings = PartitionSettings()
    clients: Annotated[tuple[ClientSettings, ...], BeforeValidator(sequence_as_tuple), Field(min_length=1)]

    @model_validator(mode="after")
    def _retrieval_matches_two_modalities(self) -> Self:
        if self.kind == "retrieval" and set(self.modalities) != {"image", "text"}:
            raise ValueError(f"a retrieval task has the modalities image and text, found {list(self.modalities)}")
        if self.kind == "retrieval" and {len(self.q_modalities), *(len(self.held_by(c)) for c in self.clients)} != {2}:
            raise ValueError("in a retrieval task Q and every client have both image and text")
        return self

    @model_validator(mode="after")
    def _own_data_need_the_names_of_classes(self) -> Self:
        needed = self.has_own_data and self.kind == "classification"
        if needed and self.classes is None:
            raise ValueError("partition.kind own needs `classes`, the names of all classes in one order for all clients")
        if not needed and self.classes is not None:
            raise ValueError("`classes` belong to classification with partition.kind own; other data name their own classes")
        if len(set(self.classes or ())) != len(self.classes or ()):
            raise ValueError(f"`classes` must differ, found {list(self.classes or ())}")
        return self

    @model_validator(mode="after")
    def _modalities_are_the_task_s(self) -> Self:
        _require_part_of("shared", self.shared or self.modalities, self.modalities)
        for client in self.clients:
            _require_part_of(f"client {client.name!r}: modalities", client.modalities or self.modalities, self.modalities)
            lacking = [modality for modality in self.shared or () if modality not in self.held_by(client)]
            if lacking:
                raise ValueError(f"client {client.name!r} lacks {', '.join(lacking)}, which `shared` says that all clients hold")
        return self

    @model_validator(mode="after")
    def _donors_and_recipients_are_there(self) -> Self:
        roles = {self.role_of(client) for client in self.clients}
        if self.partition.kind == "donors_recipients" and len(roles) == 1:
            raise ValueError(
                f"a donors_recipients partition needs donors and recipients, found only {roles.pop()}s: set `shared` to what all "
                "clients hold, and `modalities` of the recipients to the same"
            )
        return self

    @property
    def has_own_data(self) -> bool:
        """Whether every client has data of its own, which only its node reads."""
        return self.partition.kind == "own"

    @property
    def q_modalities(self) -> tuple[str, ...]:
        """The modalities that Q reads, in the task's order."""
        return self.modalities if self.shared is None else tuple(m for m in self.modalities if m in self.shared)

    @property
    def interface_modalities(self) -> tuple[str, ...]:
        """The modalities whose interface features Q or a private model reads, in the task's order."""
        return self.modalities if self.private_inputs == "features" else self.q_modalities

    def held_by(self, client: ClientSettings) -> tuple[str, ...]:
        """Return the modalities of one of the task's clients, in the task's order."""
        return self.modalities if client.modalities is None else tuple(m for m in self.modalities if m in client.modalities)

    def role_of(self, client: ClientSettings) -> Role:
        """Return ``donor`` for a client that holds a modality beyond those that Q reads, else ``recipient``."""
        return "donor" if set(self.held_by(client)) - set(self.q_modalities) else "recipient"


def _require_part_of(what: str, names: tuple[str, ...], whole: tuple[str, ...]) -> None:
    """Refuse names that are not the task's modalities, or stand twice."""
    unknown = [name for name in names if name not in whole]
    if unknown or len(set(names)) != len(names):
        raise ValueError(f"{what} must be different ones of the task's modalities {list(whole)}, found {list(names)}")


class PredictorSettings(Settings):
    """The shared predictor Q (FedSocket v1, Eq. 9-10)."""

    width: Annotated[int, Field(ge=1)] = 256
    residual_rank: Annotated[int, Field(ge=1)] = 48
    gate: Literal["learned", "fixed"] = "learned"


class ResourceSettings(Settings):
    """What a client gets. ``threads`` is part of the bits: a sum over several threads rounds differently."""

    workers: Annotated[int, Field(ge=1)] | None = None
    cpus: Annotated[int, Field(ge=1)] = 1
    gpus: NonNegative = 0.0
    threads: Annotated[int, Field(ge=1)] = 1


class Configuration(Settings):
    """A whole run. Equal configurations give equal bits."""

    run: RunSettings = RunSettings()
    interfaces: dict[str, InterfaceSettings]
    tasks: Annotated[dict[Name, TaskSettings], Field(min_length=1)]
    predictor: PredictorSettings = PredictorSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    training: TrainingSettings
    merging: MergingSettings = MergingSettings()
    participation: ParticipationSettings = ParticipationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    resources: ResourceSettings = ResourceSettings()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        names = [client.name for _, client in self.clients()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"client names must differ over all tasks, found twice: {', '.join(twice)}")
        for name, task in self.tasks.items():
            for modality in task.interface_modalities:
                if modality not in self.interfaces:
                    raise ValueError(f"tasks.{name} reads the modality {modality!r}, but interfaces.{modality} is not there")
            for key in dict.fromkeys(modality_key(task.held_by(client)) for client in task.clients):
                if key not in self.training.private:
                    raise ValueError(f"tasks.{name} needs training.private.{key}, found only {sorted(self.training.private)}")
            if task.has_own_data and self.evaluation.test == "shared":
                raise ValueError(f"tasks.{name}: partition.kind own gives every client its own TEST; set evaluation.test: own")
        if (self.participation.minimum_clients or 0) > len(names):
            raise ValueError(
                f"participation.minimum_clients: {self.participation.minimum_clients}, but there are {len(names)} clients"
            )
        isolated = () if self.exchange.isolated == "all" else self.exchange.isolated
        for section, tasks in (("exchange.isolated", isolated), ("participation.tasks", self.participation.tasks)):
            unknown = sorted(set(tasks) - set(self.tasks))
            if unknown:
                raise ValueError(f"{section} names no task: {', '.join(unknown)} (tasks: {', '.join(self.tasks)})")
        return self

    def clients(self) -> Iterator[tuple[str, ClientSettings]]:
        """Yield ``(task name, client settings)`` in the order of the file."""
        for name, task in self.tasks.items():
            for client in task.clients:
                yield name, client

    def client(self, name: str) -> tuple[str, ClientSettings]:
        """Return the task name and settings of one client, or raise :class:`ConfigurationError`."""
        for task, client in self.clients():
            if client.name == name:
                return task, client
        raise ConfigurationError(
            f"no client is called {name!r}; the configuration has {', '.join(c.name for _, c in self.clients())}"
        )

    def client_modalities(self, name: str) -> tuple[str, ...]:
        """Return the modalities that a client holds."""
        task, client = self.client(name)
        return self.tasks[task].held_by(client)

    def role(self, name: str) -> Role:
        """Return whether a client is a ``donor``, who holds a modality beyond those that Q reads, or a ``recipient``."""
        task, client = self.client(name)
        return self.tasks[task].role_of(client)

    @property
    def isolated_tasks(self) -> frozenset[str]:
        """Tasks that share neither residual nor modality embeddings with another."""
        return frozenset(self.tasks if self.exchange.isolated == "all" else self.exchange.isolated)

    def to_json(self) -> str:
        """Return the whole configuration, defaults included, as JSON."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Configuration":
        """Read what :meth:`to_json` wrote."""
        return cls.model_validate(json.loads(text))

    def digest(self) -> str:
        """Return a checksum over every setting."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


def modality_key(modalities: tuple[str, ...]) -> str:
    """Return the name of a set of modalities, as in ``image+text``."""
    return "+".join(sorted(modalities))


def differing_settings(first: Any, second: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Return key path -> the two values, wherever two configurations, as plain data, differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        parts: list[tuple[str, Any, Any]] = [
            (f"{path}.{key}" if path else str(key), first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second])
        ]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        parts = [(f"{path}[{place}]", a, b) for place, (a, b) in enumerate(zip(first, second, strict=True))]
    else:
        return {} if first == second else {path: (first, second)}
    return {key: values for name, a, b in parts for key, values in differing_settings(a, b, name).items()}
