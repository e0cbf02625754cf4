"""The sidecar's rows of module objects, from programs that run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from tests.conftest import Recorder

PROGRAM = """
import copy, nvprobe, torch
from torch import nn
nvprobe.instrument()

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x).relu()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.held_apart = [Block() for _ in range(3)]
    def forward(self, x):
        hidden = x
        for _ in range(5):
            hidden = self.cell(x, hidden)
        for block in self.held_apart:
            hidden = block(hidden)
        return hidden

class Student(nn.Sequential):
    pass

net, student, layers = Net(), Student(Block()), [nn.LayerNorm(4) for _ in range(2)]
optimizer = torch.optim.SGD([*net.parameters(), *student.parameters()], lr=0.1)
for step in range(4):
    x = torch.randn(2, 4)
    for layer in layers:
        x = layer(x)
    if step == 1:
        teacher = copy.deepcopy(student).eval()
    loss = net(x).sum() + student(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step > 0:
        net.eval()
        with torch.no_grad():
            net(x)
            teacher(x)
        net.train()
        with torch.no_grad():
            layers[0](x)
"""


def test_each_object_is_noted_once_and_models_with_their_modes(
    torch_recorder: Recorder, tmp_path: Path
):
    torch_recorder.run(PROGRAM, NVPROBE_SIDECAR=str(tmp_path / "side"))
    (file,) = (tmp_path / "side").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [tuple(row) for line in lines if line["kind"] == "object" for row in line["rows"]]
    assert len(set(rows)) == len(rows)
    modes: dict[tuple[str, str | None], dict[int, set[bool | None]]] = defaultdict(dict)
    for name, root, number, trains in rows:
        modes[name, root].setdefault(number, set()).add(trains)
    assert list(modes["Net", None].values()) == [{True, False}]
    assert list(modes["cell", "Net"].values()) == [{None}]
    assert list(modes["Block", None].values()) == [{None}] * 3
    assert list(modes["LayerNorm", None].values()) == [
        {True, None},
        {True},
    ], "without gradients, in training mode: neither"
    assert list(modes["Student", None].values()) == [{True}, {False}], "the copy is another one"
