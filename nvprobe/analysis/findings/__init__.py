"""What to do about it: findings ranked by what they save, from evidence only.

``RULES`` is the list of patterns; each is a generator in a module beside this one that yields
findings with their estimate. Here they are held against the window: what could save less than
``NOTABLE`` of it is not a finding, unless it is not about time. docs/findings.md has the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import msgspec

from nvprobe.analysis.allocator import allocator_use
from nvprobe.analysis.findings.advice import fitting
from nvprobe.analysis.findings.calls import (
    context_creation,
    graph_rebuilt,
    pinned_allocation,
    unexplained_idle,
)
from nvprobe.analysis.findings.capture import memory_growth, memory_limit, profiler_cost
from nvprobe.analysis.findings.compilation import compilation, graph_breaks
from nvprobe.analysis.findings.dominance import latency_bound_kernel, underfilled_kernel
from nvprobe.analysis.findings.host import host_bound
from nvprobe.analysis.findings.kernels import (
    elementwise_chains,
    fp32_products,
    gemm_efficiency,
    unfused_attention,
)
from nvprobe.analysis.findings.late import late_process
from nvprobe.analysis.findings.machine import empty_processors, low_clock, shared_gpu
from nvprobe.analysis.findings.model import Evidence, Finding, Severity
from nvprobe.analysis.findings.replayed import replayed
from nvprobe.analysis.findings.serving import (
    draft_cost,
    garbage_collection,
    graphs_missed,
    padding,
    prefill_stalls,
)
from nvprobe.analysis.findings.sources import with_sources
from nvprobe.analysis.findings.traffic import exposed_communication, exposed_copies, graph_gaps
from nvprobe.analysis.findings.waiting import (
    allocation,
    input_wait,
    pageable_copies,
    synchronization,
)
from nvprobe.analysis.kernels.attributed import classify
from nvprobe.analysis.kernels.counters import counter_use
from nvprobe.analysis.kernels.occupancy import launch_fit
from nvprobe.analysis.kernels.work import work_items
from nvprobe.analysis.memory import memory
from nvprobe.analysis.model import DeviceUse, Steps
from nvprobe.analysis.replay.prepared import Replay
from nvprobe.analysis.shapes import RangeShapes
from nvprobe.analysis.waiting.waits import waits
from nvprobe.attribution.model import Attribution
from nvprobe.trace import Column

__all__ = ["NOTABLE", "RULES", "Evidence", "Finding", "findings", "gather"]

NOTABLE = 0.02
"""A finding saves at most at least this share of the window."""
_SEVERITIES: tuple[tuple[float, Severity], ...] = ((0.15, "high"), (0.05, "medium"), (0.0, "low"))

RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    synchronization,
    pageable_copies,
    input_wait,
    allocation,
    pinned_allocation,
    graph_rebuilt,
    context_creation,
    compilation,
    graph_breaks,
    unfused_attention,
    fp32_products,
    underfilled_kernel,
    latency_bound_kernel,
    gemm_efficiency,
    exposed_copies,
    exposed_communication,
    late_process,
    graph_gaps,
    memory_limit,
    memory_growth,
    low_clock,
    shared_gpu,
    empty_processors,
    prefill_stalls,
    graphs_missed,
    padding,
    garbage_collection,
    draft_cost,
    profiler_cost,
)
GENERAL_RULES: tuple[Callable[[Evidence, Sequence[Finding]], Iterator[Finding]], ...] = (
    unexplained_idle,
    host_bound,
    elementwise_chains,
)
"""Rules that leave out what the findings before them explain."""


def gather(
    attribution: Attribution,
    steps: Steps,
    devices: DeviceUse,
    lost: Column,
    suspect: Column,
    shapes: RangeShapes,
) -> Evidence:
    """Everything the rules look at. ``lost``: rows of launches without op; ``suspect``: per op."""
    classes = classify(attribution)
    return Evidence(
        attribution=attribution,
        steps=steps,
        devices=devices,
        waits=waits(attribution, steps, classes.activity),
        classes=classes,
        fit=launch_fit(attribution.trace),
        work=work_items(attribution, classes, shapes),
        memory=memory(attribution, steps),
        allocator=allocator_use(attribution, steps),
        counters=counter_use(attribution),
        lost_launches=len(lost),
        suspect=suspect,
    )


def findings(evidence: Evidence, by: Replay | None = None) -> tuple[Finding, ...]:
    """Everything worth changing, what saves most first.

    ``by``: the replayed steps, where the capture has any. Its savings stand first, in the order in
    which they add up; what no replay can weigh follows by :func:`_expected`.
    """
    if not evidence.window_ns:
        return ()
    others = [one for rule in RULES for one in rule(evidence)]
    for general in GENERAL_RULES:
        others += list(general(evidence, others))
    weighed: list[Finding] = []
    if by is not None:
        weighed, others = replayed(evidence, others, by)
    found = [_bounded(one, evidence.span_ns) for one in others]
    kept = [_weighed(one, evidence.span_ns) for one in found if _notable(one, evidence.window_ns)]
    kept.sort(key=lambda one: -_expected(one))
    ordered = _delays_first([*map(_by_step, weighed), *kept], evidence.span_ns)
    return tuple(fitting(evidence, with_sources(evidence, ordered)))


def _delays_first(found: Sequence[Finding], span_ns: int) -> list[Finding]:
    """What delays results by a larger share than the first finding saves goes before it."""
    saved = [one for one in found if not one.delays_ns]
    best = saved[0] if saved else None
    if best is None or best.step_saving is None:
        share = _expected(best) / span_ns if best else 0.0
    else:
        share = best.step_saving.mid / 100
    late = [one for one in found if one.delays_ns > share * span_ns]
    rest = [one for one in found if one not in late]
    return [*late, *(_moved(one, len(late)) for one in rest)]


def _moved(finding: Finding, places: int) -> Finding:
    """A finding that others were put before: the number that it refers to moves as well."""
    saving = finding.step_saving
    if saving is None or saving.instead_of is None or not places:
        return finding
    moved = msgspec.structs.replace(saving, instead_of=saving.instead_of + places)
    return dataclasses.replace(finding, step_saving=moved)


def _by_step(finding: Finding) -> Finding:
    """With its severity: by what it is expected to save of the step."""
    assert finding.step_saving is not None
    share = max(finding.step_saving.mid, finding.step_saving.after_previous) / 100
    severity = next(name for least, name in _SEVERITIES if share >= least)
    return dataclasses.replace(finding, severity=severity)


def _bounded(finding: Finding, span_ns: int) -> Finding:
    """No saving is longer than what was captured."""
    low, high = finding.saves_ns
    return dataclasses.replace(finding, saves_ns=(min(low, span_ns), min(high, span_ns)))


def _expected(finding: Finding) -> float:
    """A quarter of the way from low to high: what is sure counts more than what is possible.

    What saves nothing and delays results counts by their delay.
    """
    low, high = finding.saves_ns
    return max(low + (high - low) / 4, finding.delays_ns)


def _notable(finding: Finding, window_ns: int) -> bool:
    return finding.saves_ns == (0, 0) or finding.saves_ns[1] >= NOTABLE * window_ns


def _weighed(finding: Finding, span_ns: int) -> Finding:
    """With its severity: by what it is expected to save of the capture."""
    share = _expected(finding) / span_ns
    if not share:
        return dataclasses.replace(finding, severity="info")
    severity = next(name for least, name in _SEVERITIES if share >= least)
    return dataclasses.replace(finding, severity=severity)
