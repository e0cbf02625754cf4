"""How much longer torch.compile takes under nvprobe: one JSON line.

Plain and instrumented child processes take turns, each compiling a small transformer forward and
backward with empty caches. The compiler's own children (g++) are left out of the CPU time, so the
share is that of torch's Python work alone: the strictest view. Usage:

    python scripts/benchmarks/compile_overhead.py [--rounds 5] [--backend inductor]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import json, os, sys, time
if os.environ["INSTRUMENTED"] == "1":
    from nvprobe.annotate import autograd, collectives, compiled, graphs, sidecar
    sidecar.open(os.environ["FOLDER"])
    for room in (compiled, graphs, autograd, collectives):
        room.install()
import torch
from torch import nn
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.ln2(x))))

torch.manual_seed(0)
net = nn.Sequential(*(Block(32) for _ in range(int(os.environ["BLOCKS"]))))
device = "cuda" if torch.cuda.is_available() else "cpu"
net, x = net.to(device), torch.randn(2, 16, 32, device=device)
run = torch.compile(net)
# Importing the compiler is not compiling: do it before the clock starts.
torch.compile(lambda x: x + 1)(x[0, 0])
wall, cpu = time.perf_counter(), time.process_time()
run(x).sum().backward()
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))
"""


def compile_once(instrumented: bool, blocks: int) -> dict[str, float]:
    """Times of one child process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "INSTRUMENTED": str(int(instrumented)),
            "FOLDER": folder,
            "BLOCKS": str(blocks),
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            # A pool of workers takes over when it happens to be ready: all in one process instead.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Take turns, compare the medians and the fastest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=3)
    options = parser.parse_args()
    for instrumented in (False, True):  # the first one of each warms the machine's file cache
        compile_once(instrumented, options.blocks)
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(options.rounds):
        for instrumented in (turn % 2 == 0, turn % 2 == 1):
            runs[instrumented].append(compile_once(instrumented, options.blocks))
    report = {}
    for key in ("cpu_s", "wall_s"):
        plain, ours = ([run[key] for run in runs[which]] for which in (False, True))
        report[key] = {
            "plain": [round(value, 3) for value in plain],
            "instrumented": [round(value, 3) for value in ours],
            "median_ratio": round(statistics.median(ours) / statistics.median(plain), 4),
            "fastest_ratio": round(min(ours) / min(plain), 4),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
