"""Small torch traces of the ranks of a job, with delays and clocks as asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BASE = 1_700_000_000_000_000_000
STEP_US, GEMM_US, TRANSFER_US = 2_000, 500, 100
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write_job(
    folder: Path,
    *,
    ranks: int,
    steps: int = 4,
    late_us: Mapping[int, int] | None = None,
    clock_us: Mapping[int, int] | None = None,
) -> Path:
    """``rank<N>.json`` of each: in a step a product, longer on late ranks, and an all-reduce."""
    folder.mkdir(parents=True)
    late, clock = late_us or {}, clock_us or {}
    slowest = GEMM_US + max(late.values(), default=0)
    for rank in range(ranks):
        events = []
        for step in range(steps):
            begin = 1_000 + step * STEP_US + clock.get(rank, 0)
            own = GEMM_US + late.get(rank, 0)
            events += _step(step, begin, own, slowest, rank)
        (folder / f"rank{rank}.json").write_text(_trace(rank, ranks, events))
    return folder


def _trace(rank: int, ranks: int, events: list[dict[str, Any]]) -> str:
    about = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE,
        "deviceProperties": [{"id": 0, "name": "Synthetic GPU", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
    }
    return json.dumps({**about, "traceEvents": events})


def _step(step: int, begin: int, own: int, slowest: int, rank: int) -> list[dict[str, Any]]:
    pid, arrives = 900 + rank, begin + 20 + own
    ends = begin + 20 + slowest + TRANSFER_US
    kernels = [("gemm_bf16", 7, begin + 20, own), (ALL_REDUCE, 30, arrives, ends - arrives)]
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": pid,
         "tid": pid, "ts": begin, "dur": STEP_US - 100}
    ]  # fmt: skip
    for number, (name, stream, start, length) in enumerate(kernels):
        correlation = 2 * step + number + 1
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": pid,
             "ts": begin + 5 + 5 * number, "dur": 4, "args": {"correlation": correlation}},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start,
             "dur": length, "args": {"device": 0, "context": 1, "stream": stream,
             "correlation": correlation, "grid": [132, 1, 1], "block": [128, 1, 1]}},
        ]  # fmt: skip
    return events


def write_slower_host(folder: Path, pace: float, steps: int = 6, late_us: int = 0) -> Path:
    """Two ranks whose GPUs wait for their hosts; on rank 1 all of the host takes ``pace`` longer.

    It begins ``late_us`` later.

    In a step of 1 ms a call that does nothing (0.1 µs), a product and an all-reduce.
    """
    folder.mkdir(parents=True)
    for rank, own in enumerate((1.0, pace)):
        pid, end, events = 900 + rank, 0.0, list[dict[str, Any]]()
        for step in range(steps):
            begin = 1_000 + 1_000 * own * step + late_us * rank
            last = 1_000 + 1_000 * pace * step + 610 * pace + late_us
            name = f"ProfilerStep#{step}"
            events += [
                _event("user_annotation", name, pid, begin, 999 * own),
                _event("cuda_driver", "cuKernelGetName", pid, begin + 100 * own, 0.1 * own),
            ]
            for number, (kernel, length) in enumerate((("gemm", 20.0), (ALL_REDUCE, 50.0))):
                called = begin + (200 + 400 * number) * own
                correlation = {"correlation": 2 * step + number + 1}
                start = max(called + 10 * own + 2, end)
                end = start + length if number == 0 else max(start, last + 2) + length
                about = {"device": 0, "context": 1, "stream": 7, "grid": [1, 1, 1], **correlation}
                events += [
                    _event("cuda_runtime", "cudaLaunchKernel", pid, called, 10 * own, correlation),
                    _event("kernel", kernel, 0, start, end - start, about),
                ]
        (folder / f"rank{rank}.json").write_text(_trace(rank, 2, events))
    return folder


def _event(
    category: str, name: str, pid: int, begin: float, length: float, about: Any = None
) -> dict[str, Any]:
    tid = about["stream"] if category == "kernel" else pid
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
            "ts": begin, "dur": length, "args": about or {}}  # fmt: skip
