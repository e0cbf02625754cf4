"""What a GPU can do at most: dense FLOP/s by precision, at its greatest clock.

``PER_SM`` is floating-point operations a clock and SM (a multiply-add counts as two), from the
arithmetic throughput of each compute capability; times SMs and clock it gives the figures of the
data sheets to within their different clocks. A capability that the table lacks, or a device that
does not tell its SMs or clock, has no peak: never a guess.
"""

from __future__ import annotations

import numpy as np

from nvprobe.analysis.kernels.classes import Precision
from nvprobe.trace import Column, Devices

__all__ = ["PER_SM", "peak_flops", "tensor_core_gain"]

_P = Precision

PER_SM: dict[tuple[int, int], dict[Precision, int]] = {
    (7, 0): {_P.FP64: 64, _P.FP32: 128, _P.FP16: 1024},
    (7, 5): {_P.FP64: 4, _P.FP32: 128, _P.FP16: 1024, _P.INT8: 2048},
    (8, 0): {_P.FP64: 128, _P.FP32: 128, _P.TF32: 1024, _P.BF16: 2048, _P.FP16: 2048,
             _P.INT8: 4096},
    (8, 6): {_P.FP64: 4, _P.FP32: 256, _P.TF32: 256, _P.BF16: 512, _P.FP16: 512, _P.INT8: 2048},
    (8, 9): {_P.FP64: 4, _P.FP32: 256, _P.TF32: 512, _P.BF16: 1024, _P.FP16: 1024, _P.FP8: 2048,
             _P.INT8: 2048},
    (9, 0): {_P.FP64: 256, _P.FP32: 256, _P.TF32: 2048, _P.BF16: 4096, _P.FP16: 4096,
             _P.FP8: 8192, _P.INT8: 8192},
    (10, 0): {_P.FP64: 128, _P.FP32: 256, _P.TF32: 4096, _P.BF16: 8192, _P.FP16: 8192,
              _P.FP8: 16384, _P.FP4: 32768, _P.INT8: 16384},
}  # fmt: skip
"""Operations a clock and SM, dense, by compute capability; tensor cores where there are any."""


def peak_flops(devices: Devices, device: Column, precision: Column) -> Column:
    """Greatest FLOP/s of each (device row, precision); NaN where it cannot be told."""
    out = np.full(len(device), np.nan)
    for row in range(len(devices)):
        table = PER_SM.get((int(devices.compute_major[row]), int(devices.compute_minor[row])), {})
        rate = float(devices.sm_count[row]) * float(devices.clock_hz[row])
        if devices.sm_count[row] <= 0 or devices.clock_hz[row] <= 0:
            continue
        for kind, operations in table.items():
            out[(device == row) & (precision == kind)] = operations * rate
    return out


def tensor_core_gain(devices: Devices, row: int) -> float | None:
    """How many times faster TF32 is than FP32 off the tensor cores; None where unknown."""
    table = PER_SM.get((int(devices.compute_major[row]), int(devices.compute_minor[row])), {})
    if Precision.TF32 not in table:
        return None
    return table[Precision.TF32] / table[Precision.FP32]
