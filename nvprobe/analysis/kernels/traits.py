"""What is known of each kernel beyond its time: class, precision, tensor cores, fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.kernels.classes import classify_kinds
from nvprobe.analysis.kernels.occupancy import LaunchFit, kernel_fit
from nvprobe.analysis.model import Kernels
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column, Table, column

__all__ = ["KernelTraits", "kernel_traits"]


@dataclass(frozen=True, slots=True)
class KernelTraits(Table):
    """One row a row of the analysis' kernels; NaN or -1 where it cannot be known."""

    activity: Column = column("i1")
    """:class:`~nvprobe.analysis.classes.Activity`."""
    family: Column = column("i1")
    """:class:`~nvprobe.analysis.classes.Family`."""
    precision: Column = column("i1")
    tensor_cores: Column = column("i1")
    occupancy: Column = column("f8")
    """Theoretical, 0 to 1: the mean over launches, weighted by time."""
    waves: Column = column("f8")
    tail: Column = column("f8")
    limiter: Column = column("i1")
    """:class:`~nvprobe.analysis.occupancy.Limiter` of the longest launch."""


def kernel_traits(
    attribution: Attribution, kernels: Kernels, fit: LaunchFit | None
) -> KernelTraits:
    """Judge each kernel by its name, and by the geometry of its launches where recorded."""
    judged = classify_kinds(attribution.trace, kernels.name, kernels.kind)
    unknown = np.full(len(kernels), np.nan)
    occupancy, waves, tail, limiter = unknown, unknown, unknown, np.full(len(kernels), -1)
    by_name = kernel_fit(attribution, fit) if fit is not None else None
    if by_name is not None and len(by_name.name):
        at = np.searchsorted(by_name.name, kernels.name)
        at = np.minimum(at, len(by_name.name) - 1)
        known = by_name.name[at] == kernels.name
        occupancy = np.where(known, by_name.occupancy[at], np.nan)
        waves = np.where(known, by_name.waves[at], np.nan)
        tail = np.where(known, by_name.tail[at], np.nan)
        limiter = np.where(known, by_name.limiter[at], -1)
    return KernelTraits(
        activity=judged.activity,
        family=judged.family,
        precision=judged.precision,
        tensor_cores=judged.tensor_cores,
        occupancy=occupancy,
        waves=waves,
        tail=tail,
        limiter=limiter,
    )
