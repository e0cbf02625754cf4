"""FLOPs from shapes against loops that count them; peaks against data sheets."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.kernels.classes import Precision
from nvprobe.analysis.kernels.flops import FORMULAS, Inputs
from nvprobe.analysis.kernels.work import _computed, peak_flops, tensor_core_gain
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_json
from nvprobe.trace import Devices
from tests.unit.test_kineto import document, event

SDPA = "aten::_scaled_dot_product_"


def _counted(a: list[int], b: list[int]) -> int:
    """Multiplications and additions of a batched matrix product, one by one."""
    count = 0
    for _ in product(*(range(n) for n in a[:-2])):
        for _row, _column in product(range(a[-2]), range(b[-1])):
            for _inner in range(a[-1]):
                count += 2
    return count


@pytest.mark.parametrize(
    ("name", "shapes", "products"),
    [
        ("aten::mm", [[3, 5], [5, 7]], [([3, 5], [5, 7])]),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], [([2, 3, 5], [2, 5, 7])]),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], [([3, 5], [5, 7])]),
        (SDPA + "flash_attention", [[2, 3, 4, 8], [2, 3, 6, 8], [2, 3, 6, 8], [], []],
         [([6, 4, 8], [6, 8, 6]), ([6, 4, 6], [6, 6, 8])]),
        (SDPA + "efficient_attention_backward",
         [[2, 3, 4, 8], [2, 3, 4, 8], [2, 3, 6, 8], [2, 3, 6, 8], []],
         [([6, 4, 8], [6, 8, 6])] * 3 + [([6, 4, 6], [6, 6, 8])] * 2),
    ],
)  # fmt: skip
def test_flops_are_those_that_loops_count(
    name: str, shapes: list[list[int]], products: list[tuple[list[int], list[int]]]
) -> None:
    assert FORMULAS[name](Inputs(shapes))[0] == sum(_counted(a, b) for a, b in products)


def test_bytes_are_inputs_and_result_once() -> None:
    names = pa.array(["aten::addmm", "aten::add", "aten::mm"])
    shapes = pa.array([
        "[[7], [3, 5], [5, 7], [], []]", "[[4, 6], [6], []]", "[[3, 5], [5, 7]]", "[[3]]", "no",
    ])  # fmt: skip
    types = pa.array([
        '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]',
        '["float", "float", "Scalar"]', '["float"]',
    ])  # fmt: skip
    name, shape = np.array([0, 1, 2, 2, 2, 2]), np.array([0, 1, 2, 3, 4, -1])
    kind, nothing = np.array([0, 1, -1, 2, -1, -1]), np.full(6, -1)
    texts = (names, shapes, types, types)
    flops, elements, size = _computed((name, shape, kind, nothing), texts)
    assert flops.tolist() == [210, 24, 210, 0, 0, 0]
    assert elements.tolist()[:3] == [7 + 15 + 35 + 21, 24 + 6 + 24, 15 + 35 + 21]
    assert size.tolist()[:3] == [2 * (7 + 15 + 35 + 21), 4 * (24 + 6 + 24), -1]


def _device(major: int, minor: int, sms: int, clock: int) -> Devices:
    unknown = {f.name: np.array([-1]) for f in dataclasses.fields(Devices)}
    return Devices(**{**unknown, "compute_major": np.array([major]),
                      "compute_minor": np.array([minor]), "sm_count": np.array([sms]),
                      "clock_hz": np.array([clock])})  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "sms", "clock", "precision", "tera"),
    [
        # Dense figures of the vendor's data sheets, at the boost clock they are given for.
        ((9, 0), 132, 1_830_000_000, Precision.BF16, 989.4),
        ((9, 0), 132, 1_830_000_000, Precision.TF32, 494.7),
        ((9, 0), 132, 1_830_000_000, Precision.FP8, 1978.9),
        ((9, 0), 132, 1_980_000_000, Precision.FP32, 66.9),
        ((8, 0), 108, 1_410_000_000, Precision.BF16, 311.9),
        ((8, 0), 108, 1_410_000_000, Precision.FP32, 19.5),
        ((7, 0), 80, 1_530_000_000, Precision.FP16, 125.3),
        ((7, 5), 40, 1_590_000_000, Precision.FP16, 65.1),
        ((8, 9), 142, 2_520_000_000, Precision.FP8, 733.0),
    ],
)
def test_peaks_are_those_of_the_data_sheets(
    capability: tuple[int, int], sms: int, clock: int, precision: Precision, tera: float
) -> None:
    devices = _device(*capability, sms, clock)
    (peak,) = peak_flops(devices, np.array([0]), np.array([precision]))
    assert peak / 1e12 == pytest.approx(tera, rel=0.005)


def test_an_unknown_device_has_no_peak() -> None:
    for devices in (_device(9, 9, 132, 10), _device(9, 0, -1, 10), _device(9, 0, 132, -1)):
        assert np.isnan(peak_flops(devices, np.array([0]), np.array([Precision.BF16]))[0])
    assert tensor_core_gain(_device(9, 0, 132, 10), 0) == 8
    assert tensor_core_gain(_device(7, 0, 80, 10), 0) is None


def _ranges(analysis: Analysis) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(to_json(analysis))["ranges"]
    return found


def _profiled_convolution(tmp_path: Path, overload: str = "", **more: object) -> Analysis:
    """A torch trace of one convolution in one step, its kernel 1 ms long."""
    kernel = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
    inputs = {
        "Input Dims": [[8, 64, 56, 56], [128, 64, 3, 3], *[[]] * 7],
        "Input type": ["float", "float", *["ScalarList"] * 3, *["Scalar"] * 4],
    }
    file = tmp_path / "trace.json"
    file.write_text(
        document(
            event("user_annotation", "ProfilerStep#1", "1000.000", "2000.000"),
            event("cpu_op", "aten::conv2d", "1001.000", "100.000"),
            event("cpu_op", f"aten::cudnn_convolution{overload}", "1002.000", "90.000", **inputs,
                  **more),
            event("cuda_runtime", "cudaLaunchKernel", "1010.000", "5.000", correlation=4),
            event("kernel", kernel, "1020.000", "1000.000", device=0, stream=7, correlation=4),
            deviceProperties=[{"id": 0, "name": "H200", "numSms": 132, "computeMajor": 9,
                               "computeMinor": 0}],
        )
    )  # fmt: skip
    return analyze(attribute(load(file)))


def test_a_convolution_with_its_stride_has_work(tmp_path: Path) -> None:
    told = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    analysis = _profiled_convolution(tmp_path, **{"Concrete Inputs": told})
    (step,) = (row for row in _ranges(analysis) if row["path"] == "ProfilerStep")
    flops = 2 * 8 * 28 * 28 * 128 * 64 * 3 * 3
    assert step["work"]["flops"] == flops
    assert step["work"]["flops_per_s"] == pytest.approx(flops / 1e-3)
    result = 8 * 128 * 28 * 28
    assert step["work"]["bytes"] == 4 * (8 * 64 * 56 * 56 + 128 * 64 * 9 + result)
    tf32 = 132 * 2048 * 1.98e9  # FLOP/s of an H200, by its name
    assert step["work"]["mfu"] == pytest.approx(flops / 1e-3 / tf32)
    assert "FLOPs of convolutions" not in [one.what for one in analysis.missing]


def test_an_overload_is_its_operator(tmp_path: Path) -> None:
    told = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    analysis = _profiled_convolution(tmp_path, ".Tensor", **{"Concrete Inputs": told})
    (step,) = (row for row in _ranges(analysis) if row["path"] == "ProfilerStep")
    assert step["work"]["flops"] == 2 * 8 * 28 * 28 * 128 * 64 * 3 * 3


def test_an_operator_that_only_its_name_tells_has_work_beside_others(tmp_path: Path) -> None:
    """As where emit_nvtx and a torch trace lie together: not all are in the operators table."""
    mm = "aten::mm, op_id = 3, sizes = [[3, 5], [5, 7]]"
    (tmp_path / "trace.json").write_text(
        document(
            event("user_annotation", mm, "1001.000", "10.000"),
            event("cuda_runtime", "cudaLaunchKernel", "1002.000", "5.000", correlation=4),
            event("cpu_op", "aten::add", "1020.000", "10.000", **{"Input Dims": [[3], [3]]}),
            event("kernel", "gemm", "1030.000", "10.000", device=0, stream=7, correlation=4),
        )
    )
    analysis = analyze(attribute(load(tmp_path / "trace.json")))
    (row,) = (row for row in _ranges(analysis) if row["path"] == "aten::mm")
    assert row["work"]["flops"] == 2 * 3 * 5 * 7


def test_a_convolution_without_its_stride_has_none_and_the_report_says_so(tmp_path: Path) -> None:
    analysis = _profiled_convolution(tmp_path)
    assert all(row["work"] is None for row in _ranges(analysis))
    (gap,) = (one for one in analysis.missing if one.what == "FLOPs of convolutions")
    assert gap.why.startswith("1 convolutions are recorded")
