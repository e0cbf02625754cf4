"""What a thread does inside a range, by the range's name: data, no logic.

``RANGES`` covers the ranges, operators and annotations of a program. It is read top down and the
first pattern found wins. Patterns are RE2 regular expressions, searched anywhere unless anchored.

To add a name: one line in the table, one line in tests/unit/analysis/test_wait_rules.py.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column

__all__ = ["RANGES", "RangeRole", "range_roles"]


class RangeRole(IntEnum):
    """What a range says that its thread does, beyond dispatching."""

    OTHER = 0
    COMPILATION = 1
    COLLECTIVE = 2
    INPUT = 3
    """Waits for data."""


RANGES: tuple[tuple[RangeRole, str], ...] = (
    # torch.compile, Inductor and Triton while they compile, not while compiled code runs
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:torch[._])?(?:re)?(?:compil(?:e|ing|ation)|autotun(?:e|ing))\b",
    ),
    (RangeRole.COMPILATION, r"^(?:compile_fx|_compile\.|entire_frame_compile|compile_inner)"),
    (
        RangeRole.COMPILATION,
        r"(?i)^(?:inductor|dynamo|triton|aot_?autograd|nvrtc|jit)[ ._:]*compil",
    ),
    (RangeRole.COMPILATION, r"benchmark_all_configs|^async_compile|CachingAutotuner\.bench"),
    # torch.distributed, its process groups, NCCL's own ranges, TorchRec's awaitables
    (RangeRole.COLLECTIVE, r"^(?:nccl|gloo|mpi|ucc|c10d|_c10d_functional|symm_mem):"),
    (RangeRole.COLLECTIVE, r"^nccl[A-Z]|^record_param_comms$|^ProcessGroup"),
    (RangeRole.COLLECTIVE, r"(?i)(?:^|[^a-z])(?:all_?reduce|all_?gather|reduce_?scatter)"),
    (RangeRole.COLLECTIVE, r"All(?:To|2)All|AllReduce|AllGather|ReduceScatter"),
    (
        RangeRole.COLLECTIVE,
        r"(?i)(?:^|[^a-z])(?:all_?to_?all|all2all)|(?:^|[^a-z])barrier(?:$|[^a-z])",
    ),
    # torch.utils.data, Lightning, TorchRec, and what people call this phase
    (
        RangeRole.INPUT,
        r"^enumerate\(DataLoader\)#|DataLoaderIter|^IterDataPipe|^enumerate\(DataPipe\)",
    ),
    (RangeRole.INPUT, r"(?i)dataloader_next|(?:^|[^a-z])data_?load(?:er|ing)?(?:$|[^a-z])"),
    (RangeRole.INPUT, r"(?i)^(?:## )?(?:wait(?:ing)?_for_|next_)(?:data|batch)(?: ##)?$|^data$"),
    (
        RangeRole.INPUT,
        r"(?i)^(?:## )?(?:get|load|fetch|read|next|wait)_?(?:next_)?(?:data|batch|input)",
    ),
    (RangeRole.INPUT, r"(?i)^(?:data|batch|input)_?(?:fetch|wait|time|next|iter|read)"),
)
"""(role, pattern) of clean range names, read top down; what no pattern finds is ``OTHER``."""


def range_roles(names: pa.Array) -> Column:
    """int8 :class:`RangeRole` per clean name."""
    role = np.zeros(len(names), np.int8)
    for value, pattern in reversed(RANGES):
        found = pc.match_substring_regex(pc.fill_null(names, ""), pattern)
        role[np.asarray(found.to_numpy(zero_copy_only=False), bool)] = value
    return role
