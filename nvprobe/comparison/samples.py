"""The steps of the runs of both sides as matrices of the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nvprobe.comparison.alignment import Alignment, PathWork, above, align
from nvprobe.report.document import Document
from nvprobe.report.paths import Step

GPU, OVERLAP = "gpu", "overlap"
_SMALL = 0.003
"""A part that some run folded into the path above: so small a share of a step is folded in all."""
_FEWEST_INNER = 4
"""With so many steps the first and the last are left out: the capture cuts the idle time there."""

Key = tuple[str, str]
"""(path by its name before, what) of a part."""


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one kind: what a step is, its phase, its batch."""

    path: str | None
    unit: str | None = None
    phase: str | None = None
    batch: int | None = None
    """Requests, up to the next power of two where no CUDA graph pads them."""

    @property
    def kind(self) -> tuple[str | None, str | None, int | None]:
        """Without the path: the same steps may have another name."""
        return self.unit, self.phase, self.batch


@dataclass(frozen=True, slots=True)
class Run:
    """The steps of one kind of one run."""

    document: Document
    rows: Sequence[int]
    """Rows of ``document.steps``; none for a capture without steps, which counts as one."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Parts of steps of both sides in ns; columns are the same in all."""

    keys: Sequence[Key]
    before: Sequence[npt.NDArray[np.float64]]
    after: Sequence[npt.NDArray[np.float64]]
    alignment: Alignment


def groups_of(document: Document) -> dict[Group, list[int]]:
    """Rows of the steps of a run by kind, without the first and the last of the capture."""
    if not document.steps:
        return {Group(None): []}
    out: dict[Group, list[int]] = {}
    steady = [row for row, step in enumerate(document.steps) if step.steady]
    for row in steady:
        out.setdefault(group_of(document.steps[row]), []).append(row)
    inner = steady[1:-1]
    if len(inner) + 2 >= _FEWEST_INNER:
        whole = {group: [row for row in rows if row in inner] for group, rows in out.items()}
        out = {group: rows for group, rows in whole.items() if rows} or out
    return out


def group_of(step: Step) -> Group:
    """What kind of step a step is."""
    requests = (step.prefill_requests or 0) + (step.decode_requests or 0)
    batch = step.padded_requests or (1 << (requests - 1).bit_length() if requests else None)
    return Group(step.path, step.unit, step.phase, batch)


def step_count(document: Document) -> int:
    """How many steps the tables of a run are about; 1 where it has none."""
    return max(sum(step.steady for step in document.steps), 1)


def work_of(document: Document) -> dict[str, PathWork]:
    """What each path of a run does in a step."""
    steps = step_count(document)
    return {
        one.path: PathWork(one.kind, one.calls / steps, one.ops / steps, one.gpu_ns / steps)
        for one in document.ranges
    }


def samples(before: Sequence[Run], after: Sequence[Run]) -> Samples:
    """The steps of both sides; paths are those that both have, by their names before."""
    known = work_of(before[0].document)
    alignment = align(known, work_of(after[0].document))
    shared = set(alignment.names.values())
    own = alignment.reversed()
    of_runs = [
        *(_parts(run, own if run is before[0] else _to(shared, known, run)) for run in before),
        *(_parts(run, alignment if run is after[0] else _to(shared, known, run)) for run in after),
    ]
    keys = _shared_keys(of_runs)
    matrices = [
        _matrix(parts, keys, max(len(run.rows), 1))
        for parts, run in zip(of_runs, (*before, *after), strict=True)
    ]
    return Samples(keys, matrices[: len(before)], matrices[len(before) :], alignment)


def _to(shared: set[str], known: Mapping[str, PathWork], run: Run) -> Alignment:
    """Paths of a further run by the names of the first."""
    found = align(known, work_of(run.document)).names
    return Alignment({new: old for new, old in found.items() if old in shared}, (), ())


_Parts = dict[Key, npt.NDArray[np.int64]]


def _parts(run: Run, alignment: Alignment) -> _Parts:
    """Parts of a run by the path that both sides have, and what they are."""
    out: _Parts = {}
    for path, what, values in _of_steps(run) if run.rows else _of_capture(run.document):
        key = alignment.common(path or ""), what
        out[key] = out[key] + values if key in out else values
    return out


def _of_steps(run: Run) -> Iterator[tuple[str | None, str, npt.NDArray[np.int64]]]:
    table = run.document.step_parts
    for part in table.parts if table else ():
        yield part.path, part.what, np.array(part.ns, np.int64)[list(run.rows)]


def _of_capture(run: Document) -> Iterator[tuple[str | None, str, npt.NDArray[np.int64]]]:
    """The same of a capture without steps, taken as one."""
    spent = 0
    for one in run.ranges:
        spent += one.gpu_self_ns
        yield one.path, GPU, np.array([one.gpu_self_ns])
    rest = run.ledger.gpu_ns - spent
    busy = sum(one.busy_ns for one in run.devices)
    yield None, GPU, np.array([rest])
    yield None, OVERLAP, np.array([busy - run.ledger.gpu_ns])
    for idle in run.idle.by_path or ():
        yield idle.path, idle.cause, np.array([idle.ns])


def _shared_keys(of_runs: Sequence[_Parts]) -> list[Key]:
    """Columns of all runs; small ones that some run counts with the path above go there in all."""
    whole = max(sum(float(part.mean()) for part in parts.values()) for parts in of_runs)
    keys = {key for parts in of_runs for key in parts}
    for key in sorted(keys, key=lambda key: -len(key[0])):
        most = max(float(parts[key].mean()) if key in parts else 0.0 for parts in of_runs)
        missing = any(key not in parts for parts in of_runs)
        if missing and key[0] and most < _SMALL * whole:
            for parts in of_runs:
                if key in parts:
                    up = above(key[0]), key[1]
                    moved = parts.pop(key)
                    parts[up] = parts[up] + moved if up in parts else moved
    return sorted({key for parts in of_runs for key in parts})


def _matrix(parts: _Parts, keys: Sequence[Key], steps: int) -> npt.NDArray[np.float64]:
    absent = np.zeros(steps, np.int64)
    return (
        np.array([parts.get(key, absent) for key in keys], np.float64).reshape(len(keys), steps).T
    )
