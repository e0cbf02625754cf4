"""What a capture cannot tell, why, and how to record it: read off a Trace of any nsys version."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.readers.input_errors import printable
from nvprobe.readers.nsys.python_stacks import PYTHON_DOMAINS
from nvprobe.trace import Missing, OpKind, Table, Trace
from nvprobe.trace.cuda_calls import LAUNCHES, CallRole, calls_with

_WARNING, _ERROR = 2, 3
_OURS = "nvprobe"
"""A domain whose ranges every pair of nvtx and nsys records: none means that none was opened."""
_SYNCHRONIZE = (CallRole.STREAM_SYNC, CallRole.EVENT_SYNC, CallRole.DEVICE_SYNC)


def missing_of(trace: Trace) -> tuple[Missing, ...]:
    """Everything the tables show to be absent, in the order a reader wants to hear it."""
    return (*_gpu(trace), *_calls(trace), *_annotations(trace), *_graphs(trace), *_rest(trace))


def launch_calls(trace: Trace) -> int:
    """How many calls launch kernels or graphs."""
    return int(calls_with(trace, LAUNCHES).sum())


def _gpu(trace: Trace) -> Iterator[Missing]:
    if _filled(trace.ops):
        return
    launches = launch_calls(trace)
    said = _said(trace)
    if launches:
        are = "launch call has" if launches == 1 else "launch calls have"
        yield Missing(
            "GPU records (kernels, copies)",
            f"{launches} {are} no GPU record, so nothing can be said of the GPU's work or "
            f"idleness{said}",
            "use an nsys that supports the installed driver, run as a user who may profile the "
            "GPU, and let the program end normally (or call torch.cuda.profiler.stop()) so that "
            "its buffers are flushed",
        )
    elif count := len(trace.calls):
        calls = "1 CUDA call was" if count == 1 else f"{count:,} CUDA calls were"
        yield Missing(
            "GPU records (kernels, copies)",
            f"{calls} recorded, and none of them launches anything{said}",
            "record the part of the program that uses the GPU, in every process that does "
            "(nsys profile --trace=cuda,nvtx)",
        )
    else:
        yield Missing(
            "GPU records (kernels, copies)",
            f"no CUDA activity was recorded{said}",
            "trace CUDA (nsys profile --trace=cuda,nvtx) while the program uses the GPU",
        )


def _said(trace: Trace) -> str:
    """What the capture itself gives as a reason: its errors, and its warnings about CUDA."""
    texts = [
        printable(text, 400)
        for severity, text in trace.diagnostics
        if severity >= _ERROR or (severity == _WARNING and "CUDA" in text)
    ]
    return f"; the capture itself says: {' '.join(texts)}" if texts else ""


def _calls(trace: Trace) -> Iterator[Missing]:
    if _filled(trace.ops) and not _filled(trace.calls):
        yield Missing(
            "CUDA calls (launches)",
            "no runtime or driver API call was recorded, so GPU work has no owner",
            "trace the CUDA API too: nsys profile --trace=cuda,nvtx",
        )


def _annotations(trace: Trace) -> Iterator[Missing]:
    if _filled(trace.ranges):
        return
    if _filled(trace.spans):
        yield Missing(
            "nested ranges",
            "only start/end ranges were recorded: they may cross threads and overlap, so they are "
            "listed as spans and kernels are not nested under them",
            "annotate with push/pop: nvtx.annotate, torch.cuda.nvtx.range or nvprobe.annotate",
        )
    elif lost := [name for name in trace.domains if name != _OURS]:
        names = ", ".join(printable(name, 40) for name in lost[:3])
        yield Missing(
            "NVTX ranges",
            f"an NVTX domain was created ({names}) but no range was recorded: the ranges of the "
            f"nvtx package 0.2.12 and newer are lost by older versions of nsys "
            f"(this capture is of nsys {trace.sources[0].product_version or 'unknown version'})",
            "use a newer nsys (2025.3 records them), or an older nvtx package (nvtx<=0.2.11)",
        )
    else:
        yield Missing(
            "NVTX ranges",
            "no NVTX range was recorded, so GPU work has no owner",
            "annotate the program (nvprobe launch does) and trace NVTX: "
            "nsys profile --trace=cuda,nvtx",
        )


def _graphs(trace: Trace) -> Iterator[Missing]:
    whole = int(np.count_nonzero(trace.ops.kind == OpKind.GRAPH))
    if whole:
        yield Missing(
            "kernels inside CUDA graphs",
            f"{whole} graph launches were recorded whole, the kernels inside them were not",
            "record nodes: nsys profile --cuda-graph-trace=node (nvprobe launch "
            "--kernels-in-graphs)",
        )
    nodes = int(np.count_nonzero(trace.ops.graph_node))
    if nodes and not _filled(trace.graph_nodes):
        yield Missing(
            "CUDA graph capture",
            f"{nodes} operations ran inside graphs whose capture is not in this file, so they "
            "belong to the path of the graph launch alone",
            "begin the capture window before the graphs are captured, or annotate with nvprobe, "
            "whose sidecar notes the ranges open at capture",
        )


def _rest(trace: Trace) -> Iterator[Missing]:
    if not trace.syncs.recorded and calls_with(trace, _SYNCHRONIZE).any():
        yield Missing(
            "synchronization records",
            "synchronizing calls were recorded, but not what they waited for",
            "use nsys 2020.3 or newer with --trace=cuda",
        )
    yield from _bytes(trace)
    if trace.origin_ns is None:
        yield Missing(
            "session start",
            "the export does not say when the capture began, so it cannot share a clock with "
            "other sources",
            "export the report again with a newer nsys",
        )


def _bytes(trace: Trace) -> Iterator[Missing]:
    """Payloads whose layout is in the file and whose bytes are not: of the program, or of nsys."""
    stacks = _filled(trace.python_samples) or _filled(trace.backtraces)
    fields = trace.payload_fields
    if not len(fields) or _filled(trace.payloads) or stacks:
        return
    again = "export the report again with nsys export --include-blobs=true (2024.6 and later)"
    schemas = set(trace.texts(fields.schema_name)) - {None}
    if schemas and schemas <= PYTHON_DOMAINS.keys():
        yield Missing(
            "Python stacks",
            "their layout is in the file, their bytes are not: no line of Python can be named",
            again,
        )
    elif _filled(trace.ranges):
        yield Missing(
            "structured NVTX payloads",
            "their layout is in the file, their bytes are not: messages and communicators of NCCL "
            "and what else programs attached to ranges cannot be read",
            again,
        )


def _filled(table: Table) -> bool:
    return len(table) > 0
