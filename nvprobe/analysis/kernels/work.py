"""Work of operators and paths against the peaks of the device.

What a GPU can do at most: dense FLOP/s by precision, at its greatest clock.

``PER_SM`` is floating-point operations a clock and SM (a multiply-add counts as two), from the
arithmetic throughput of each compute capability; times SMs and clock it gives the figures of the
data sheets to within their different clocks. A capability that the table lacks, or a device that
does not record its SMs or clock, has no peak: never a guess.

Arithmetic done, from the inputs that torch recorded: FLOP/s, bytes/s, intensity, MFU by path.

An *item* is one operator instance whose work follows from its inputs (see ``flops``) and
that launched at least one op: the ops whose innermost such operator it is. Bytes are those of
inputs and outputs once: a lower bound of the traffic.

``mfu`` compares with the device's peak for the precision that the item's kernels multiply in,
over items whose precision is known; see :mod:`nvprobe.analysis.kernels.work`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analysis.grouping import distinct, push_up, sums
from nvprobe.analysis.kernels.classes import UNKNOWN, OpClasses, Precision
from nvprobe.analysis.kernels.flops import CONVOLUTIONS, FORMULAS, Inputs
from nvprobe.analysis.shapes import RangeShapes
from nvprobe.attribution.model import Attribution
from nvprobe.trace import NO_NAME, NO_ROW, Column, Devices, Table, Trace, column

_P = Precision

PER_SM: dict[tuple[int, int], dict[Precision, int]] = {
    (7, 0): {_P.FP64: 64, _P.FP32: 128, _P.FP16: 1024},
    (7, 5): {_P.FP64: 4, _P.FP32: 128, _P.FP16: 1024, _P.INT8: 2048},
    (8, 0): {_P.FP64: 128, _P.FP32: 128, _P.TF32: 1024, _P.BF16: 2048, _P.FP16: 2048,
             _P.INT8: 4096},
    (8, 6): {_P.FP64: 4, _P.FP32: 256, _P.TF32: 256, _P.BF16: 512, _P.FP16: 512, _P.INT8: 2048},
    (8, 9): {_P.FP64: 4, _P.FP32: 256, _P.TF32: 512, _P.BF16: 1024, _P.FP16: 1024, _P.FP8: 2048,
             _P.INT8: 2048},
    (9, 0): {_P.FP64: 256, _P.FP32: 256, _P.TF32: 2048, _P.BF16: 4096, _P.FP16: 4096,
             _P.FP8: 8192, _P.INT8: 8192},
    (10, 0): {_P.FP64: 128, _P.FP32: 256, _P.TF32: 4096, _P.BF16: 8192, _P.FP16: 8192,
              _P.FP8: 16384, _P.FP4: 32768, _P.INT8: 16384},
}  # fmt: skip
"""Operations a clock and SM, dense, by compute capability; tensor cores where there are any."""


def peak_flops(devices: Devices, device: Column, precision: Column) -> Column:
    """Greatest FLOP/s of each (device row, precision); NaN where it is unknown."""
    out = np.full(len(device), np.nan)
    for row in range(len(devices)):
        table = PER_SM.get((int(devices.compute_major[row]), int(devices.compute_minor[row])), {})
        rate = float(devices.sm_count[row]) * float(devices.clock_hz[row])
        if devices.sm_count[row] <= 0 or devices.clock_hz[row] <= 0:
            continue
        for kind, operations in table.items():
            out[(device == row) & (precision == kind)] = operations * rate
    return out


def tensor_core_gain(devices: Devices, row: int) -> float | None:
    """How many times faster TF32 is than FP32 off the tensor cores; None where unknown."""
    table = PER_SM.get((int(devices.compute_major[row]), int(devices.compute_minor[row])), {})
    if Precision.TF32 not in table:
        return None
    return table[Precision.TF32] / table[Precision.FP32]


_ITEM_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8,
    "int": 4, "bool": 1, "unsigned char": 1, "signed char": 1, "short": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PRECISION_BYTES = {
    Precision.FP64: 8, Precision.FP32: 4, Precision.TF32: 4, Precision.BF16: 2,
    Precision.FP16: 2, Precision.FP8: 1, Precision.INT8: 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkItems(Table):
    """One row an operator instance with known work."""

    range: Column = column("i8")
    """Row of ``trace.ranges``."""
    path: Column = column("i4")
    """Owner path of its longest op."""
    device: Column = column("i4")
    flops: Column = column("f8")
    bytes: Column = column("f8")
    """NaN where the types are not recorded and the kernels do not show the precision."""
    gpu_ns: Column = column("i8")
    precision: Column = column("i1")
    """:class:`Precision` of the inputs, that of its longest matrix kernel, ``UNKNOWN`` else."""


@dataclass(frozen=True, slots=True)
class PathWork(Table):
    """Inclusive sums per path with items; rates are over the GPU time of those items."""

    path: Column = column("i4")
    items: Column = column("i8")
    gpu_ns: Column = column("i8")
    flops: Column = column("f8")
    bytes: Column = column("f8")
    flops_per_s: Column = column("f8")
    bytes_per_s: Column = column("f8")
    intensity: Column = column("f8")
    """FLOPs a byte; NaN where no bytes are known."""
    mfu: Column = column("f8")
    """Share of the peak, of items with a known precision and peak; NaN for none."""


def work_items(
    attribution: Attribution, classes: OpClasses, shapes: RangeShapes
) -> WorkItems | None:
    """Every operator instance whose work is known; None where no shapes were recorded."""
    known = _known_work(attribution, shapes)
    ops = attribution.trace.ops
    if known is None:
        return None
    op_rows, owner_range = _work_range_of_ops(attribution, known.row)
    if not len(op_rows):
        return WorkItems.empty()
    item_range, item = np.unique(owner_range, return_inverse=True)
    duration = attribution.duration[op_rows]
    # Assign in ascending duration: what stays is the longest op's.
    order = np.argsort(duration, kind="stable")
    longest = np.empty(len(item_range), np.int64)
    longest[item[order]] = op_rows[order]
    precision = np.full(len(item_range), UNKNOWN, np.int8)
    named = order[classes.precision[op_rows[order]] != UNKNOWN]
    precision[item[named]] = classes.precision[op_rows[named]]
    at = known.place[item_range]
    return WorkItems(
        range=item_range,
        path=attribution.owner[longest],
        device=ops.device[longest],
        flops=known.flops[at],
        bytes=_bytes(known, at, precision),
        gpu_ns=sums(item, duration, len(item_range)),
        precision=precision,
    )


def path_work(attribution: Attribution, items: WorkItems) -> PathWork:
    """Sum items up the path tree."""
    paths = attribution.paths
    size = len(paths.parent)
    seconds = items.gpu_ns / 1e9
    peak = peak_flops(attribution.trace.devices, items.device, items.precision)
    rated = ~np.isnan(peak)
    measured = ~np.isnan(items.bytes)

    def total(values: Column) -> Column:
        """Inclusive sums per path."""
        rows = items.path >= 0
        own = np.bincount(items.path[rows], values[rows], size)
        return push_up(paths, own)

    count = total(np.ones(len(items)))
    rows = np.flatnonzero(count > 0)
    flops, byte_sum = total(items.flops)[rows], total(np.where(measured, items.bytes, 0))[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        return PathWork(
            path=rows,
            items=count[rows],
            gpu_ns=total(items.gpu_ns)[rows],
            flops=flops,
            bytes=np.where(byte_sum > 0, byte_sum, np.nan),
            flops_per_s=flops / total(seconds)[rows],
            bytes_per_s=byte_sum / total(np.where(measured, seconds, 0))[rows],
            intensity=total(np.where(measured, items.flops, 0))[rows] / byte_sum,
            mfu=total(np.where(rated, items.flops / peak, 0))[rows]
            / total(np.where(rated, seconds, 0))[rows],
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """Work per range with a formula; ``place`` maps range rows to rows here (-1: none)."""

    row: Column
    place: Column
    flops: Column
    elements: Column
    """Inputs and result together."""
    bytes: Column
    """-1 where types are unknown."""


def convolutions_without_work(attribution: Attribution, shapes: RangeShapes) -> int:
    """Convolutions of which shapes were recorded and stride and padding were not."""
    trace, paths = attribution.trace, attribution.paths
    names = _without_overload(attribution.names.names)
    named = pc.is_in(names, pa.array(list(CONVOLUTIONS))).to_numpy(zero_copy_only=False)
    path = attribution.tree.path
    if not named.any():
        return 0
    wanted = (path >= 0) & named[np.where(path >= 0, paths.name[path], 0)]
    _, shape, _, arguments = _recorded(trace, shapes, wanted)
    typed = np.append(pc.binary_length(shapes.texts).to_numpy(zero_copy_only=False) > 0, False)
    return int(np.count_nonzero(typed[shape] & (arguments == NO_NAME)))


def _known_work(attribution: Attribution, shapes: RangeShapes) -> _Known | None:
    """Parse the shapes of operators that have a formula, each distinct text once."""
    trace = attribution.trace
    if not len(trace.ranges):
        return None
    names = _without_overload(attribution.names.names)
    wanted = pc.is_in(names, pa.array(list(FORMULAS))).to_numpy(zero_copy_only=False)
    path = attribution.tree.path
    clean = np.where(path >= 0, attribution.paths.name[path], 0)
    has_formula = wanted[clean] & (path >= 0)
    rows, *inputs = _recorded(trace, shapes, has_formula)
    texts = (names, shapes.texts, trace.strings, trace.strings)
    flops, elements, size = _computed((clean[rows], *inputs), texts)
    good = flops > 0
    place = np.full(len(trace.ranges), NO_ROW, np.int64)
    place[rows[good]] = np.arange(int(good.sum()))
    if not good.any():
        return None
    return _Known(rows[good], place, flops[good], elements[good], size[good])


def _without_overload(names: pa.StringArray) -> pa.StringArray:
    """``aten::add.Tensor`` (``capture_overload_names=True``) is ``aten::add``."""
    return pc.replace_substring_regex(names, r"^(aten::\w+)\.\w+$", r"\1")


def _recorded(
    trace: Trace, shapes: RangeShapes, wanted: Column
) -> tuple[Column, Column, Column, Column]:
    """(range rows, shapes, types, arguments) of wanted ranges; ``NO_NAME`` where not recorded.

    Shapes are rows of ``shapes.texts``, the others of the trace's strings.
    """
    rows = np.flatnonzero(wanted)
    types, arguments = np.full((2, len(rows)), NO_NAME)
    table = trace.operators.take(wanted[trace.operators.range])
    at = np.searchsorted(rows, table.range)
    types[at] = table.types
    if table.arguments is not None:
        arguments[at] = table.arguments
    return rows, shapes.code[rows], types, arguments


def _computed(
    inputs: tuple[Column, ...], texts: tuple[pa.StringArray, ...]
) -> tuple[Column, Column, Column]:
    """(FLOPs, elements, bytes or -1) per row; 0 FLOPs where the inputs do not fit the formula.

    ``inputs`` are rows of ``texts``: names, shapes, types and arguments. Each combination is
    computed once.
    """
    code = np.zeros(len(inputs[0]), np.int64)
    for rows in inputs:
        _, code = distinct(code.astype(np.int64) << 32 | rows.astype(np.int64) + 1)
    first = np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))
    combinations = (
        known.take(pa.array(rows[first], mask=rows[first] < 0)).fill_null("").to_pylist()
        for known, rows in zip(texts, inputs, strict=True)
    )
    table = [_judged(*combination) for combination in zip(*combinations, strict=True)]
    columns = np.array(table, np.float64).reshape(len(table), 3)
    return tuple(columns[code].T)


def _judged(name: str, shapes: str, types: str, arguments: str) -> tuple[float, float, float]:
    """(FLOPs, elements, bytes or -1) of one operator."""
    try:
        inputs = Inputs.of(shapes, arguments)
        flops, result = FORMULAS[name](inputs)
        sizes = [math.prod(shape) if shape else 0 for shape in inputs.shapes]
        size = _bytes_of(sizes, result, json.loads(types) if types else [])
        return float(flops), float(sum(sizes) + result), float(size)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return 0.0, 0.0, -1.0


def _bytes_of(sizes: list[int], result: int, types: list[str]) -> int:
    """Bytes of inputs and result, the result as wide as the widest input; -1 for unknown types."""
    widths = [_ITEM_BYTES.get(kind, 0) for kind in types[: len(sizes)]]
    if len(widths) != len(sizes) or not widths or not max(widths):
        return -1
    return sum(n * w for n, w in zip(sizes, widths, strict=True)) + result * max(widths)


def _bytes(known: _Known, at: Column, precision: Column) -> Column:
    """By the recorded types, else by the precision of the kernels, else NaN."""
    width = np.full(len(at), np.nan)
    for kind, size in _PRECISION_BYTES.items():
        width[precision == kind] = size
    return np.where(known.bytes[at] >= 0, known.bytes[at], known.elements[at] * width)


def _work_range_of_ops(attribution: Attribution, work: Column) -> tuple[Column, Column]:
    """(op rows, the innermost range with known work that was open at their call)."""
    trace = attribution.trace
    ops = np.flatnonzero(attribution.call >= 0)
    call = attribution.call[ops]
    nesting = attribution.open.nesting
    time = trace.calls.start[call]
    last = nesting.last_started(trace.calls.thread[call], time)
    plain = ~nesting.in_crossing(last, time)
    ops, at = ops[plain], nesting.innermost(last[plain], time[plain])
    works = np.zeros(len(trace.ranges), bool)
    works[work] = True
    works_at = works[nesting.row]
    climbing = np.flatnonzero(at >= 0)
    while len(climbing):
        climbing = climbing[~works_at[at[climbing]]]
        at[climbing] = nesting.parent[at[climbing]]
        climbing = climbing[at[climbing] >= 0]
    found = at >= 0
    return ops[found], nesting.row[at[found]]
