"""nvprobe.instrument() and torch.compile: the same graphs, breaks and recompiles as without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

PROGRAM = """
import json, os, sys
if sys.argv[1] == "instrumented":
    import nvprobe
    nvprobe.instrument()
import torch, torch._dynamo
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters

asked = set()
convert = convert_frame.ConvertFrameAssert.__call__
def converting(self, frame, *args, **kwargs):
    asked.add(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}")
    return convert(self, frame, *args, **kwargs)
convert_frame.ConvertFrameAssert.__call__ = converting

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.GELU()
    def forward(self, x):
        return x + self.act(self.linear(x))

class Net(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.breaks = breaks
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return x

x = torch.randn(4, 8)
results = {}

def counted(name, run, *inputs):
    torch._dynamo.reset(); counters.clear()
    torch.manual_seed(0)
    for one in inputs:
        run(one)
    # Texts of breaks show the user's stack, with our wrapper's frame in it: their number counts.
    texts = ("unimplemented", "graph_break")
    facts = {key: sum(counters[key].values()) for key in texts}
    facts |= {k: sorted(map(str, v.items())) for k, v in counters.items() if k not in texts}
    facts.pop("frames", None)
    facts["asked"] = sorted(asked)
    asked.clear()
    results[name] = facts

def trainer(model, compiled, whole):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = nn.MSELoss()
    def step(x):
        value = loss(compiled(x), torch.zeros_like(x))
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(); optimizer.zero_grad()
        return value
    return torch.compile(step, backend="aot_eager") if whole else step

net = Net()
counted("model", trainer(net, torch.compile(net, backend="aot_eager", fullgraph=True), False), x, x)
whole = torch.compile(net, backend="aot_eager", fullgraph=True)
def several(x):
    for _ in range(40):
        whole(x)
        whole(x)
counted("called often", several, x)
net = Net(True)
counted("breaks", trainer(net, torch.compile(net, backend="aot_eager"), False), x, x[:2], x)
net = Net()
counted("whole step", trainer(net, net, True), x, x)
net = Net()
for block in net.blocks:
    block.compile(backend="eager", fullgraph=True)
counted("regional", net, x, x[:2], x[:3])
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
with torch.no_grad():
    counted("encoder", torch.compile(layer, backend="eager"), x[None], x[None])
counted("copies", torch.compile(lambda x: x.to(torch.float64).to("cpu"), backend="eager"), x)
optimizer = torch.optim.Adam(net.parameters())
net(x).sum().backward()
counted("optimizer", lambda _: torch.compile(optimizer.step, backend="eager")(), 1, 2)
counted("creates", torch.compile(lambda x: nn.ReLU()(x), backend="eager"), x)
print(json.dumps(results))
"""


def test_counters_and_frames_are_those_of_the_bare_program(recorder: Recorder, tmp_path: Path):
    bare = json.loads(recorder.run(PROGRAM, "bare").stdout)
    side = str(tmp_path / "side")
    instrumented = json.loads(recorder.run(PROGRAM, "instrumented", NVPROBE_SIDECAR=side).stdout)
    for name, facts in bare.items():
        # No frame of nvprobe's, nor of the standard library that it calls: with fullgraph=True one
        # that Dynamo cannot trace ends the program.
        assert set(instrumented[name].pop("asked")) <= set(facts.pop("asked")), name
        assert instrumented[name] == facts, name
