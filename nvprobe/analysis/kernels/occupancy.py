"""How well a kernel's launch fits its GPU: theoretical occupancy, waves and tail.

All three follow from launch geometry (grid, block, registers, shared memory) and the device's
limits; nothing here was measured by counters, so *achieved* occupancy may be lower. The
definitions are those of the CUDA occupancy calculator:

* a block needs whole warps; registers are given out a warp at a time in units of 256, four warps
  at a time; shared memory in units of 128 bytes and, from compute capability 8.0, 1 KiB more a
  block for the system;
* ``occupancy`` is resident warps over the SM's warp slots;
* a *wave* is as many blocks as fit on the device at once; ``waves`` is the grid in waves;
* ``tail`` is the share of block slots that stay empty because the last wave is not full. Below one
  wave it says how much of the GPU the launch cannot reach at all.

A kernel whose device does not record its limits, or that could not run under them, has NaN.
The oracle is in tests/unit/analysis/test_occupancy.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, Devices, Geometry, OpKind, Trace

WARP = 32
REGISTER_UNIT = 256
"""Registers are allocated to a warp in multiples of this."""
WARP_GRANULARITY = 4
"""Warps that hold registers come in multiples of the SM's four partitions."""


class Limiter(IntEnum):
    """What keeps more blocks from being resident on an SM."""

    WARPS = 0
    BLOCKS = 1
    REGISTERS = 2
    SHARED_MEMORY = 3


@dataclass(frozen=True, slots=True)
class LaunchFit:
    """One row a row of ``trace.geometry``; NaN (-1 in integers) where it cannot be known."""

    blocks_per_sm: Column
    """int64: blocks resident on an SM at once."""
    limiter: Column
    """int8 :class:`Limiter`."""
    occupancy: Column
    """float64 in (0, 1]."""
    waves: Column
    """float64: the grid over the blocks that the device holds at once."""
    tail: Column
    """float64 in [0, 1): share of block slots empty because the last wave is not full."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    """Averages over the launches of each kernel name, weighted by their time."""

    name: Column
    """int32 row of the trace's strings, ascending."""
    occupancy: Column
    waves: Column
    tail: Column
    limiter: Column
    """int8 :class:`Limiter` of its longest launch, -1 unknown."""


def launch_fit(trace: Trace) -> LaunchFit | None:
    """Fit of every launch whose geometry was recorded; None where the trace has no geometry."""
    if not trace.geometry.recorded:
        return None
    geometry = trace.geometry
    device = trace.ops.device[geometry.op]
    limits = _limits_of(trace.devices, device)
    blocks, limiter, warps = _resident(geometry, limits)
    known = (blocks > 0) & (device >= 0)
    grid = geometry.grid_x.astype(np.int64) * geometry.grid_y * geometry.grid_z
    known &= (grid > 0) & (limits["sm_count"] > 0)
    slots = np.where(known, blocks * limits["sm_count"], 1)
    waves = grid / slots
    whole = -(-grid // slots)
    return LaunchFit(
        blocks_per_sm=np.where(known, blocks, -1),
        limiter=np.where(known, limiter, -1).astype(np.int8),
        occupancy=_or_nan(known, blocks * warps / np.maximum(limits["max_warps_per_sm"], 1)),
        waves=_or_nan(known, waves),
        tail=_or_nan(known, 1.0 - waves / np.maximum(whole, 1)),
    )


def kernel_fit(attribution: Attribution, fit: LaunchFit) -> KernelFit:
    """Fit by kernel name: the time-weighted mean over launches whose fit is known."""
    trace = attribution.trace
    op = trace.geometry.op
    names, place = distinct(trace.ops.name[op].astype(np.int64))
    order = np.argsort(names)
    names, place = names[order], np.argsort(order)[place]
    known = ~np.isnan(fit.occupancy) & (trace.ops.kind[op] == OpKind.KERNEL)
    # A kernel of no measurable duration still has a fit: weigh it by one nanosecond.
    weight = np.where(known, np.maximum(attribution.duration[op], 1), 0)
    total = np.bincount(place, weight, len(names))
    most = np.zeros(len(names), np.int64)
    np.maximum.at(most, place, weight)
    longest = np.zeros(len(names), np.int64)
    hits = np.flatnonzero(weight == most[place])
    longest[place[hits]] = hits

    def mean(values: Column) -> Column:
        """Weighted mean per name, NaN where nothing is known."""
        summed = np.bincount(place, np.where(known, values, 0.0) * weight, len(names))
        return _or_nan(total > 0, summed / np.maximum(total, 1))

    return KernelFit(
        name=names,
        occupancy=mean(fit.occupancy),
        waves=mean(fit.waves),
        tail=mean(fit.tail),
        limiter=np.where(total > 0, fit.limiter[longest], -1).astype(np.int8),
    )


def _limits_of(devices: Devices, device: Column) -> dict[str, Column]:
    """The device limits that fit needs, gathered per launch; -1 where there is no device."""
    wanted = (
        "sm_count", "max_warps_per_sm", "max_blocks_per_sm", "max_registers_per_sm",
        "max_shared_per_sm", "compute_major",
    )  # fmt: skip
    columns = devices.columns()
    if not len(devices):
        return {name: np.full(len(device), -1, np.int64) for name in wanted}
    row = np.maximum(device, 0)
    return {name: columns[name].astype(np.int64)[row] for name in wanted}


def _resident(geometry: Geometry, limits: dict[str, Column]) -> tuple[Column, Column, Column]:
    """(blocks resident on an SM, what limits them, warps of a block); -1 blocks: unknown."""
    threads = geometry.block_x.astype(np.int64) * geometry.block_y * geometry.block_z
    warps = np.maximum(_ceil(threads, WARP), 1)
    registers = _round_up(geometry.registers.astype(np.int64) * WARP, REGISTER_UNIT)
    warps_with_registers = limits["max_registers_per_sm"] // np.maximum(registers, 1)
    warps_with_registers -= warps_with_registers % WARP_GRANULARITY
    modern = limits["compute_major"] >= 8
    shared = geometry.static_shared.astype(np.int64) + geometry.dynamic_shared
    shared = _round_up(shared + np.where(modern, 1024, 0), np.where(modern, 128, 256))
    unlimited = np.iinfo(np.int64).max
    by = np.stack(
        [
            limits["max_warps_per_sm"] // warps,
            limits["max_blocks_per_sm"],
            np.where(registers > 0, warps_with_registers // warps, unlimited),
            np.where(shared > 0, limits["max_shared_per_sm"] // np.maximum(shared, 1), unlimited),
        ]
    )
    limited = np.ones(len(threads), bool)
    for limit in limits.values():
        limited &= limit > 0
    limiter = np.argmin(by, axis=0)
    blocks = by[limiter, np.arange(by.shape[1])]
    return np.where(limited & (threads > 0), blocks, -1), limiter, warps


def _ceil(value: Column, unit: int) -> Column:
    return -(-value // unit)


def _round_up(value: Column, unit: Column | int) -> Column:
    return -(-value // unit) * unit


def _or_nan(known: Column, value: Column) -> Column:
    return np.where(known, value, np.nan)
