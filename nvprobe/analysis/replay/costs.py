"""Calibration: the model without what the profiler cost, so that it replays the unprofiled step.

Each record costs host time; what remains is scaled by one factor, which the measured unprofiled
step decides where there is one. Definition: docs/replay.md, "Calibration".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from nvprobe.analysis.replay.model import EventKind, Model
from nvprobe.analysis.replay.run import replay, step_times
from nvprobe.analysis.replay.sample import Sample
from nvprobe.trace import AHEAD, DEFAULT_COSTS, NO_NAME, Column, RecordCosts

QUERY_NS = 93
"""A call that only asks for a kernel's name, under the profiler on a quiet host."""
_QUERIES = ("cuKernelGetName", "cuKernelGetAttribute")
SLOWEST = 1.9
UNKNOWN_SLOWNESS = 1.5
FACTORS = (0.15, 1.6)
DEFAULT_FACTOR = 0.9
DEPENDS = 0.05
"""The factor is solved for where the step depends on it by more than this share."""
HALVINGS = 12
"""To four ten-thousandths of the factor."""
STRETCHES = (1.0, 0.75, 1.33)
"""Of the factor. Chosen on programs whose step is known: three of four lie within."""
RECORDS = 0.25
"""In loops that do nothing else records cost a tenth to a half of the default costs."""
LONG_GAP_NS = 2_000_000
DRIVER_NS = 20_000
"""An allocation or a compilation that takes longer is the driver's own work."""
IN_CALL, IN_GAP = 0.6, 0.4
"""How a call's cost is shared between the call and the gap before it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the profiler cost, and how it is known."""

    source: Literal["measured", "default"]
    factor: float
    """Host time left after each record's cost is multiplied by this."""
    slowness: float
    costs: RecordCosts


def step_of(model: Model) -> int:
    """The replayed step."""
    return mean_step(step_times(model, replay(model)))


def mean_step(lengths: Column) -> int:
    """The mean of all steps but the first.

    Not their median: a change moves time from one step to the next, and the mean never shrinks by
    that.
    """
    lengths = lengths[1:] if len(lengths) > 1 else lengths
    return round(float(lengths.mean())) if len(lengths) else 0


def calibration(sample: Sample) -> Calibration:
    """The factor that gives the measured unprofiled step, else the default one."""
    default, profiling = default_calibration(sample), sample.attribution.trace.profiling
    if profiling is None or profiling.bare is None:
        return default
    measured = dataclasses.replace(default, source="measured")
    if profiling.host_ns is not None and profiling.host_is_ahead:
        factor = _solved_for_host(sample, measured, profiling.host_ns)
    else:
        factor = _solved(sample, measured, profiling.bare.step_ns)
    return default if factor is None else dataclasses.replace(measured, factor=factor)


def default_calibration(sample: Sample) -> Calibration:
    """By what is known of such hosts, without a measured step."""
    profiling = sample.attribution.trace.profiling
    costs = profiling.costs if profiling else DEFAULT_COSTS
    slow = _slowness(sample)
    return Calibration("default", DEFAULT_FACTOR / slow, slow, costs)


def variants(sample: Sample, by: Calibration) -> list[Model]:
    """The model by every calibration that may hold, ``by`` first.

    The host a quarter faster and a third slower; and records that cost a quarter of what they are
    taken to cost, in a step that is as long: then more of it is the program's own work.
    """
    known, cheaper = [by], with_cheaper_records(by)
    likeliest = calibrated(sample, by)
    step_ns, host_ns = step_of(likeliest), host_step(likeliest)
    if host_ns < AHEAD * step_ns:
        factor = _solved_for_host(sample, cheaper, host_ns)
    else:
        factor = _solved(sample, cheaper, step_ns)
    if factor is not None:
        known.append(dataclasses.replace(cheaper, factor=factor))
    return [calibrated(sample, one, stretch) for one in known for stretch in STRETCHES]


