"""A sweep's file, and the members that it stands for: arms x grid x seeds over one base configuration, and ensembles of them."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.configuration_file import SUFFIXES, parse_key, read_text_file, read_with_settings, validate
from fedsocket_flwr.errors import ConfigurationError
from fedsocket_flwr.field_types import Name, Names, Seed, Settings
from fedsocket_flwr.file_names import file_slug
from fedsocket_flwr.problems import nearest_key, path_text
from fedsocket_flwr.strict_yaml import dump_value, parse_yaml

Endpoint = Literal["private", "q", "joint", "better_branch"]
# Folders of the sweep itself, beside those of the arms.
FIGURES = "figures"
SUPERSEDED = "superseded"
_UNNAMED_ARM = "base"
_SEED_KEY = ("run", "seed")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Branch(Settings):
    """One branch of a finished member: of this seed or of the sweep's next one, at the round that DEV chose or at the last."""

    arm: str
    endpoint: Literal["private", "q"] = "private"
    moment: Literal["best", "last"] = "best"
    seed: Literal["same", "next"] = "same"


class Ensemble(Settings):
    """Two branches whose outputs are mixed as Joint's are, with a weight that DEV chooses; nothing is trained for it."""

    first: Branch
    second: Branch


class Side(Settings):
    """One side of a contrast: an arm and an endpoint; ``better_branch`` is per seed the larger of Private and Q."""

    arm: str
    endpoint: Endpoint


class Contrast(Settings):
    """A named difference, minuend less subtrahend, paired by seed."""

    name: Annotated[str, Field(min_length=1)]
    minuend: Side
    subtrahend: Side


