"""What a range means: its kind, and what its thread does inside it, by its name.

The strongest evidence decides: nvprobe's own category, then what torch.profiler says, then the
NVTX domain of a library, then the name.

``RANGES`` covers the ranges, operators and annotations of a program. It is read top down and the
first pattern found wins. Patterns are RE2 regular expressions, searched anywhere unless anchored.

To add a name: one line in the table, one line in tests/unit/analysis/test_wait_rules.py.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.model import Kind, PathTable
from nvprobe.trace import NO_NAME, Column, Ranges, RangeSource, Trace

OWN_DOMAIN = "nvprobe"
"""The NVTX domain that nvprobe.annotate writes."""

CATEGORY_KINDS = {
    "step": Kind.STEP,
    "phase": Kind.PHASE,
    "module": Kind.MODULE,
    "graph": Kind.GRAPH,
    "cudagraph": Kind.GRAPH,
    "collective": Kind.COLLECTIVE,
    "user": Kind.USER,
}
"""What a range of nvprobe's own is, by its category."""

_LIBRARY_DOMAIN = (
    r"(?i)^(?:CCCL|CUB|Thrust|NCCL|cu(?:BLAS|BLASLt|DNN|SPARSE|SOLVER|FFT|RAND|TENSOR|DF)|"
    r"libcudf|libkvikio|UCX|MPI|NVSHMEM|TensorRT|DALI)\b"
)

_AUTOGRAD = r"^(?:autograd::engine::|torch::autograd::)|Backward\d+(?:$|[^A-Za-z0-9_])"

# First match decides; written for distinct clean names.
_NAME_KINDS = (
    (r"^graph \d+/\d+(?:_\d+)? (?:fwd|bwd)$", Kind.GRAPH),
    (r"^(?:Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction)", Kind.GRAPH),
    (r"^ProfilerStep$", Kind.STEP),
    (r"^(?:nn\.Module: |fwd:)", Kind.MODULE),
    (r"^(?:nccl:|c10d::|gloo:|ncclDevKernel)", Kind.COLLECTIVE),
    (r"^(?:aten|prims|torchvision|inductor|cub)::", Kind.OPERATOR),
    (_AUTOGRAD, Kind.OPERATOR),
    (r"^(?:Optimizer|DataParallel|DistributedDataParallel)\.", Kind.PHASE),
    (
        r"(?i)^(?:data|data_?load(?:er|ing)?|h2d|to_device|forward|loss|backward|clip|"
        r"grad_clip|optim(?:izer)?|optimizer_step|scheduler|eval(?:uation)?|checkpoint|zero_grad)$",
        Kind.PHASE,
    ),
)


def range_kinds(
    trace: Trace, ranges: Ranges, code: Column, names: pa.StringArray, has_operator_id: Column
) -> Column:
    """int8 :class:`Kind` of each range; ``code`` is its row of the clean ``names``."""
    kind = _by_name(names)[code]
    kind[has_operator_id & (kind == Kind.USER)] = Kind.OPERATOR
    # CUB and Thrust name their ranges like operators; only the domain shows it.
    kind[_member(ranges.domain, _libraries(trace, ranges.domain))] = Kind.LIBRARY
    kind[ranges.source == RangeSource.OPERATOR] = np.where(
        kind[ranges.source == RangeSource.OPERATOR] == Kind.GRAPH, Kind.GRAPH, Kind.OPERATOR
    )
    kind[ranges.source == RangeSource.MODULE] = Kind.MODULE
    for row, text in _texts(trace, ranges.category):
        if text in CATEGORY_KINDS:
            own = _own_domain(trace, ranges)
            kind[own & (ranges.category == row)] = CATEGORY_KINDS[text]
    if ranges.payload is not None:  # of annotations only nvprobe's steps have one, by the sidecar
        numbered = (ranges.source == RangeSource.ANNOTATION) & (ranges.payload >= 0)
        kind[numbered] = Kind.STEP
    return kind


def automatic_phases(trace: Trace, ranges: Ranges, kind: Column) -> Column:
    """Bool per range: a phase that nvprobe.annotate found by itself, not one the program named."""
    out = np.zeros(len(ranges), bool)
    rows = np.flatnonzero(kind == Kind.PHASE)
    own = [row for row, text in _texts(trace, ranges.domain[rows]) if text == OWN_DOMAIN]
    phase = [row for row, text in _texts(trace, ranges.category[rows]) if text == "phase"]
    out[rows] = _member(ranges.domain[rows], own) & _member(ranges.category[rows], phase)
    return out


def autograd_names(names: pa.StringArray) -> Column:
    """Bool per clean name: only an autograd thread runs such a range."""
    return _matches(names, _AUTOGRAD)


_OPTIMIZER = r"(?i)^optim(?:izer)?$|(?:^|[^a-z])optimizer[._]step(?:#.*)?$"
_CLOSURE = (
    r"(?i)^(?:data|data_?load(?:er|ing)?|forward|loss|backward|eval(?:uation)?)$|"
    r"^\[(?:pl|Strategy)\].*[.](?:training_step|backward)$"
)


def optimizer_steps(names: pa.StringArray) -> Column:
    """Bool per clean name: the range is an optimizer's step."""
    return _matches(names, _OPTIMIZER)


def closure_parts(names: pa.StringArray) -> Column:
    """Bool per clean name: no optimizer's work, though a closure given to its step may do it."""
    return _matches(names, _CLOSURE)


def known_parts(names: pa.StringArray) -> Column:
    """Bool per clean name: it says that its range is a part of a step, not a step."""
    return ~np.isin(_by_name(names), (Kind.USER, Kind.STEP))


