"""What the kernels of a phase do, in the words of inference engines.

Attention of a prefill and of decode often are one kernel: the step says which it is. Names of
engines' own kernels come first; what no line knows has its general family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.kernels.classes import Family, OpClasses
from nvprobe.analysis.model import Steps
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_ROW, Column, OpKind, Table, column

NAMES: tuple[tuple[str, str], ...] = (
    (
        "all-reduce",
        r"(?i)cross_device_reduce|(one|two)_?shot|all_?reduce|multimem|lamport|quick_?reduce",
    ),
    (
        "KV cache",
        r"(?i)reshape_and_cache|concat_and_cache|kv_?cache|copy_blocks|swap_blocks|copy_page",
    ),
    ("MoE", r"(?i)fused_?moe|moe_?align|moe_sum|moe::|routing|grouped_mm|bitmatrix"),
    ("sampling", r"(?i)top_?[kp]|sampl|argmax|ArgMaxOps|multinomial|gumbel|penalt|logits"),
)
"""(family, pattern), read top down."""


@dataclass(frozen=True, slots=True)
class FamilyRows(Table):
    """GPU time of the kernels of a phase by family, the longest first."""

    phase: Column = column("i1")
    family: Column = column("i4")
    """Row of ``Families.names``."""
    ops: Column = column("i8")
    gpu_ns: Column = column("i8")


@dataclass(frozen=True, slots=True)
class Families:
    """The rows of all phases, and the names they refer to."""

    names: tuple[str, ...]
    rows: FamilyRows


def families(
    attribution: Attribution, steps: Steps, classes: OpClasses, step_of_op: Column, rows: Column
) -> Families:
    """GPU time by phase and family of the steps ``rows``; ``step_of_op`` is the step of each op."""
    chosen = np.zeros(len(steps) + 1, bool)
    chosen[rows] = True
    op = np.flatnonzero(chosen[step_of_op] & (attribution.trace.ops.kind == OpKind.KERNEL))
    labels = [*(name for name, _ in NAMES), *(family.name.lower() for family in Family)]
    own = _named(attribution, op)
    family = np.where(own != NO_ROW, own, len(NAMES) + classes.family[op])
    phase = steps.phase[step_of_op[op]]
    keys, code = np.unique(phase.astype(np.int64) << 16 | family, return_inverse=True)
    table = FamilyRows(
        phase=keys >> 16,
        family=keys & 0xFFFF,
        ops=np.bincount(code, minlength=len(keys)),
        gpu_ns=sums(code, attribution.duration[op], len(keys)),
    )
    order = np.lexsort((-table.gpu_ns, table.phase))
    return Families(tuple(labels), table.take(order))


def _named(attribution: Attribution, op: Column) -> Column:
    """int64 row of ``NAMES`` per op, -1 where none knows its kernel."""
    used, place = np.unique(attribution.trace.ops.name[op], return_inverse=True)
    texts = pc.fill_null(pa.array(attribution.trace.texts(used), pa.string()), "")
    own = np.full(len(used), NO_ROW, np.int64)
    for row, (_, pattern) in reversed(list(enumerate(NAMES))):
        hit = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
        own[np.asarray(hit, bool)] = row
    return own[place]
