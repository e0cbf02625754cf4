#!/usr/bin/env python3
"""What instrumentation costs a whole training step: one JSON line a row, as soon as it is known.

    python scripts/benchmarks/step_cost.py [--device cpu] [--models small,large]
        [--modes eager,compiled] [--seconds 20] [--tool TOOL.so] [--nsys NSYS]

A small and a large transformer, eager and compiled (the large one block by block), train in several
processes that take turns (see ``turns.py``): ``plain`` and ``control`` without nvprobe,
``instrumented`` with ``nvprobe.instrument()`` and nothing that listens, and where ``--tool`` names
an NVTX tool, ``listened`` with that and a sidecar. Two processes of one program differ, too, by
where their memory lies: what ``control`` differs by is no cost. With ``--nsys`` all of them run
under it. On the CPU a step's time is the processor time of one thread's work; on a GPU the time
from one synchronization to the next, and ``host``, the part of it until all work is submitted. Of
each the median of the ratios of neighbors with its confidence interval, and the ratio of the
fastest steps of all, which a loaded machine disturbs least. ``same_bits``: the weights of all are
the same after as many steps; ``plain_same_bits``: those of the two plain processes, which differ
where the program itself is not deterministic.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import Worker, interval, serve, take_turns

ROOT = Path(__file__).resolve().parents[2]
SHAPES = {
    ("cpu", "small"): {"width": 64, "layers": 4, "heads": 4, "batch": 4, "length": 32},
    ("cpu", "large"): {"width": 256, "layers": 6, "heads": 8, "batch": 8, "length": 64},
    ("cuda", "small"): {"width": 256, "layers": 4, "heads": 4, "batch": 8, "length": 64},
    ("cuda", "large"): {"width": 2048, "layers": 12, "heads": 16, "batch": 8, "length": 512},
}
WARMUP = 8
TURN_MS = 30
"""A turn is as many steps as fill this time; its figure is the median one's."""


