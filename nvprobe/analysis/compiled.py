"""Compiled graphs: per graph and phase its calls, host and GPU time, modules, breaks, recompiles.

A graph is found by nvprobe's range (``graph 0/0 fwd``), else by what torch itself labels:
``## Call CompiledFxGraph <key> ##`` inside ``Torch-Compiled Region: 0/0`` (forward) or inside
``CompiledFunctionBackward`` (backward, led to its forward by the autograd sequence number). Why
Dynamo broke or recompiled is in the sidecar; without one, the frame that resumes after a break
still names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.graph_calls import (
    GraphCalls,
    compiling,
    find_graph_calls,
    ops_of_calls,
)
from nvprobe.attribution.intervals import merged
from nvprobe.attribution.model import Attribution, Modules
from nvprobe.trace import Column, OpKind, Ranges, Trace
from nvprobe.trace.cuda_calls import CallRole, calls_with
from nvprobe.trace.sidecar import GraphBreak, Recompile

_COMPILE = re.compile(r"^compile (?P<id>\S+)(?: (?P<what>bwd|cudagraph))?$")
_TORCH_COMPILE = re.compile(
    r"^entire_(?P<what>frame|backward)_compile_data: (?:.*, )?compile_id=(?P<id>[^\s,]+)"
)
"""What torch (2.11 at the latest) notes inside its range ``entire_frame_compile``."""
_ABOUT_COMPILING = r"^(?:compile |entire_(?:frame|backward)_compile_data: )"
"""How both begin: searched once in all names, of which emit_nvtx makes millions."""
_EXPLANATION = re.compile(
    r"(?P<what>\S[^\n]*)\n\s*Explanation: (?P<why>.*?)"
    r"(?=\n\s*(?:Hint|Developer debug context):|\Z)",
    re.DOTALL,
)
_MOST = 12
"""Modules and lines listed of one graph."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One graph in one phase. Times in nanoseconds; None where the input cannot tell."""

    id: str
    """Compile id (``0/1``: the second compilation of the first frame)."""
    phase: str
    """``fwd`` or ``bwd``."""
    process: int
    calls: int
    host_ns: int
    """Host time inside the graph's own code."""
    dispatch_ns: int | None
    """Host time around it: wrappers of AOTAutograd, the autograd engine's node."""
    guard_ns: int | None
    """Host time looking up which compilation fits."""
    ops: int
    gpu_ns: int
    kernels: dict[str, dict[str, int]]
    """``triton``, ``library`` and ``copy``: ops and gpu_ns of each."""
    modules: list[dict[str, Any]]
    """``module``, ``weight`` (share of the graph's GPU time) and gpu_ns, the largest first."""
    sources: list[dict[str, Any]]
    break_reason: str | None
    """Why the graph ends where it ends."""
    break_source: str | None
    break_idle_ns: int | None
    """GPU idle from its last op to the first of the graph that resumes, less time compiling."""
    recompiles: int | None
    """How often its frame was compiled again."""
    recompile_reasons: list[str]
    """Why this one was compiled although there were others."""
    compile_ns: int | None
    """Time spent compiling it inside the capture."""
    cudagraph: dict[str, int]
    """``recorded`` and ``replayed``: CUDA graph captures and launches inside its calls."""

    def record(self) -> dict[str, Any]:
        """The graph as a JSON row."""
        return asdict(self)


def compiled_graphs(
    attribution: Attribution, modules: Modules | None, inside: Column | None = None
) -> list[CompiledGraph]:
    """All compiled graphs that ran, by id and phase; an empty list where none did.

    ``inside`` (bool per range) leaves out the calls that a filter leaves out.
    """
    found = find_graph_calls(attribution, inside)
    if not len(found):
        return []
    work = _Work(attribution, modules, found)
    return [work.graph(row) for row in range(len(found.keys))]


