"""What attribution makes of a Trace: an owner path, a method or a reason for every GPU op.

``Attribution`` is made once (``attribute.attribute(trace)``) and is what every analysis takes.
Definitions: docs/attribution.md. The slow oracle in tests/oracle.py gives the same answer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.trace import Column, Table, Trace

if TYPE_CHECKING:
    from nvprobe.attribution.names import CleanNames
    from nvprobe.attribution.paths import OpenPaths


def shown_path(text: str) -> str:
    r"""A path as people read it: a slash inside a name is a colon, and no border between names.

    ``step/graph 0\/0 fwd`` is shown as ``step/graph 0:0 fwd``. Filters take both.
    """
    return text.replace("\\/", ":")


class Method(IntEnum):
    """How an op got its owner path; from ``UNRESOLVED`` on: why it has none."""

    LAUNCH = 0
    INHERITED = 1
    REPEATED = 2
    """Within a backward node that was not recorded here but in an equal engine run."""
    GRAPH_CAPTURE = 3
    GRAPH_LAUNCH = 4
    LAUNCHED_BEFORE_WINDOW = 5
    NO_LAUNCH_RECORD = 6
    UNIFIED_MEMORY = 7
    OPAQUE_GRAPH = 8
    NO_RANGE_OPEN = 9

    @property
    def resolved(self) -> bool:
        """Whether the op has an owner path."""
        return self < Method.LAUNCHED_BEFORE_WINDOW


class Kind(IntEnum):
    """What a range means."""

    USER = 0
    STEP = 1
    PHASE = 2
    MODULE = 3
    GRAPH = 4
    COLLECTIVE = 5
    OPERATOR = 6
    LIBRARY = 7


@dataclass(frozen=True, slots=True)
class PathTable:
    """Distinct owner paths as a trie. Row order: parents stand before children."""

    parent: Column
    """int32 row of the parent path, -1 for a root."""
    name: Column
    """int32 row of ``names``."""
    depth: Column
    """int32, 0 for a root."""
    kind: Column
    """int8 :class:`Kind` of the path's last range (the first one seen)."""
    domain: Column
    """int32 row of the trace's strings: domain of the path's last range, -1 default."""
    names: pa.StringArray
    """Clean range names: torch attributes and step indices are off."""

    def levels(self) -> list[Column]:
        """The rows of each depth, roots first."""
        if not len(self.depth):
            return []
        order = np.argsort(self.depth, kind="stable")
        bounds = np.searchsorted(self.depth[order], np.arange(int(self.depth.max()) + 2))
        return [order[low:high] for low, high in itertools.pairwise(bounds)]

    def nearest(self, marked: Column) -> Column:
        """Row of each path itself or of the nearest one above it that is marked; int64, -1."""
        out = np.where(marked, np.arange(len(marked)), -1)
        for rows in self.levels()[1:]:
            out[rows] = np.where(out[rows] >= 0, out[rows], out[self.parent[rows]])
        return out

    def text(self, path: int) -> str:
        r"""``step/forward/fwd:lin1``; a slash inside a name is written ``\/``."""
        parts = []
        while path >= 0:
            parts.append(self.names[int(self.name[path])].as_py().replace("/", "\\/"))
            path = int(self.parent[path])
        return "/".join(reversed(parts))

    def shown(self, path: int) -> str:
        """The path as people read it: `shown_path`."""
        return shown_path(self.text(path))

    def texts(self) -> list[str]:
        """The text of every path, in row order."""
        own = [text.replace("/", "\\/") for text in self.names.to_pylist()]
        out: list[str] = []
        left = limits.path_bytes()
        for parent, name in zip(self.parent.tolist(), self.name.tolist(), strict=True):
            out.append(own[name] if parent < 0 else f"{out[parent]}/{own[name]}")
            left -= len(out[-1])
            if left < 0:
                raise InputError(
                    f"the paths of nested ranges take more than {limits.path_bytes() >> 20:,} MiB; "
                    f"{limits.HOW_TO_RAISE}"
                )
        return out


@dataclass(frozen=True, slots=True)
class RangeTree:
    """Per row of ``trace.ranges``: its place in the tree."""

    parent: Column
    """Row of the innermost range of the same thread open at its start, -1 for none.

    int32 where the rows fit, else int64.
    """
    path: Column
    """int32 row of the path table: the owner path taken at its start, the range itself last."""
    folded: Column
    """bool: a duplicate by emit_nvtx of its parent; not an instance."""
    closure: Column
    """bool: the closure given to the optimizer's step around it opened it; its path omits that."""
    end: Column
    """int64: the recorded end, or the end of the capture for a range never closed."""
    index: Column
    """int64: the number that ended the name (``step 4`` → 4), -1 where there was none."""
    kind: Column
    """int8 :class:`Kind`."""
    sequence: Column
    """int64 autograd sequence number from the name (``seq = 4``) or the operators table, -1."""
    operator_id: Column
    """int64 ``op_id`` from the name, -1."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What filters left out of an attribution."""

    ops: int
    gpu_ns: int
    filters: tuple[str, ...]
    """The filters as a user gives them."""


