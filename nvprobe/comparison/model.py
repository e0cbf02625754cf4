"""The comparison document, schema ``nvprobe.compare/1``.

Times are integer nanoseconds of one step unless said otherwise; what cannot be known is null.
docs/compare.md says what the quantities mean; docs/compare.schema.json is written from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from nvprobe.trace.rows import Row, is_, ns, pair

SCHEMA: Literal["nvprobe.compare/1"] = "nvprobe.compare/1"
Outcome = Literal["pass", "fail", "cannot tell"]

_BOUNDS = pair("change_low_ns", "change_high_ns", "95% bounds of the change; null if unknown", "ns")


class RunFacts(Row, frozen=True):
    """A run that was compared."""

    files: Annotated[list[str], is_("files that were read")]
    steps: Annotated[int, is_("steps of the capture")]
    verdict: Annotated[str, is_("the first line of its report")]


class Difference(Row, frozen=True):
    """Something besides the program that differs between the sides."""

    what: Annotated[str, is_("what differs")]
    before: Annotated[str | None, is_("before; null where the capture does not say")]
    after: Annotated[str | None, is_("after")]
    decides: Annotated[bool, is_("whether times cannot be compared at all")]


class Time(Row, frozen=True):
    """A time of a step before and after."""

    before_ns: Annotated[int, ns("mean of a step before")]
    after_ns: Annotated[int, ns("mean of a step after")]
    change_ns: Annotated[int, ns("after less before")]
    bounds_ns: Annotated[tuple[int, int] | None, _BOUNDS]
    floor_ns: Annotated[int, ns("noise floor: so much differs between runs of one program")]
    changed: Annotated[bool, is_("whether the change is beyond its bounds and the noise floor")]


class Amount(Time, frozen=True):
    """A time of a step by its name."""

    name: Annotated[str, is_("`step`, `busy`, `idle`, `idle: sync`, …, `exposed communication`")]


class Part(Time, frozen=True):
    """A part of the difference; all parts add up to that of the step, exactly."""

    path: Annotated[str | None, is_("path, by its name before; null outside of all")]
    what: Annotated[str, is_("`gpu`, a cause of idle time, `overlap`, `host_time`")]


class PathChange(Row, frozen=True):
    """GPU time of a path before and after, inclusive of what is below it."""

    before: Annotated[str | None, is_("path before; null where it is new")]
    after: Annotated[str | None, is_("path after; null where it is gone")]
    status: Annotated[str, is_("`same`, `renamed`, `new` or `gone`")]
    gpu: Annotated[Time | None, is_("GPU time of a step; null where only one side has the path")]
    gpu_ns: Annotated[int | None, ns("GPU time of a step where only one side has the path")]


class Counter(Row, frozen=True):
    """What the program does, counted: of one program always the same."""

    name: Annotated[str, is_("`launches`, `syncs`, `graph breaks`, …")]
    per_step: Annotated[bool, is_("whether it is per step, else of the capture")]
    before: Annotated[float, is_("before")]
    after: Annotated[float, is_("after")]
    changed: Annotated[bool, is_("whether they differ; without any tolerance")]


class StepComparison(Row, frozen=True):
    """Steps of one kind, before and after."""

    path: Annotated[str | None, is_("path of the steps; null for whole captures without steps")]
    unit: Annotated[str | None, is_("what a step is: `step`, `token`, `iteration`, …")]
    phase: Annotated[str | None, is_("phase, where steps have one")]
    batch: Annotated[int | None, is_("requests of a step, or the next power of two")]
    steps: Annotated[
        tuple[int, int], pair("steps_before", "steps_after", "steps that were compared")
    ]
    step: Annotated[Time, is_("the step as it was profiled")]
    unprofiled: Annotated[Time | None, is_("without the profiler; null where unknown")]
    unprofiled_source: Annotated[str | None, is_("`measured` or `estimated` (docs/cost.md)")]
    amounts: Annotated[list[Amount], is_("busy and idle time, idle by cause, communication")]
    counters: Annotated[list[Counter], is_("calls and copies")]
    parts: Annotated[list[Part], is_("the difference explained, the largest first")]
    paths: Annotated[list[PathChange], is_("paths, those that changed most first")]
    kernels: Annotated[list[Amount], is_("GPU time by class and family of kernels")]


class FindingChange(Row, frozen=True):
    """A finding on both sides, or on one."""

    id: Annotated[str, is_("name of the pattern (docs/findings.md)")]
    status: Annotated[str, is_("`same`, `new` or `gone`")]
    path: Annotated[str | None, is_("path, by its name before where both sides have it")]
    before: Annotated[str | None, is_("title before")]
    after: Annotated[str | None, is_("title after")]


class GraphChange(Row, frozen=True):
    """A compiled graph before and after."""

    id: Annotated[str, is_("compile id")]
    phase: Annotated[str, is_("`fwd` or `bwd`")]
    status: Annotated[str, is_("`same`, `new` or `gone`")]
    gpu_ns: Annotated[tuple[int | None, int | None], is_("GPU time of a step, before and after")]
    ops: Annotated[tuple[float | None, float | None], is_("GPU ops of a step, before and after")]
    host_ns: Annotated[tuple[int | None, int | None], is_("host time of a step")]
    break_reason: Annotated[tuple[str | None, str | None], is_("why it ends where it ends")]


class Noise(Row, frozen=True):
    """How much two runs of one program differ."""

    measured: Annotated[bool, is_("whether it is measured on several runs, else assumed")]
    runs: Annotated[int, is_("runs that it is measured on")]
    share: Annotated[float, is_("noise floor of the step, as a share of it")]


class Check(Row, frozen=True):
    """One thing that the gate checked."""

    name: Annotated[str, is_("what was checked, as in `step time` or `GPU time of step/attn`")]
    limit: Annotated[str, is_("the budget, or the greatest change")]
    outcome: Annotated[Outcome, is_("`pass`, `fail` or `cannot tell`")]
    line: Annotated[str, is_("the outcome in a sentence")]


class Gate(Row, frozen=True):
    """What came of the budgets."""

    outcome: Annotated[Outcome, is_("`fail` if any check failed, else `cannot tell` if any cannot")]
    checks: Annotated[list[Check], is_("every check")]


class Comparison(Row, frozen=True):
    """Two sides of one or several runs each."""

    schema: Annotated[Literal["nvprobe.compare/1"], is_("name and version of this schema")]
    nvprobe: Annotated[str, is_("version of nvprobe")]
    verdict: Annotated[str, is_("what differs, in a line")]
    before: Annotated[list[RunFacts], is_("runs before")]
    after: Annotated[list[RunFacts], is_("runs after")]
    differences: Annotated[list[Difference], is_("what besides the program differs")]
    noise: Annotated[Noise | None, is_("null where no steps could be compared")]
    steps: Annotated[list[StepComparison], is_("steps by kind: unit and phase")]
    unmatched: Annotated[list[str], is_("kinds of steps that only one side has")]
    counters: Annotated[list[Counter], is_("graph breaks and recompilations")]
    graphs: Annotated[list[GraphChange], is_("compiled graphs")]
    findings: Annotated[list[FindingChange], is_("findings")]
    gate: Annotated[Gate | None, is_("null without a gate")]


def encode(found: Comparison) -> str:
    """A comparison as indented JSON text."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document, with units."""
    return msgspec.json.schema(Comparison)
