"""What endpoints cost: counts that can be worked out by hand, and a table over the shipped configurations."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsocket_flwr.cli import main
from fedsocket_flwr.experiments.profile import Cost, cost_table, flops, median_seconds, parameters, peak_bytes, profile
from fedsocket_flwr.plain_files import read_json
from fedsocket_flwr.run_preparation import q_parameters
from tests.toy_runs import same_task_config, toy_config


def by_endpoint(costs: list[Cost], client: str) -> dict[str, Cost]:
    return {cost.endpoint: cost for cost in costs if client in cost.clients}


def test_parameters_and_operations_of_a_linear_map() -> None:
    linear, rows = nn.Linear(3, 5), torch.rand(4, 3)
    assert parameters(linear) == 3 * 5 + 5
    assert flops(lambda: linear(rows)) == 2 * 4 * 3 * 5


def test_peak_memory_counts_what_is_alive_at_a_time() -> None:
    rows, kilobyte = torch.zeros(256), 256 * 4

    def chain() -> torch.Tensor:
        # Each step makes one tensor while the one before is alive; views and what is changed in place make none.
        found = rows
        for _ in range(10):
            found = found + 1
        return found.view(16, 16).t().mul_(2)

    assert peak_bytes(chain) == 2 * kilobyte
    assert peak_bytes(lambda: [rows + k for k in range(10)]) == 10 * kilobyte
    assert peak_bytes(lambda: rows.view(16, 16)) == 0


def test_the_first_pass_is_not_timed() -> None:
    calls: list[int] = []
    assert median_seconds(lambda: calls.append(1), torch.device("cpu"), repeats=3) < 1
    assert len(calls) == 4


def test_joint_is_private_and_q() -> None:
    config = toy_config()
    costs = profile(config, batch=8)
    assert [cost.endpoint for cost in costs] == ["private", "q", "joint"] * 6
    for _, client in config.clients():
        found = by_endpoint(costs, client.name)
        private, q, joint = found["private"], found["q"], found["joint"]
        assert (joint.parameters, joint.executed) == (private.parameters + q.parameters, private.executed + q.executed)
        assert joint.gflops == pytest.approx(private.gflops + q.gflops)
        assert joint.peak_mib >= max(private.peak_mib, q.peak_mib)
        assert q.parameters == q_parameters(config) > q.executed
        assert joint.frozen == 0
        assert min(joint.milliseconds, private.milliseconds, q.milliseconds) > 0


def test_operations_of_q_by_hand() -> None:
    """Adapter, expert, residual, trunk and head of a classifier of width 16, rank 4, three classes."""
    q = by_endpoint(profile(toy_config(), batch=8), "shapes-cnn")["q"]
    assert q.gflops * 1e9 == pytest.approx(2 * (16 * 16 + 2 * 16 * 16 + 2 * 16 * 4 + 16 * 16 + 16 * 3))


def test_operations_do_not_depend_on_the_batch() -> None:
    one, eight = (profile(toy_config(), batch=batch) for batch in (1, 8))
    assert [cost.gflops for cost in one] == pytest.approx([cost.gflops for cost in eight])
    assert all(few.peak_mib < many.peak_mib for few, many in zip(one, eight, strict=True))


def test_a_frozen_network_counts_for_q_and_not_for_private(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    weights = tmp_path / "resnet18.pt"
    network = resnet18()
    torch.save(network.state_dict(), weights)
    network.fc = nn.Identity()
    options = {"library": "torchvision", "model": "resnet18", "file": str(weights), "size": 32}
    config = toy_config({"interfaces.image": {"kind": "backbone", "width": 16, "options": options}})
    costs = by_endpoint(profile(config, batch=2), "shapes-mlp")
    assert [costs[one].frozen for one in ("private", "q", "joint")] == [0, 11_176_512, 11_176_512]
    without = by_endpoint(profile(toy_config(), batch=2), "shapes-mlp")
    assert costs["q"].parameters == without["q"].parameters + 11_176_512
    picture = torch.rand(1, 3, 32, 32)
    expected = flops(lambda: network.eval()(picture))
    assert 1e9 * (costs["q"].gflops - without["q"].gflops) == pytest.approx(expected)


def test_equal_clients_are_one_row_and_donors_have_their_own() -> None:
    config = same_task_config()
    costs = profile(config, batch=4)
    assert sum(len(cost.clients) for cost in costs if cost.endpoint == "private") == len(list(config.clients()))
    rows = cost_table(costs).rows
    assert len(rows) == len(costs)
    assert len({(row[2], row[4]) for row in rows if row[3] == "private"}) > 1


def test_without_q_there_is_private_alone() -> None:
    assert {cost.endpoint for cost in profile(toy_config({"run.method": "local"}), batch=2)} == {"private"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs"
    assert main(["profile", "toy", "--batch", "4", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "| shapes-cnn | shapes | image_cnn | joint |" in printed
    assert read_json(out / "profile.json")["batch"] == 4
    with (out / "profile.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 18
    assert (out / "profile.md").read_text(encoding="utf-8") in printed
