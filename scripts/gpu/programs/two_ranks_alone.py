"""What two ranks reach without a profiler: bandwidth by size, a spin, steps of each kind.

    torchrun --nproc-per-node 2 two_ranks_alone.py [KIND …]

Rank 0 prints a line of JSON as soon as it has one: ``seconds`` by collective and bytes that a rank
gives (of a reduce-scatter: gets), by CUDA events around twenty calls, the
shortest of three; ``spin_s`` of the spin of
``two_ranks.py``; of each kind ``step_s`` (median, to the end of its GPU work), bytes of its
parameters and buckets, and ``local_s``, the same with DDP's synchronization left out.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from two_ranks import GPU, build, connect, spin, synchronize, train

SIZES = [2**power for power in ((12, 14, 16, 18, 20, 22, 24, 25, 26, 28) if GPU else (12, 20))]
LATE_CYCLES = 3_000_000
STEPS, STEADY, CALLS, ROUNDS = 25, 8, 20, 3
"""Steps of a kind, the first of them that count, calls that are timed together, how often."""


def timed(call: Callable[[], object], calls: int = CALLS) -> float:
    """Seconds of a call, of many one after the other."""
    for _ in range(3):
        call()
    synchronize()
    dist.barrier()
    if not GPU:
        begin_s = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin_s) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    synchronize()
    return float(begin.elapsed_time(end)) / calls / 1e3


def bandwidth(device: torch.device) -> dict[str, Any]:
    """Seconds of each collective by size."""
    rows = []
    for size in SIZES:
        part = torch.zeros(size // 4, device=device)
        whole = torch.zeros(dist.get_world_size() * size // 4, device=device)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda p=part: dist.all_reduce(p),  # type: ignore[misc]
            "all_gather": lambda p=part, w=whole: dist.all_gather_into_tensor(w, p),  # type: ignore[misc]
            "reduce_scatter": lambda p=part, w=whole: dist.reduce_scatter_tensor(p, w),  # type: ignore[misc]
        }
        rows += [
            {"kind": kind, "bytes": size, "seconds": min(timed(call) for _ in range(ROUNDS))}
            for kind, call in calls.items()
        ]
    return {"bandwidth": rows}


def steps(kind: str, device: torch.device) -> dict[str, Any]:
    """The step of a kind."""
    torch.manual_seed(0)
    model, finish = build(kind, device)
    row: dict[str, Any] = {
        "step_s": statistics.median(train(model, finish, STEPS, wait=True)[STEADY:]),
        "bytes": [p.numel() * p.element_size() for p in model.parameters()],
    }
    if isinstance(model, nn.parallel.DistributedDataParallel):
        row["buckets"] = str(model._get_ddp_logging_data().get("rebuilt_bucket_sizes"))
        with model.no_sync():
            local = train(model, finish, STEPS, wait=True)
        row["local_s"] = statistics.median(local[STEADY:])
    return {kind: row}


def main() -> None:
    """All of it, each part for itself."""
    device = connect()
    parts: list[Callable[[], dict[str, Any]]] = [
        lambda: bandwidth(device),
        lambda: {"spin_s": timed(lambda: spin(LATE_CYCLES), 5)},
        *(lambda kind=kind: steps(kind, device) for kind in sys.argv[1:]),  # type: ignore[misc]
    ]
    for part in parts:
        row = part()
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
        if GPU:
            torch.cuda.empty_cache()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
