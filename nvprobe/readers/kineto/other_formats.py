"""What a JSON file without events of torch.profiler holds: it is refused by its own name.

Beside a torch trace, PyTorch writes execution traces and memory timelines; JAX and XProf write
traces in the same container. Each of them is whole: neither empty nor cut off.
"""

from __future__ import annotations

import re
from pathlib import Path

from nvprobe.errors import InputError
from nvprobe.readers.input_errors import counted, unusable
from nvprobe.readers.kineto.collect import Collector
from nvprobe.readers.kineto.reader import Reading
from nvprobe.readers.sniff import TRACE_BEGINNING

_GIVE_TRACE = "give the trace of prof.export_chrome_trace(...)"
_JSON = re.compile(rb'\s*(?:\[\s*[^\s\]{]|\[?\s*\{\s*"[^"]*"\s*:)')
"""The beginning of JSON that holds something: a first key, or a first item."""
_EXECUTION_TRACE = re.compile(rb'\{.*"schema"\s*:\s*"\d.*"nodes"\s*:\s*\[', re.DOTALL)
_MEMORY_TIMELINE = re.compile(rb"\[\s*\[\s*-?\d")
_OF_XPROF = re.compile(r"/(?:device|host):")
"""Names of processes in traces of JAX, XProf and TensorFlow."""


def no_torch_trace(path: Path, reading: Reading, collector: Collector) -> InputError:
    """The error for a file without a single event of torch.profiler."""
    if _EXECUTION_TRACE.match(reading.beginning):
        what = "is an execution trace (ExecutionTraceObserver, Chakra), which has no GPU work"
        return unusable(path, what, _GIVE_TRACE)
    if _MEMORY_TIMELINE.match(reading.beginning):
        what = "is a memory timeline (export_memory_timeline), which has no GPU work"
        return unusable(path, what, f"{_GIVE_TRACE}, and a memory snapshot beside it")
    if any(map(_OF_XPROF.match, collector.process_names.values())):
        what = "is a trace of JAX or XProf, whose events have no categories of torch.profiler"
        return unusable(path, what, "record the program with nsys and give the report")
    if collector.without_category:
        events = counted(collector.without_category, "event")
        what = f"is not a trace of torch.profiler ({events} without a category)"
        return unusable(path, what, _GIVE_TRACE)
    if _JSON.match(reading.beginning) and not TRACE_BEGINNING.search(reading.beginning):
        return unusable(path, "is JSON, but not a trace of torch.profiler", _GIVE_TRACE)
    cut = "it is empty or cut off before the first event"
    why = cut if reading.damage.cut else "its event list is empty"
    return unusable(path, f"no events of torch.profiler in it ({why})", "export the trace again")