class _Work:
    """What all graphs of a trace are read from."""

    def __init__(self, attribution: Attribution, modules: Modules | None, found: GraphCalls):
        self.attribution = attribution
        self.modules = modules
        self.found = found
        self.op, call = ops_of_calls(attribution, found)
        self.op_call = call
        self.op_key = found.key[call]
        self.sidecar = attribution.trace.sidecar
        self.replays = self._inside(CallRole.GRAPH_LAUNCH)
        self.captures = self._inside(CallRole.CAPTURE_BEGIN)
        self.first, self.last = self._extent()
        self.compiling = _compile_ranges(attribution)

    def graph(self, key: int) -> CompiledGraph:
        """One row of the table."""
        process, identity, phase = self.found.keys[key]
        mine = self.found.key == key
        op = self.op[self.op_key == key]
        breaks = self._breaks(process, identity) if phase == "fwd" else []
        source, reason = _break_text(breaks)
        recompiles = self._recompiles(process, identity)
        resumed = self._resume_line(mine) if not breaks and phase == "fwd" else None
        return CompiledGraph(
            id=identity,
            phase=phase,
            process=process,
            calls=int(mine.sum()),
            host_ns=int(self.found.length[mine].sum()),
            dispatch_ns=_sum_known(self.found.around[mine]),
            guard_ns=_sum_known(self.found.guards[mine]),
            ops=len(op),
            gpu_ns=int(self.attribution.duration[op].sum()),
            kernels=self._origins(process, op),
            modules=self._modules(op),
            sources=self._sources(op),
            break_reason=reason,
            break_source=source or resumed,
            break_idle_ns=self._break_idle(mine) if breaks or resumed else None,
            recompiles=self._times_again(process, identity)
            if recompiles is None
            else len(recompiles),
            recompile_reasons=[
                text for r in recompiles or () if r.compile_id == identity for text in r.guards
            ],
            compile_ns=self._compile_ns(process, identity, phase),
            cudagraph={
                "recorded": int((self.captures == key).sum()),
                "replayed": int((self.replays == key).sum()),
            },
        )

    def _inside(self, role: CallRole) -> Column:
        """Key of the graph around each call of a role, for those inside one."""
        trace = self.attribution.trace
        rows = np.flatnonzero(calls_with(trace, [role]))
        at = self.found.at(trace.calls.thread[rows], trace.calls.start[rows])
        return self.found.key[at[at >= 0]]

    def _extent(self) -> tuple[Column, Column]:
        """First op start and last op end of each graph call; 0 for calls without ops."""
        ops = self.attribution.trace.ops
        first = np.full(len(self.found), np.iinfo(np.int64).max)
        last = np.zeros(len(self.found), np.int64)
        sound = self.attribution.valid[self.op]
        np.minimum.at(first, self.op_call[sound], ops.start[self.op[sound]])
        np.maximum.at(last, self.op_call[sound], ops.end[self.op[sound]])
        return np.where(last > 0, first, 0), last

    def _origins(self, process: int, op: Column) -> dict[str, dict[str, int]]:
        ops = self.attribution.trace.ops
        generated = self._triton_names(process)
        used, which = np.unique(ops.short_name[op], return_inverse=True)
        names = [text or "" for text in self.attribution.trace.texts(used)]
        is_triton = np.array([n in generated or n.startswith("triton_") for n in names], bool)
        kernel = ops.kind[op] == OpKind.KERNEL
        triton = kernel & (is_triton[which] if len(op) else False)
        out = {}
        for name, chosen in (("triton", triton), ("library", kernel & ~triton), ("copy", ~kernel)):
            gpu_ns = int(self.attribution.duration[op[chosen]].sum())
            out[name] = {"ops": int(chosen.sum()), "gpu_ns": gpu_ns}
        return out

    def _triton_names(self, process: int) -> set[str]:
        return {
            kernel.name
            for manifest in self.sidecar.manifests
            if manifest.process == process
            for kernel in manifest.kernels
            if not kernel.extern
        }

    def _modules(self, op: Column) -> list[dict[str, Any]]:
        if self.modules is None:
            return []
        total = max(int(self.attribution.duration[op].sum()), 1)
        return [
            {"module": name, "weight": round(gpu_ns / total, 6), "gpu_ns": gpu_ns}
            for name, gpu_ns in self._largest(op, self.modules.module)
        ]

    def _sources(self, op: Column) -> list[dict[str, Any]]:
        if self.modules is None:
            return []
        largest = self._largest(op, self.modules.source)
        return [{"source": name, "gpu_ns": gpu_ns} for name, gpu_ns in largest]

    def _largest(self, op: Column, column: Column) -> list[tuple[str, int]]:
        """Texts of a column of the shares of some ops with their GPU time, the largest first."""
        assert self.modules is not None
        rows = np.flatnonzero(np.isin(self.modules.op, op) & (column >= 0))
        codes, which = np.unique(column[rows], return_inverse=True)
        sums = np.zeros(len(codes), np.int64)
        np.add.at(sums, which, self.modules.gpu_ns[rows])
        order = np.lexsort((codes, -sums))[:_MOST]
        return [(str(self.modules.names[int(codes[at])].as_py()), int(sums[at])) for at in order]

    def _breaks(self, process: int, identity: str) -> list[GraphBreak]:
        wanted = _attempt_off(identity)
        return [
            one
            for one in self.sidecar.breaks
            if one.process == process and _attempt_off(one.compile_id or "") == wanted
        ]

    def _recompiles(self, process: int, identity: str) -> list[Recompile] | None:
        """Recompilations of the frame; None without a sidecar."""
        if not self.sidecar.recorded:
            return None
        frame = identity.partition("/")[0]
        return [
            one
            for one in self.sidecar.recompiles
            if one.process == process and (one.compile_id or "").partition("/")[0] == frame
        ]

    def _times_again(self, process: int, identity: str) -> int | None:
        """Recompilations of the frame by the compilations seen; None where there were none."""
        if not self.compiling:
            return None
        frame = identity.partition("/")[0]
        return sum(
            who == process
            and phase == "fwd"
            and _attempt_off(one).startswith(f"{frame}/")
            and not _attempt_off(one).endswith("/0")
            for who, one, phase in self.compiling
        )

    def _break_idle(self, mine: Column) -> int | None:
        """Idle between the ops of each of these calls and those of the next graph of its thread.

        None where no call has both.
        """
        calls = np.flatnonzero(mine & (self.last > 0))
        after = self.found.next_of(calls)
        known = (after >= 0) & (self.first[after] > 0)
        if not known.any():
            return None
        begin, end = self.last[calls[known]], self.first[after[known]]
        open_gap = end > begin
        ops = self.attribution.trace.ops
        device = np.unique(ops.device[self.op[mine[self.op_call]]])
        gaps = begin[open_gap], end[open_gap]
        return _idle_inside(self.attribution, device, *gaps)

    def _resume_line(self, mine: Column) -> str | None:
        """The line of a break, from the frame that resumes after it, where frames are loaded."""
        return self.found.resume_line(self.attribution.trace, np.flatnonzero(mine))

    def _compile_ns(self, process: int, identity: str, phase: str) -> int | None:
        """Time compiling inside the window: by ranges of nvprobe or torch, else torch's account."""
        trace = self.attribution.trace
        spans = self.compiling.get((process, identity, phase), [])
        if not spans and self.sidecar.recorded:
            spans = [
                (max(one.start, trace.start_ns), min(one.end, trace.end_ns))
                for one in self.sidecar.compile_spans
                if (one.process, one.compile_id, one.phase) == (process, identity, phase)
            ]
        elif not self.sidecar.recorded and not self.compiling:
            return None
        return sum(max(end - start, 0) for start, end in spans)


