"""The ledger and the tree: ranges with their quantities, modules, operators, spans and steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from nvprobe.analysis.model import UNITS, FoundBy
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.engines import StepPhase
from nvprobe.attribution.ledger import Entry
from nvprobe.attribution.model import Kind, Method
from nvprobe.attribution.model import Outside as Filtered
from nvprobe.report.capture import program
from nvprobe.report.kernels import OpTime, PathCounters, counters_of_paths
from nvprobe.report.schema import fractions, path_texts, rows
from nvprobe.trace.rows import Row, is_, measured, ns, size

_Length = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class ThreadWithoutRange(OpTime, frozen=True):
    """A thread whose launches no range was open for."""

    process: Annotated[int, is_("id of its process")]
    tid: Annotated[int, is_("operating system thread id")]
    name: Annotated[str | None, is_("name of the thread")]


class Reason(OpTime, omit_defaults=True, frozen=True):
    """Ops without an owner for one reason."""

    threads: Annotated[
        list[ThreadWithoutRange], is_("of `no_range_open`: the launching threads")
    ] = msgspec.field(default_factory=list)


class Partition(OpTime, frozen=True):
    """Every op once: `methods` and `unresolved` add up to `ops` and `gpu_ns`."""

    methods: Annotated[dict[str, OpTime], is_("ops with an owner, by how it was found")]
    unresolved: Annotated[dict[str, Reason], is_("ops without one, by reason")]


class ProcessLedger(Partition, frozen=True):
    """Every op of a process once."""

    process: Annotated[int, is_("id of the process")]


class Outside(OpTime, frozen=True):
    """What filters left out."""

    filters: Annotated[list[str], is_("the filters as a user gives them")]


class Ledger(Partition, frozen=True):
    """Every op once: `methods` and `unresolved` add up to `ops` and `gpu_ns`."""

    by_process: Annotated[list[ProcessLedger], is_("the same per process")]
    modules: Annotated[dict[str, OpTime] | None, is_("ops by how their modules were found")]
    outside: Annotated[Outside | None, is_("what filters left out; null without filters")]


class Work(Row, frozen=True):
    """Arithmetic of a path, computed from the shapes of its operators."""

    items: Annotated[int, is_("operators and kernels whose work is known")]
    gpu_ns: Annotated[int, ns("GPU time of these")]
    flops: Annotated[float | None, is_("floating-point operations")]
    bytes: Annotated[float | None, size("least memory traffic")]
    flops_per_s: Annotated[float | None, measured("1/s", "achieved arithmetic")]
    bytes_per_s: Annotated[float | None, measured("bytes/s", "achieved traffic")]
    intensity: Annotated[float | None, measured("1/byte", "operations per byte")]
    mfu: Annotated[float | None, is_("share of the GPU's arithmetic peak")]


class Line(Row, frozen=True):
    """A line of the program at which a range begins."""

    source: Annotated[str, is_("`file:line`")]
    role: Annotated[str, is_("what the line is to the range: `line`, `defined`, `called`, …")]


class PathTotals(Row, frozen=True):
    """A path, inclusive of what is below it (docs/attribution.md)."""

    path: Annotated[str, is_("names of nested ranges joined with `/`")]
    kind: Annotated[str, is_("`user`, `step`, `phase`, `module`, `graph`, `collective`, …")]
    domain: Annotated[str | None, is_("NVTX domain, null for the default one")]
    calls: Annotated[int, is_("ranges")]
    wall_ns: Annotated[int | None, ns("host time inside")]
    self_wall_ns: Annotated[int | None, ns("host time inside and in no range below")]
    ops: Annotated[int, is_("GPU ops")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    gpu_self_ns: Annotated[int, ns("the same, of ops that belong to the path itself")]
    gpu_busy_ns: Annotated[int | None, ns("union of the ops' intervals, per device")]
    gpu_span_ns: Annotated[int | None, ns("from the first op's begin to the last op's end")]
    sync_ns: Annotated[int | None, ns("host time in synchronizing calls")]
    idle_ns: Annotated[int | None, ns("GPU idle time that is charged to it")]
    exposed_comm_ns: Annotated[int | None, ns("communication without compute beside it")]


class Range(PathTotals, frozen=True):
    """A path with ranges or ops, inclusive of what is below it (docs/attribution.md)."""

    work: Annotated[Work | None, is_("arithmetic, where shapes are recorded")]
    counters: Annotated[PathCounters | None, is_("averages of GPU counters, where sampled")]
    lines: Annotated[list[Line] | None, is_("lines at which it begins, from the sidecar")]


class Module(Row, frozen=True):
    """GPU time of a module, forward and backward."""

    module: Annotated[str, is_("name in the model")]
    forward_gpu_ns: Annotated[int, ns("GPU time of its forward pass")]
    backward_gpu_ns: Annotated[int, ns("of its backward pass")]
    recompute_gpu_ns: Annotated[int, ns("of forward work that backward repeats")]
    ops: Annotated[int, is_("GPU ops with a share in it")]
    sources: Annotated[list[str], is_("lines behind most of its time")]


class Operator(Row, frozen=True):
    """A PyTorch operator by name and shapes."""

    name: Annotated[str, is_("operator")]
    shapes: Annotated[list[list[int]] | None, is_("shape of each input tensor; null if unknown")]
    calls: Annotated[int, is_("calls")]
    cpu_ns: Annotated[int, ns("host time inside")]
    self_cpu_ns: Annotated[int, ns("host time inside it and in no operator below")]
    ops: Annotated[int, is_("GPU ops called for inside")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    gpu_self_ns: Annotated[int, ns("the same, of those called for in no operator below")]
    path: Annotated[str, is_("path in which it spends most GPU time")]
    source: Annotated[str | None, is_("line behind most of its time")]


class SpanTotals(Row, frozen=True):
    """Start/end ranges by name: beside the tree, never in it."""

    name: Annotated[str | None, is_("name")]
    domain: Annotated[str | None, is_("NVTX domain")]
    calls: Annotated[int, is_("spans")]
    wall_ns: Annotated[int | None, ns("sum of their lengths")]
    longest_ns: Annotated[int | None, ns("length of the longest")]
    unclosed: Annotated[int, is_("spans that never ended")]


class Step(Row, frozen=True):
    """One step."""

    index: Annotated[int, is_("its number")]
    process: Annotated[int, is_("id of its process")]
    path: Annotated[str | None, is_("its path")]
    start_ns: Annotated[int, ns("begin, since the begin of the capture")]
    end_ns: Annotated[int, ns("end")]
    wall_ns: Annotated[int | None, ns("host time inside")]
    ops: Annotated[int | None, is_("GPU ops called for inside")]
    gpu_ns: Annotated[int | None, ns("sum of their durations")]
    gpu_busy_ns: Annotated[int | None, ns("union of their intervals")]
    idle_ns: Annotated[int | None, ns("GPU idle time that is charged to it")]
    missing_launches: Annotated[int | None, is_("launch calls without a GPU record")]
    found_by: Annotated[str, is_("how it was found: `engine`, `mark`, `name`, `module_call`, …")]
    unit: Annotated[str, is_("what it is: `step`, `iteration`, `token`, `call`, …")]
    phase: Annotated[str | None, is_("`prefill`, `decode`, `mixed`, `verify`, `draft`, `idle`")]
    prefill_requests: Annotated[int | None, is_("requests whose prompt it reads")]
    prefill_tokens: Annotated[int | None, is_("tokens of these prompts")]
    decode_requests: Annotated[int | None, is_("requests that it makes a token for")]
    decode_tokens: Annotated[int | None, is_("tokens that it computes for these")]
    kv_tokens: Annotated[int | None, is_("tokens in the KV cache of all requests")]
    padded_requests: Annotated[int | None, is_("requests of the CUDA graph, padding included")]
    steady: Annotated[bool, is_("whether the other tables are about it, too")]


def ledger(analysis: Analysis) -> Ledger:
    """Every op once."""
    book, outside = analysis.ledger, analysis.attribution.outside
    by_module = analysis.module_ledger
    return Ledger(
        ops=book.total.ops,
        gpu_ns=book.total.gpu_ns,
        methods=_methods(book.by_method),
        unresolved=_reasons(book.by_method, _threads(analysis)),
        by_process=[
            ProcessLedger(total.ops, total.gpu_ns, _methods(some), _reasons(some, []), process)
            for process, total, some in book.by_process
        ],
        modules=None if by_module is None else {k: OpTime(**v) for k, v in by_module.items()},
        outside=None if outside is None else _outside(outside),
    )


def _outside(left: Filtered) -> Outside:
    return Outside(left.ops, left.gpu_ns, list(left.filters))


def _methods(by_method: Mapping[Method, Entry]) -> dict[str, OpTime]:
    """Every method, also those that do not occur."""
    found = {method: by_method.get(method, Entry(0, 0)) for method in Method if method.resolved}
    return {method.name.lower(): OpTime(e.ops, e.gpu_ns) for method, e in found.items()}


def _reasons(
    by_method: Mapping[Method, Entry], threads: list[ThreadWithoutRange]
) -> dict[str, Reason]:
    """The reasons that occur."""
    return {
        m.name.lower(): Reason(e.ops, e.gpu_ns, threads if m is Method.NO_RANGE_OPEN else [])
        for m, e in by_method.items()
        if not m.resolved
    }


def _threads(analysis: Analysis) -> list[ThreadWithoutRange]:
    trace, found = analysis.attribution.trace, analysis.ledger.threads_without_range
    threads = np.array(list(found), np.int64)
    return rows(
        ThreadWithoutRange,
        process=trace.threads.process[threads].tolist(),
        tid=trace.threads.tid[threads].tolist(),
        name=[program(name) for name in trace.texts(trace.threads.name[threads])],
        ops=[entry.ops for entry in found.values()],
        gpu_ns=[entry.gpu_ns for entry in found.values()],
    )


def ranges(analysis: Analysis) -> list[Range]:
    """Paths with ranges or ops, parents before children."""
    table, paths = analysis.ranges, analysis.attribution.paths
    found = np.argsort(table.order)
    found = found[(table.calls[found] > 0) | (table.ops[found] > 0)]
    texts, work, counters = paths.texts(), _work(analysis), counters_of_paths(analysis)
    each = found.tolist()
    return rows(
        Range,
        table.take(found),
        path=[texts[row] for row in each],
        kind=[Kind(kind).name.lower() for kind in paths.kind[found].tolist()],
        domain=analysis.attribution.trace.texts(paths.domain[found]),
        work=[work.get(row) for row in each],
        counters=[counters.get(row) for row in each],
        lines=[_lines(analysis, row) for row in each],
    )


def _lines(analysis: Analysis, path: int) -> list[Line] | None:
    if analysis.places is None:
        return None
    return [Line(line.source, line.role) for line in analysis.places.own(path)]


def _work(analysis: Analysis) -> dict[int, Work]:
    """Work by path row."""
    table = analysis.work
    if table is None:
        return {}
    names = ("flops", "bytes", "flops_per_s", "bytes_per_s", "intensity", "mfu")
    columns = {name: fractions(getattr(table, name)) for name in names}
    return dict(zip(table.path.tolist(), rows(Work, table, **columns), strict=True))


def modules(analysis: Analysis) -> list[Module] | None:
    """Modules, most GPU time first; null where they were not computed."""
    found = analysis.modules
    return None if found is None else [Module(**row) for row in found]


def operators(analysis: Analysis) -> list[Operator] | None:
    """Operators, most GPU time first; null where the capture has none."""
    found = analysis.operators
    if found is None:
        return None
    return [Operator(**{**row, "shapes": _shapes(row["shapes"])}) for row in found]


def _shapes(text: str | None) -> list[list[int]] | None:
    """The shapes in a trace's JSON, which may be damaged; a list of tensors has one each."""
    try:
        found = msgspec.convert(msgspec.json.decode(text or "null"), list[list[Any]] | None)
        if found is None:
            return None
        nested = (one if one and isinstance(one[0], list) else [one] for one in found)
        return msgspec.convert([shape for some in nested for shape in some], list[list[_Length]])
    except (msgspec.MsgspecError, RecursionError):
        return None


def spans(analysis: Analysis) -> list[SpanTotals]:
    """Spans by name and domain."""
    table, trace = analysis.spans, analysis.attribution.trace
    names, domains = trace.texts(table.name), trace.texts(table.domain)
    return rows(SpanTotals, table, name=names, domain=domains)


def steps(analysis: Analysis) -> list[Step]:
    """Steps in the order of time."""
    table = analysis.steps
    return rows(
        Step,
        table,
        index=table.index.tolist(),
        process=table.process.tolist(),
        path=path_texts(analysis, table.path),
        start_ns=table.start.tolist(),
        end_ns=table.end.tolist(),
        found_by=[FoundBy(found).name.lower() for found in table.found_by.tolist()],
        unit=[UNITS[FoundBy(found)] for found in table.found_by.tolist()],
        steady=[True] * len(table) if table.steady is None else table.steady.tolist(),
        phase=[StepPhase(phase).name.lower() if phase else None for phase in table.phase.tolist()],
    )
