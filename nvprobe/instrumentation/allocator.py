"""Counters of the caching allocator, sampled at the ends of steps into the sidecar.

torch counts them anyway; reading them asks no driver and starts nothing. One reading builds a
dictionary of some 200 numbers, so readings stay `PAUSE` times their own length apart: at most one
hundredth of the program's time, and steps much shorter than a millisecond share a reading.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

from nvprobe.instrumentation import awake, sidecar, steps, torch_hooks
from nvprobe.instrumentation.hooks import after_import

COLUMNS = (
    "steps",
    "device",
    "time_ns",
    "allocated",
    "reserved",
    "peak_allocated",
    "peak_reserved",
    "retries",
    "device_allocs",
    "device_frees",
    "out_of_memory",
)
PAUSE = 100
ASLEEP_PAUSE = 1000
"""Outside the window: a thousandth of the program's time."""
LOOK_AGAIN = 64
"""Readings after which devices are looked for that were not used before."""


class _Sampler:
    """Reads the counters of the devices in use, not too often."""

    def __init__(self) -> None:
        self.due = 0
        self.readings = 0
        self.devices: list[int] = []

    def sample(self, done: int) -> None:
        """Between two steps, ``done`` having ended: write a row per device, unless too soon."""
        if not sidecar.is_open():
            return
        start = time.perf_counter_ns()
        if start < self.due:
            return
        try:
            self._read(done)
        finally:  # what fails takes its time, too
            end = time.perf_counter_ns()
            pause = PAUSE if awake.now else ASLEEP_PAUSE
            self.due = end + pause * (end - start)

    def _read(self, done: int) -> None:
        read = torch_hooks.allocator_counters()
        if read is None:
            return
        if self.readings % LOOK_AGAIN == 0 or not self.devices:
            self.devices = _in_use(read)
        for device in self.devices:
            row = (done, device, time.time_ns(), *_figures(read(device)))
            sidecar.row("allocator", COLUMNS, row)
        self.readings += 1


def _in_use(read: Any) -> list[int]:
    """The devices that the allocator holds memory of."""
    count = sys.modules["torch"].cuda.device_count()
    return [one for one in range(count) if _reserved(read(one))]


def _reserved(counters: Any) -> int:
    reserved: int = counters.get("reserved_bytes", {}).get("all", {}).get("current", 0)
    return reserved


def _figures(counters: Any) -> tuple[int | None, ...]:
    """The figures in the order of `COLUMNS`; None for what this torch does not count."""
    allocated, reserved = counters["allocated_bytes"]["all"], counters["reserved_bytes"]["all"]
    return (
        allocated["current"],
        reserved["current"],
        allocated["peak"],
        reserved["peak"],
        counters.get("num_alloc_retries"),
        counters.get("num_device_alloc"),
        counters.get("num_device_free"),
        counters.get("num_ooms"),
    )


_sampler = _Sampler()


def install() -> None:
    """Read the counters at the boundaries of steps; twice is once. Needs an open sidecar."""
    _sampler.due = 0
    steps.on_step(_sampler.sample)
    steps.on_step_end(_sampler.sample)
    after_import("torch", _hide)


def _hide(_torch: ModuleType) -> None:
    torch_hooks.hide_from_dynamo(torch_hooks.functions_of(sys.modules[__name__]))


def uninstall() -> None:
    """Read them no longer."""
    _sampler.due = sys.maxsize
