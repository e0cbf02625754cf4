"""The analysis document, schema ``nvprobe.analysis/2``: structs, their JSON and its JSON Schema.

Times are integer nanoseconds; what cannot be known is null, never 0; within ``/2`` fields are only
added. docs/json.md and docs/analysis.schema.json are written from the structs by ``scripts/docs``.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from nvprobe.analysis.findings.model import StepSaving
from nvprobe.analysis.model import StepSpread
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.steady import LeftOut
from nvprobe.errors import InputError
from nvprobe.report import capture, kernels, memory, overlap, paths, waits
from nvprobe.report.capture import DeviceTotals, Process, Profiler, Window
from nvprobe.report.critical import CriticalPart, critical_path
from nvprobe.report.inference import Inference, inference
from nvprobe.report.kernels import CompiledGraph, Copy, Counters, Kernel
from nvprobe.report.memory import Memory
from nvprobe.report.overlap import Collective, Overlap, ProcessCollective
from nvprobe.report.paths import (
    Ledger,
    Module,
    Operator,
    Range,
    SpanTotals,
    Step,
)
from nvprobe.report.step_parts import StepParts, step_parts
from nvprobe.report.waits import Host, Idle, Sync
from nvprobe.trace import Clock, Missing, Source
from nvprobe.trace.rows import Row, is_, pair
from nvprobe.version import __version__

SCHEMA: Literal["nvprobe.analysis/2"] = "nvprobe.analysis/2"


class Finding(Row, frozen=True):
    """A cause of lost time, by what it would save."""

    id: Annotated[str, is_("name of the pattern (docs/findings.md)")]
    title: Annotated[str, is_("the finding in a line")]
    severity: Annotated[str, is_("`high`, `medium`, `low` or `info`")]
    path: Annotated[str | None, is_("path it is about; null for the whole program")]
    sources: Annotated[list[str], is_("lines of the program")]
    source_roles: Annotated[list[str], is_("what each of `sources` is")]
    evidence: Annotated[dict[str, int | float | str | None], is_("recorded facts that it rests on")]
    saves_ns: Annotated[
        tuple[int, int],
        pair("saves_low_ns", "saves_high_ns", "how much shorter the window would be", "ns"),
    ]
    step_saving: Annotated[StepSaving | None, is_("replayed saving; null where none was")]
    try_: Annotated[list[str], is_("what to try, the likeliest first")] = msgspec.field(name="try")


class Document(Row, frozen=True):
    """Everything that an analysis found."""

    schema: Annotated[Literal["nvprobe.analysis/2"], is_("name and version of this schema")]
    nvprobe: Annotated[str, is_("version of nvprobe")]
    verdict: Annotated[str, is_("the report's first line")]
    sources: Annotated[list[Source], is_("files that were read")]
    processes: Annotated[list[Process], is_("processes that recorded something")]
    window: Annotated[Window, is_("begin and end of the capture")]
    clock: Annotated[Clock, is_("how the clocks of several sources relate")]
    profiler: Annotated[Profiler | None, is_("cost of profiling; null without steps")]
    warnings: Annotated[list[str], is_("what to distrust, one sentence each")]
    devices: Annotated[list[DeviceTotals], is_("GPUs")]
    ledger: Annotated[Ledger, is_("every op once")]
    ranges: Annotated[list[Range], is_("the tree as a list, parents before children")]
    modules: Annotated[list[Module] | None, is_("modules, most GPU time first")]
    spans: Annotated[list[SpanTotals], is_("start/end ranges by name")]
    kernels: Annotated[list[Kernel], is_("kernels, sorted by `gpu_ns - suspect_ns`")]
    copies: Annotated[list[Copy], is_("copies and sets by kind")]
    operators: Annotated[list[Operator] | None, is_("PyTorch operators")]
    steps: Annotated[list[Step], is_("steps in the order of time")]
    step_spread: Annotated[StepSpread | None, is_("how much steps vary")]
    critical_path: Annotated[
        list[CriticalPart] | None, is_("what the unprofiled step consists of; null without replay")
    ]
    step_parts: Annotated[StepParts | None, is_("where the time of steps goes; null without")]
    inference: Annotated[Inference | None, is_("phases of inference; null without")]
    left_out: Annotated[LeftOut | None, is_("what of a whole run is not counted; else null")]
    syncs: Annotated[list[Sync] | None, is_("synchronizing calls by call site")]
    idle: Annotated[Idle, is_("why the GPU waits")]
    overlap: Annotated[Overlap | None, is_("what ran at the same time")]
    collectives: Annotated[list[Collective] | None, is_("communication")]
    collectives_by_process: Annotated[
        list[ProcessCollective] | None, is_("who waits for whom; null for a process alone")
    ]
    host: Annotated[list[Host] | None, is_("host time between launches")]
    memory: Annotated[Memory | None, is_("memory; null where nothing was recorded")]
    counters: Annotated[Counters | None, is_("samples of GPU counters")]
    compiled_graphs: Annotated[list[CompiledGraph] | None, is_("compiled graphs")]
    findings: Annotated[list[Finding] | None, is_("what costs time, and what to try")]
    missing: Annotated[list[Missing], is_("what the capture cannot say")]


def document(analysis: Analysis) -> Document:
    """The whole document."""
    trace = analysis.attribution.trace
    return Document(
        schema=SCHEMA,
        nvprobe=__version__,
        verdict=analysis.verdict,
        sources=list(trace.sources),
        processes=capture.processes(analysis),
        window=Window(trace.start_ns, trace.end_ns),
        clock=trace.clock,
        profiler=capture.profiler(analysis),
        warnings=list(analysis.warnings),
        devices=capture.devices(analysis),
        ledger=paths.ledger(analysis),
        ranges=paths.ranges(analysis),
        modules=paths.modules(analysis),
        spans=paths.spans(analysis),
        kernels=kernels.kernels(analysis),
        copies=kernels.copies(analysis),
        operators=paths.operators(analysis),
        steps=paths.steps(analysis),
        step_spread=analysis.step_spread,
        critical_path=critical_path(analysis),
        step_parts=step_parts(analysis),
        inference=inference(analysis),
        left_out=analysis.left_out,
        syncs=waits.syncs(analysis),
        idle=waits.idle(analysis),
        overlap=overlap.overlap(analysis),
        collectives=overlap.collectives(analysis),
        collectives_by_process=overlap.collectives_by_process(analysis),
        host=waits.host(analysis),
        memory=memory.memory(analysis),
        counters=kernels.counters(analysis),
        compiled_graphs=kernels.compiled_graphs(analysis),
        findings=_findings(analysis),
        missing=capture.missing(analysis),
    )


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """The document as plain dictionaries and lists."""
    return plain(document(analysis))


def plain(found: Document) -> dict[str, Any]:
    """A document as plain dictionaries and lists."""
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return out


def to_json(analysis: Analysis) -> str:
    """The document as indented JSON text."""
    return encode(document(analysis))


def encode(found: Document) -> str:
    """A document as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def decode(data: bytes | str, name: str) -> Document:
    """A document from its JSON; fields that its nvprobe did not know yet are null.

    Raises InputError where it is of another schema or damaged.
    """
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(data, type=Document)
    try:
        found = _with_nulls(inspect.type_info(Document), msgspec.json.decode(data))
        return msgspec.convert(found, Document)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(
            f"{name}: is not a whole analysis of the schema {SCHEMA} ({error}); "
            "analyze the capture again"
        ) from error


