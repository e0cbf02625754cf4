"""One event of a torch trace, decoded with only the fields that a Trace has columns for.

Times are microseconds with three decimals, as text. A float64 holds them to the nanosecond only
below 2**43 µs (ulp 2**-10 µs), so events with larger ones (absolute times of 2023, about 1.7e15)
are decoded a second way, which keeps the digits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column, Geometry, OpKind
from nvprobe.trace.cuda_calls import CallRole, roles_of_names

_EXACT_BELOW = float(1 << 43)
_LARGEST = 9e15
"""Microseconds beyond which nanoseconds overflow int64."""

_NAMES = {
    "external": "External id",
    "external_2020": "external id",
    "registers": "registers per thread",
    "shared": "shared memory",
    "graph": "graph id",
    "graph_node": "graph node id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "types": "Input type",
    "shapes": "Input Dims",
    "values": "Concrete Inputs",
    "shapes_2020": "Input dims",
    "reserved": "Total Reserved",
    "allocated": "Total Allocated",
    "change": "Bytes",
    "queue": "sycl queue",
    "device_id": "Device Id",
    "device_type": "Device Type",
    "address": "Addr",
    "event": "wait_on_cuda_event_id",
    "sync_kind": "cuda_sync_kind",
    "collective": "Collective name",
    "elements_in": "In msg nelems",
    "elements_out": "Out msg nelems",
    "group": "Process Group Name",
    "seq": "Seq",
    "source_rank": "Src Rank",
    "target_rank": "Dst Rank",
}


class Arguments(msgspec.Struct, gc=False, frozen=True, rename=_NAMES):
    """``args`` of an event; the order is that of real files, which msgspec decodes fastest."""

    external: int = -1
    sequence: int = -1
    forward_thread: int = -1
    device: int = -1
    context: int | str = -1
    """On Intel GPUs an address, as text."""
    stream: int = -1
    correlation: int = -1
    graph: int = -1
    graph_node: int = -1
    registers: int = -1
    shared: int = -1
    grid: list[int] | str | None = None
    block: list[int] | str | None = None
    bytes: int = -1
    values: msgspec.Raw = msgspec.Raw()
    types: msgspec.Raw = msgspec.Raw()
    shapes: msgspec.Raw = msgspec.Raw()
    reserved: int = -1
    allocated: int = -1
    change: int = 0
    device_id: int = -1
    device_type: int = -1
    address: int = 0
    sync_kind: str = ""
    event: int = -1
    name: str = ""
    queue: int = -1
    """What a stream is on an Intel GPU."""
    collective: str = ""
    elements_in: int = -1
    elements_out: int = -1
    dtype: str = ""
    group: str = ""
    seq: int = -1
    source_rank: int = -1
    target_rank: int = -1
    external_2020: int = -1
    shapes_2020: msgspec.Raw = msgspec.Raw()


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One event, times as numbers."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: int | float = 0
    dur: int | float = 0
    args: Arguments = NO_ARGUMENTS
    id: int | str = -1


class TextEvent(msgspec.Struct, gc=False):
    """One event, its time as the text that stands in the file."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: int | float = 0
    args: Arguments = NO_ARGUMENTS
    id: int | str = -1


class InexactTimes(Exception):
    """A time is too large for a float to hold its nanoseconds."""


def nanoseconds(values: list[Any]) -> Column:
    """int64 ns of times in µs, exactly; raises :class:`InexactTimes` where floats cannot be.

    A time that does not fit an int64 becomes 0.
    """
    micro = np.array(values, np.float64)
    micro[~(np.abs(micro) < _LARGEST)] = 0
    whole = np.floor(micro)
    part = micro - whole
    if len(micro) and np.abs(micro).max() >= _EXACT_BELOW and float in set(map(type, values)):
        raise InexactTimes
    return whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64)


def nanoseconds_of_text(values: list[Any]) -> Column:
    """int64 ns of decimal texts in µs; digits below the nanosecond are rounded."""
    texts = pa.array([bytes(value).strip(b'"') for value in values], pa.binary()).cast(pa.string())
    try:
        exact = pc.cast(texts, pa.decimal128(38, 3))
    except pa.ArrowInvalid:
        return np.array([_nanoseconds_of(text) for text in texts.to_pylist()], np.int64)
    # A decimal128 of scale 3 counts thousandths of a µs; its low word is the int64.
    words = np.frombuffer(exact.buffers()[1], np.int64).reshape(-1, 2)
    low, high = words[exact.offset : exact.offset + len(exact)].T
    return np.where(high == low >> 63, low, 0)


def _nanoseconds_of(text: str) -> int:
    try:
        value = int((Decimal(text) * 1000).to_integral_value())
    except (InvalidOperation, OverflowError, ValueError):
        return 0
    return value if abs(value) < 1 << 63 else 0


