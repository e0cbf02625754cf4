"""What a torch trace does not have, and how to record it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvprobe.readers.kineto.collect import COUNTERS, Collector
from nvprobe.readers.kineto.metadata import Columns, integer
from nvprobe.trace import NO_NAME, Missing

_VERBOSE = (
    "profile with with_stack=True and experimental_config="
    "torch._C._profiler._ExperimentalConfig(verbose=True)"
)


def missing_parts(
    rows: dict[str, Columns], collector: Collector, about: dict[str, Any]
) -> Iterator[Missing]:
    """What the events of ``rows`` lack; ``about`` is what the trace says it was recorded with."""
    count = {kind: len(columns["start"]) for kind, columns in rows.items()}
    if not count["ops"]:
        yield _no_gpu_work(collector)
    if not count["operators"] and not count["annotations"]:
        why = "the trace has no host events"
        yield Missing("operators", why, "profile with ProfilerActivity.CPU")
    elif (
        not (rows["operators"]["shapes"] != NO_NAME).any() and integer(about, "record_shapes") <= 0
    ):
        why = "the trace has no input shapes"
        yield Missing("operator shapes", why, "profile with record_shapes=True")
    if not collector.frames_seen:
        asked = integer(about, "with_stack") > 0
        why = "the trace has no Python frames" + (", though it was to record them" * asked)
        how = _VERBOSE if asked else "profile with with_stack=True"
        yield Missing("source lines and modules", why, how)
    if count["ops"] and not count["syncs"]:
        why = "the trace has no cuda_sync rows"
        how = "profile with _ExperimentalConfig(enable_cuda_sync_events=True)"
        yield Missing("awaited streams", why, how)


def _no_gpu_work(collector: Collector) -> Missing:
    if collector.seen[COUNTERS]:
        why = "the trace has hardware counters (CUPTI, cuda_profiler_range), not a timeline"
        return Missing("GPU work", why, "profile without CUPTI_PROFILER_METRICS for a timeline")
    why = "the trace has no GPU events"
    return Missing("GPU work", why, "profile with ProfilerActivity.CUDA, or beside nsys")
