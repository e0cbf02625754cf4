"""Kernels, copies, compiled graphs, and the averages of GPU counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from nvprobe.analysis.kernels.by_name import short_kernel_name
from nvprobe.analysis.kernels.classes import UNKNOWN, Activity, Family, Precision
from nvprobe.analysis.kernels.counters import METRICS, Averages, Bound
from nvprobe.analysis.kernels.occupancy import Limiter
from nvprobe.analysis.result import Analysis
from nvprobe.report.schema import fractions, path_texts, rows
from nvprobe.trace import Column, OpKind
from nvprobe.trace.rows import Row, is_, measured, ns, pair, size


class OpTime(Row, frozen=True):
    """A number of ops and their GPU time."""

    ops: Annotated[int, is_("GPU ops")]
    gpu_ns: Annotated[int, ns("sum of their durations")]


class Kernel(Row, frozen=True):
    """A kernel by its name, the most GPU time that can be trusted first."""

    name: Annotated[str | None, is_("demangled name")]
    short_name: Annotated[str | None, is_("without arguments, but what a generic kernel computes")]
    kind: Annotated[str, is_("`kernel`, or `graph` where a graph replay is recorded whole")]
    ops: Annotated[int, is_("launches")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    longest_ns: Annotated[int | None, ns("the longest")]
    top_path: Annotated[str | None, is_("path with most of its time")]
    top_path_ns: Annotated[int | None, ns("its time there")]
    suspect_ops: Annotated[int | None, is_("launches whose recorded end cannot be right")]
    suspect_ns: Annotated[int | None, ns("their durations")]
    class_: Annotated[str | None, is_("`compute`, `communication`, `copy` or `memset`")] = (
        msgspec.field(name="class")
    )
    family: Annotated[str | None, is_("`gemm`, `attention`, `elementwise`, …")]
    precision: Annotated[str | None, is_("number format of its inputs, where the name says it")]
    tensor_cores: Annotated[bool | None, is_("whether it uses tensor cores")]
    occupancy: Annotated[float | None, is_("share of an SM's warp slots that its blocks fill")]
    waves: Annotated[float | None, is_("its grid over the blocks that fit the GPU at once")]
    tail: Annotated[float | None, is_("share of block slots empty in the last wave")]
    limiter: Annotated[
        str | None,
        is_("of occupancy: `warps`, `blocks`, `registers` or `shared_memory`"),
    ]


class Copy(Row, frozen=True):
    """Copies and sets by kind."""

    name: Annotated[str | None, is_("what kind of copy")]
    kind: Annotated[str, is_("`memcpy` or `memset`")]
    ops: Annotated[int, is_("copies")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    bytes: Annotated[int | None, size("bytes copied or set")]
    top_path: Annotated[str | None, is_("path with most of its time")]


class _Averages(Row, frozen=True):
    samples: Annotated[int, is_("samples in its busy time")]
    sampled_ns: Annotated[int, ns("busy time that samples cover")]
    sm_active: Annotated[float | None, measured("%", "SMs with a warp")]
    sm_issue: Annotated[float | None, measured("%", "of the highest instruction issue rate")]
    tensor_active: Annotated[float | None, measured("%", "cycles with an active tensor pipe")]
    dram_read: Annotated[float | None, measured("%", "of the highest memory bandwidth")]
    dram_write: Annotated[float | None, measured("%", "of the highest memory bandwidth")]
    pcie_rx: Annotated[float | None, measured("%", "of the highest PCIe rate, to the GPU")]
    pcie_tx: Annotated[float | None, measured("%", "of the highest PCIe rate, from the GPU")]
    clock_mhz: Annotated[float | None, measured("MHz", "clock")]
    bound: Annotated[str | None, is_("limit: `tensor`, `dram`, `issue`, `latency` or `idle`")]


class PathCounters(_Averages, frozen=True):
    """Averages of GPU counters while ops of a path ran."""


class KernelCounters(_Averages, frozen=True):
    """Averages of GPU counters while a kernel ran."""

    name: Annotated[str | None, is_("the kernel")]


class Counters(Row, frozen=True):
    """Samples of GPU counters; those of paths are in `ranges`."""

    samples: Annotated[int, is_("samples")]
    period_ns: Annotated[int, ns("time between two")]
    clock_mhz: Annotated[
        tuple[float | None, float | None],
        pair("lowest_clock_mhz", "highest_clock_mhz", "lowest and highest clock", "MHz"),
    ]
    kernels: Annotated[list[KernelCounters], is_("averages per kernel")]


class GraphKernels(Row, frozen=True):
    """Ops of a compiled graph by origin."""

    triton: Annotated[OpTime, is_("kernels that Inductor wrote")]
    library: Annotated[OpTime, is_("other kernels")]
    copy: Annotated[OpTime, is_("copies and sets")]


class GraphModule(Row, frozen=True):
    """A module's part of a compiled graph."""

    module: Annotated[str, is_("name in the model")]
    weight: Annotated[float, is_("share of the graph's GPU time")]
    gpu_ns: Annotated[int, ns("GPU time")]


class GraphSource(Row, frozen=True):
    """A line's part of a compiled graph."""

    source: Annotated[str, is_("`file:line`")]
    gpu_ns: Annotated[int, ns("GPU time")]


