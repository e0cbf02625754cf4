"""The native call stacks that nsys records with ``--cudabacktrace``."""

from __future__ import annotations

import numpy as np

from nvprobe.load.nsys_frames import CALLCHAINS, Frames
from nvprobe.load.nsys_names import Names
from nvprobe.trace import CallChains

__all__ = ["read_callchains"]


def read_callchains(frames: Frames, names: Names) -> CallChains | None:
    """All stacks of CUDA calls; ``None`` where the export has none."""
    rows = frames.rows.get(CALLCHAINS)
    if rows is None:
        return None
    chain, depth = rows.ints("id", -1), rows.ints("stackDepth", -1)
    order = np.lexsort((depth, chain))
    return CallChains(
        chain=chain[order], depth=depth[order], symbol=names.column(CALLCHAINS, "symbol")[order]
    )
