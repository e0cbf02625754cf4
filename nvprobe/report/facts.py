"""``nvprobe.facts/1``: what an analysis says, short enough for a program that reads, or a model.

A selection from the document ``nvprobe.analysis/2`` with the same numbers: at most `MOST` rows of a
list, `FEW` items in a row and `TEXT` characters of a text, so that all of it stays below `BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from nvprobe.analysis.model import StepSpread
from nvprobe.report.capture import Profiler
from nvprobe.report.document import Document, Finding
from nvprobe.trace import Missing
from nvprobe.trace.rows import Row, is_, ns

SCHEMA = "nvprobe.facts/1"
MOST = 12
FEW = 4
TEXT = 200
BYTES = 64 * 1024

T = TypeVar("T")


class PathFact(Row, frozen=True):
    """A path and its GPU time, inclusive of what is below it."""

    path: Annotated[str, is_("path")]
    calls: Annotated[int, is_("how often it was entered")]
    gpu_ns: Annotated[int, ns("sum of the durations of its ops")]


class IdleFact(Row, frozen=True):
    """GPU idle time of a path by cause."""

    path: Annotated[str | None, is_("path it is charged to")]
    cause: Annotated[str, is_("why the GPU waited (docs/waiting.md)")]
    ns: Annotated[int, ns("idle time")]


class KernelFact(Row, frozen=True):
    """A kernel."""

    name: Annotated[str | None, is_("demangled name")]
    ops: Annotated[int, is_("launches")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    top_path: Annotated[str | None, is_("path with most of its time")]


class Facts(Row, frozen=True):
    """What an analysis says, in a bounded size; the heaviest rows first."""

    schema: Annotated[Literal["nvprobe.facts/1"], is_("name and version of this schema")]
    nvprobe: Annotated[str, is_("version of nvprobe")]
    verdict: Annotated[str, is_("the report's first line")]
    warnings: Annotated[list[str], is_("what to distrust")]
    steps: Annotated[StepSpread | None, is_("how many steps, and how much they vary")]
    profiler: Annotated[Profiler | None, is_("the step with and without the profiler")]
    window_ns: Annotated[int, ns("length of the capture")]
    busy_ns: Annotated[dict[str, int], ns("busy time by GPU")]
    gpu_ns: Annotated[int, ns("sum of the durations of all GPU ops")]
    ops: Annotated[int, is_("GPU ops")]
    idle_causes: Annotated[dict[str, int], ns("GPU idle time by cause")]
    findings: Annotated[list[Finding], is_("causes of lost time, with evidence and saving")]
    paths: Annotated[list[PathFact], is_("paths with most GPU time")]
    idle: Annotated[list[IdleFact], is_("paths with most idle time")]
    kernels: Annotated[list[KernelFact], is_("kernels with most GPU time")]
    missing: Annotated[list[Missing], is_("what cannot be said, why, and how to record it")]
    left_out: Annotated[int, is_("rows of these lists that are not here")]


def facts(document: Document) -> Facts:
    """The facts of a document."""
    parts: dict[str, list[Any]] = {
        "warnings": document.warnings,
        "findings": document.findings or [],
        "paths": _heaviest(
            (PathFact(one.path, one.calls, one.gpu_ns) for one in document.ranges), "gpu_ns"
        ),
        "idle": _heaviest(
            (IdleFact(one.path, one.cause, one.ns) for one in document.idle.by_path or ()), "ns"
        ),
        "kernels": _heaviest(
            (KernelFact(one.name, one.ops, one.gpu_ns, one.top_path) for one in document.kernels),
            "gpu_ns",
        ),
        "missing": document.missing,
    }
    return Facts(
        schema="nvprobe.facts/1",
        nvprobe=document.nvprobe,
        verdict=document.verdict[: 2 * TEXT],
        steps=document.step_spread,
        profiler=document.profiler,
        window_ns=document.window.end_ns - document.window.start_ns,
        busy_ns={f"GPU {one.device}": one.busy_ns for one in document.devices[:MOST]},
        gpu_ns=document.ledger.gpu_ns,
        ops=document.ledger.ops,
        idle_causes=document.idle.causes or {},
        left_out=sum(max(0, len(rows) - MOST) for rows in parts.values()),
        **{name: _cut(rows[:MOST]) for name, rows in parts.items()},
    )


def encode(found: Facts) -> bytes:
    """Facts as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `Facts`."""
    return msgspec.json.schema(Facts)


def _heaviest(rows: Iterable[T], by: str) -> list[T]:
    return sorted(rows, key=lambda row: -getattr(row, by))


def _cut(value: Any, most: int = MOST) -> Any:
    """A value with short texts and lists; those of rows, such as remedies, have `FEW` items."""
    if isinstance(value, str):
        return value if len(value) <= TEXT else f"{value[: TEXT // 2]}…{value[-TEXT // 2 :]}"
    if isinstance(value, list | tuple):
        return type(value)(_cut(one, FEW) for one in value[:most])
    if isinstance(value, dict):
        return {_cut(key): _cut(one) for key, one in list(value.items())[: 2 * MOST]}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return type(value)(*(_cut(getattr(value, name), most) for name in names))
    return value
