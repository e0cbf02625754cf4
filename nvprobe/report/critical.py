"""The critical path of an unprofiled step: rows that add up to it."""

from __future__ import annotations

from typing import Annotated

from nvprobe.analysis.result import Analysis
from nvprobe.trace.rows import Row, is_, ns


class CriticalPart(Row, frozen=True):
    """A part of the unprofiled step that nothing else hides (docs/replay.md)."""

    part: Annotated[
        str, is_("`host`, `call`, `return`, `latency`, `gpu`, `gap` or `stream` (docs/replay.md)")
    ]
    what: Annotated[str | None, is_("of calls their name, of GPU ops their family")]
    path: Annotated[str | None, is_("path it lies in")]
    line: Annotated[str | None, is_("of a wait, the line that waits")]
    ns: Annotated[int, ns("time in a step, without the profiler")]


def critical_path(analysis: Analysis) -> list[CriticalPart] | None:
    """The longest first; null where the step is not replayed."""
    if analysis.critical_time is None:
        return None
    return [CriticalPart(*one) for one in analysis.critical_time]
