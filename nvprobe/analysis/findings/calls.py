"""Findings about calls that an idle GPU waits for, and about causes that no other finding explains.

Low ends are half of the idle time, as of all idle time under a profiler; what a capture shows only
once may be start-up, and nothing is promised of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.grouping import sums
from nvprobe.analysis.waiting.blocking import outermost_calls
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.attribution.intervals import Coverage
from nvprobe.trace import NO_ROW, Column
from nvprobe.trace.cuda_calls import (
    ALLOCATIONS,
    GRAPH_BUILDS,
    OTHER_CALLS,
    SYNCS,
    CallRole,
    calls_with,
)

PLAIN = 0.05
"""Less of the window than this needs no explanation."""
LONG_WAIT_NS = 100_000
"""A queued op that waits for longer waits for something else than its launch."""
_FEW = 3
"""Done less often, it may belong to the start."""
_EXPLAINED_BY = {
    Cause.SYNC: {
        "implicit_sync",
        "explicit_sync",
        "pageable_copy",
        "allocator",
        "pinned_allocation",
    },
    Cause.ALLOCATION: {"allocator", "pinned_allocation"},
    Cause.COMPILATION: {"compile_in_window", "recompile"},
    Cause.COLLECTIVE: set(),
    Cause.INPUT: {"input_wait"},
    Cause.OTHER_CALL: {"graph_rebuilt", "context_creation"},
    Cause.DEVICE_WAIT: {"graph_gaps"},
}
"""Findings that speak of a cause; of the host's own time and launches ``host_bound`` does."""
_CALLS_OF = {
    Cause.SYNC: SYNCS,
    Cause.ALLOCATION: ALLOCATIONS,
    Cause.COMPILATION: (CallRole.COMPILATION,),
    Cause.OTHER_CALL: OTHER_CALLS,
}
_WHAT = {
    Cause.ALLOCATION: "memory to be allocated or freed",
    Cause.COLLECTIVE: "the host inside collectives",
    Cause.OTHER_CALL: "calls that launch nothing",
    Cause.SYNC: "the host, which waits itself",
    Cause.INPUT: "data",
    Cause.COMPILATION: "compilation",
    Cause.DEVICE_WAIT: "something that queued work depends on",
}


_LOOK = {
    Cause.COLLECTIVE: "look at which collective holds the host, and at the captures of other ranks",
    Cause.DEVICE_WAIT: "look at what the op waits for: an event, a host function, another GPU",
}


def idle_inside(evidence: Evidence, rows: Column) -> tuple[Column, Column]:
    """(calls of ``rows`` that are inside no other, ns of each in which an idle GPU waited)."""
    gaps, calls = evidence.waits.gaps, evidence.trace.calls
    kept, begin = outermost_calls(calls, rows)
    known = np.flatnonzero((gaps.thread != NO_ROW) & (gaps.queued > gaps.start))
    threads = len(evidence.trace.threads)
    idle = Coverage.of(gaps.thread[known], gaps.start[known], gaps.queued[known], threads)
    outer = rows[kept]
    return outer, idle.between(calls.thread[outer], begin, calls.end[outer])


def _calls(evidence: Evidence, roles: Collection[CallRole]) -> Column:
    """Rows of the calls with these roles in the steady steps."""
    calls = evidence.trace.calls
    rows = np.flatnonzero(calls_with(evidence.trace, roles))
    return rows[evidence.in_steady(calls.start[rows])]


def _by_path(evidence: Evidence, rows: Column, ns: Column) -> Column:
    """ns per path, the last one for none, of calls."""
    calls, open_ = evidence.trace.calls, evidence.attribution.open
    out = np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    np.add.at(out, open_.at(calls.thread[rows], calls.start[rows]), ns)
    return out


def _longest_name(evidence: Evidence, rows: Column, ns: Column) -> str:
    """The name of the calls with most of ``ns``."""
    names, code = np.unique(evidence.trace.calls.name[rows], return_inverse=True)
    most = int(names[np.argmax(sums(code, ns, len(names)))])
    return evidence.trace.text(most) or "a call"


