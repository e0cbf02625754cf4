"""Selecting rows by a mask: the host has to read how many there are before it can go on.

``x[mask]``, ``nonzero``, ``masked_select`` and ``unique`` count on the GPU, copy the count to the
host, wait for it, and then select; the backward of an index does the same again. A mask that is
multiplied in keeps the shape, and needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.sources import named, program_paths, times
from nvprobe.analysis.grouping import push_up
from nvprobe.analysis.kernels.classes import Family
from nvprobe.analysis.replay.edits.waits import without_selection
from nvprobe.analysis.replay.model import NOTHING, EventKind
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import Proposal
from nvprobe.trace import Column

FEW = 2
"""Selections a step: one alone may be what the program is about (sampling a token)."""
NEAR = 4
"""Launches around the wait that may belong to the selection."""
SORTING = 32
"""Launches after it, at most, that turn rows into places and sort these for the backward."""


def selections(evidence: Evidence, sample: Sample) -> Iterator[Proposed]:
    """Waits for a count that selecting kernels follow, one finding for all of them."""
    waits, kernels = _around(evidence, sample)
    sorting, adding = _until_scattered(evidence, sample, waits)
    sorting &= ~kernels
    if np.count_nonzero(waits) < FEW * sample.steps:
        return
    each = int(np.count_nonzero(waits)) / sample.steps
    path, lines = _place(evidence, sample, waits)
    paths = evidence.attribution.paths
    where = f"at {lines[0]}" if lines else f"in {named(paths, path)}"
    yield (
        Finding(
            id="mask_select",
            ops=sample.op[kernels[sample.model.ops.event]],
            title=f"Rows selected by a mask {where} make the host wait for their number "
            f"{times(each)} per step",
            path=path,
            sources=lines,
            evidence={
                "selections_per_step": round(each, 1),
                "selecting_kernels_per_step": round(
                    int(np.count_nonzero(kernels)) / sample.steps, 1
                ),
                "sorting_launches_per_step": round(
                    int(np.count_nonzero(sorting)) / sample.steps, 1
                ),
            },
            saves_ns=(0, 0),
            advice=(
                "multiply by the mask, or torch.where: the shape stays, and nobody waits",
                "select once before the loop where the mask is the same in each turn",
            ),
        ),
        Proposal(
            without_selection(
                sample, waits, kernels | sorting, adding, _product_ns(sample, kernels, adding)
            ),
            1.0,
        ),
    )


def _around(evidence: Evidence, sample: Sample) -> tuple[Column, Column]:
    """(waits for the number of selected rows, launches of kernels that count or select)."""
    family, events = evidence.classes.family[sample.op], sample.model.events
    sorting = np.zeros(len(events), bool)
    selecting = (family == Family.SORT) | _kernels(evidence, sample.op, r"\bwrite_indices\b")
    sorting[sample.model.ops.event[selecting]] = True
    counting = sorting.copy()
    counting[sample.model.ops.event[_cub(evidence, sample.op)]] = True
    waiting = events.awaits != NOTHING
    waits, kernels = np.zeros(len(events), bool), np.zeros(len(events), bool)
    for row in np.flatnonzero(waiting).tolist():
        after = _run(sorting, row + 1, 1)
        before = _run(counting, row - 1, -1, skip=2)
        if len(after):
            waits[row] = True
            kernels[np.concatenate((before, after))] = True
    return waits, kernels


def _run(mine: Column, start: int, step: int, skip: int = 0) -> Column:
    """Rows from ``start`` on that are ``mine``, after at most ``skip`` that are not."""
    rows = []
    for row in range(start, start + step * NEAR, step):
        if not 0 <= row < len(mine):
            break
        if mine[row]:
            rows.append(row)
        elif rows or skip == 0:
            break
        else:
            skip -= 1
    return np.array(rows, np.int64)


def _product_ns(sample: Sample, kernels: Column, adding: Column) -> int:
    """How long a product with the mask takes: as what follows the selecting kernels, at most.

    That gathers the selected rows, and so reads the values that the product reads.
    """
    after = np.append(False, kernels[:-1]) & ~kernels
    gathering = after[sample.model.ops.event] & ~adding
    return int(sample.model.ops.dur[gathering].max(initial=0))


def _until_scattered(evidence: Evidence, sample: Sample, waits: Column) -> tuple[Column, Column]:
    """(launches from a wait to the kernel that adds gradients to the selected rows, that kernel).

    The first is a bool per event, the second one per op.
    The backward of an index sorts the rows, so that none is written twice at once; that of a
    product with the mask is one more product, in place of the kernel that adds.
    """
    e, out = sample.model.events, np.zeros(len(waits), bool)
    launching = np.flatnonzero(sample.model.op_end() > e.first_op)
    adding = _kernels(evidence, sample.op, r"\bindexing_backward_kernel")
    added = np.zeros(len(adding), bool)
    scattering = np.unique(sample.model.ops.event[adding])
    barriers = np.flatnonzero(waits | (e.kind == EventKind.STEP))
    for row in scattering[np.isin(scattering, launching)].tolist():
        last = int(barriers[np.searchsorted(barriers, row) - 1])
        between = launching[(launching > last) & (launching < row)]
        same = (sample.events.thread[between] == sample.events.thread[row]).all()
        if waits[last] and len(between) <= SORTING and same:
            out[between] = True
            added |= adding & (sample.model.ops.event == row)
    return out, added


def _cub(evidence: Evidence, op: Column) -> Column:
    """Bool per op: a kernel of CUB, with which torch counts and selects."""
    return _kernels(evidence, op, r"\bcub::")


def _kernels(evidence: Evidence, op: Column, pattern: str) -> Column:
    """Bool per op: its name has the pattern (RE2)."""
    names, place = np.unique(evidence.ops.name[op], return_inverse=True)
    texts = pa.array(evidence.trace.texts(names), pa.string())
    hit = pc.match_substring_regex(pc.fill_null(texts, ""), pattern)
    return np.asarray(hit.to_numpy(zero_copy_only=False), bool)[place]


def _place(evidence: Evidence, sample: Sample, waits: Column) -> tuple[int, tuple[str, ...]]:
    """(the program path with most of the waits, their known lines)."""
    syncs = evidence.waits.syncs
    rows = sample.events.waits[waits]
    rows = rows[rows >= 0]
    source = syncs.sites.source[syncs.site[rows]]
    labels = [str(syncs.labels[int(row)].as_py()) for row in np.unique(source[source >= 0])]
    path = sample.path[waits]
    paths = evidence.attribution.paths
    own = np.zeros(len(paths.parent), np.int64)
    program = np.append(program_paths(paths), -1)[path]
    np.add.at(own, program[program >= 0], 1)
    inclusive = push_up(paths, own)
    most = np.flatnonzero(2 * inclusive >= len(path))
    best = int(most[np.argmax(paths.depth[most])]) if len(most) else -1
    return best, tuple(labels)