def _with_nulls(declared: inspect.Type, value: Any) -> Any:
    """A decoded value with null for every absent field of a struct."""
    if isinstance(declared, inspect.Metadata):
        return _with_nulls(declared.type, value)
    if isinstance(declared, inspect.UnionType):
        some = [one for one in declared.types if not isinstance(one, inspect.NoneType)]
        return value if value is None or len(some) > 1 else _with_nulls(some[0], value)
    if isinstance(declared, inspect.ListType) and isinstance(value, list):
        return [_with_nulls(declared.item_type, one) for one in value]
    if isinstance(declared, inspect.DictType) and isinstance(value, dict):
        return {key: _with_nulls(declared.value_type, one) for key, one in value.items()}
    if isinstance(declared, inspect.StructType) and isinstance(value, dict):
        return {
            field.encode_name: _with_nulls(
                inspect.type_info(field.type), value.get(field.encode_name)
            )
            for field in msgspec.structs.fields(declared.cls)
            if field.encode_name in value or field.required
        }
    return value


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document, with units."""
    return msgspec.json.schema(Document)


def _findings(analysis: Analysis) -> list[Finding] | None:
    """Findings in their order; null where they were not computed."""
    if analysis.findings is None:
        return None
    path = analysis.attribution.paths.text
    return [
        Finding(
            id=one.id,
            title=one.title,
            severity=one.severity,
            path=path(one.path) if one.path >= 0 else None,
            sources=list(one.sources),
            source_roles=list(one.roles),
            evidence=dict(one.evidence),
            saves_ns=one.saves_ns,
            step_saving=one.step_saving,
            try_=list(one.advice),
        )
        for one in analysis.findings
    ]
