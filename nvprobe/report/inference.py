"""Inference: phases with their rates, the budget of a step, the slowest steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated

from nvprobe.analysis.inference.families import Families
from nvprobe.analysis.model import UNITS, FoundBy
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.engines import StepPhase
from nvprobe.report.schema import rows
from nvprobe.trace.rows import Row, is_, measured, ns


class PhaseTotals(Row, frozen=True):
    """The steady steps of one phase, of the process with most GPU time."""

    phase: Annotated[str, is_("`prefill`, `decode`, `mixed`, `verify`, `draft`, `idle`, `unknown`")]
    steps: Annotated[int, is_("steps")]
    requests: Annotated[int | None, is_("requests, summed over steps")]
    tokens: Annotated[int | None, is_("tokens computed")]
    wall_p50_ns: Annotated[int, ns("median length of a step")]
    wall_p90_ns: Annotated[int, ns("nine tenths of the steps are no longer")]
    wall_p99_ns: Annotated[int, ns("99 of 100 steps are no longer")]
    interval_ns: Annotated[int, ns("median time from a step's begin to the next one's")]
    gap_ns: Annotated[int | None, ns("median time from the end of the step before")]
    busy_ns: Annotated[int, ns("median GPU busy time of a step")]
    total_ns: Annotated[int, ns("all intervals together")]
    tokens_per_s: Annotated[float | None, measured("1/s", "tokens by `total_ns`")]


class BudgetPart(Row, frozen=True):
    """A part of a mean step of the main phase."""

    part: Annotated[str, is_("`busy`; GPU idle in `schedule`, `prepare`, `launch`, `sample`, …")]
    ns: Annotated[int, ns("its time per step")]


class SlowStep(Row, frozen=True):
    """One of the slowest steps."""

    index: Annotated[int, is_("number of the step")]
    phase: Annotated[str | None, is_("its phase")]
    interval_ns: Annotated[int, ns("time from its begin to that of the next")]
    usual_ns: Annotated[int, ns("the median of these in the first phase")]
    reason: Annotated[str, is_("`prefill`, `gpu`, `garbage_collection`, or a cause of idle time")]
    reason_ns: Annotated[int, ns("how much more of it there is than in the median step")]


class KernelFamily(Row, frozen=True):
    """Kernels of one family in the steps of one phase."""

    phase: Annotated[str, is_("phase of the steps")]
    family: Annotated[str, is_("`attention`, `KV cache`, `MoE`, `sampling`, `gemm`, …")]
    ops: Annotated[int, is_("kernels")]
    gpu_ns: Annotated[int, ns("sum of their durations")]


class ClientLatency(Row, frozen=True):
    """Latencies that a client measured, by what the server did; the parts add up to the total."""

    kind: Annotated[str, is_("`first_token` of a request, or `between_tokens`")]
    count: Annotated[int, is_("latencies inside of the window")]
    left_out: Annotated[int, is_("latencies outside of it, or without a step that explains them")]
    p50_ns: Annotated[int, ns("their median")]
    p90_ns: Annotated[int, ns("nine tenths are no longer")]
    p99_ns: Annotated[int, ns("99 of 100 are no longer")]
    total_ns: Annotated[int, ns("all of them together")]
    queue_ns: Annotated[int, ns("before the step with the request's prefill, at most")]
    prefill_ns: Annotated[int, ns("in steps with a prefill")]
    decode_ns: Annotated[int, ns("in other steps")]
    gaps_ns: Annotated[int, ns("between steps")]


class Inference(Row, frozen=True):
    """What an inference program does (docs/inference.md)."""

    unit: Annotated[str, is_("what a step is")]
    found_by: Annotated[str, is_("how steps were found")]
    phases: Annotated[list[PhaseTotals], is_("phases, that of most steps first")]
    budget: Annotated[list[BudgetPart], is_("parts of a mean step of the first phase")]
    slowest: Annotated[list[SlowStep], is_("the slowest steps, and what is different in them")]
    kernel_families: Annotated[list[KernelFamily], is_("GPU time of phases by kernel family")]
    client: Annotated[
        list[ClientLatency] | None, is_("of `--client-results`; empty where no clock joins them")
    ] = None


def inference(analysis: Analysis) -> Inference | None:
    """Phases and what goes with them; null where no step has a phase."""
    found = analysis.inference
    if found is None:
        return None
    steps, table = analysis.steps, found.phases
    kind = FoundBy(int(steps.found_by[found.rows[0]]))
    phases = rows(
        PhaseTotals,
        table,
        phase=[StepPhase(one).name.lower() for one in table.phase.tolist()],
        tokens_per_s=[None if math.isnan(one) else one for one in table.tokens_per_s.tolist()],
    )
    return Inference(
        unit=UNITS[kind],
        found_by=kind.name.lower(),
        phases=phases,
        budget=[BudgetPart(part.name.lower(), ns) for part, ns in found.budget.parts.items()],
        slowest=[
            SlowStep(
                index=int(steps.index[one.step]),
                phase=StepPhase(int(steps.phase[one.step])).name.lower(),
                interval_ns=one.length_ns,
                usual_ns=one.usual_ns,
                reason=one.reason,
                reason_ns=one.reason_ns,
            )
            for one in found.slowest
        ],
        kernel_families=_families(found.families),
        client=None
        if analysis.client is None
        else [ClientLatency(**dataclasses.asdict(one)) for one in analysis.client],
    )


def _families(found: Families) -> list[KernelFamily]:
    table = found.rows
    return rows(
        KernelFamily,
        table,
        phase=[StepPhase(one).name.lower() for one in table.phase.tolist()],
        family=[found.names[one] for one in table.family.tolist()],
    )
