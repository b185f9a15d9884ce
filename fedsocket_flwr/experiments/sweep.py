"""Running a sweep: every member that is not finished, whatever becomes of the others, and then the comparison."""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsocket_flwr.config import Configuration
from fedsocket_flwr.errors import FedSocketError, RunError
from fedsocket_flwr.experiments.comparison import (
    PLAN_FILE,
    Comparison,
    collect,
    read_ensemble,
    read_finished,
    read_plan,
    stored_digest,
)
from fedsocket_flwr.experiments.comparison_figures import write_figures
from fedsocket_flwr.experiments.comparison_tables import write_tables
from fedsocket_flwr.experiments.sweep_file import FIGURES, SUPERSEDED, Member, SweepPlan, read_sweep
from fedsocket_flwr.plain_files import write_whole
from fedsocket_flwr.runtime.run_files import CHECKPOINT

Runner = Callable[[Configuration, Path], None]
DEFAULT_FOLDER = Path("runs")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepResult:
    """What became of a sweep's members, each named by its place below ``out``, as in ``full/101``.

    Attributes
    ----------
    out
        The sweep's folder.
    ran
        Members that were run now and are finished.
    kept
        Members that were finished already.
    failed
        Member -> what went wrong, in one line.
    not_started
        Members left over because the sweep was to end at the first failure.
    """

    out: Path
    ran: tuple[str, ...]
    kept: tuple[str, ...]
    failed: Mapping[str, str]
    not_started: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 if every member is finished, else 1."""
        return 1 if self.failed or self.not_started else 0


def run_sweep(
    path: Path, out: Path | None, runner: Runner, fail_fast: bool = False, overrides: Sequence[str] = ()
) -> SweepResult:
    """Run what is not finished of a sweep, and compare all that is.

    A member is finished when its ``summary.json`` is whole and its ``config.yaml`` says what the sweep's file says now. What a
    member left that neither is finished nor can be resumed is moved to ``OUT/superseded``, never deleted.

    Parameters
    ----------
    path
        The sweep's file.
    out
        The sweep's folder; None stands for ``runs/NAME``.
    runner
        Runs one configuration in one folder, which either is not there yet or holds a ``q.safetensors`` of the same
        configuration that the run is to continue from.
    fail_fast
        Start no further member after the first failure.
    overrides
        Settings of every member, as in :func:`~fedsocket_flwr.experiments.sweep_file.read_sweep`.

    Returns
    -------
    SweepResult
        What was run, kept, and failed.

    Raises
    ------
    ConfigurationError
        If the file or any member's configuration cannot be used; nothing was started then.
    RunError
        If the folder holds another sweep.
    """
    plan, members = read_sweep(path, overrides)
    folder = DEFAULT_FOLDER / plan.name if out is None else out
    _claim(folder, plan)
    ran: list[str] = []
    kept: list[str] = []
    not_started: list[str] = []
    failed: dict[str, str] = {}
    for number, member in enumerate(members, start=1):
        if read_finished(folder / member.name, member.configuration.digest()) is not None:
            kept.append(member.name)
        elif failed and fail_fast:
            not_started.append(member.name)
        else:
            _LOG.info("sweep %s: %d of %d: %s, seed %d", plan.name, number, len(members), member.cell.label, member.seed)
            problem = _run_member(folder, member, runner)
            if problem is None:
                ran.append(member.name)
            else:
                failed[member.name] = problem
                _LOG.warning("sweep %s: %s failed: %s", plan.name, member.name, problem)
    _mix(folder, plan, ran, kept, failed, not_started)
    compare(folder)
    return SweepResult(folder, tuple(ran), tuple(kept), failed, tuple(not_started))


def _mix(out: Path, plan: SweepPlan, ran: list[str], kept: list[str], failed: dict[str, str], not_started: list[str]) -> None:
    """Measure every ensemble whose members are finished, and sort it into the lists like a member."""
    from fedsocket_flwr.experiments.ensembles import write_ensemble

    for ensemble in plan.ensembles:
        for seed in plan.seeds:
            name, digest = f"{ensemble.folder}/{seed}", ensemble.digests[str(seed)]
            members = [plan.member_of(branch, seed) for branch in (ensemble.first, ensemble.second)]
            folders = [out / cell.folder / str(number) for cell, number in members]
            if read_ensemble(out / name, digest) is not None:
                kept.append(name)
            elif any(
                read_finished(at, cell.digests[str(number)]) is None for at, (cell, number) in zip(folders, members, strict=True)
            ):
                not_started.append(name)
            else:
                try:
                    write_ensemble(out / name, (folders[0], ensemble.first), (folders[1], ensemble.second), digest)
                    ran.append(name)
                except FedSocketError as error:
                    failed[name] = " ".join(str(error).split())
                    _LOG.warning("sweep %s: %s failed: %s", plan.name, name, failed[name])


def compare(out: Path) -> Comparison:
    """Read a sweep's folder, run nothing, and write its comparison again.

    Writes ``comparison.md``, ``comparison.csv``, ``comparison.tex``, ``contrasts.csv`` and ``figures/*.png``.

    Raises
    ------
    RunError
        If the folder holds no sweep.
    """
    comparison = collect(out)
    write_tables(comparison, out)
    write_figures(comparison, out / FIGURES)
    return comparison


def _claim(folder: Path, plan: SweepPlan) -> None:
    if (folder / PLAN_FILE).exists():
        other = read_plan(folder).name
        if other != plan.name:
            raise RunError(f"{folder}: holds the sweep {other!r}, expected {plan.name!r}; name another folder")
    elif (folder / "config.yaml").exists():
        raise RunError(f"{folder}: holds a single run; name another folder for the sweep")
    write_whole(folder / PLAN_FILE, plan.model_dump_json(indent=1) + "\n")


def _run_member(out: Path, member: Member, runner: Runner) -> str | None:
    """Run one member; return what went wrong, or None if it is finished now."""
    folder = out / member.name
    digest = member.configuration.digest()
    try:
        resumable = (folder / CHECKPOINT).exists() and stored_digest(folder) == digest
        if folder.exists() and not resumable:
            _set_aside(out, folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        runner(member.configuration, folder)
    except FedSocketError as error:
        return " ".join(str(error).split())
    # One member's fault, whatever it is, must not take the others with it; its traceback goes to the log.
    except Exception as error:
        _LOG.exception("%s ended with an error that is not the configuration's", member.name)
        return " ".join(f"{type(error).__name__}: {error}".split())
    if read_finished(folder, digest) is None:
        return "the run ended without a whole summary.json of this configuration"
    return None


def _set_aside(out: Path, folder: Path) -> None:
    """Move a folder out of the way under the first number that is free."""
    shelf = out / SUPERSEDED
    shelf.mkdir(parents=True, exist_ok=True)
    number = 1
    while (target := shelf / f"{folder.parent.name}-{folder.name}-{number}").exists():
        number += 1
    shutil.move(folder, target)
