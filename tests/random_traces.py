"""Random traces for hypothesis: small, dense in equal time stamps, and rude."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from nvprobe.trace import (
    OPEN,
    Calls,
    Devices,
    GraphNodes,
    OpKind,
    Ops,
    Processes,
    Ranges,
    Source,
    Threads,
    Trace,
)

NAMES = [
    "step 1",
    "step 2",
    "forward",
    "forward, op_id = 3",
    "backward",
    "aten::mm, seq = 4, op_id = 17, sizes = [[8, 4]]",
    "AddmmBackward0, seq = 4",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "layer 3",
    "a/b",
    "Epoch 1/10",
    "item#7",
    "data exhausted",
    "optimizer",
    "Optimizer.step#SGD.step",
    "fwd:net",
    "forward",
]
AUTOMATIC = len(NAMES) - 1
"""Ranges of this name are phases that nvprobe found: they have its domain and category."""
OWN = ["nvprobe", "phase"]
CALL_NAMES = ["cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamBeginCapture", "cuLaunchKernel"]
THREAD_NAMES = ["python3", "pt_autograd_0", "worker"]
STRINGS = [*NAMES, *CALL_NAMES, *THREAD_NAMES, *OWN]
END = 40

times = st.integers(1, END - 1)


@st.composite
def range_rows(draw, threads: int, crossing: bool):
    """(thread, start, end, name): nested by default, any overlap where ``crossing``."""
    out = []
    for thread in range(threads):
        for _ in range(draw(st.integers(0, 8))):
            start = draw(times)
            end = draw(st.one_of(st.integers(start, END), st.just(OPEN)))
            if not crossing:
                end = _nested_end(out, thread, start, end)
            out.append((thread, start, end, draw(st.integers(0, len(NAMES) - 1))))
    return draw(st.permutations(out))


def _nested_end(rows, thread, start, end):
    """Shorten a range so that it crosses none of those before."""
    changed = True
    while changed:
        changed = False
        for t, s, e, _ in rows:
            if t == thread and s <= start < e < end:
                end, changed = e, True
            if t == thread and start < s < end < e:
                end, changed = s, True
    return end


@st.composite
def traces(draw, crossing: bool = True):
    """A whole trace: processes, threads, ranges, calls with reused ids, ops, graph clones."""
    processes = draw(st.integers(1, 2))
    threads = draw(st.integers(1, 4))
    process = [draw(st.integers(0, processes - 1)) for _ in range(threads)]
    tids = draw(st.permutations(range(100, 100 + threads)))
    pids = [draw(st.sampled_from([100 + p, tids[0], 999 + p])) for p in range(processes)]
    rows = draw(range_rows(threads, crossing))
    thread = st.integers(0, threads - 1)
    ids = st.integers(0, 9)
    call = st.tuples(thread, ids, times, st.integers(0, 5), st.integers(0, len(CALL_NAMES) - 1))
    calls = [(t, i, s, s + length, n) for t, i, s, length, n in draw(st.lists(call, max_size=10))]
    ops = [
        (
            draw(st.sampled_from(list(OpKind))),
            draw(st.integers(0, processes - 1)),
            draw(st.integers(0, 1)),
            draw(st.integers(0, 12)),
            draw(st.integers(0, END)),
            draw(st.integers(0, END)),
            draw(st.integers(0, 4)),
            draw(st.sampled_from([-1, 1, 11])),
        )
        for _ in range(draw(st.integers(0, 10)))
    ]
    nodes = [
        (draw(thread), draw(times), draw(st.integers(1, 4)), draw(st.integers(0, 4)))
        for _ in range(draw(st.integers(0, 5)))
    ]
    return build(process, tids, pids, rows, calls, ops, nodes)


def _column(rows, at, dtype=np.int64):
    return np.array([row[at] for row in rows], dtype)


def build(process, tids, pids, rows, calls, ops, nodes) -> Trace:
    process = np.array(process, np.int32)
    automatic = _column(rows, 3) == AUTOMATIC
    call_thread = _column(calls, 0)
    node_thread = _column(nodes, 0)
    first_call, first_thread = len(NAMES), len(NAMES) + len(CALL_NAMES)
    filler = np.full(len(ops), -1)
    return Trace(
        strings=pa.array(STRINGS),
        sources=(Source("nsys-sqlite", "random", None, None, {}),),
        processes=Processes(
            key=np.array(pids), pid=np.array(pids), name=[-1] * len(pids), rank=[-1] * len(pids)
        ),
        threads=Threads(
            process=process,
            tid=np.array(tids),
            name=first_thread + np.arange(len(tids)) % len(THREAD_NAMES),
        ),
        devices=Devices.empty(),
        calls=Calls(
            process=process[call_thread],
            thread=call_thread,
            correlation=_column(calls, 1),
            start=_column(calls, 2),
            end=_column(calls, 3),
            name=first_call + _column(calls, 4),
        ),
        ops=Ops(
            kind=_column(ops, 0),
            process=_column(ops, 1),
            device=_column(ops, 2),
            context=filler,
            stream=filler,
            correlation=_column(ops, 3),
            start=_column(ops, 4),
            end=_column(ops, 5),
            name=filler,
            short_name=filler,
            graph_node=_column(ops, 6),
            bytes=filler,
            copy_kind=_column(ops, 7),
            source_memory=filler,
            target_memory=filler,
        ),
        ranges=Ranges(
            process=process[_column(rows, 0)] if rows else _column(rows, 0),
            thread=_column(rows, 0),
            start=_column(rows, 1),
            end=_column(rows, 2),
            name=_column(rows, 3),
            domain=np.where(automatic, STRINGS.index(OWN[0]), -1),
            category=np.where(automatic, STRINGS.index(OWN[1]), -1),
            source=np.zeros(len(rows)),
        ),
        graph_nodes=GraphNodes(
            process=process[node_thread],
            thread=node_thread,
            time=_column(nodes, 1),
            node=_column(nodes, 2),
            origin=_column(nodes, 3),
        ),
        end_ns=END,
    )
