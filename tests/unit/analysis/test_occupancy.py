"""Occupancy, waves and tail against an obvious block-by-block oracle and known figures."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvprobe.analysis.kernels.occupancy import LaunchFit, Limiter, kernel_fit, launch_fit
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Devices, Geometry, OpKind, Ops, Processes, Threads, Trace

H200 = {
    "id": 0, "name": 0, "sm_count": 132, "clock_hz": 1_980_000_000, "memory_bytes": 150 << 30,
    "bandwidth_bytes_s": 4_814_304_000_000, "l2_bytes": 62_914_560, "compute_major": 9,
    "compute_minor": 0, "max_warps_per_sm": 64, "max_blocks_per_sm": 32,
    "max_registers_per_sm": 65536, "max_shared_per_sm": 233_472,
}  # fmt: skip
T4 = {**H200, "sm_count": 40, "compute_major": 7, "compute_minor": 5, "max_warps_per_sm": 32,
      "max_blocks_per_sm": 16, "max_shared_per_sm": 65536}  # fmt: skip


def _trace(
    launches: list[tuple[int, int, int, int]], device: dict[str, int], names: list[int]
) -> Trace:
    n = len(launches)
    zero, one = np.zeros(n, np.int64), np.ones(n, np.int64)
    grid, block, registers, shared = (np.array(c) for c in zip(*launches, strict=True))
    ops = Ops(
        kind=np.full(n, OpKind.KERNEL), process=zero, device=zero, context=zero, stream=zero,
        correlation=zero, start=zero, end=one, name=np.array(names), short_name=zero,
        graph_node=zero, bytes=zero - 1, copy_kind=zero - 1, source_memory=zero - 1,
        target_memory=zero - 1,
    )  # fmt: skip
    geometry = Geometry(
        op=np.arange(n), grid_x=grid, grid_y=one, grid_z=one, block_x=block, block_y=one,
        block_z=one, registers=registers, static_shared=zero, dynamic_shared=shared,
    )  # fmt: skip
    devices = Devices(**{k: np.array([v]) for k, v in device.items()})
    return Trace(
        pa.array(["a", "b", "c"]), (), Processes.empty(), Threads.empty(), devices, ops=ops,
        geometry=geometry,
    )  # fmt: skip


def _fit(launch: tuple[int, int, int, int], device: dict[str, int] = H200) -> LaunchFit:
    fit = launch_fit(_trace([launch], device, [0]))
    assert fit is not None
    return fit


def _oracle(launch: tuple[int, int, int, int], device: dict[str, int]) -> tuple[int, float]:
    """Put blocks on one SM until something runs out; play the grid wave by wave."""
    grid, block, registers, shared = launch
    warps_of_block = math.ceil(block / 32)
    register_units_of_warp = math.ceil(registers * 32 / 256)
    modern = device["compute_major"] >= 8
    unit = 128 if modern else 256
    shared_of_block = math.ceil((shared + (1024 if modern else 0)) / unit) * unit
    blocks = 0
    while True:
        warps = (blocks + 1) * warps_of_block
        # Each of four partitions has a quarter of the registers and takes whole warps.
        quarter = device["max_registers_per_sm"] // 4 // 256
        room = 4 * (quarter // register_units_of_warp) if register_units_of_warp else 1 << 60
        if (
            warps > device["max_warps_per_sm"]
            or blocks + 1 > device["max_blocks_per_sm"]
            or warps > room
            or (blocks + 1) * shared_of_block > device["max_shared_per_sm"]
        ):
            break
        blocks += 1
    slots = blocks * device["sm_count"]
    empty, left, used = 0, grid, 0
    while blocks and left > 0:
        used += slots
        empty += max(slots - left, 0)
        left -= slots
    return blocks, (empty / used if used else math.nan)


LAUNCH = st.tuples(
    st.integers(1, 20_000), st.integers(1, 1024), st.integers(0, 255), st.integers(0, 232_448)
)


@settings(deadline=None)
@given(LAUNCH, st.sampled_from([H200, T4]))
def test_fit_is_what_filling_an_sm_gives(
    launch: tuple[int, int, int, int], device: dict[str, int]
) -> None:
    fit = _fit(launch, device)
    blocks, tail = _oracle(launch, device)
    if blocks == 0:
        assert np.isnan(fit.occupancy[0])
        return
    assert fit.blocks_per_sm[0] == blocks
    warps = math.ceil(launch[1] / 32)
    assert fit.occupancy[0] == blocks * warps / device["max_warps_per_sm"]
    assert fit.waves[0] == launch[0] / (blocks * device["sm_count"])
    assert fit.tail[0] == pytest.approx(tail, abs=1e-12)


@pytest.mark.parametrize(
    ("launch", "blocks", "limiter", "occupancy"),
    [
        # Figures of the CUDA occupancy calculator for compute capability 9.0.
        ((132, 128, 32, 0), 16, Limiter.WARPS, 1.0),
        ((132, 256, 64, 0), 4, Limiter.REGISTERS, 0.5),
        ((132, 32, 16, 0), 32, Limiter.BLOCKS, 0.5),
        ((132, 128, 168, 99_328), 2, Limiter.SHARED_MEMORY, 0.125),
        ((132, 384, 168, 232_448), 1, Limiter.REGISTERS, 0.1875),
    ],
)
def test_known_figures(
    launch: tuple[int, int, int, int], blocks: int, limiter: Limiter, occupancy: float
) -> None:
    fit = _fit(launch)
    assert (fit.blocks_per_sm[0], fit.limiter[0], fit.occupancy[0]) == (blocks, limiter, occupancy)


def test_a_grid_one_block_too_large_leaves_a_tail() -> None:
    slots = 132 * 16
    assert _fit((slots, 128, 32, 0)).tail[0] == 0.0
    assert _fit((slots + 1, 128, 32, 0)).tail[0] == pytest.approx(0.5, abs=1e-3)
    assert _fit((132, 128, 32, 0)).tail[0] == 1 - 1 / 16


@pytest.mark.parametrize("limit", ["sm_count", "max_warps_per_sm", "max_registers_per_sm"])
def test_a_limit_that_is_not_told_makes_it_unknown(limit: str) -> None:
    fit = _fit((132, 128, 32, 0), {**H200, limit: -1})
    assert np.isnan(fit.occupancy[0])
    assert np.isnan(fit.waves[0])
    assert (fit.blocks_per_sm[0], fit.limiter[0]) == (-1, -1)


def test_no_device_and_no_geometry() -> None:
    trace = _trace([(1, 32, 16, 0)], H200, [0])
    homeless = dataclasses.replace(trace.ops, device=np.array([-1]))
    fit = launch_fit(dataclasses.replace(trace, ops=homeless, devices=Devices.empty()))
    assert fit is not None
    assert np.isnan(fit.occupancy[0])
    assert launch_fit(dataclasses.replace(trace, geometry=Geometry.absent())) is None


def test_kernels_weigh_their_launches_by_time() -> None:
    launches = [(132, 128, 32, 0), (132, 256, 64, 0), (132, 32, 16, 0)]
    trace = _trace(launches, H200, [1, 1, 0])
    duration = np.array([300, 100, 7])
    attribution = Attribution(trace, *(None,) * 4, *(np.zeros(3),) * 3, np.ones(3, bool), duration)  # type: ignore[arg-type]
    fit = launch_fit(trace)
    assert fit is not None
    by_name = kernel_fit(attribution, fit)
    assert by_name.name.tolist() == [0, 1]
    assert by_name.occupancy.tolist() == [0.5, (300 * 1.0 + 100 * 0.5) / 400]
    assert by_name.limiter.tolist() == [Limiter.BLOCKS, Limiter.WARPS]
