#!/usr/bin/env python3
"""Hold what nvprobe says of a graph break and a recompile to what torch logs of them.

    compiled_trace.py OUT_FOLDER

Trains a compiled transformer with one graph break and one recompile on one GPU (on the CPU where
there is none) under torch.profiler, with nvprobe's ranges and sidecar, in a child process whose
TORCH_LOGS are kept. The trace and the sidecar are analyzed, and the breaks and recompiles of the
table of compiled graphs are held to the log's: same lines, same reasons, same numbers. Writes
``trace.json.gz``, the sidecar, ``torch_logs.txt`` and ``analysis.json`` into OUT_FOLDER and prints
the comparison as JSON; exit code 1 if it differs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

WARM_STEPS, STEPS = 2, 4
LAYERS, WIDTH, HEADS, BATCH, LENGTH, WORDS = 4, 512, 8, 8, 256, 1000


def model_class() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.LayerNorm(WIDTH)
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            self.out = nn.Linear(WIDTH, WIDTH)
            self.after = nn.LayerNorm(WIDTH)
            self.up = nn.Linear(WIDTH, 4 * WIDTH)
            self.down = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            heads = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.after(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, WORDS)
            self.temperature = 1

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.words(tokens)
            for block in self.blocks:
                x = block(x)
            torch._dynamo.graph_break()  # the one break
            return self.head(x) / self.temperature

    return Transformer


def train(out: Path) -> None:
    """The child: warm up, then profile steps of which one recompiles."""
    import torch

    from nvprobe.instrumentation import compiled, emitter, sidecar

    device = "cuda" if torch.cuda.is_available() else "cpu"
    emitter.use("record_function")
    sidecar.open(out)
    compiled.install()
    torch.manual_seed(0)
    model = model_class()().to(device)
    fast = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(WORDS, (BATCH, LENGTH), device=device)

    def step() -> None:
        with torch.profiler.record_function("forward"):
            logits = fast(tokens)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        with torch.profiler.record_function("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_STEPS):
        step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        torch.cuda.synchronize()
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as prof:
        for number in range(STEPS):
            if number == STEPS // 2:
                model.temperature = 2  # the guard of the graph after the break does not hold
            with torch.profiler.record_function(f"step {number}"):
                step()
        if device == "cuda":
            torch.cuda.synchronize()
    prof.export_chrome_trace(str(out / "trace.json.gz"))
    sidecar.close()


def logged(log: str) -> dict[str, Any]:
    """What TORCH_LOGS say: lines of breaks, and the frames and guards of recompiles."""
    breaks = re.findall(r"Graph break in user code at (?:\S*/)?(\S+?:\d+)", log)
    recompiled = re.findall(r"Recompiling function (\S+) in (?:\S*/)?(\S+?:\d+)", log)
    guards = re.findall(r"- (\d+/\d+): (.*)", log)
    return {
        "breaks": sorted(set(breaks)),
        "recompiled": sorted({f"{line} {function}" for function, line in recompiled}),
        "guards": sorted({guard.strip() for _, guard in guards}),
    }


def told(graphs: list[dict[str, Any]]) -> dict[str, Any]:
    """What nvprobe says of the same."""
    breaks = {line.strip() for g in graphs for line in (g["break_source"] or "").split(",") if line}
    return {
        "breaks": sorted(Path(line).name for line in breaks),
        "reasons": sorted({g["break_reason"] for g in graphs if g["break_reason"]}),
        "recompile_reasons": sorted({r for g in graphs for r in g["recompile_reasons"]}),
        "recompiled_graphs": sorted({g["id"] for g in graphs if g["recompile_reasons"]}),
    }


def compare(out: Path) -> int:
    import nvprobe
    from nvprobe.analysis import analyze
    from nvprobe.attribution import attribute
    from nvprobe.report.document import to_json

    sidecars = sorted(out.glob("sidecar.*.jsonl"))
    analysis = analyze(attribute(nvprobe.load(out / "trace.json.gz", *sidecars)))
    (out / "analysis.json").write_text(to_json(analysis))
    graphs = analysis.compiled_graphs or []
    theirs, ours = logged((out / "torch_logs.txt").read_text(errors="replace")), told(graphs)
    same = {
        "break_lines": ours["breaks"] == theirs["breaks"] and len(theirs["breaks"]) == 1,
        "recompiled_once": len(ours["recompiled_graphs"]) == len(theirs["recompiled"]) == 1,
        "guards": all(
            any(guard.startswith(reason.rstrip("…")[:60]) for guard in theirs["guards"])
            for reason in ours["recompile_reasons"]
        ),
    }
    costs = [
        {
            key: g[key]
            for key in (
                "id",
                "phase",
                "calls",
                "host_ns",
                "gpu_ns",
                "ops",
                "break_source",
                "break_reason",
                "break_idle_ns",
                "recompile_reasons",
                "compile_ns",
            )
        }
        for g in graphs
    ]
    book = {m.name.lower(): entry.ops for m, entry in analysis.ledger.by_method.items()}
    print(
        json.dumps(
            {
                "torch_logs": theirs,
                "nvprobe": ours,
                "same": same,
                "graphs": costs,
                "ledger": book,
                "verdict": analysis.verdict,
            },
            indent=1,
        )
    )
    return 0 if all(same.values()) else 1


def main(folder: str) -> int:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("sidecar.*.jsonl"), *out.glob("trace.json.gz")]:
        old.unlink()
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    env = {
        **os.environ,
        "TORCH_LOGS": "graph_breaks,recompiles",
        "PYTHONPATH": path,
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    command = [sys.executable, __file__, "--train", folder]
    with (out / "torch_logs.txt").open("w") as log:
        code = subprocess.run(command, env=env, stderr=log, check=False).returncode
    if code:
        print((out / "torch_logs.txt").read_text(errors="replace")[-3000:], file=sys.stderr)
        return code
    sys.path.insert(0, str(root))
    return compare(out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]))
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        sys.exit(main(sys.argv[1]))
    else:
        sys.exit(__doc__)