Contrasts = Annotated[tuple[Contrast, ...], BeforeValidator(_as_tuple)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
GridValues = Annotated[tuple[Any, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


class SweepSettings(Settings):
    """A sweep's file.

    ``base`` is the path of a configuration, relative to the sweep's file, or the name of one that ships with the package.
    ``arms`` are named settings, ``grid`` lists values that are crossed with every arm; both by key path. ``ensembles`` mix
    branches of finished members and are compared like arms. Only ``metrics`` are compared, or all of them if it is empty.
    """

    name: Name
    base: str
    seeds: Seeds
    arms: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    grid: dict[str, GridValues] = Field(default_factory=dict)
    ensembles: dict[Name, Ensemble] = Field(default_factory=dict)
    contrasts: Contrasts = ()
    metrics: Names = ()

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        _refuse_repeats("seeds", self.seeds)
        _refuse_repeats("names of contrasts", [contrast.name for contrast in self.contrasts])
        try:
            in_grid = {parse_key(key) for key in self.grid}
            in_arms = {parse_key(key) for arm in self.arms.values() for key in arm}
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if _SEED_KEY in in_grid | in_arms:
            raise ValueError("run.seed belongs in `seeds`, not in arms or grid")
        for key in sorted(map(path_text, in_grid & in_arms)):
            raise ValueError(f"the key {key} stands in the grid and in an arm, so that one would undo the other")
        return self


class PlannedCell(Settings):
    """One arm at one point of the grid: its name in tables, its folder, and per seed the checksum of its configuration."""

    label: str
    folder: str
    arm: str
    point: str
    digests: dict[str, str]


class PlannedEnsemble(PlannedCell):
    """An ensemble: per seed the checksum of what it is made of; ``first`` and ``second`` name cells by their label."""

    first: Branch
    second: Branch


class SweepPlan(Settings):
    """What a sweep consists of, with contrasts between cells (``Side.arm`` is a cell's label)."""

    name: Name
    seeds: Seeds
    metrics: Names
    cells: Annotated[tuple[PlannedCell, ...], BeforeValidator(_as_tuple)]
    ensembles: Annotated[tuple[PlannedEnsemble, ...], BeforeValidator(_as_tuple)] = ()
    contrasts: Contrasts

    @property
    def compared(self) -> tuple[PlannedCell, ...]:
        """Cells, then ensembles: the rows of a comparison."""
        return (*self.cells, *self.ensembles)

    def member_of(self, branch: Branch, seed: int) -> tuple[PlannedCell, int]:
        """Return the cell and the seed of the member that a branch of an ensemble is taken from."""
        following = self.seeds[(self.seeds.index(seed) + 1) % len(self.seeds)]
        return next(cell for cell in self.cells if cell.label == branch.arm), following if branch.seed == "next" else seed


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    cell: PlannedCell
    seed: int
    configuration: Configuration

    @property
    def name(self) -> str:
        """Its place below the sweep's folder, as in ``full/101``."""
        return f"{self.cell.folder}/{self.seed}"


def read_sweep(path: Path, overrides: Sequence[str] = ()) -> tuple[SweepPlan, tuple[Member, ...]]:
    """Read a sweep's file and work out its members.

    Grid values that give the same configuration, as ``1e-3`` and ``0.001`` do, are one cell. Paths of data among the settings are
    relative to the sweep's file.

    Parameters
    ----------
    path
        The file.
    overrides
        Texts such as ``resources.gpus=0.2`` that take the place of a setting in every member; paths in them are relative to the
        working directory.

    Returns
    -------
    tuple[SweepPlan, tuple[Member, ...]]
        The plan, and its members: cells in the order of the file, each with the seeds in theirs.

    Raises
    ------
    ConfigurationError
        If the file, or the configuration of any member, cannot be used; one line a problem.
    """
    settings = validate(SweepSettings, parse_yaml(read_text_file(path), str(path)), str(path))
    try:
        _refuse_own_keys(settings, overrides)
        configurations = _configurations(settings, path, overrides)
        cells = tuple(_planned(*labels, config, settings.seeds) for labels, config in configurations.items())
        ensembles = tuple(_planned_ensemble(name, found, cells, settings.seeds) for name, found in settings.ensembles.items())
        compared = (*cells, *ensembles)
        _refuse_repeats("names of cells", [cell.label for cell in compared])
        contrasts = tuple(itertools.chain.from_iterable(_between_cells(contrast, compared) for contrast in settings.contrasts))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    plan = SweepPlan(
        name=settings.name,
        seeds=settings.seeds,
        metrics=settings.metrics,
        cells=cells,
        ensembles=ensembles,
        contrasts=contrasts,
    )
    members = (
        Member(cell, seed, _with_seed(config, seed))
        for cell, config in zip(cells, configurations.values(), strict=True)
        for seed in settings.seeds
    )
    return plan, tuple(members)


def _refuse_own_keys(settings: SweepSettings, overrides: Sequence[str]) -> None:
    """Refuse an override that would undo what the sweep varies."""
    varied = {parse_key(key) for section in (settings.grid, *settings.arms.values()) for key in section} | {_SEED_KEY}
    for key in (override.partition("=")[0].strip() for override in overrides):
        if parse_key(key) in varied:
            raise ValueError(f"--set {key}: the sweep itself says what {key} is")


def _configurations(settings: SweepSettings, path: Path, overrides: Sequence[str]) -> dict[tuple[str, str], Configuration]:
    """Return ``(arm, point of the grid)`` -> configuration, each configuration once."""
    base = path.parent / settings.base if settings.base.endswith(SUFFIXES) else settings.base
    arms = settings.arms or ({_UNNAMED_ARM: {}} if not settings.grid else {"": {}})
    found: dict[tuple[str, str], Configuration] = {}
    seen: dict[str, str] = {}
    for arm, own in arms.items():
        for values in itertools.product(*settings.grid.values()):
            point = dict(zip(settings.grid, values, strict=True))
            config = _member_configuration(base, {**own, **point}, path, arm, overrides)
            config = _with_seed(config, settings.seeds[0])
            digest = config.digest()
            if digest not in seen:
                found[arm, _point_text(point, config)] = config
            elif seen[digest] != arm:
                raise ValueError(f"the arms {seen[digest]!r} and {arm!r} are the same configuration")
            seen[digest] = arm
    return found


def _member_configuration(
    base: str | Path, settings: Mapping[str, Any], path: Path, arm: str, overrides: Sequence[str]
) -> Configuration:
    try:
        return read_with_settings(base, settings, path.parent, overrides)
    except ConfigurationError as error:
        where = f"{path}: arm {arm}: " if arm else f"{path}: "
        raise ConfigurationError("\n".join(where + line for line in str(error).splitlines())) from error


def _planned(arm: str, point: str, config: Configuration, seeds: Iterable[int]) -> PlannedCell:
    label = ", ".join(part for part in (arm, point) if part)
    digests = {str(seed): _with_seed(config, seed).digest() for seed in seeds}
    return PlannedCell(label=label, folder=_folder(label), arm=arm, point=point, digests=digests)


def _folder(label: str) -> str:
    folder = file_slug(label)
    if folder in (FIGURES, SUPERSEDED):
        raise ValueError(f"an arm cannot be called {label!r}: the sweep keeps a folder of that name")
    return folder


def _planned_ensemble(name: str, ensemble: Ensemble, cells: tuple[PlannedCell, ...], seeds: tuple[int, ...]) -> PlannedEnsemble:
    """Return an ensemble with its branches' cells; its checksums change with those of its members."""
    branches = []
    for branch in (ensemble.first, ensemble.second):
        found = [cell for cell in cells if cell.label == branch.arm] or [cell for cell in cells if cell.arm == branch.arm]
        if len(found) != 1:
            known = nearest_key(branch.arm, [cell.label for cell in cells])
            problem = "that is not there" if not found else "with several points of the grid: name one of its cells"
            raise ValueError(f"the ensemble {name!r} names an arm {branch.arm!r} {problem}, {known}")
        if branch.seed == "next" and len(seeds) == 1:
            raise ValueError(f"the ensemble {name!r} takes a branch of the next seed, but there is one seed only")
        branches.append((branch.model_copy(update={"arm": found[0].label}), found[0]))
    if branches[0][0] == branches[1][0]:
        raise ValueError(f"the ensemble {name!r} is one branch twice")
    digests = {}
    for place, seed in enumerate(seeds):
        following = seeds[(place + 1) % len(seeds)]
        made_of = [
            [branch.model_dump(), cell.digests[str(following if branch.seed == "next" else seed)]] for branch, cell in branches
        ]
        digests[str(seed)] = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    (first, _), (second, _) = branches
    return PlannedEnsemble(label=name, folder=_folder(name), arm=name, point="", digests=digests, first=first, second=second)


def _with_seed(config: Configuration, seed: int) -> Configuration:
    return config.model_copy(update={"run": config.run.model_copy(update={"seed": seed})})


def _point_text(point: Mapping[str, Any], config: Configuration) -> str:
    """Write a point of the grid with the shortest keys that differ, as in ``learning_rate=0.001``."""
    resolved = config.model_dump(mode="json")
    ends = [str(parse_key(key)[-1]) for key in point]
    texts = []
    for key, end, value in zip(point, ends, point.values(), strict=True):
        place: Any = resolved
        for part in parse_key(key):
            place = place[part]
        # Numbers as the configuration has them, so that two spellings have one name; text and sections as they were written.
        shown = value if isinstance(place, (str, dict)) else place
        texts.append(f"{end if ends.count(end) == 1 else key}={dump_value(shown)}")
    return ", ".join(texts)


def _between_cells(contrast: Contrast, cells: tuple[PlannedCell, ...]) -> list[Contrast]:
    """Return the contrast between cells that one between arms stands for: one at every point of the grid."""
    pairs = [
        (first, second)
        for first in _cells_of(contrast.minuend, contrast.name, cells)
        for second in _cells_of(contrast.subtrahend, contrast.name, cells)
        if contrast.minuend.arm == first.label or contrast.subtrahend.arm == second.label or first.point == second.point
    ]
    if not pairs:
        raise ValueError(f"the contrast {contrast.name!r} finds no point of the grid that both arms have")
    made = []
    for first, second in pairs:
        points = dict.fromkeys(cell.point for cell in (first, second) if cell.point)
        name = f"{contrast.name} ({' / '.join(points)})" if len(pairs) > 1 else contrast.name
        sides = {
            "minuend": Side(arm=first.label, endpoint=contrast.minuend.endpoint),
            "subtrahend": Side(arm=second.label, endpoint=contrast.subtrahend.endpoint),
        }
        made.append(Contrast(name=name, **sides))
    return made


def _cells_of(side: Side, contrast: str, cells: tuple[PlannedCell, ...]) -> list[PlannedCell]:
    found = [cell for cell in cells if cell.label == side.arm] or [cell for cell in cells if cell.arm == side.arm]
    if not found:
        known = list(dict.fromkeys([cell.arm for cell in cells if cell.arm] + [cell.label for cell in cells]))
        raise ValueError(f"the contrast {contrast!r} names an arm {side.arm!r} that is not there, {nearest_key(side.arm, known)}")
    return found


def _refuse_repeats(what: str, values: Iterable[int | str]) -> None:
    listed = list(values)
    twice = sorted({str(value) for value in listed if listed.count(value) > 1})
    if twice:
        raise ValueError(f"{what} must differ, found twice: {', '.join(twice)}")
