"""Phases of inference, the budget of a step, and the slowest steps."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.attribution.engines import StepPhase
from nvprobe.report.console.format import percent, time
from nvprobe.report.console.tables import numbers, table, words
from nvprobe.report.console.view import View

_FAMILIES = 5
"""Families that a line names."""


def phases(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """A row for each phase, the budget in a line, the slowest steps in another."""
    found = analysis.inference
    if found is None:
        return None
    rows = found.phases
    listed = table(
        width,
        words("Phase", [StepPhase(one).name.lower() for one in rows.phase.tolist()]),
        numbers("Steps", [f"{count:,}" for count in rows.steps.tolist()]),
        numbers("Requests", _counts(rows.requests.tolist()), 2),
        numbers("Tokens", _counts(rows.tokens.tolist()), 1),
        numbers("p50", list(map(time, rows.wall_p50_ns.tolist()))),
        numbers("p90", list(map(time, rows.wall_p90_ns.tolist())), 2),
        numbers("p99", list(map(time, rows.wall_p99_ns.tolist())), 1),
        numbers("Interval", list(map(time, rows.interval_ns.tolist())), 1),
        numbers("Gap", [time(ns) if ns != UNKNOWN else "·" for ns in rows.gap_ns.tolist()], 3),
        numbers("GPU busy", list(map(time, rows.busy_ns.tolist()))),
        numbers("Tokens/s", [_rate(rate) for rate in rows.tokens_per_s.tolist()], 1),
    )
    lines = [_client(analysis, width), _budget(analysis), _kernels(analysis), _slowest(analysis)]
    return Group(listed, *(line for line in lines if line is not None))


def _client(analysis: Analysis, width: int) -> RenderableType | None:
    """What a client measured, and its mean by what the server did."""
    found = analysis.client
    if found is None:
        return None
    shown = [one for one in found if one.count]
    if not shown:
        why = "none lies in the window" if found else "no sidecar joins its clock with this one"
        return Text.assemble(("Client: ", "bold"), f"latencies left out: {why}")

    def mean(part: str) -> list[str]:
        return [time(getattr(one, f"{part}_ns") // one.count) for one in shown]

    listed = table(
        width,
        words("Client", [one.kind.replace("_", " ") for one in shown]),
        numbers("Count", [f"{one.count:,}" for one in shown]),
        *(
            numbers(name, [time(getattr(one, f"{name}_ns")) for one in shown])
            for name in ("p50", "p90", "p99")
        ),
        numbers("Mean", mean("total")),
        numbers("= queue", mean("queue")),
        *(numbers(f"+ {name}", mean(name)) for name in ("prefill", "decode", "gaps")),
    )
    left = sum(one.left_out for one in found)
    if not left:
        return Group(Text(), listed, Text())
    why = f"Client: {left:,} latencies left out, outside of the window or without a prefill in it"
    return Group(Text(), listed, Text(why), Text())


def _counts(values: list[int]) -> list[str]:
    return ["·" if value == UNKNOWN else f"{value:,}" for value in values]


def _rate(rate: float) -> str:
    return "·" if math.isnan(rate) else f"{rate:,.0f}"


def _budget(analysis: Analysis) -> Text:
    """A mean step of the first phase, in parts that add up."""
    assert analysis.inference is not None
    budget = analysis.inference.budget
    name = StepPhase(budget.phase).name.lower()
    text = Text.assemble(("Budget: ", "bold"), f"a {name} step of {time(budget.step_ns)} = ")
    parts = [
        f"{part.name.lower().replace('_', ' ')} {time(ns)} ({percent(ns, budget.step_ns)})"
        for part, ns in sorted(budget.parts.items(), key=lambda one: -one[1])
    ]
    return text.append(" + ".join(parts))


def _kernels(analysis: Analysis) -> Text | None:
    """What the kernels of the main phase do, by GPU time."""
    assert analysis.inference is not None
    found, phase = analysis.inference.families, analysis.inference.budget.phase
    mine = found.rows.take(found.rows.phase == phase)
    total = int(mine.gpu_ns.sum())
    if not total:
        return None
    name = StepPhase(phase).name.lower()
    text = Text.assemble(("Kernels: ", "bold"), f"of {name} = ")
    listed = zip(mine.family.tolist()[:_FAMILIES], mine.gpu_ns.tolist(), strict=False)
    parts = [f"{found.names[family]} {percent(ns, total)}" for family, ns in listed]
    rest = total - int(mine.gpu_ns[:_FAMILIES].sum())
    return text.append(" + ".join([*parts, *([f"others {percent(rest, total)}"] if rest else [])]))


def _slowest(analysis: Analysis) -> Text | None:
    """The slowest steps and what is different in them."""
    assert analysis.inference is not None
    found, steps = analysis.inference.slowest, analysis.steps
    if not found:
        return None
    text = Text.assemble(("Slowest: ", "bold"), f"usual {time(found[0].usual_ns)}; ")
    listed = [
        f"step {int(steps.index[one.step])} {time(one.length_ns)} "
        f"({one.reason.replace('_', ' ')} +{time(one.reason_ns)})"
        for one in found
    ]
    return text.append(", ".join(listed))
