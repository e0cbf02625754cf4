"""What a range means: step, phase, module, compiled graph, collective, operator, library or user's.

The strongest evidence decides: nvprobe's own category, then what torch.profiler says, then the
NVTX domain of a library, then the name.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.model import Kind
from nvprobe.trace import NO_NAME, Column, Ranges, RangeSource, Trace

__all__ = ["CATEGORY_KINDS", "OWN_DOMAIN", "automatic_phases", "autograd_names", "range_kinds"]

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

_AUTOGRAD = r"^(?:autograd::engine::|torch::autograd::)|Backward\d"

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
        r"grad_clip|optim(?:izer)?|optimizer_step|scheduler|eval(?:uation)?|zero_grad)$",
        Kind.PHASE,
    ),
)


def range_kinds(
    trace: Trace, ranges: Ranges, code: Column, names: pa.StringArray, has_operator_id: Column
) -> Column:
    """int8 :class:`Kind` of each range; ``code`` is its row of the clean ``names``."""
    kind = _by_name(names)[code]
    kind[has_operator_id & (kind == Kind.USER)] = Kind.OPERATOR
    # CUB and Thrust name their ranges like operators; only the domain tells.
    kind[_member(ranges.domain, _libraries(trace, ranges.domain))] = Kind.LIBRARY
    kind[ranges.source == RangeSource.OPERATOR] = np.where(
        kind[ranges.source == RangeSource.OPERATOR] == Kind.GRAPH, Kind.GRAPH, Kind.OPERATOR
    )
    kind[ranges.source == RangeSource.MODULE] = Kind.MODULE
    for row, text in _texts(trace, ranges.category):
        if text in CATEGORY_KINDS:
            own = _own_domain(trace, ranges)
            kind[own & (ranges.category == row)] = CATEGORY_KINDS[text]
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


def known_parts(names: pa.StringArray) -> Column:
    """Bool per clean name: it says that its range is a part of a step, not a step."""
    return ~np.isin(_by_name(names), (Kind.USER, Kind.STEP))


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