Spans = dict[tuple[int, str, str], list[tuple[int, int]]]


def _compile_ranges(attribution: Attribution) -> Spans:
    """Spans of nvprobe's ``compile <id>`` ranges by (process, id, phase), else of torch's."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    own: Spans = {}
    torch: Spans = {}
    for row, text in _about_compiling(attribution.trace, ranges):
        match = _COMPILE.match(text) or _TORCH_COMPILE.match(text)
        if not match or match["what"] == "cudagraph":
            continue
        noted = match.re is _TORCH_COMPILE
        span = int(tree.parent[row]) if noted else row
        if span >= 0:
            phase = "bwd" if match["what"] in ("bwd", "backward") else "fwd"
            key = (int(ranges.process[row]), match["id"], phase)
            edges = int(ranges.start[span]), int(tree.end[span])
            (torch if noted else own).setdefault(key, []).append(edges)
    return own or torch


def _about_compiling(trace: Trace, ranges: Ranges) -> Iterator[tuple[int, str]]:
    """(row, name) of the ranges whose names may be those of a compilation."""
    used = np.unique(ranges.name[ranges.name >= 0])
    begins = pc.match_substring_regex(trace.strings.take(used), _ABOUT_COMPILING)
    rows = np.flatnonzero(np.isin(ranges.name, used[begins.to_numpy(zero_copy_only=False)]))
    for row, text in zip(rows.tolist(), trace.texts(ranges.name[rows]), strict=True):
        yield row, str(text)


def _break_text(breaks: Sequence[GraphBreak]) -> tuple[str | None, str | None]:
    """(source, reason); several breaks of one frame are listed one after another."""
    if not breaks:
        return None, None
    reasons = list(dict.fromkeys(_short_reason(one.reason) for one in breaks))
    sources = list(dict.fromkeys(one.source for one in breaks if one.source))
    return ", ".join(sources) or None, "; ".join(reasons)


def _short_reason(text: str) -> str:
    """Torch's long explanation (2.8 and later) as one line: what was met, and what that means."""
    match = _EXPLANATION.search(text)
    short = f"{match['what']}: {match['why']}" if match else text
    return " ".join(short.split())


def _attempt_off(identity: str) -> str:
    """``0/0_1`` (second attempt at 0/0, after a break was met) is ``0/0``."""
    return identity.partition("_")[0]


def _sum_known(values: Column) -> int | None:
    known = values[values >= 0]
    return int(known.sum()) if len(known) else None


def _idle_inside(attribution: Attribution, device: Column, begin: Column, end: Column) -> int:
    """Length of the gaps in which none of the devices works and nothing is being compiled."""
    ops, ranges = attribution.trace.ops, attribution.trace.ranges
    sidecar, rows = attribution.trace.sidecar, compiling(attribution)
    recorded = [(one.start, one.end) for one in sidecar.compile_spans]
    spans = np.array(recorded, np.int64).reshape(-1, 2)
    busy = attribution.valid & np.isin(ops.device, device)
    starts = np.concatenate([ops.start[busy], ranges.start[rows], spans[:, 0]])
    ends = np.concatenate([ops.end[busy], attribution.tree.end[rows], spans[:, 1]])
    _, start, finish = merged(np.zeros(len(starts), np.int64), starts, ends)
    inside = _length_before(start, finish, end) - _length_before(start, finish, begin)
    return int((end - begin - inside).sum())


def _length_before(start: Column, end: Column, time: Column) -> Column:
    """Length of disjoint sorted intervals that lies before each instant."""
    total = np.append(0, np.cumsum(end - start))
    at = np.searchsorted(start, time, side="right")
    cut = np.append(0, end)[at] - time  # what of the interval begun last lies after the instant
    return np.asarray(total[at] - np.where(at > 0, np.maximum(cut, 0), 0))