_COPY = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "HtoA": 3, "AtoH": 4, "AtoA": 5, "AtoD": 6, "DtoA": 7}
_COPY_KINDS |= {"DtoD": 8, "HtoH": 9, "PtoP": 10}
_MEMORY_KINDS = {"Pageable": 1, "Pinned": 2, "Device": 3, "Array": 4, "Managed": 5}
_ROCM_COPY = re.compile(r"(?i)(?:memory_)?copy_?(host|device)_?to_?(host|device)")
"""Copies of HIP by roctracer (``CopyHostToDevice2D``) and by rocprofiler-sdk."""
_XPU_COPY = re.compile(r"Memcpy ([MHDS])2([MHDS])\b")
_XPU_MEMORY = {"M": ("H", 1), "H": ("H", 2), "D": ("D", 3), "S": ("D", 5)}
"""Letters of Intel's copies (memory, host, device, shared): their side and kind of memory."""
_KERNEL_TOKENS = re.compile(r"(\(anonymous namespace\)::|\(unnamed[^)]*\)::|operator\(\)|[<>(){}])")
_ABI_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


class Copy(NamedTuple):
    """What the name of a copy says."""

    name: str
    kind: int
    source: int
    target: int


def copy_of(name: str) -> Copy:
    """``Memcpy HtoD (Pageable -> Device)`` as CUPTI kinds and the name nsys gives."""
    on_xpu = _XPU_COPY.match(name)
    if on_xpu:
        (source_side, source), (target_side, target) = map(_XPU_MEMORY.__getitem__, on_xpu.groups())
        sides = f"{source_side}to{target_side}"
        return Copy(f"Memcpy {sides}", _COPY_KINDS[sides], source, target)
    on_rocm = _ROCM_COPY.match(name)
    if on_rocm:
        name = f"Memcpy {on_rocm[1][0].upper()}to{on_rocm[2][0].upper()}"
    match = _COPY.match(name)
    if not match:
        return Copy("Memset" if name.startswith(("Memset", "FillBuffer")) else name, -1, -1, -1)
    kinds = _COPY_KINDS.get(match[1], -1)
    source, target = (_MEMORY_KINDS.get(match[row] or "", -1) for row in (2, 3))
    return Copy(f"Memcpy {match[1]}", kinds, source, target)


def plain_call(name: str) -> str:
    """A CUDA call without the suffixes of its ABI version."""
    return _ABI_SUFFIX.sub("", name)


def short_kernel(name: str) -> str:
    """The function of a demangled kernel: no return type, namespace, template or parameters."""
    depth = 0
    out: list[str] = []
    for part in _KERNEL_TOKENS.split(name):
        if part in ("<", "(", "{"):
            if depth == 0 and part == "(" and "".join(out).strip():
                break
            depth += 1
        elif part in (">", ")", "}"):
            depth -= 1
        elif depth == 0 and not part.startswith(("(anonymous", "(unnamed")):
            out.append(part)
    short = "".join(out).strip().rpartition("::")[2].split()
    return short[-1] if short else name


def graph_nodes(ops: dict[str, Column], calls: dict[str, Column], names: Sequence[str]) -> Column:
    """int64 node id per op, 0 for ops that no graph launch started.

    A torch trace has a graph's node only since CUPTI 12 (and counts from 0), so the launch call
    decides; where it has none, ops are numbered within their launch.
    """
    roles = roles_of_names(pa.array(names, pa.string()))
    launches = roles[calls["name"]] == CallRole.GRAPH_LAUNCH
    nodes = np.zeros(len(ops["start"]), np.int64)
    rows = np.flatnonzero(np.isin(ops["correlation"], calls["correlation"][launches]))
    order = rows[np.lexsort((ops["start"][rows], ops["correlation"][rows]))]
    correlation = ops["correlation"][order]
    first = np.flatnonzero(np.diff(correlation, prepend=-(1 << 31)))
    lengths = np.diff(first, append=len(order))
    nodes[order] = np.arange(len(order)) - np.repeat(first, lengths) + 1
    known = rows[ops["graph_node"][rows] >= 0]
    graph = np.maximum(ops["graph"][known], 0).astype(np.int64)
    nodes[known] = (graph << 32) + ops["graph_node"][known] + 1
    return nodes


def geometry(ops: dict[str, Column]) -> Geometry:
    """Launch geometry of the kernels that have any."""
    rows = np.flatnonzero((ops["kind"] == OpKind.KERNEL) & (ops["grid_x"] > 0))
    names = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    axes = {name: ops[name][rows] for name in names}
    shared = np.maximum(ops["shared"][rows], 0)
    return Geometry(
        op=rows,
        **axes,
        registers=ops["registers"][rows],
        static_shared=np.zeros(len(rows), np.int32),
        # The trace gives one figure: static and dynamic together.
        dynamic_shared=shared,
    )


def repeated(columns: dict[str, Column], keys: Sequence[str]) -> Column:
    """bool: the row says the same as an earlier one in all ``keys``."""
    order = np.lexsort([columns[key] for key in keys])
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        values = columns[key][order]
        same &= values[1:] == values[:-1]
    out = np.zeros(len(order), bool)
    out[order[1:][same]] = True  # lexsort is stable: the first of equals is the earliest row.
    return out
