"""What the machine grants: processors, GPUs and torch's threads. torch is imported only when a function needs it."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedsocket_flwr.config import ResourceSettings
from fedsocket_flwr.errors import ResourceError

if TYPE_CHECKING:
    import torch


def available_cpus(root: Path = Path("/")) -> int:
    """Return how many processors this process may use: those of its affinity, within the quota of its control group.

    A quota of a fraction counts as the whole number below, at least one. ``root`` is where ``/proc`` and ``/sys`` are.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.floor(min(cpus, _cgroup_quota(root))))


def require_devices(resources: ResourceSettings) -> None:
    """Raise :class:`ResourceError` when one client's share of processors or GPUs is more than the machine has."""
    cpus = available_cpus()
    if resources.cpus > cpus:
        raise ResourceError(f"resources.cpus asks for {resources.cpus} processors a client; this process may use {cpus}")
    if resources.gpus > 1 and not float(resources.gpus).is_integer():
        raise ResourceError(f"resources.gpus above 1 must be a whole number, found {resources.gpus}")
    if resources.gpus > 0:
        gpus = _visible_gpus()
        if resources.gpus > gpus:
            found = f"torch sees {gpus}" if gpus else "torch sees none"
            raise ResourceError(
                f"resources.gpus asks for {resources.gpus} GPU a client; {found}. Set resources.gpus to 0 for the CPU"
            )


def choose_device(gpus: float) -> "torch.device":
    """Return the device of a client inside its worker: the first GPU that the worker sees when it was granted one, else the CPU.

    Raises
    ------
    ResourceError
        If a GPU was granted and the worker sees none.
    """
    import torch

    if gpus <= 0:
        return torch.device("cpu")
    if not _visible_gpus():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ResourceError(f"a client was granted {gpus} GPU, but its worker sees none (CUDA_VISIBLE_DEVICES is {visible!r})")
    return torch.device("cuda:0")


@contextlib.contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Run a block with this number of torch threads, then restore the number before; part of a run's bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def release_memory(device: "torch.device") -> None:
    """Give a GPU's cached memory back when a message is done, so that clients that share it do not add up."""
    if device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cgroup_quota(root: Path) -> float:
    """Return the processors that the control groups above this process allow, infinity without a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += _quotas(root / "sys/fs/cgroup", path, _unified_quota)
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                quotas += _quotas(root / "sys/fs/cgroup" / mount, path, _legacy_quota)
    return min(quotas)


def _quotas(mount: Path, path: str, read: Callable[[Path], float]) -> list[float]:
    """Return the quota of a group and of all above it; inside a container only the uppermost may be visible."""
    group = mount / path.strip("/")
    folders = [group, *(above for above in group.parents if above.is_relative_to(mount))]
    quotas = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quotas.append(read(folder))
    return quotas


def _unified_quota(folder: Path) -> float:
    quota, period = (folder / "cpu.max").read_text().split()
    return math.inf if quota == "max" else int(quota) / int(period)


def _legacy_quota(folder: Path) -> float:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    return math.inf if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
