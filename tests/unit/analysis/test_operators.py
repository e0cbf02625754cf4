"""Operators of traces that no profiler would write, but damage does."""

from __future__ import annotations

from pathlib import Path

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.readers import load
from tests.unit.test_kineto import document, event, write


def analysis_of(folder: Path, *events: str) -> Analysis:
    return analyze(attribute(load(write(folder, document(*events)))))


def test_an_operator_that_outlasts_the_one_around_it_takes_no_more_than_there_is(
    tmp_path: Path,
) -> None:
    analysis = analysis_of(
        tmp_path,
        event("cpu_op", "aten::outer", "1000.000", "10.000"),
        event("cpu_op", "aten::first", "1001.000", "2.000"),
        event("cpu_op", "aten::long", "1005.000", "25.000"),
    )
    times = {row["name"]: (row["cpu_ns"], row["self_cpu_ns"]) for row in analysis.operators or []}
    assert times == {
        "aten::outer": (10_000, 10_000 - 2_000 - 5_000),
        "aten::first": (2_000, 2_000),
        "aten::long": (25_000, 25_000),
    }


def test_the_greatest_sequence_number_leads_to_its_module(tmp_path: Path) -> None:
    number = (1 << 63) - 1
    numbers = {"Sequence number": number, "Fwd thread id": 0}
    gpu = {"device": 0, "stream": 7, "correlation": 3}
    analysis = analysis_of(
        tmp_path,
        event("user_annotation", "step 1", "1000.000", "90.000"),
        event("python_function", "nn.Module: Linear_0", "1001.000", "20.000"),
        event("cpu_op", "aten::addmm", "1002.000", "10.000", **numbers),
        event("cpu_op", "AddmmBackward0", "1050.000", "10.000", tid=8, **numbers),
        event("cuda_runtime", "cudaLaunchKernel", "1052.000", "2.000", tid=8, correlation=3),
        event("kernel", "gemm", "1060.000", "5.000", **gpu),
    )
    (module,) = analysis.modules or []
    assert (module["module"], module["backward_gpu_ns"]) == ("Linear_0", 5_000)
