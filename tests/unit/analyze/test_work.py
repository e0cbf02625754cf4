"""FLOPs from shapes against loops that count them; peaks against data sheets."""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analyze.kernels.classes import Precision
from nvprobe.analyze.kernels.peaks import peak_flops, tensor_core_gain
from nvprobe.analyze.kernels.work import FORMULAS, _computed, _sizes_in_names
from nvprobe.trace import Devices

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
    assert FORMULAS[name](shapes)[0] == sum(_counted(a, b) for a, b in products)


def test_bytes_are_inputs_and_result_once() -> None:
    names = pa.array(["aten::addmm", "aten::add", "aten::mm", "aten::mm", "aten::mm"])
    shapes = pa.array([
        "[[7], [3, 5], [5, 7], [], []]", "[[4, 6], [6], []]", "[[3, 5], [5, 7]]", "[[3]]", "no",
    ])  # fmt: skip
    types = pa.array([
        '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"]',
        '["float", "float", "Scalar"]', None, '["float"]', None,
    ])  # fmt: skip
    flops, elements, size = _computed(names, shapes, types)
    assert flops.tolist() == [210, 24, 210, 0, 0]
    assert elements.tolist()[:3] == [7 + 15 + 35 + 21, 24 + 6 + 24, 15 + 35 + 21]
    assert size.tolist()[:3] == [2 * (7 + 15 + 35 + 21), 4 * (24 + 6 + 24), -1]


def test_sizes_are_found_in_emit_nvtx_names() -> None:
    strings = pa.array([
        "aten::mm, seq = 4, op_id = 17, sizes = [[8, 4], [4, 2]], input_op_ids = [(1,0)]",
        "aten::mm, op_id = 17, sizes = [[8, 4], [4, 2]]", "aten::mm",
    ])  # fmt: skip
    found = _sizes_in_names(strings, np.array([0, 1, 2])).to_pylist()
    assert [json.loads(text) if text else text for text in found] == [
        [[8, 4], [4, 2]], [[8, 4], [4, 2]], "",
    ]  # fmt: skip


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
