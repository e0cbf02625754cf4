"""What all programs of compiled_check share: instrumentation, a small transformer, verdicts."""

# ruff: noqa: D101, D102, E402 - instrumented before torch is imported

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

from nvprobe.instrumentation import emitter, sidecar, torch_hooks

RANGES = []  # (path, thread): what was opened, in order
_open = threading.local()


def _push(label):
    stack = _open.__dict__.setdefault("stack", [])
    stack.append(emitter.name_of(label))
    names = [s.replace("/", ":") for s in stack]  # no generator: Dynamo does not take one
    RANGES.append(("/".join(names), threading.get_ident()))


def _pop():
    _open.stack.pop()


if os.environ.get("PLAIN") != "1":
    if os.environ.get("UNDER_NSYS") != "1":
        emitter.push, emitter.pop = _push, _pop
    import nvprobe

    nvprobe.instrument()
import torch
from torch import nn

torch_hooks.hide_from_dynamo([_push, _pop])  # they stand for compiled functions
torch.backends.cuda.matmul.allow_tf32 = False


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.ln2(x))))


class Net(nn.Module):
    def __init__(self, d=128, blocks=3):
        super().__init__()
        self.emb = nn.Embedding(100, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(blocks))
        self.head = nn.Linear(d, 100)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The CPU is for trying the programs, not for their verdicts."""
VERDICTS, SEEN = {}, {}


def data(batch=4, length=64):
    return torch.randint(0, 100, (batch, length), device=DEVICE)


def names(prefix):
    return [p.split("/")[-1] for p, _ in RANGES if p.split("/")[-1].startswith(prefix)]


def lines(kind):
    """Lines of one kind of this process's sidecar."""
    sidecar.flush()
    files = sorted(Path(os.environ["NVPROBE_SIDECAR"]).glob("sidecar.*"))
    read = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line for line in read if line["kind"] == kind]


def kernel_names(run):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
        run()
        torch.cuda.synchronize()
    events = [
        e for e in prof.profiler.kineto_results.events() if str(e.device_type()).endswith("CUDA")
    ]
    return [e.name() for e in sorted(events, key=lambda e: e.start_ns())]


def triton(manifests):
    return [k["name"] for m in manifests for k in m["kernels"] if not k["extern"]]


def training(net, run=None, optimizer=True):
    run = net if run is None else run
    steps = torch.optim.SGD(net.parameters(), 0.01) if optimizer else None

    def step(ids):
        loss = run(ids).float().square().mean()
        loss.backward()
        if steps:
            steps.step()
        net.zero_grad()
        return loss

    return step


def bits(net, loss):
    """A digest of a loss and all parameters, to the last bit."""
    tensors = [loss, *net.parameters()]
    raw = b"".join(one.detach().float().cpu().numpy().tobytes() for one in tensors)
    return hashlib.sha256(raw).hexdigest()


def done():
    """Say the verdicts; steps and phases may be open at the end, nothing else."""
    left = [n for n in getattr(_open, "stack", []) if n.startswith(("graph", "cuda", "blocks"))]
    VERDICTS["balanced"] = not left
    print("RESULT " + json.dumps({"verdicts": VERDICTS, "seen": SEEN}))


def window(step, count=3):
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
