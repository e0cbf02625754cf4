"""Native call stacks of nsys: of CUDA calls, of operating system calls, of samples."""

from __future__ import annotations

import numpy as np

from nvprobe.readers.nsys.event_rows import Frames
from nvprobe.readers.nsys.names import Names
from nvprobe.trace import CallChains

__all__ = ["read_callchains"]


def read_callchains(frames: Frames, names: Names, table: str) -> CallChains:
    """All stacks of a table of call chains; ``None`` where the export lacks it."""
    rows = frames.rows.get(table)
    if rows is None:
        return CallChains.absent()
    chain, depth = rows.ints("id", -1), rows.ints("stackDepth", -1)
    order = np.lexsort((depth, chain))
    return CallChains(
        chain=chain[order], depth=depth[order], symbol=names.column(table, "symbol")[order]
    )
