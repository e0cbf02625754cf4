"""What nvprobe runs in each step, counted as Python frames: no load on a machine changes that."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from nvprobe.launch.settings import Settings
from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")

LAYERS = 40
PROGRAM = f"""
import collections, json, os, sys
import torch
from torch import nn
from nvprobe.instrumentation import forwards
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range({LAYERS}))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def forward(self, x):
        return self.block(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
def count(frame, event, argument):
    code = frame.f_code
    if event == "call" and forwards.is_wrapper(code):
        seen[-1]["wrapper"] += 1
    elif event == "call" and ("nvprobe" in code.co_filename or code.co_name == "is_compiling"):
        seen[-1][code.co_name] += 1
def step():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    for one in model.parameters():
        one.grad.norm().item()
    optimizer.step()
for _ in range(14):
    seen.append(collections.Counter())
    sys.setprofile(count)
    step()
    sys.setprofile(None)
print(json.dumps(seen))
"""


def counted(recorder: Recorder, folder: Path) -> list[Counter[str]]:
    """Calls of nvprobe's functions in each step of a window from step 8 to 13."""
    settings = Settings(status=str(folder), first=8, last=13, trigger="nvtx")
    recording = recorder.run(
        PROGRAM, launched=True, NVPROBE_SIDECAR=str(folder / "side"), **settings.to_environ()
    )
    return [Counter(step) for step in json.loads(recording.stdout)]


def test_frames_of_a_step_asleep_and_awake(recorder: Recorder, tmp_path: Path):
    steps = counted(recorder, tmp_path)
    assert not any(step["is_compiling"] for step in steps), (
        "torch is asked only once it has traced something"
    )
    asleep, awake = steps[5], steps[12]
    assert asleep["wrapper"] == 1, "the root's, whose calls count steps"
    assert max(asleep.values()) < 6, "nothing is called for each module or parameter"
    assert asleep.total() < 65
    assert awake["wrapper"] == LAYERS + 2
    often = {name for name, count in awake.items() if count >= LAYERS}
    assert often <= {"wrapper", "method"}, awake
    assert steps[-1]["wrapper"] <= 1, "asleep again"
