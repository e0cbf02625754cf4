"""Readings of the allocator's counters (docs/sidecar.md) as a table on the trace's clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.readers.sidecar_file import is_whole
from nvprobe.trace import NO_ROW, Column, Trace
from nvprobe.trace.sidecar import AllocatorSamples

__all__ = ["allocator_samples"]

_COUNTED = (
    "allocated", "reserved", "peak_allocated", "peak_reserved", "retries", "device_allocs",
    "device_frees", "out_of_memory",
)  # fmt: skip


def allocator_samples(
    trace: Trace, rows: list[dict[str, Any]], process: int, shift: int
) -> AllocatorSamples:
    """Readings on the trace's clock. torch numbers the devices that a process sees from 0.

    They are the devices that the process used, in order, where as many were sampled as used.
    """
    ordinal = _integers([row["device"] for row in rows]).astype(np.int32)
    ops = trace.ops
    used = np.unique(ops.device[ops.process == process])
    used, sampled = used[used >= 0], np.unique(ordinal)
    known = len(used) == len(sampled)
    return AllocatorSamples(
        process=np.full(len(rows), process),
        device=used[np.searchsorted(sampled, ordinal)] if known else np.full(len(rows), NO_ROW),
        ordinal=ordinal,
        time=_integers([row["time_ns"] for row in rows]) + shift,
        **{name: _integers([row.get(name) for row in rows]) for name in _COUNTED},
    )


def _integers(values: list[Any]) -> Column:
    known = [v if is_whole(v) else -1 for v in values]
    return np.array(known, np.int64)
