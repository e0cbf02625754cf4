"""The document of all ranks of a job, schema ``nvprobe.ranks/1``.

Times are integer nanoseconds; what cannot be known is null, never 0; within ``/1`` fields are only
added. docs/json.ranks.md and docs/ranks.schema.json are written from the structs by
``scripts/docs``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from nvprobe.trace.rows import Row, is_, measured, ns, size

SCHEMA: Literal["nvprobe.ranks/1"] = "nvprobe.ranks/1"


class Rank(Row, frozen=True):
    """One rank; times of a step are those of a typical one (median)."""

    rank: Annotated[int, is_("rank in the job")]
    source: Annotated[str, is_("capture it was read from")]
    process: Annotated[str | None, is_("process of that capture, where it holds several")]
    said_by: Annotated[str, is_("who says which rank it is")]
    backend: Annotated[str, is_("`nsys` or `torch`")]
    steps: Annotated[int, is_("steps recorded")]
    step_ns: Annotated[int | None, ns("length of a typical step on the host")]
    busy_ns: Annotated[int | None, ns("GPU busy time of a typical step")]
    idle_ns: Annotated[int | None, ns("GPU idle time of a typical step")]
    compute_ns: Annotated[int, ns("GPU work of a typical step, or own host time without a GPU")]
    collectives: Annotated[int, is_("collectives recorded")]
    communication_ns: Annotated[int, ns("time in collectives that were matched")]
    wait_ns: Annotated[int | None, ns("part of it: waiting for the last rank")]
    transfer_ns: Annotated[int | None, ns("part of it: after the last rank had arrived")]
    exposed_ns: Annotated[int, ns("part of it without compute beside it")]
    exposed_transfer_ns: Annotated[int | None, ns("of the transfer, at most so much of that")]
    last: Annotated[int, is_("collectives at which it arrived last, beyond the clock's error")]
    late_ns: Annotated[int | None, ns("delay that it adds in a typical step")]
    clock_offset_ns: Annotated[int | None, ns("its clock is ahead of the first rank's by")]


class Failed(Row, frozen=True):
    """A capture that could not be read; the rank is missing."""

    source: Annotated[str, is_("capture")]
    error: Annotated[str, is_("why")]


class Clock(Row, frozen=True):
    """How the clocks of the ranks relate."""

    kind: Annotated[str, is_("`one` (one capture), `aligned` (by collectives) or `unknown`")]
    error_ns: Annotated[int | None, ns("95th percentile of what remains between ends")]
    matched: Annotated[int, is_("collectives found on two ranks or more")]
    unmatched: Annotated[int, is_("records of collectives without a partner")]


class Step(Row, frozen=True):
    """One step of all ranks; lists are in the order of `ranks`."""

    index: Annotated[int, is_("number of the step")]
    wall_ns: Annotated[list[int | None], ns("length on the host, by rank")]
    wait_ns: Annotated[list[int | None], ns("waiting in collectives, by rank")]
    late_ns: Annotated[list[int | None], ns("delay that the rank adds, by rank")]


class PathSpread(Row, frozen=True):
    """How much ranks differ in a path, per typical step."""

    path: Annotated[str | None, is_("owner path; null for none")]
    kind: Annotated[str, is_("`gpu`, `host`, `input`, or `idle: ` and a cause")]
    shortest_ns: Annotated[int, ns("of all ranks")]
    median_ns: Annotated[int, ns("of all ranks")]
    longest_ns: Annotated[int, ns("of all ranks")]
    longest_rank: Annotated[int, is_("rank with the longest")]


class Group(Row, frozen=True):
    """A group of ranks that communicate."""

    group: Annotated[str, is_("what all members call it")]
    name: Annotated[str | None, is_("its name in the program")]
    role: Annotated[
        str | None,
        is_("`data`, `tensor`, `pipeline`, `expert` or `shards`; null where the name does not say"),
    ]
    ranks: Annotated[list[int], is_("members that were recorded")]
    size: Annotated[int | None, is_("members by its own account or the job's size")]
    collectives: Annotated[int, is_("collectives matched")]
    skew_ns: Annotated[int, ns("first to last arrival, median")]
    wait_ns: Annotated[int, ns("waiting of all members")]
    transfer_ns: Annotated[int, ns("transfer of all members")]
    exposed_ns: Annotated[int, ns("time of all members without compute beside it")]


class Collective(Row, frozen=True):
    """Collectives of one group, kind, size and path."""

    group: Annotated[str, is_("group")]
    kind: Annotated[str, is_("`all_reduce`, …")]
    path: Annotated[str | None, is_("owner path on the lowest rank")]
    bytes: Annotated[int | None, size("message that a rank gives")]
    count: Annotated[int, is_("collectives matched")]
    skew_ns: Annotated[int, ns("first to last arrival, median")]
    wait_ns: Annotated[int, ns("waiting of all members")]
    transfer_ns: Annotated[int, ns("from the last arrival to the end, median")]
    exposed_ns: Annotated[int, ns("time of all members without compute beside it")]
    algorithm_bytes_s: Annotated[float | None, measured("bytes/s", "size by transfer time")]
    bus_bytes_s: Annotated[float | None, measured("bytes/s", "what a link carries at least")]
    last_rank: Annotated[int | None, is_("rank that is last most often; null if none is")]
    last_share: Annotated[float, is_("of the collectives, those at which it is last")]


class Straggler(Row, frozen=True):
    """A rank that the others wait for."""

    rank: Annotated[int, is_("rank")]
    late_ns: Annotated[int, ns("delay that it adds in a typical step")]
    share: Annotated[float, is_("of the steps, those in which it adds one")]
    cause: Annotated[str | None, is_("`compute`, `input`, `sync`, `host`; null if unknown")]
    path: Annotated[str | None, is_("where it takes longer than the others")]
    kernel: Annotated[str | None, is_("kernel that takes longest in that path")]
    own_ns: Annotated[int | None, ns("its time of that cause in a typical step")]
    usual_ns: Annotated[int | None, ns("that of the other ranks, median")]
    seen_in: Annotated[
        str, is_("`collectives`; `host time` without any; `GPU work` where a rank entered late")
    ]


class Difference(Row, frozen=True):
    """What some ranks run and others do not."""

    kind: Annotated[str, is_("`kernel` or `compiled graph`")]
    name: Annotated[str, is_("kernel, graph or recompilation")]
    path: Annotated[str | None, is_("where its time is, of a kernel")]
    ranks: Annotated[list[int], is_("ranks that run it, the first sixteen")]
    number: Annotated[int, is_("how many ranks run it")]
    gpu_ns: Annotated[int | None, ns("its time on those ranks, median, whole capture")]


class Finding(Row, frozen=True):
    """What the ranks show together, and what to do about it."""

    id: Annotated[str, is_("name of the pattern (docs/ranks.md)")]
    title: Annotated[str, is_("the finding in a line")]
    severity: Annotated[str, is_("`high`, `medium` or `info`")]
    ranks: Annotated[list[int], is_("ranks it is about")]
    evidence: Annotated[dict[str, int | float | str | None], is_("recorded facts")]
    saves_ns: Annotated[int | None, ns("of a step, at most; null where nothing is promised")]
    try_: Annotated[list[str], is_("what to try")] = msgspec.field(name="try")


class Document(Row, frozen=True):
    """All ranks of a job."""

    schema: Annotated[Literal["nvprobe.ranks/1"], is_("name and version of this schema")]
    nvprobe: Annotated[str, is_("version of nvprobe")]
    verdict: Annotated[str, is_("the report's first line")]
    world_size: Annotated[int | None, is_("ranks of the job; null where nothing says")]
    ranks: Annotated[list[Rank], is_("ranks that were read")]
    missing_ranks: Annotated[list[int], is_("ranks of the job that were not")]
    failed: Annotated[list[Failed], is_("captures that could not be read")]
    clock: Annotated[Clock, is_("how the clocks relate")]
    steps: Annotated[list[Step], is_("steps that two ranks or more recorded")]
    paths: Annotated[list[PathSpread], is_("where ranks differ, most first")]
    groups: Annotated[list[Group], is_("groups of ranks")]
    collectives: Annotated[list[Collective], is_("communication, most time first")]
    stragglers: Annotated[list[Straggler], is_("ranks that the others wait for")]
    differences: Annotated[list[Difference], is_("what not all ranks run")]
    findings: Annotated[list[Finding], is_("what costs time, and what to try")]
    warnings: Annotated[list[str], is_("what to distrust, one sentence each")]


def encode(document: Document) -> str:
    """The document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def json_schema() -> dict[str, Any]:
    """JSON Schema of the document."""
    return msgspec.json.schema(Document)
