"""Every shipped H200 capture, gone through by hand: all that is said of it, and nothing else.

The same as test_findings_corpus.py for captures that are in the repository.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
EXAMPLES = {
    "01_sync_in_the_loop": ["implicit_sync"],
    # Its products do run in FP32, but faster ones would wait for data all the same.
    "02_slow_dataloader": ["input_wait"],
    "03_pageable_copies": ["pageable_copy"],
    "04_tiny_kernels": ["launch_bound"],
    "05_exposed_copy": ["exposed_copy"],
    "06_graph_break": ["graph_break"],
    "07_recompile_storm": ["recompile"],
    "08_cudamalloc_churn": ["allocator"],
    "09_fp32_gemm": ["fp32_gemm"],
    "10_unfused_attention": ["unfused_attention"],
    "11_healthy": [],
    "12_decode_loop": ["launch_bound"],
}
COMPILED: dict[str, list[str]] = {
    # Two steps with compilation between them: nothing repeats.
    "compiled_break": [],
    "eager_backward": [],
    # A tenth of a microsecond between nodes of four: no gaps to speak of.
    "graph_before_window": ["fp32_gemm", "fp32_attention", "empty_processors"],
    "reduce_overhead_before_window": ["fp32_gemm", "elementwise_chain", "fp32_attention"],
}
LAUNCHED = {
    # The loop makes its batches itself, 7 ms of torch.randn a step; ``workers`` has others for it.
    # Faster products save nothing before that is dealt with.
    "compiled": ["host_work", "fp32_gemm", "launch_bound"],
    "eager": ["host_work", "fp32_gemm", "launch_bound", "elementwise_chain"],
    # Two steps both recorded: no replay.
    "eager_with_torch_trace": ["launch_bound", "host_work", "fp32_gemm"],
    # Replays launch few kernels: what is left is the host's.
    "reduce_overhead": ["host_work", "fp32_gemm"],
    # The GPU has run dry before each of the six syncs: they cost next to nothing.
    "six_syncs": ["host_work", "fp32_gemm", "launch_bound", "elementwise_chain"],
    "workers": [
        "fp32_gemm",
        "launch_bound",
        "implicit_sync",
        "fp32_attention",
        "elementwise_chain",
    ],
}
RECORDED = {"examples": EXAMPLES, "compiled_h200": COMPILED, "launch_h200": LAUNCHED}


@pytest.fixture(scope="module", params=sorted(RECORDED))
def captures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    with tarfile.open(FIXTURES / f"{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return request.param, folder


def _found(capture: Path) -> list[str]:
    beside = capture.with_suffix(".sidecar.jsonl")
    analysis = analyze(attribute(load(capture, *([beside] if beside.exists() else []))))
    return [one.id for one in analysis.findings or ()]


def test_what_is_said_of_each(captures: tuple[str, Path]) -> None:
    archive, folder = captures
    found = {path.stem: _found(path) for path in sorted(folder.glob("*.sqlite"))}
    assert found == RECORDED[archive]
