"""How launches fit, and what a GPU can do at most, against what other tools recorded of both."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvprobe.analysis.kernels.occupancy import launch_fit
from nvprobe.readers import load
from nvprobe.readers.kineto.metadata import UNKNOWN, blocks_per_sm, clock_and_bandwidth


def _told(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What the profiler says of each kernel itself."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {
        (event["name"], event["args"]["correlation"]): event["args"]
        for event in events
        if event.get("cat") == "kernel"
    }


@pytest.mark.parametrize(
    ("file", "kernels"),
    [
        ("h200/eager", 580),
        ("public/h100_qwen_stacks", 1220),
        ("public/b200_compile_nccl", 509),
    ],
)
def test_occupancy_is_that_of_the_profiler(file: str, kernels: int, corpus: Path) -> None:
    """It tells that of the whole launch, to a percent; and 0 where it forgets shared memory."""
    path = corpus / "kineto" / f"{file}.json.gz"
    trace, told = load(path), _told(path)
    fit = launch_fit(trace)
    assert fit is not None
    names, compared = trace.texts(trace.ops.name), 0
    for row, op in enumerate(trace.geometry.op.tolist()):
        theirs = told[(names[op] or "", int(trace.ops.correlation[op]))]
        if not theirs["est. achieved occupancy %"]:
            continue
        launched = fit.occupancy[row] * min(fit.waves[row], 1.0)
        assert launched * 100 == pytest.approx(theirs["est. achieved occupancy %"], abs=1.1)
        compared += 1
    assert compared == kernels


def test_amd_has_no_such_limits(corpus: Path) -> None:
    for name in ("compile_triton", "vllm_graph_replay"):
        trace = load(corpus / "kineto" / "public" / f"{name}.json.gz")
        fit = launch_fit(trace)
        assert fit is None or np.isnan(fit.occupancy).all()
        assert (trace.devices.clock_hz == UNKNOWN).all()


def test_data_sheets_are_what_nsys_records(corpus: Path) -> None:
    known = set()
    for path in sorted((corpus / "nsys").glob("*/*.sqlite")):
        devices = load(path).devices
        for row, name in enumerate(load(path).texts(devices.name)):
            clock, bandwidth = clock_and_bandwidth(name)
            if clock == UNKNOWN:
                continue
            known.add(name)
            assert clock == devices.clock_hz[row]
            assert bandwidth == pytest.approx(int(devices.bandwidth_bytes_s[row]), rel=0.001)
            capability = int(devices.compute_major[row]), int(devices.compute_minor[row])
            assert blocks_per_sm(name, 32, *capability) == devices.max_blocks_per_sm[row]
    assert known == {"NVIDIA A100-SXM4-40GB", "NVIDIA GH200 120GB", "NVIDIA H200"}


@pytest.mark.parametrize(
    "name", [None, "", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X", "L40"]
)
def test_other_names_are_not_guessed(name: str | None) -> None:
    assert clock_and_bandwidth(name) == (UNKNOWN, UNKNOWN)
    assert clock_and_bandwidth("Tesla T4") == clock_and_bandwidth("T4")


def test_blocks_need_a_vendor_a_warp_and_a_generation() -> None:
    assert blocks_per_sm("NVIDIA A10", 32, 8, 6) == 16
    assert blocks_per_sm("AMD Instinct MI250X", 64, 9, 0) == UNKNOWN
    assert blocks_per_sm("Radeon", 32, 10, 0) == UNKNOWN
    assert blocks_per_sm("NVIDIA X", 32, 99, 0) == UNKNOWN
    assert blocks_per_sm("", 32, 9, 0) == UNKNOWN