def compiled_graphs(paths: PathTable) -> Column:
    """Bool per path: torch.compile's, not a CUDA graph's capture or replay of the same kind."""
    cuda = pc.starts_with(paths.names, "cudagraph ").to_numpy(zero_copy_only=False)
    return np.asarray((paths.kind == Kind.GRAPH) & ~np.asarray(cuda, bool)[paths.name])


def _by_name(names: pa.StringArray) -> Column:
    kind = np.full(len(names), Kind.USER, np.int8)
    for pattern, value in reversed(_NAME_KINDS):
        kind[_matches(names, pattern)] = value
    return kind


def _matches(names: pa.StringArray, pattern: str) -> Column:
    return pc.match_substring_regex(names, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _texts(trace: Trace, column: Column) -> list[tuple[int, str]]:
    rows = np.unique(column[column != NO_NAME])
    return [(int(row), str(trace.text(int(row)))) for row in rows]


def _libraries(trace: Trace, domain: Column) -> list[int]:
    rows = _texts(trace, domain)
    if not rows:
        return []
    hit = _matches(pa.array([text for _, text in rows]), _LIBRARY_DOMAIN)
    return [row for (row, _), is_library in zip(rows, hit, strict=True) if is_library]


def _own_domain(trace: Trace, ranges: Ranges) -> Column:
    own = [row for row, text in _texts(trace, ranges.domain) if text == OWN_DOMAIN]
    return _member(ranges.domain, own)


def _member(column: Column, rows: list[int]) -> Column:
    out = np.zeros(len(column), bool)
    for row in rows:
        out |= column == row
    return out


class RangeRole(IntEnum):
    """What a range says that its thread does, beyond dispatching."""

    OTHER = 0
    COMPILATION = 1
    COLLECTIVE = 2
    INPUT = 3
    """Waits for data."""
    NO_WORK = 4
    """Waits for requests, where it is long."""


_END = r"(?:$|[^a-z_])"
"""Where a word ends: ``get_batch`` waits for data, ``get_batch_size`` does not."""

RANGES: tuple[tuple[RangeRole, str], ...] = (
    # torch.compile, Inductor and Triton while they compile, not while compiled code runs
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:torch[._])?(?:re)?(?:compil(?:e|ing|ation)|autotun(?:e|ing))\b",
    ),
    (RangeRole.COMPILATION, r"^(?:compile_fx|entire_frame_compile|compile_inner)" + _END),
    (RangeRole.COMPILATION, r"^_compile\."),
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:inductor|dynamo|triton|aot_?autograd|nvrtc|jit)[ ._:]*compil(?:e|er|ing|ation)"
        + _END,
    ),
    (
        RangeRole.COMPILATION,
        r"(?:benchmark_all_configs|^async_compile|CachingAutotuner\.bench)" + _END,
    ),
    # torch.distributed, its process groups, NCCL's own ranges, TorchRec's awaitables
    (RangeRole.COLLECTIVE, r"^(?:nccl|gloo|mpi|ucc|c10d|_c10d_functional|symm_mem):"),
    (RangeRole.COLLECTIVE, r"^nccl[A-Z]|^record_param_comms$|^ProcessGroup"),
    (
        RangeRole.COLLECTIVE,
        r"(?i)(?:^|[^a-z])(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all)"
        r"(?:_(?:base|bwd|coalesced|data|fwd|grads?|gradients|into|params?|pooled|req|single|tensor"
        r"|wait))*(?:Backward)?" + _END,
    ),
    (
        RangeRole.COLLECTIVE,
        r"(?:All(?:To|2)All|AllReduce|AllGather|ReduceScatter)(?:Tensors?|Splits?|Awaitable|4D|Base)*"
        r"(?:$|[^A-Za-z_])",
    ),
    (RangeRole.COLLECTIVE, r"(?i)(?:^|[^a-z])barrier(?:$|[^a-z])"),
    # servers without requests: SGLang, TensorRT-LLM, vLLM
    (
        RangeRole.NO_WORK,
        r"^(?:scheduler\.)?(?:recv_requests|idle)$|^_fetch_new_requests$"
        r"|^(?:wait_for|get|poll)_(?:new_)?requests$",
    ),
    # torch.utils.data, Lightning, TorchRec, and what people call this phase
    (
        RangeRole.INPUT,
        r"^enumerate\(DataLoader\)#|DataLoaderIter(?:$|[^A-Za-z_])|^IterDataPipe"
        r"|^enumerate\(DataPipe\)",
    ),
    (RangeRole.INPUT, r"(?i)dataloader_next" + _END),
    (RangeRole.INPUT, r"(?i)(?:^|[^a-z])data_?load(?:er|ing)?" + _END),
    (RangeRole.INPUT, r"(?i)^(?:## )?(?:wait(?:ing)?_for_|next_)(?:data|batch)(?: ##)?$|^data$"),
    (
        RangeRole.INPUT,
        r"(?i)^(?:## )?(?:get|load|fetch|read|next|wait)_?(?:next_)?(?:data|batch|input)"
        r"(?:s|es)?" + _END,
    ),
    (
        RangeRole.INPUT,
        r"(?i)^(?:data|batch|input)_?(?:fetch|wait|time|next|iter|read)(?:ing|er|ator)?" + _END,
    ),
)
"""(role, pattern) of clean range names, read top down; what no pattern finds is ``OTHER``."""


def range_roles(names: pa.Array) -> Column:
    """int8 :class:`RangeRole` per clean name."""
    role = np.zeros(len(names), np.int8)
    for value, pattern in reversed(RANGES):
        found = pc.match_substring_regex(pc.fill_null(names, ""), pattern)
        role[np.asarray(found.to_numpy(zero_copy_only=False), bool)] = value
    return role
