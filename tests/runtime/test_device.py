import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsocket_flwr.config import ResourceSettings
from fedsocket_flwr.errors import ResourceError
from fedsocket_flwr.runtime.device import available_cpus, choose_device, limited_threads, require_devices


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))


def gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class TestAvailableCpus:
    def test_without_control_groups_the_affinity_counts(self, tmp_path: Path) -> None:
        assert available_cpus(tmp_path) == 8

    @pytest.mark.parametrize(
        ("quota", "expected"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("broken", 8)]
    )
    def test_unified_quota(self, tmp_path: Path, quota: str, expected: int) -> None:
        assert available_cpus(machine(tmp_path, "0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": quota})) == expected

    def test_the_tightest_group_above_counts(self, tmp_path: Path) -> None:
        files = {"sys/fs/cgroup/a/b/cpu.max": "600000 100000\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}
        assert available_cpus(machine(tmp_path, "0::/a/b\n", files)) == 3

    def test_a_container_sees_only_its_uppermost_group(self, tmp_path: Path) -> None:
        files = {
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        }
        assert available_cpus(machine(tmp_path, "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n", files)) == 4

    def test_legacy_without_limit(self, tmp_path: Path) -> None:
        files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
        assert available_cpus(machine(tmp_path, "4:cpu:/\n", files)) == 8

    def test_this_machine(self) -> None:
        assert 1 <= available_cpus() <= 8

    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity of processes")
    def test_affinity_of_another_process(self) -> None:
        lines = (
            "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
            "import sys; from fedsocket_flwr.runtime.device import available_cpus;"
            "print(available_cpus(), 'torch' in sys.modules)"
        )
        printed = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True, timeout=60).stdout
        assert printed.split() == ["1", "False"]


class TestRequireDevices:
    def test_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus(monkeypatch, 2)
        require_devices(ResourceSettings(cpus=available_cpus(), gpus=2))
        require_devices(ResourceSettings(gpus=0.25))

    def test_too_many_processors(self) -> None:
        with pytest.raises(ResourceError, match=r"resources\.cpus asks for 9"):
            require_devices(ResourceSettings(cpus=9))

    @pytest.mark.parametrize(("asked", "there", "message"), [(0.5, 0, "sees none"), (2, 1, "sees 1"), (1.5, 4, "whole number")])
    def test_gpus(self, monkeypatch: pytest.MonkeyPatch, asked: float, there: int, message: str) -> None:
        gpus(monkeypatch, there)
        with pytest.raises(ResourceError, match=message):
            require_devices(ResourceSettings(gpus=asked))


class TestChooseDevice:
    def test_cpu_unless_a_gpu_was_granted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus(monkeypatch, 1)
        assert choose_device(0.0) == torch.device("cpu")
        assert choose_device(0.1) == torch.device("cuda:0")

    def test_a_granted_gpu_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpus(monkeypatch, 0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        with pytest.raises(ResourceError, match="CUDA_VISIBLE_DEVICES is '7'"):
            choose_device(0.5)


class TestLimitedThreads:
    def test_restores_the_number_also_after_an_error(self) -> None:
        before = torch.get_num_threads()
        other = before + 1
        with limited_threads(other):
            assert torch.get_num_threads() == other
        with pytest.raises(KeyError), limited_threads(other):
            raise KeyError
        assert torch.get_num_threads() == before
