"""What a torch trace does not tell of a GPU and its name or generation does.

Greatest clocks and memory bandwidths are those of the vendor's data sheets, and what nsys records
of the same GPUs; blocks an SM are fixed by the compute capability. A GPU that the tables lack, or
that another vendor made, has none: never a guess.
"""

from __future__ import annotations

import re

__all__ = ["UNKNOWN", "blocks_per_sm", "clock_and_bandwidth"]

UNKNOWN = -1

_SHEETS: tuple[tuple[str, int, int], ...] = (
    (r"B200$", 1965, 8000),
    (r"GH200 120GB", 1980, 4023),
    (r"H200$", 1980, 4814),
    (r"H100 80GB HBM3", 1980, 3350),
    (r"H100 PCIe", 1755, 2039),
    (r"A100-SXM4-40GB", 1410, 1555),
    (r"A100-SXM4-80GB", 1410, 2039),
    (r"A100-PCIE-40GB", 1410, 1555),
    (r"A100 80GB PCIe", 1410, 1935),
    (r"A10G$", 1710, 600),
    (r"A10$", 1695, 600),
    (r"L40S$", 2520, 864),
    (r"L4$", 2040, 300),
    (r"T4$", 1590, 320),
    (r"V100-SXM2-(?:16|32)GB", 1530, 900),
    (r"V100-PCIE-(?:16|32)GB", 1380, 900),
)
"""(end of the name, MHz, GB/s)."""

_BLOCKS = {
    (6, 0): 32, (6, 1): 32, (7, 0): 32, (7, 2): 32, (7, 5): 16, (8, 0): 32, (8, 6): 16,
    (8, 7): 16, (8, 9): 24, (9, 0): 32, (10, 0): 32,
}  # fmt: skip
"""Most resident blocks of an SM by compute capability."""


def clock_and_bandwidth(name: object) -> tuple[int, int]:
    """(Hz, bytes/s) of a GPU by its name; ``UNKNOWN`` both for any other."""
    if isinstance(name, str):
        for pattern, megahertz, gigabytes in _SHEETS:
            if re.search(rf"^(?:NVIDIA |Tesla )?{pattern}", name):
                return megahertz * 10**6, gigabytes * 10**9
    return UNKNOWN, UNKNOWN


def blocks_per_sm(name: object, warp: int, major: int, minor: int) -> int:
    """Most resident blocks; AMD's GPUs have capabilities of the same numbers."""
    if not isinstance(name, str) or not name or re.search("AMD|Radeon|Instinct", name):
        return UNKNOWN
    return _BLOCKS.get((major, minor), UNKNOWN) if warp == 32 else UNKNOWN