@dataclass(frozen=True, slots=True)
class Unfiltered:
    """The attribution before a filter, in which only the ops that are left have calls and time."""

    attribution: Attribution
    ops: Column
    """bool per op of it: left by the filter."""
    ranges: Column
    """bool per range of it."""
    units: Table | None = None
    """Its steps that no range marks: what is left may be too little to find them in."""
    steps: Table | None = None
    """All steps of a whole run, where what is left are its steady ones."""
    left_out: object = None
    """What lies around the steady ones (`nvprobe.analysis.steady.LeftOut`)."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """A Trace and the owner of everything in it. Columns are aligned with ``trace.ops``."""

    trace: Trace
    paths: PathTable
    """Every path open on any thread at any time."""
    open: OpenPaths
    """Look-up of the path open on any thread at any instant (rules 1 and 2)."""
    tree: RangeTree
    names: CleanNames
    """Clean range names; ``names.names`` are the names of ``paths``."""
    call: Column
    """int64 row of ``trace.calls`` that started each op, -1 for none."""
    owner: Column
    """int32 row of ``paths``, -1 where unresolved."""
    method: Column
    """int8 :class:`Method`."""
    valid: Column
    """bool: times are possible; an op with impossible times counts with 0 ns."""
    duration: Column
    """int64 ns, 0 where times are impossible."""
    outside: Outside | None = None
    """What does not count, where the attribution was filtered."""
    unfiltered: Unfiltered | None = None
    """Where the attribution was filtered: the whole, to look up what is around the rest."""

    @property
    def whole(self) -> Attribution:
        """The attribution before any filter."""
        return self if self.unfiltered is None else self.unfiltered.attribution

    @property
    def initiating(self) -> Column:
        """int32 row of ``trace.threads`` per process, -1 where the process has no ranges."""
        return self.open.initiating

    @property
    def autograd(self) -> Column:
        """bool per thread: its ops also belong to what the initiating thread has open."""
        return self.open.autograd


class ModuleMethod(IntEnum):
    """How an op got its modules (the second owner); from ``INDISTINGUISHABLE`` on: why not."""

    RANGE = 0
    """The innermost module range in its owner path."""
    SEQUENCE = 1
    """The module call that made the autograd node with its sequence number."""
    PREVIOUS_NODE = 2
    """AccumulateGrad and the engine's own work: the numbered node before on its thread."""
    MANIFEST = 3
    """The kernel manifest of its compiled graph."""
    INDISTINGUISHABLE = 4
    """One compiled graph serves several modules and nothing shows which: paths start with ``?``."""
    NO_MODULE = 5
    """Nothing leads from the op to a module."""

    @property
    def resolved(self) -> bool:
        """Whether the modules of the op are known by their full names."""
        return self < ModuleMethod.INDISTINGUISHABLE


class Phase(IntEnum):
    """Which pass of training a share of an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    """Forward work done again inside the backward pass (checkpointing, partitioner)."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The second owner: a weighted set of modules and source lines per GPU op.

    ``method`` has one row per row of ``trace.ops``; the other columns one row per *share*, in the
    order of ``op``. The shares of an op have weights that add up to 1 and ``gpu_ns`` that add up
    to the op's duration exactly, so any sum over shares is exact. An op whose method is
    ``NO_MODULE`` has no share; one that is ``INDISTINGUISHABLE`` has shares whose module is the
    path below the unknown one.
    """

    names: pa.StringArray
    """Module paths (``blocks.0.fc1``) and source lines (``train.py:27 forward``)."""
    method: Column
    """int8 :class:`ModuleMethod` per op."""
    op: Column
    """int64 row of ``trace.ops``, ascending."""
    module: Column
    """int32 row of ``names``."""
    source: Column
    """int32 row of ``names``, -1 where the line is not known."""
    phase: Column
    """int8 :class:`Phase`."""
    weight: Column
    """float64 share of the op, in (0, 1]."""
    gpu_ns: Column
    """int64 share of the op's duration in nanoseconds."""

    def of(self, ops: Column) -> Modules:
        """The shares of some ops (bool per op), which become the rows of ``method``."""
        rows = ops[self.op]
        taken = {
            name: getattr(self, name)[rows]
            for name in ("module", "source", "phase", "weight", "gpu_ns")
        }
        place = np.cumsum(ops) - 1
        return replace(self, method=self.method[ops], op=place[self.op[rows]], **taken)