def with_cheaper_records(by: Calibration) -> Calibration:
    """The same with records that cost a quarter."""
    shares = {
        name: value * RECORDS for name, value in msgspec.structs.asdict(by.costs).items()
        if name != "source"
    }  # fmt: skip
    return dataclasses.replace(by, costs=msgspec.structs.replace(by.costs, **shares))


def _solved(sample: Sample, by: Calibration, target: int) -> float | None:
    def step(factor: float) -> int:
        return step_of(calibrated(sample, dataclasses.replace(by, factor=factor)))

    return solved(step, target)


def _solved_for_host(sample: Sample, by: Calibration, target: int) -> float | None:
    """The factor with which the host by itself takes ``target``: it runs ahead of the GPU."""

    def host(factor: float) -> int:
        model = calibrated(sample, dataclasses.replace(by, factor=factor))
        return host_step(model)

    return solved(host, target)


def host_step(model: Model) -> int:
    """What a step takes the host where it waits for nothing."""
    e, borders = model.events, model.borders
    mine = e.lane == e.lane[borders[0]]
    mine[: borders[0] + 1], mine[borders[-1] + 1 :] = False, False
    return round(int((e.gap + e.dur)[mine].sum()) / max(len(borders) - 1, 1))


def solved(step: Callable[[float], int], target: int) -> float | None:
    """The factor that gives a step of ``target``; ``None`` where the step hardly depends on it."""
    low, high = FACTORS
    if step(high) - step(low) <= DEPENDS * target:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if step(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def calibrated(sample: Sample, by: Calibration, stretch: float = 1.0) -> Model:
    """The model without the profiler; ``stretch`` multiplies the factor."""
    model, events, records = sample.model.edit(), sample.events, sample.records
    scale = by.slowness if by.costs.source == "default" else 1.0
    c, factor, e = by.costs, by.factor * stretch, model.events
    call = np.where(e.kind == EventKind.LAUNCH, c.launch_ns, c.call_ns) * scale
    gap_cost = (
        IN_GAP * call * np.minimum(events.inside, 1)
        + c.call_ns * scale * events.between
        + scale * (c.range_ns * records.ranges + c.module_ns * records.modules)
        + scale * (c.mark_ns * records.marks + c.operator_ns * records.operators)
    )
    inner = np.maximum(events.inside - 1, 0)
    call_cost = IN_CALL * call * np.minimum(events.inside, 1) + IN_CALL * c.call_ns * scale * inner
    dur = np.maximum(e.dur - call_cost, e.dur / 4)
    rest = e.gap - sample.input_ns
    gap = np.maximum(rest - gap_cost, 0.15 * rest)
    driver = np.isin(e.kind, (EventKind.ALLOCATION, EventKind.OTHER)) & (e.dur > DRIVER_NS)
    own_work = (rest >= LONG_GAP_NS) & (by.source == "default")
    waited = sample.input_ns * (factor if by.source == "measured" else 1.0)
    e.dur[:] = _rounded(np.where(driver, e.dur, factor * dur))
    e.gap[:] = _rounded(np.where(own_work, gap * stretch, factor * gap) + waited)
    model.waited = _rounded(waited)
    positive = e.ret > 0
    e.ret[positive] = _rounded(np.maximum(e.ret - IN_CALL * call, e.ret / 4))[positive]
    return model


def _rounded(values: Column) -> Column:
    return np.rint(values).astype(np.int64)


def _slowness(sample: Sample) -> float:
    """How much slower this host was than a quiet one, by the calls that do next to nothing."""
    trace = sample.attribution.trace
    calls, distinct = trace.calls, np.unique(trace.calls.name)
    known = dict(zip(trace.texts(distinct), distinct.tolist(), strict=True))
    for name in _QUERIES:
        rows = np.flatnonzero(calls.name == known.get(name, NO_NAME))
        if len(rows) and name in known:
            usual = float(np.median(calls.end[rows] - calls.start[rows]))
            return float(min(max(np.sqrt(usual / QUERY_NS), 1.0), SLOWEST))
    return UNKNOWN_SLOWNESS