def _finding(
    evidence: Evidence, id_: str, title: str, rows: Column, ns: Column, advice: tuple[str, ...]
) -> Finding:
    """A finding about calls; ``{call}`` and ``{path}`` stand in the title for what they are."""
    idle = _by_path(evidence, rows, ns)
    path = common_path(evidence.attribution.paths, idle)
    total, calls = int(ns.sum()), evidence.trace.calls
    call = _longest_name(evidence, rows, ns)
    where = named(evidence.attribution.paths, path)
    return Finding(
        id=id_,
        title=title.format(call=call, path=where),
        path=path,
        sources=(),
        evidence={
            "call": call,
            "calls": len(rows),
            "calls_ns": int((calls.end[rows] - calls.start[rows]).sum()),
            "idle_ns": total,
        },
        saves_ns=(total // 2 if evidence.repeats else 0, total),
        advice=advice,
        calls=rows,
        idle=idle,
    )


def pinned_idle(evidence: Evidence) -> Column:
    """Idle ns per path, the last one for none, inside calls that pin or free host memory."""
    return _by_path(evidence, *idle_inside(evidence, _calls(evidence, [CallRole.HOST_ALLOCATION])))


def pinned_allocation(evidence: Evidence) -> Iterator[Finding]:
    """Host memory is pinned, or registered, in every steady step."""
    if not evidence.idle_trusted or not evidence.repeats:
        return
    rows = _calls(evidence, [CallRole.HOST_ALLOCATION])
    if len(rows) < max(len(evidence.steady), _FEW):
        return
    outer, ns = idle_inside(evidence, rows)
    if not ns.any():
        return
    yield _finding(
        evidence, "pinned_allocation",
        "Host memory is pinned anew in every step ({call}) in {path}", outer, ns,
        ("allocate pinned buffers once and copy into them in each step",
         "DataLoader(pin_memory=True) reuses its pinned memory; tensor.pin_memory() of a tensor of "
         "another size in each step does not"),
    )  # fmt: skip


def graph_rebuilt(evidence: Evidence) -> Iterator[Finding]:
    """CUDA graphs are instantiated or updated about as often as they are launched."""
    if not evidence.idle_trusted:
        return
    built = _calls(evidence, [CallRole.GRAPH_INSTANTIATION])
    launched = len(_calls(evidence, [CallRole.GRAPH_LAUNCH]))
    if len(built) < _FEW or launched > 2 * len(built) or 2 * launched < len(built):
        return
    outer, ns = idle_inside(evidence, _calls(evidence, GRAPH_BUILDS))
    yield _finding(
        evidence, "graph_rebuilt",
        "A CUDA graph is built for nearly every launch of one ({call}) in {path}", outer, ns,
        ("instantiate each graph once and replay it; keep shapes and addresses the same",
         "where only arguments change, update the nodes of the instantiated graph"),
    )  # fmt: skip


def context_creation(evidence: Evidence) -> Iterator[Finding]:
    """A context is created or reset inside the window; it happens once, so nothing is sure."""
    if not evidence.idle_trusted:
        return
    rows = np.flatnonzero(calls_with(evidence.trace, [CallRole.CONTEXT]))
    outer, ns = idle_inside(evidence, rows)
    if int(ns.sum()) < PLAIN * evidence.window_ns:
        return
    yield _finding(
        evidence, "context_creation",
        "A CUDA context is created or destroyed inside the window ({call}) in {path}", outer, ns,
        ("begin the capture after the first CUDA call of the process: nvprobe launch --steps 10:15",
         "where it happens again and again, keep the process and its context alive"),
    )  # fmt: skip


def unexplained_idle(evidence: Evidence, specific: Sequence[Finding]) -> Iterator[Finding]:
    """A cause with a plain share of the window and no finding about it: where, and which call."""
    if not evidence.idle_trusted or not evidence.repeats:
        return
    spoken = {one.id for one in specific}
    for cause, ids in _EXPLAINED_BY.items():
        idle = evidence.idle(cause) if cause != Cause.DEVICE_WAIT else _long_waits(evidence)
        if not spoken & ids and int(idle.sum()) >= PLAIN * evidence.window_ns:
            yield _unexplained(evidence, cause, idle)


def _long_waits(evidence: Evidence) -> Column:
    """Idle ns per path of the op, the last for none, after whose call the GPU waited for long.

    Every op waits for some microseconds: launching takes that.
    """
    gaps, out = evidence.waits.gaps, np.zeros(len(evidence.attribution.paths.parent) + 1, np.int64)
    waited = np.where(gaps.thread != NO_ROW, gaps.end - gaps.queued, 0)
    rows = np.flatnonzero((waited >= LONG_WAIT_NS) & evidence.in_steady(gaps.queued))
    np.add.at(out, evidence.attribution.owner[gaps.op[rows]], waited[rows])
    return out


def _unexplained(evidence: Evidence, cause: Cause, idle: Column) -> Finding:
    paths, total = evidence.attribution.paths, int(idle.sum())
    path = common_path(paths, idle)
    outer, ns = idle_inside(evidence, _calls(evidence, _CALLS_OF.get(cause, ())))
    call = _longest_name(evidence, outer, ns) if ns.any() else None
    inside = f" ({call})" if call else ""
    return Finding(
        id=f"idle_{cause.label}",
        title=f"The GPU waits for {_WHAT[cause]}{inside} in {named(paths, path)}",
        path=path,
        sources=(),
        evidence={
            "idle_ns": total,
            "share_of_window": round(total / evidence.window_ns, 4),
            "call": call,
            "calls": len(outer),
        },
        saves_ns=(0, total),
        advice=(
            f"look at what calls {call} there"
            if call
            else _LOOK.get(cause, "look at what runs there"),
        ),
        calls=outer if call else None,
        idle=idle if cause == Cause.OTHER_CALL else None,
    )
