"""Random traces for waits: few nanoseconds, so that everything meets everything."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from nvprobe.trace import (
    Calls,
    Devices,
    Frames,
    OpKind,
    Ops,
    Processes,
    Ranges,
    Source,
    Syncs,
    Threads,
    Trace,
)
from tests.random_traces import range_rows

RANGE_NAMES = [
    "step 1",
    "step 2",
    "forward",
    "data",
    "nccl:all_reduce",
    "compile",
    "data",
    "enumerate(DataLoader)#_Iter.__next__",
    "aten::item",
    "aten::mm",
    "backward",
    "opt",
    "AddmmBackward0",
]
CALL_NAMES = [
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMalloc",
    "cudaFree",
    "cuLibraryLoadData",
    "cudaMemcpy",
    "cudaStreamWaitEvent",
]
OP_NAMES = ["gemm_kernel", "ncclDevKernel_AllReduce", "ncclKernel_SendRecv", "Memcpy", "Memset"]
OP_KINDS = [OpKind.KERNEL, OpKind.KERNEL, OpKind.KERNEL, OpKind.MEMCPY, OpKind.MEMSET]
FRAME_NAMES = [
    "train.py(10): step",
    "model/net.py(3): forward",
    "torch/nn/modules/module.py(1): __call__",
    "contextlib.py(5): __enter__",
    "<built-in method item of Tensor object at 0x7f0000000000>",
]
STRINGS = [*RANGE_NAMES, *CALL_NAMES, *OP_NAMES, *FRAME_NAMES, "python3", "pt_autograd_0"]
times = st.integers(1, 39)


@st.composite
def wait_traces(draw, crossing: bool = False):
    """One or two processes; calls of a thread nest, cross and touch; ops on few streams."""
    threads = draw(st.integers(1, 3))
    process = [draw(st.integers(0, 1)) for _ in range(threads)]
    ranges = draw(range_rows(threads, crossing))
    call = st.tuples(
        st.integers(0, threads - 1), times, st.integers(0, 8), st.integers(0, len(CALL_NAMES) - 1)
    )
    calls = draw(st.lists(call, max_size=12))
    op = st.tuples(
        st.integers(-1, 14),
        times,
        st.integers(-1, 9),
        st.integers(-1, 1),
        st.integers(0, 2),
        st.integers(-1, 3),
        st.integers(0, len(OP_NAMES) - 1),
        st.sampled_from([1, 2, 8, 10]),
    )
    ops = draw(st.lists(op, max_size=10))
    frames = []
    if draw(st.booleans()):
        frames = [
            (thread, start, min(end, 40), name % len(FRAME_NAMES))
            for thread, start, end, name in draw(range_rows(threads, False))
        ]
    sync = st.tuples(st.integers(0, 13), st.integers(0, 1), st.integers(-1, 2))
    syncs = draw(st.lists(sync, max_size=4, unique_by=lambda s: s[0]))
    return _build(np.array(process), ranges, calls, ops, syncs, frames)


def _rows(rows: list[tuple], width: int) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, width).T)


def _build(process, ranges, calls, ops, syncs, frames) -> Trace:
    thread, start, length, name = _rows(calls, 4)
    correlation = np.arange(len(calls)) + 1
    op_call, op_start, op_length, device, stream, memory, op_name, copy_kind = _rows(ops, 8)
    known = (op_call >= 0) & (op_call < len(calls))
    op_process = np.zeros(len(ops), np.int64)
    op_process[known] = process[thread[op_call[known]]]
    sync_call, sync_device, sync_stream = _rows([s for s in syncs if s[0] < len(calls)], 3)
    sync_process = process[thread[sync_call]] if len(calls) else sync_call
    range_thread, range_start, range_end, range_name = _rows(ranges, 4)
    none, nothing = np.full(len(ops), -1), np.full(len(ranges), -1)
    lanes = len(process)
    return Trace(
        strings=pa.array(STRINGS),
        sources=(Source("nsys-sqlite", "random", None, None, {}),),
        processes=Processes(key=[7, 8], pid=[100, 200], name=[-1, -1], rank=[-1, -1]),
        threads=Threads(
            process=process,
            tid=[100, 101, 102][:lanes],
            name=[len(STRINGS) - 2, len(STRINGS) - 1, len(STRINGS) - 2][:lanes],
        ),
        devices=Devices(**{spec: [0, 0] for spec in Devices.__dataclass_fields__}),
        calls=Calls(
            process=process[thread],
            thread=thread,
            correlation=correlation,
            start=start,
            end=start + length,
            name=len(RANGE_NAMES) + name,
        ),
        ops=Ops(
            kind=np.array(OP_KINDS)[op_name],
            process=op_process,
            device=device,
            context=none,
            stream=stream,
            correlation=np.where(known, op_call + 1, 0),
            start=op_start,
            end=op_start + op_length,
            name=len(RANGE_NAMES) + len(CALL_NAMES) + op_name,
            short_name=none,
            graph_node=np.zeros(len(ops)),
            bytes=none,
            copy_kind=np.where(op_name == OP_NAMES.index("Memcpy"), copy_kind, -1),
            source_memory=memory,
            target_memory=memory,
        ),
        ranges=Ranges(
            process=process[range_thread],
            thread=range_thread,
            start=range_start,
            end=range_end,
            name=range_name,
            domain=nothing,
            category=nothing,
            source=np.zeros(len(ranges)),
        ),
        syncs=Syncs(
            process=sync_process,
            device=sync_device,
            context=np.full(len(sync_call), 1),
            stream=sync_stream,
            correlation=sync_call + 1,
            start=sync_call,
            end=sync_call,
            event=np.full(len(sync_call), -1),
        ),
        frames=_frames(process, frames),
        end_ns=40,
    )


def _frames(process, frames) -> Frames:
    thread, start, end, name = _rows(frames, 4)
    first = STRINGS.index(FRAME_NAMES[0])
    if not len(thread):
        return Frames.absent()
    return Frames(process=process[thread], thread=thread, start=start, end=end, name=first + name)