def build(shape: dict[str, int], device: str) -> tuple[Any, Any]:
    """A transformer of plain modules, and a batch."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.act = nn.Linear(width, 4 * width), nn.GELU()
            self.down = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).unbind(2)
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(b, t, c))
            return x + self.down(self.act(self.up(self.norm2(x))))

    torch.manual_seed(0)
    width = shape["width"]
    blocks = [Block(width, shape["heads"]) for _ in range(shape["layers"])]
    kind = torch.float32 if device == "cpu" else torch.bfloat16
    model = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, 256)).to(device, kind)
    return model, torch.randn(shape["batch"], shape["length"], width, device=device, dtype=kind)


class Training:
    """The steps of one model in one process."""

    def __init__(self, device: str, model: str, mode: str) -> None:
        import torch

        self.device = device
        self.model, self.batch = build(SHAPES[device, model], device)
        self.run: Callable[[Any], Any] = self.model
        if mode == "compiled" and model == "small":
            self.run = torch.compile(self.model)
        elif mode == "compiled":
            for block in list(self.model)[:-2]:
                block.compile()
        fast = {"fused": True} if device == "cuda" else {"foreach": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **fast)

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.run(self.batch).float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def turn(self, steps: int) -> dict[str, float]:
        """Microseconds of the median step of a turn, and of the fastest (``fastest_…``)."""
        timed = [self._on_gpu() if self.device == "cuda" else self._on_cpu() for _ in range(steps)]
        found = {}
        for clock in timed[0]:
            found[clock] = statistics.median(one[clock] for one in timed) / 1000
            found[f"fastest_{clock}"] = min(one[clock] for one in timed) / 1000
        return found

    def _on_cpu(self) -> dict[str, int]:
        start = time.process_time_ns()
        self.step()
        return {"step": time.process_time_ns() - start}

    def _on_gpu(self) -> dict[str, int]:
        import torch

        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        self.step()
        host = time.perf_counter_ns()
        torch.cuda.synchronize()
        return {"step": time.perf_counter_ns() - start, "host": host - start}

    def digest(self) -> str:
        """A digest of the weights."""
        import hashlib

        import torch

        flat = torch.cat([one.detach().float().flatten() for one in self.model.parameters()])
        return hashlib.sha256(flat.cpu().numpy().tobytes()).hexdigest()[:16]


def work(device: str, instrumented: bool) -> None:
    """Be a worker."""
    if instrumented:
        import nvprobe

        nvprobe.instrument(children=False)
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    training: Training | None = None

    def answer(question: dict[str, Any]) -> Any:
        nonlocal training
        if "prepare" in question:
            training = None
            torch.compiler.reset()
            training = Training(device, *question["prepare"])
            training.turn(WARMUP)
            return training.turn(3)["step"]
        assert training is not None
        return training.turn(question["steps"]) if "steps" in question else training.digest()

    serve(answer)


def start(device: str, tool: str | None, nsys: str | None, scratch: Path) -> dict[str, Worker]:
    """One worker a variant; they import torch at the same time."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NV")}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    clean = kept | {"PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    variants: dict[str, dict[str, str]] = {"plain": {}, "control": {}, "instrumented": {}}
    if tool:
        heard = {"NVTX_INJECTION64_PATH": tool, "NVPROBE_SIDECAR": str(scratch / "sidecar")}
        variants["listened"] = heard
    workers = {}
    for name, more in variants.items():
        command = [sys.executable, str(Path(__file__).resolve()), "--device", device]
        command += ["--worker", str(int(name not in ("plain", "control")))]
        if nsys:
            options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
            command = [nsys, "profile", *options, "-o", str(scratch / name), *command]
        workers[name] = Worker(command, clean | more)
    return workers


def measure(workers: dict[str, Worker], model: str, mode: str, seconds: float) -> dict[str, Any]:
    """One row: the plain step, and how much longer the others' are."""
    for worker in workers.values():
        worker.tell(prepare=[model, mode])
    first = [worker.answer() for worker in workers.values()]
    steps = max(1, round(TURN_MS * 1000 / statistics.median(first)))
    rounds = take_turns(workers, {"steps": steps}, seconds)
    plain = rounds.pop("plain")
    row: dict[str, Any] = {"model": model, "mode": mode}
    for clock in [one for one in plain[0] if not one.startswith("fastest")]:
        row[f"plain_{clock}_us"] = round(statistics.median(one[clock] for one in plain), 1)
        least = f"fastest_{clock}"
        for name, theirs in rounds.items():
            pairs = zip(plain, theirs, strict=True)
            ratios = interval(other[clock] / bare[clock] for bare, other in pairs)
            row[f"{name}_{clock}"] = [round(one, 5) for one in ratios]
            best = min(one[least] for one in theirs) / min(one[least] for one in plain)
            row[f"{name}_{least}"] = round(best, 5)
    digests = {name: worker.ask(digest=True) for name, worker in workers.items()}
    row["same_bits"] = len(set(digests.values())) == 1
    row["plain_same_bits"] = digests["plain"] == digests["control"]
    return row


def main() -> int:
    """Measure row by row; exit code 1 where the weights of one differ."""
    parser = argparse.ArgumentParser(description="Measure what instrumentation costs a step.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--models", default="small,large", help="separated by commas")
    parser.add_argument("--modes", default="eager,compiled", help="separated by commas")
    parser.add_argument("--seconds", type=float, default=20, help="of turns, a row")
    parser.add_argument("--tool", help="an NVTX tool: measure under it, too")
    parser.add_argument("--nsys", help="path of nsys: measure under it")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        work(chosen.device, bool(chosen.worker))
        return 0
    same = True
    with tempfile.TemporaryDirectory() as scratch:
        workers = start(chosen.device, chosen.tool, chosen.nsys, Path(scratch))
        for mode in chosen.modes.split(","):
            for model in chosen.models.split(","):
                row = measure(workers, model, mode, chosen.seconds)
                same &= row["same_bits"] or not row["plain_same_bits"]
                print(json.dumps(row), flush=True)
        for worker in workers.values():
            worker.close()
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
