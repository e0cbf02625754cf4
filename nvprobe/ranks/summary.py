"""What one rank contributes to the analysis of its job: a few small tables.

Times are UTC nanoseconds by the rank's own clock (or nanoseconds from an unknown zero, where a
capture does not say when it began). Texts are rows of ``texts``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvprobe.trace import Column, Table, column

_TEXT = "texts"


@dataclass(frozen=True, slots=True)
class Steps(Table):
    """Steps of the rank in the order of time."""

    index: Column = column("i8", "the number in its name, else its position")
    start: Column = column("i8", "begin on the host", unit="ns")
    end: Column = column("i8", "end on the host", unit="ns")
    busy_ns: Column = column("i8", "time in which its GPU ran anything it called for", unit="ns")
    idle_ns: Column = column("i8", "GPU idle time inside it", unit="ns")
    waits_ns: Column = column(
        "i8", "its host waits for the GPU, or for a place in its queue", unit="ns"
    )


@dataclass(frozen=True, slots=True)
class Spent(Table):
    """Time by step, path and kind; without communication."""

    step: Column = column("i4", "row of the steps, -1 outside of all")
    path: Column = column("i4", "owner path, -1 for none", refers=_TEXT)
    kind: Column = column("i4", "`gpu`, `host`, `input` or `idle: <cause>`", refers=_TEXT)
    ns: Column = column("i8", "GPU work, own host time, or idle time", unit="ns")


@dataclass(frozen=True, slots=True)
class Collectives(Table):
    """Collectives of the rank in the order of time."""

    step: Column = column("i4", "row of the steps, -1 outside of all")
    group: Column = column("i4", "row of the groups")
    kind: Column = column("i4", "`all_reduce`, …", refers=_TEXT)
    path: Column = column("i4", "owner path, -1 for none", refers=_TEXT)
    start: Column = column("i8", "arrival", unit="ns")
    end: Column = column("i8", "end", unit="ns")
    exposed_ns: Column = column("i8", "part of it without compute beside it", unit="ns")
    holds_ns: Column = column("i8", "part in which the GPU's next work was queued", unit="ns")
    bytes: Column = column("i8", "size that the rank gave, -1 where unknown", unit="bytes")


@dataclass(frozen=True, slots=True)
class Groups(Table):
    """Groups of ranks that communicate, as this rank knows them."""

    key: Column = column("i4", "what all members call it", refers=_TEXT)
    name: Column = column("i4", "its name in the program, -1 where unknown", refers=_TEXT)
    size: Column = column("i8", "members by its own account, -1 where unknown")


@dataclass(frozen=True, slots=True)
class Kernels(Table):
    """GPU work by kernel name."""

    name: Column = column("i4", "kernel", refers=_TEXT)
    path: Column = column("i4", "owner path with most of its time", refers=_TEXT)
    ops: Column = column("i8", "how many")
    gpu_ns: Column = column("i8", "sum of their durations", unit="ns")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rank of which job a capture is, and who says so."""

    source: str
    """The file or folder, as it was given."""
    rank: int | None = None
    said_by: str = "nothing"
    """``run.json``, ``the capture``, ``its NCCL communicator``, ``the file name`` or ``its
    environment``."""
    world_size: int | None = None
    process: str | None = None
    """Which process of the file, where it holds several."""
    job: str | None = None
    """What all ranks of a launched job share."""
    backend: str = "nsys"


@dataclass(frozen=True, slots=True)
class Summary:
    """One rank."""

    identity: Identity
    texts: tuple[str, ...]
    steps: Steps
    spent: Spent
    collectives: Collectives
    groups: Groups
    kernels: Kernels
    utc: bool = True
    """Whether times are UTC."""
    gpu: bool = True
    """Whether it ran anything on a GPU; else times are those of the host."""
    compiled: tuple[str, ...] = ()
    """Its compiled graphs by id and phase, and recompilations."""
    notes: tuple[str, ...] = field(default=())
    """What to distrust of the capture."""