class CudaGraphUse(Row, frozen=True):
    """CUDA graphs inside the calls of a compiled graph."""

    recorded: Annotated[int, is_("captures")]
    replayed: Annotated[int, is_("graph replays")]


class CompiledGraph(Row, frozen=True):
    """A graph of torch.compile in one phase."""

    id: Annotated[str, is_("compile id: `0/1` is the second compilation of the first frame")]
    phase: Annotated[str, is_("`fwd` or `bwd`")]
    process: Annotated[int, is_("id of its process")]
    calls: Annotated[int, is_("calls")]
    host_ns: Annotated[int, ns("host time inside the graph's own code")]
    dispatch_ns: Annotated[int | None, ns("host time around it: AOTAutograd, the engine's node")]
    guard_ns: Annotated[int | None, ns("host time looking up which compilation fits")]
    ops: Annotated[int, is_("GPU ops")]
    gpu_ns: Annotated[int, ns("sum of their durations")]
    kernels: Annotated[GraphKernels, is_("the same by origin")]
    modules: Annotated[list[GraphModule], is_("modules in it, the largest first")]
    sources: Annotated[list[GraphSource], is_("lines in it, the largest first")]
    break_reason: Annotated[str | None, is_("why the graph ends where it ends")]
    break_source: Annotated[str | None, is_("line of that graph break")]
    break_idle_ns: Annotated[int | None, ns("GPU idle time until the graph that resumes")]
    recompiles: Annotated[int | None, is_("further compilations of its frame")]
    recompile_reasons: Annotated[list[str], is_("why this one was compiled besides others")]
    compile_ns: Annotated[int | None, ns("time compiling it inside the capture")]
    cudagraph: Annotated[CudaGraphUse, is_("CUDA graphs inside its calls")]


def kernels(analysis: Analysis) -> list[Kernel]:
    """Kernels by name."""
    table, texts = analysis.kernels, analysis.attribution.trace.texts
    names = texts(table.name)
    shorts = zip(names, texts(table.short_name), strict=True)
    return rows(
        Kernel,
        table,
        name=names,
        short_name=[short_kernel_name(name or "", short or "") or None for name, short in shorts],
        kind=[OpKind(kind).name.lower() for kind in table.kind.tolist()],
        top_path=path_texts(analysis, table.top_path),
        **_traits(analysis),
    )


def _traits(analysis: Analysis) -> dict[str, Sequence[Any]]:
    """What is known of each kernel beyond its time; null where it is not."""
    traits, size = analysis.traits, len(analysis.kernels)
    if traits is None:
        names = "class_ family precision tensor_cores occupancy waves tail limiter"
        return {name: [None] * size for name in names.split()}
    return {
        "class_": [Activity(value).label for value in traits.activity.tolist()],
        "family": [Family(value).label for value in traits.family.tolist()],
        "precision": [
            None if v == UNKNOWN else Precision(v).label for v in traits.precision.tolist()
        ],
        "tensor_cores": [None if v == UNKNOWN else bool(v) for v in traits.tensor_cores.tolist()],
        "occupancy": fractions(traits.occupancy),
        "waves": fractions(traits.waves),
        "tail": fractions(traits.tail),
        "limiter": _names(Limiter, traits.limiter),
    }


def _names(enum: Any, values: Column) -> list[str | None]:
    return [None if value < 0 else enum(value).name.lower() for value in values.tolist()]


def copies(analysis: Analysis) -> list[Copy]:
    """Copies and sets by kind."""
    table = analysis.copies
    return rows(
        Copy,
        table,
        name=analysis.attribution.trace.texts(table.name),
        kind=[OpKind(kind).name.lower() for kind in table.kind.tolist()],
        top_path=path_texts(analysis, table.top_path),
    )


def counters(analysis: Analysis) -> Counters | None:
    """Sampling and the averages of each kernel; null where no counters were sampled."""
    use, texts = analysis.counters, analysis.attribution.trace.texts
    if use is None:
        return None
    names = texts(use.kernels.key)
    found = {
        row.name: row
        for row in rows(KernelCounters, use.kernels, **_averages(use.kernels), name=names)
    }
    low, high = fractions(np.array([use.lowest_clock_mhz, use.highest_clock_mhz]))
    order = [name for name in texts(analysis.kernels.name) if name in found]
    return Counters(use.samples, use.period_ns, (low, high), [found[name] for name in order])


def counters_of_paths(analysis: Analysis) -> dict[int, PathCounters]:
    """Averages by path row, of paths that samples cover."""
    use = analysis.counters
    if use is None:
        return {}
    found = rows(PathCounters, use.paths, **_averages(use.paths))
    return dict(zip(use.paths.key.tolist(), found, strict=True))


def _averages(table: Averages) -> dict[str, Sequence[Any]]:
    metrics = {metric: fractions(getattr(table, metric)) for metric, _ in METRICS}
    return {**metrics, "bound": _names(Bound, table.bound)}


def compiled_graphs(analysis: Analysis) -> list[CompiledGraph] | None:
    """Graphs by id and phase; null where they were not computed."""
    found = analysis.compiled_graphs
    return None if found is None else msgspec.convert(found, list[CompiledGraph])
