"""The rules that tell from a name what a thread does while the GPU waits: data, no logic.

``CALLS`` judges CUDA and HIP calls (their clean names, without version and stream-mode suffix),
``RANGES`` the ranges, operators and annotations of a program. Both are read top down and the first
pattern found wins. Patterns are Python regular expressions, searched anywhere unless anchored.

To add a name: one line in the table, one line in tests/unit/analysis/test_wait_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column

__all__ = [
    "CALLS",
    "RANGES",
    "CallRole",
    "RangeRole",
    "call_roles",
    "range_roles",
    "wait_for_device",
    "wait_for_event",
]


class CallRole(IntEnum):
    """What a CUDA call does to the thread that makes it."""

    OTHER = 0
    LAUNCH = 1
    """Starts GPU work and returns: kernels, graphs, asynchronous sets and prefetches."""
    COPY = 2
    """An asynchronous copy: a launch, unless it is seen to have waited for its own end."""
    SYNC = 3
    """Waits by definition, also blocking copies and sets."""
    ALLOCATION = 4
    """Allocates or frees memory: may wait for the device or not."""
    COMPILATION = 5
    """Compiles, links or loads device code."""
    CAPTURE_BEGIN = 6
    CAPTURE_END = 7


class RangeRole(IntEnum):
    """What a range says that its thread does, beyond dispatching."""

    OTHER = 0
    COMPILATION = 1
    COLLECTIVE = 2
    INPUT = 3
    """Waits for data."""


_API = r"^(?:cuda|hip|cu)"

CALLS: tuple[tuple[CallRole, str], ...] = (
    (CallRole.SYNC, _API + r"(?:Stream|Device|Event|Thread|Ctx)Synchronize"),
    (CallRole.CAPTURE_BEGIN, _API + r"StreamBeginCapture"),
    (CallRole.CAPTURE_END, _API + r"StreamEndCapture"),
    (CallRole.COPY, _API + r"Memcpy\w*Async"),
    (CallRole.LAUNCH, _API + r"Mem(?:set|Prefetch)\w*Async"),
    (CallRole.SYNC, _API + r"Memcpy|" + _API + r"Memset"),
    (CallRole.LAUNCH, _API + r"(?:Ext|Module)*(?:Launch|GraphLaunch)"),
    (CallRole.ALLOCATION, r"^(?:cuda|hip)(?:Malloc|Free|HostMalloc|HostFree|HostAlloc|ExtMalloc)"),
    (CallRole.ALLOCATION, r"^cu(?:Mem|Array|MipmappedArray)\w*(?:Alloc|Free|Create$|Destroy)"),
    (CallRole.ALLOCATION, r"^cuMem(?:Map|Unmap|Release|SetAccess|AddressReserve)"),
    (CallRole.ALLOCATION, _API + r"(?:Mem)?Host(?:Unr|R)egister|" + _API + r"MemPoolTrim"),
    (CallRole.COMPILATION, r"^(?:nvrtc|hiprtc)Compile|^(?:nvJitLink|cuLink)(?:Complete|AddData)"),
    (CallRole.COMPILATION, _API + r"(?:Module|Library)Load"),
)
"""(role, pattern) of calls, read top down; what no pattern finds is ``OTHER``."""

RANGES: tuple[tuple[RangeRole, str], ...] = (
    # torch.compile, Inductor and Triton while they compile, not while compiled code runs
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:torch[._])?(?:re)?(?:compil(?:e|ing|ation)|autotun(?:e|ing))\b",
    ),
    (RangeRole.COMPILATION, r"^(?:compile_fx|_compile\.|entire_frame_compile|compile_inner)"),
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:inductor|dynamo|triton|aot_?autograd|nvrtc|jit)[ ._:]*compil",
    ),
    (RangeRole.COMPILATION, r"benchmark_all_configs|^async_compile|CachingAutotuner\.bench"),
    # torch.distributed, its process groups, NCCL's own ranges, TorchRec's awaitables
    (RangeRole.COLLECTIVE, r"^(?:nccl|gloo|mpi|ucc|c10d|_c10d_functional|symm_mem):"),
    (RangeRole.COLLECTIVE, r"^nccl[A-Z]|^record_param_comms$|^ProcessGroup"),
    (RangeRole.COLLECTIVE, r"(?i)(?:^|[^a-z])(?:all_?reduce|all_?gather|reduce_?scatter)"),
    (RangeRole.COLLECTIVE, r"All(?:To|2)All|AllReduce|AllGather|ReduceScatter"),
    (
        RangeRole.COLLECTIVE,
        r"(?i)(?:^|[^a-z])(?:all_?to_?all|all2all)|(?:^|[^a-z])barrier(?:$|[^a-z])",
    ),
    # torch.utils.data, Lightning, TorchRec, and what people call this phase
    (
        RangeRole.INPUT,
        r"^enumerate\(DataLoader\)#|DataLoaderIter|^IterDataPipe|^enumerate\(DataPipe\)",
    ),
    (RangeRole.INPUT, r"(?i)dataloader_next|(?:^|[^a-z])data_?load(?:er|ing)?(?:$|[^a-z])"),
    (RangeRole.INPUT, r"(?i)^(?:## )?(?:wait(?:ing)?_for_|next_)(?:data|batch)(?: ##)?$|^data$"),
    (
        RangeRole.INPUT,
        r"(?i)^(?:## )?(?:get|load|fetch|read|next|wait)_?(?:next_)?(?:data|batch|input)",
    ),
    (RangeRole.INPUT, r"(?i)^(?:data|batch|input)_?(?:fetch|wait|time|next|iter|read)"),
)
"""(role, pattern) of clean range names, read top down; what no pattern finds is ``OTHER``."""

_SUFFIX = r"(?:_v\d+)?(?:_pt(?:sz|ds))?$"

_WHOLE_DEVICE = _API + r"(?:Device|Ctx|Thread)Synchronize"
_EVENT = _API + r"EventSynchronize"


def call_roles(names: pa.Array) -> Column:
    """int8 :class:`CallRole` per name; ``_ptsz`` and ``_v2`` endings do not matter."""
    return _first_match(pc.replace_substring_regex(names, _SUFFIX, ""), CALLS)


def range_roles(names: pa.Array) -> Column:
    """int8 :class:`RangeRole` per clean name."""
    return _first_match(names, RANGES)


def wait_for_device(names: pa.Array) -> Column:
    """int8, 1 for calls that wait for all streams of their device or context."""
    return _found(names, _WHOLE_DEVICE).astype(np.int8)


def wait_for_event(names: pa.Array) -> Column:
    """int8, 1 for calls that wait for an event, not for all of a stream."""
    return _found(names, _EVENT).astype(np.int8)


def _first_match(names: pa.Array, table: Sequence[tuple[IntEnum, str]]) -> Column:
    role = np.zeros(len(names), np.int8)
    for value, pattern in reversed(table):
        role[_found(names, pattern)] = value
    return role


def _found(names: pa.Array, pattern: str) -> Column:
    found = pc.match_substring_regex(pc.fill_null(names, ""), pattern)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)
