"""A job of four ranks on the CPU, one of them delayed on purpose: named, with the cause."""

from __future__ import annotations

import json
import sys

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher

pytestmark = pytest.mark.slow

DELAY_S = 0.5
"""Far more than four ranks on two busy cores differ by chance."""
PROGRAM = f"""
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
model = DistributedDataParallel(model) if sys.argv[1] == "ddp" else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(9):
    if dist.get_rank() == 2:
        time.sleep({DELAY_S})
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    if sys.argv[1] == "plain":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def late_rank(launch: Launcher, backend: str, kind: str) -> dict[str, object]:
    """The document of the job that ``launch`` left, checked as far as both backends agree."""
    program = launch.script(PROGRAM)
    words = ("--backend", backend, sys.executable, "-m", "torch.distributed.run")
    result = launch(*words, "--nproc-per-node", "4", "--standalone", program, kind, analyze=True)
    assert result.code == 0, result.err
    found = json.loads((result.folder / "ranks.json").read_text())
    assert found["verdict"] in " ".join(result.err.split())  # wherever the terminal wrapped it
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2, 3]
    assert found["world_size"] == 4
    (late,) = found["stragglers"]
    assert late["rank"] == 2
    assert 0.7 * DELAY_S < late["late_ns"] / 1e9 < 2 * DELAY_S
    assert (late["cause"], late["path"]) == ("host", "step")
    assert late["own_ns"] - late["usual_ns"] == pytest.approx(DELAY_S * 1e9, rel=0.5)
    return dict(found)


def test_a_delayed_rank_under_torch_profiler(launch: Launcher) -> None:
    found = late_rank(launch, "torch", "ddp")
    assert found["clock"]["kind"] == "aligned"  # type: ignore[index]
    assert {one["kind"] for one in found["collectives"]} >= {"all_reduce"}  # type: ignore[attr-defined]


@pytest.mark.nsys
@pytest.mark.parametrize("kind", ["plain", "ddp"])
def test_a_delayed_rank_under_nsys(launch: Launcher, nsys: Nsys, kind: str) -> None:
    """DDP reduces its gradients in C++, of which nsys has no range: host time shows the rank."""
    found = late_rank(launch, "nsys", kind)
    (late,) = found["stragglers"]  # type: ignore[misc]
    assert late["seen_in"] == ("collectives" if kind == "plain" else "host time")  # type: ignore[index]
