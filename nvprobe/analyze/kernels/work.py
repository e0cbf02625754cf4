"""Arithmetic done, from the shapes that torch recorded: FLOP/s, bytes/s, intensity, MFU by path.

An *item* is one operator instance whose work its input shapes tell (``FORMULAS``) and that launched
at least one op: the ops whose innermost such operator it is. FLOPs count a multiply-add as two and
ignore masks (causal attention does half). Bytes are those of inputs and outputs once: a lower
bound of the traffic. Convolutions are not in the table: stride and padding are no shapes.

``mfu`` compares with the device's peak for the precision that the item's kernels multiply in,
over items whose precision is known; see :mod:`nvprobe.analyze.kernels.peaks`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.analyze.grouping import push_up, sums
from nvprobe.analyze.kernels.classes import UNKNOWN, OpClasses, Precision
from nvprobe.analyze.kernels.peaks import peak_flops
from nvprobe.attribute.model import Attribution
from nvprobe.trace import NO_ROW, Column, Table, column

__all__ = ["FORMULAS", "PathWork", "WorkItems", "path_work", "work_items"]

Shape = list[int]
_SIZES, _AFTER_SIZES = ", sizes = ", ", input_op_ids = "
_ITEM_BYTES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8,
    "int": 4, "bool": 1, "unsigned char": 1, "signed char": 1, "short": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PRECISION_BYTES = {
    Precision.FP64: 8, Precision.FP32: 4, Precision.TF32: 4, Precision.BF16: 2,
    Precision.FP16: 2, Precision.FP8: 1, Precision.INT8: 1,
}  # fmt: skip


def _product(a: Shape, b: Shape) -> tuple[int, int]:
    """(FLOPs, elements of the result) of a matrix product, batched or not."""
    batch = math.prod(a[:-2])
    rows, inner, columns = a[-2], a[-1], b[-1]
    return 2 * batch * rows * inner * columns, batch * rows * columns


def _mm(shapes: list[Shape]) -> tuple[int, int]:
    return _product(shapes[0], shapes[1])


def _addmm(shapes: list[Shape]) -> tuple[int, int]:
    return _product(shapes[1], shapes[2])


def _attention(query: Shape, key: Shape, value: Shape, products: int) -> tuple[int, int]:
    """``products`` matrix products over [batch, heads, length, width]."""
    pairs = math.prod(query[:-2]) * query[-2] * key[-2]
    flops = 2 * pairs * (query[-1] + value[-1]) * products // 2
    return flops, math.prod(query[:-1]) * value[-1]


def _attention_forward(shapes: list[Shape]) -> tuple[int, int]:
    return _attention(shapes[0], shapes[1], shapes[2], 2)


def _attention_backward(shapes: list[Shape]) -> tuple[int, int]:
    """Five products: scores again, and the gradients of value, scores, query and key."""
    flops, _ = _attention(shapes[1], shapes[2], shapes[3], 5)
    return flops, sum(math.prod(shape) for shape in shapes[1:4])


def _elementwise(shapes: list[Shape]) -> tuple[int, int]:
    """One operation an element of the broadcast result."""
    tensors = [shape for shape in shapes if shape]
    result = np.broadcast_shapes(*(tuple(shape) for shape in tensors))
    return math.prod(result), math.prod(result)


_PREFIX = "aten::_scaled_dot_product_"
FORMULAS: dict[str, Callable[[list[Shape]], tuple[int, int]]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": _addmm,
    "aten::baddbmm": _addmm,
    **{f"{_PREFIX}{how}_attention": _attention_forward for how in ("flash", "efficient", "cudnn")},
    **{
        f"{_PREFIX}{how}_attention_backward": _attention_backward
        for how in ("flash", "efficient", "cudnn")
    },
    **{
        f"aten::{name}": _elementwise
        for name in (
            "add", "add_", "sub", "mul", "mul_", "div", "div_", "relu", "relu_", "gelu", "silu",
            "sigmoid", "tanh", "exp", "gelu_backward", "threshold_backward",
        )
    },
}  # fmt: skip
"""Operator → (FLOPs, elements of the result) from the shapes of its inputs."""


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
    """NaN where the types are not recorded and the kernels do not tell the precision."""
    gpu_ns: Column = column("i8")
    precision: Column = column("i1")
    """:class:`Precision` of the inputs, told by its longest matrix kernel, ``UNKNOWN`` else."""


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


def work_items(attribution: Attribution, classes: OpClasses) -> WorkItems | None:
    """Every operator instance whose work is known; None where no shapes were recorded."""
    known = _known_work(attribution)
    ops = attribution.trace.ops
    if known is None or ops is None:
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
    telling = order[classes.precision[op_rows[order]] != UNKNOWN]
    precision[item[telling]] = classes.precision[op_rows[telling]]
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


def _known_work(attribution: Attribution) -> _Known | None:
    """Parse the shapes of operators that have a formula, each distinct text once."""
    trace = attribution.trace
    if trace.ranges is None or not len(trace.ranges):
        return None
    names = attribution.names.names
    wanted = pc.is_in(names, pa.array(list(FORMULAS))).to_numpy(zero_copy_only=False)
    path = attribution.tree.path
    clean = np.where(path >= 0, attribution.paths.name[path], 0)
    has_formula = wanted[clean] & (path >= 0)
    if trace.operators is not None and len(trace.operators):
        operators = trace.operators.take(has_formula[trace.operators.range])
        rows = operators.range
        texts = (
            _strings(trace.strings, operators.shapes),
            _strings(trace.strings, operators.types),
        )
    else:
        rows = np.flatnonzero(has_formula)
        texts = (_sizes_in_names(trace.strings, trace.ranges.name[rows]), None)
    flops, elements, size = _computed(names.take(pa.array(clean[rows])), *texts)
    good = flops > 0
    place = np.full(len(trace.ranges), NO_ROW, np.int64)
    place[rows[good]] = np.arange(int(good.sum()))
    if not good.any():
        return None
    return _Known(rows[good], place, flops[good], elements[good], size[good])


def _strings(strings: pa.StringArray, names: Column) -> pa.StringArray:
    return strings.take(pa.array(names, mask=names < 0))


def _sizes_in_names(strings: pa.StringArray, names: Column) -> pa.StringArray:
    """The ``sizes`` of emit_nvtx texts; null where a text has none."""
    texts = pc.if_else(
        pc.match_substring(strings.take(pa.array(names)), _SIZES),
        strings.take(pa.array(names)),
        pa.scalar(None, pa.string()),
    )
    tail = pc.list_element(pc.split_pattern(pc.fill_null(texts, _SIZES), _SIZES, max_splits=1), 1)
    return pc.list_element(pc.split_pattern(tail, _AFTER_SIZES, max_splits=1), 0)


def _computed(
    names: pa.StringArray, shapes: pa.StringArray, types: pa.StringArray | None
) -> tuple[Column, Column, Column]:
    """(FLOPs, elements, bytes or -1) per row; 0 FLOPs where the shapes do not fit the formula."""
    types = types if types is not None else pa.nulls(len(names), pa.string())
    key = pc.binary_join_element_wise(
        names, pc.fill_null(shapes, ""), pc.fill_null(types, ""), "\0"
    )
    coded = key.dictionary_encode()
    table = [_judged(text) for text in coded.dictionary.to_pylist()]
    columns = np.array(table, np.float64).reshape(len(table), 3)
    return tuple(columns[coded.indices.to_numpy(zero_copy_only=False)].T)


def _judged(text: str) -> tuple[float, float, float]:
    """(FLOPs, elements, bytes or -1) of one operator with its shapes and types."""
    name, shape_text, type_text = text.split("\0")
    try:
        shapes = json.loads(shape_text)
        flops, result = FORMULAS[name](shapes)
        types = json.loads(type_text) if type_text else []
        inputs = [math.prod(shape) if shape else 0 for shape in shapes]
    except (ValueError, IndexError, TypeError, KeyError):
        return 0.0, 0.0, -1.0
    widths = [_ITEM_BYTES.get(kind, 0) for kind in types[: len(inputs)]]
    told = len(widths) == len(inputs) and widths and max(widths) > 0
    size = (
        sum(n * w for n, w in zip(inputs, widths, strict=True)) + result * max(widths)
        if told
        else -1
    )
    return float(flops), float(sum(inputs) + result), float(size)


def _bytes(known: _Known, at: Column, precision: Column) -> Column:
    """By the recorded types, else by the precision of the kernels, else NaN."""
    width = np.full(len(at), np.nan)
    for kind, size in _PRECISION_BYTES.items():
        width[precision == kind] = size
    return np.where(known.bytes[at] >= 0, known.bytes[at], known.elements[at] * width)


def _work_range_of_ops(attribution: Attribution, work: Column) -> tuple[Column, Column]:
    """(op rows, the innermost range with known work that was open at their call)."""
    trace = attribution.trace
    empty = np.empty(0, np.int64)
    if trace.calls is None or trace.ranges is None:
        return empty, empty
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
