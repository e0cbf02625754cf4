"""FLOPs and occupancy of real kernels: torch's own counter and the profiler's own estimate."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def _network() -> Any:
    """Convolutions of each kind, a product, attention.

    Those with groups run forward only: torch's counter ignores groups in the backward.
    """
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Conv1d(8, 16, 5, stride=2, padding=2)
            self.plane = nn.Conv2d(16, 32, 3, padding=1, dilation=2)
            self.grouped = nn.Conv2d(16, 32, 3, padding=1, groups=4)
            self.deep = nn.Conv2d(32, 32, 3, groups=32)
            self.up = nn.ConvTranspose2d(32, 16, 3, stride=2, output_padding=1)
            self.solid = nn.Conv3d(1, 4, 3)
            self.linear = nn.Linear(64, 64)

        def forward(self, line: Any, plane: Any, solid: Any, rows: Any) -> Any:
            with torch.no_grad():
                self.deep(self.grouped(plane))
            spread = self.up(self.plane(plane))
            attended = torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)
            parts = (self.flat(line), spread, self.solid(solid), self.linear(attended))
            return sum(part.square().mean() for part in parts)

    return Network().cuda()


def test_flops_are_those_that_torch_counts(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from nvprobe.analysis import analyze
    from nvprobe.attribution import attribute
    from nvprobe.readers import load
    from nvprobe.report.document import to_dict

    network = _network()
    inputs = [torch.randn(size, device="cuda", requires_grad=True) for size in
              ((2, 8, 64), (2, 16, 24, 24), (2, 1, 9, 9, 9), (2, 4, 32, 64))]  # fmt: skip

    def step() -> None:
        network(*inputs).backward()

    step()
    with FlopCounterMode(display=False) as counter:
        step()
    kinds = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=list(kinds), record_shapes=True) as profile:
            for number in range(2):
                with torch.profiler.record_function(f"step {number}"):
                    step()
                    torch.cuda.synchronize()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = load(tmp_path / "trace.json")
    found = to_dict(analyze(attribute(trace)))
    work = next(row["work"] for row in found["ranges"] if row["path"] == "step")
    elementwise = work["flops"] - 2 * counter.get_total_flops()
    assert 0 <= elementwise < 0.05 * work["flops"]
    assert "FLOPs of convolutions" not in [one["what"] for one in found["missing"]]


def test_occupancy_is_that_of_the_profiler(tmp_path: Path) -> None:
    from nvprobe.analysis.kernels.occupancy import launch_fit
    from nvprobe.readers import load

    a = torch.randn(512, 512, device="cuda")
    kinds = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=list(kinds)) as profile:
            (a + 1).relu().sum(0).exp()
            torch.cuda.synchronize()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = {e["args"]["correlation"]: e["args"]["est. achieved occupancy %"]
            for e in events if e.get("cat") == "kernel"}  # fmt: skip
    trace = load(tmp_path / "trace.json")
    fit = launch_fit(trace)
    assert fit is not None
    if np.isnan(fit.occupancy).all():
        pytest.skip("this GPU is not in the tables")
    for row, op in enumerate(trace.geometry.op.tolist()):
        mine = 100 * fit.occupancy[row] * min(fit.waves[row], 1.0)
        theirs = told[int(trace.ops.correlation[op])]
        assert not theirs or mine == pytest.approx(theirs, abs=1.1)
