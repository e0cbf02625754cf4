"""The parts of steps, for comparisons: rows that add up to each step exactly."""

from __future__ import annotations

from typing import Annotated

from nvprobe.analysis.result import Analysis
from nvprobe.analysis.step_parts import GPU, HOST_TIME, OVERLAP
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.report.schema import path_texts, rows
from nvprobe.trace.rows import Row, is_, ns, size

_OTHERS = {GPU: "gpu", OVERLAP: "overlap", HOST_TIME: "host_time"}


class StepPart(Row, frozen=True):
    """A part of every step; the parts of a step add up to it (docs/compare.md)."""

    path: Annotated[str | None, is_("path it belongs to")]
    what: Annotated[
        str, is_("`gpu`, a cause of idle time, `overlap` (negative), or `host_time` without a GPU")
    ]
    ns: Annotated[list[int], ns("time in each of `steps`")]


class StepCounts(Row, frozen=True):
    """What the program calls for in a step, exactly; with the time since the step before."""

    launches: Annotated[int, is_("launch calls")]
    syncs: Annotated[int, is_("synchronizing calls")]
    graph_launches: Annotated[int, is_("CUDA graphs that are launched")]
    graph_nodes: Annotated[int, is_("CUDA graph nodes that run, where they are traced one by one")]
    copied_bytes: Annotated[int, size("bytes copied")]


class StepParts(Row, frozen=True):
    """Where the time of each step goes, in parts that add up to it."""

    basis: Annotated[str, is_("`gpu`: end of GPU work to end of GPU work; `host` without a GPU")]
    parts: Annotated[list[StepPart], is_("parts; small ones are counted with the path above")]
    counts: Annotated[list[StepCounts], is_("calls and copies of each of `steps`")]


def step_parts(analysis: Analysis) -> StepParts | None:
    """The parts of the steps; null without steps."""
    found = analysis.step_parts
    if found is None:
        return None
    names = {**{int(cause): cause.label for cause in Cause}, **_OTHERS}
    parts = rows(
        StepPart,
        path=path_texts(analysis, found.path),
        what=[names[what] for what in found.what.tolist()],
        ns=found.ns.tolist(),
    )
    return StepParts(found.basis, parts, rows(StepCounts, found.counts))
