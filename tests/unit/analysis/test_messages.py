"""Messages of NCCL and the kernels that carry them, against a program that looks one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.overlap.communication import carried_messages
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_dict
from nvprobe.trace import NO_NAME
from tests.unit.readers.exports import PROCESS, THREAD, Row, kernel, launch, strings, write
from tests.unit.readers.payloads import (
    NCCL_ENTRIES,
    NCCL_SCHEMAS,
    TABLES,
    all_reduce,
    attached,
    send,
)

NAMES = strings(
    "cudaLaunchKernelExC", "ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_SendRecv", "gemm"
)


def _write(path: Path, ranges: list[Row], calls: list[Row], kernels: list[Row]) -> Path:
    domain: Row = {**attached("NCCL", 0, 0, None), "eventType": 75}
    tables = {
        "StringIds": NAMES,
        "NVTX_EVENTS": [domain, *ranges],
        "NVTX_PAYLOAD_SCHEMAS": NCCL_SCHEMAS,
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": NCCL_ENTRIES,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
    }
    return write(path, tables, TABLES)


def _scene(path: Path) -> Path:
    """An all-reduce, a group of four with one kernel, a group with two, and a stray message."""
    ranges = [
        attached("ncclAllReduce", 100, 200, all_reduce(7, 4096, 4)),
        attached("ncclGroupStart", 300, 310, None),
        attached("ncclSend", 320, 330, send(2**64 - 1, 10, 1)),
        attached("ncclRecv", 340, 350, send(2**64 - 1, 20, 1)),
        attached("ncclGroupStart", 351, 352, None),
        attached("ncclSend", 353, 354, send(2**64 - 1, 30, 2)),
        attached("ncclGroupEnd", 355, 356, None),
        attached("ncclGroupEnd", 360, 400, None),
        attached("ncclGroupStart", 500, 510, None),
        attached("ncclSend", 520, 530, send(9, 40, 1)),
        attached("ncclGroupEnd", 540, 600, None),
        attached("ncclSend", 700, 710, send(9, 50, 1)),
    ]
    calls = [launch(c, t, t + 5) for c, t in [(1, 150), (2, 370), (3, 550), (4, 560), (5, 800)]]
    kernels = [kernel(1, 1000, 1100, 2), *(kernel(c, c * 1000, c * 1000 + 9, 3) for c in (2, 3, 4))]
    return _write(path, ranges, calls, [*kernels, kernel(5, 9000, 9001, 4)])


def test_the_collectives_tell_their_messages(tmp_path: Path) -> None:
    analysis = analyze(attribute(load(_scene(tmp_path / "x.sqlite"))))
    rows = {row["path"]: row for row in to_dict(analysis)["collectives"]}
    told = ("count", "messages", "bytes", "known_ops", "communicators", "reductions", "peers")
    assert {path: tuple(row[name] for name in told) for path, row in rows.items()} == {
        "ncclAllReduce": (1, 1, 4096, 1, ["0x0000000000000007"], ["Avg"], []),
        "ncclGroupEnd": (3, 3, 60, 1, ["0xffffffffffffffff"], [], [1, 2]),
    }


def test_without_payloads_nothing_is_told(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "x.sqlite",
        [attached("ncclAllReduce", 100, 200, None)],
        [launch(1, 150, 155)],
        [kernel(1, 1000, 1100, 2)],
    )
    (row,) = to_dict(analyze(attribute(load(path))))["collectives"]
    assert row["messages"] is row["bytes"] is row["peers"] is None


def _oracle(
    ranges: list[tuple[int, str, int, int]], launches: list[tuple[int, int, int]]
) -> dict[int, int]:
    """Message (number of its range) → op, both looked up one at a time."""
    out: dict[int, int] = {}
    groups = []
    for thread in {t for t, *_ in ranges}:
        edges = [(s, 1) for t, n, s, e in ranges if t == thread and n == "ncclGroupStart"]
        edges += [(e, -1) for t, n, s, e in ranges if t == thread and n == "ncclGroupEnd"]
        depth, begin = 0, 0
        for time, change in sorted(edges, key=lambda edge: (edge[0], -edge[1])):
            if depth == 0 and change == 1:
                begin = time
            if depth == 1 and change == -1:
                groups.append((thread, begin, time))
            depth = max(depth + change, 0)
    messages = [i for i, (_, n, _, _) in enumerate(ranges) if n == "ncclSend"]
    of_group: dict[Any, list[int]] = {}
    for thread, time, op in launches:
        before = [i for i in messages if ranges[i][0] == thread and ranges[i][2] <= time]
        last = max(before, key=lambda i: ranges[i][2], default=None)
        if last is not None and ranges[last][3] > time:
            out[last] = op
            continue
        for group in groups:
            if group[0] == thread and group[1] <= time < group[2]:
                of_group.setdefault(group, []).append(op)
    for group, ops in of_group.items():
        for i in messages:
            inside = ranges[i][0] == group[0] and group[1] <= ranges[i][2] < group[2]
            if inside and i not in out and len(ops) == 1:
                out[i] = ops[0]
    return out


def _random(rng: random.Random) -> tuple[list[tuple[int, str, int, int]], list[tuple[int, int]]]:
    """Ranges of two threads one after the other, launches inside and between them."""
    ranges, launches = [], []
    for thread in (0, 1):
        time = 10
        for _ in range(rng.randint(0, 14)):
            name = rng.choice(["ncclSend", "ncclSend", "ncclGroupStart", "ncclGroupEnd"])
            length = rng.randint(2, 20)
            ranges.append((thread, name, time, time + length))
            if rng.random() < 0.5:
                launches.append((thread, time + rng.randint(0, length + 3)))
            time += length + rng.randint(1, 5)
    return ranges, launches


@pytest.mark.parametrize("seed", range(60))
def test_the_oracle_agrees(tmp_path: Path, seed: int) -> None:
    ranges, launches = _random(random.Random(seed))
    launches = sorted(set(launches))
    tids = [THREAD, PROCESS | 4002]
    path = _write(
        tmp_path / "x.sqlite",
        [
            attached(n, s, e, send(1, i, 0) if n == "ncclSend" else None, globalTid=tids[t])
            for i, (t, n, s, e) in enumerate(ranges)
        ],
        [launch(i + 1, t, t + 1, globalTid=tids[thread]) for i, (thread, t) in enumerate(launches)],
        [kernel(i + 1, 1000 + 10 * i, 1005 + 10 * i, 3) for i in range(len(launches))],
    )
    attribution = attribute(load(path))
    found = carried_messages(attribution, np.arange(len(launches)))
    expected = _oracle(ranges, [(*one, op) for op, one in enumerate(launches)])
    if found is None:
        assert not expected
        return
    assert dict(zip(found.bytes.tolist(), found.op.tolist(), strict=True)) == expected
    assert set(found.reduction.tolist()) <= {NO_NAME}
