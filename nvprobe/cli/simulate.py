"""``nvprobe simulate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.files import deliver, spare_inputs
from nvprobe.cli.settings import Settings, common_options, output_options

if TYPE_CHECKING:
    from nvprobe.analysis.critical_time import OnPath
    from nvprobe.analysis.simulation import Asked, Simulation

ROWS = 12


class SpeedUp(click.ParamType):  # type: ignore[type-arg]
    """``CLASS=TIMES``."""

    name = "speed-up"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, float]:
        """The class, and how many times faster it is to be."""
        if isinstance(value, tuple):
            return value
        name, _, times = str(value).partition("=")
        try:
            factor = float(times)
        except ValueError:
            factor = 0.0
        if not name or not 0 < factor < float("inf"):
            self.fail(f"{value!r}: give CLASS=TIMES, as in gemm=2", param, ctx)
        return name, factor


class Times(click.ParamType):  # type: ignore[type-arg]
    """``x2``."""

    name = "times"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """How many times."""
        if isinstance(value, float):
            return value
        try:
            times = float(str(value).removeprefix("x"))
        except ValueError:
            times = 0.0
        if not 0 < times < float("inf"):
            self.fail(f"{value!r}: give xN, as in x2", param, ctx)
        return times


@click.command("simulate")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=click.Path())
@click.option(
    "--remove-sync",
    multiple=True,
    metavar="LINE",
    help="Do not wait for the GPU at this line, as in train.py:31 (repeatable).",
)
@click.option(
    "--cuda-graph",
    multiple=True,
    metavar="PATH",
    help="Launch what this path launches as CUDA graphs, one between two waits (repeatable).",
)
@click.option(
    "--speed-up",
    multiple=True,
    type=SpeedUp(),
    metavar="CLASS=TIMES",
    help="Run ops of this kernel family or class so many times faster (repeatable).",
)
@click.option(
    "--overlap",
    multiple=True,
    metavar="PATH",
    help="Run the copies of this path beside compute, a step ahead (repeatable).",
)
@click.option(
    "--drop",
    multiple=True,
    metavar="PATH",
    help="Leave out what this path does on the host and on the GPU (repeatable).",
)
@click.option(
    "--batch",
    type=Times(),
    metavar="xN",
    help="Give a step N times as many examples, as in x2; the host's work stays the same.",
)
@output_options
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    inputs: tuple[str, ...],
    remove_sync: tuple[str, ...],
    cuda_graph: tuple[str, ...],
    speed_up: tuple[tuple[str, float], ...],
    overlap: tuple[str, ...],
    drop: tuple[str, ...],
    batch: float | None,
) -> None:
    """Predict the step with changes, from a replay of the captured steps (docs/replay.md).

    All changes are made together. Without any: the critical path of the step as it is. Times are
    without the profiler.
    """
    from nvprobe.analysis.simulation import Asked, simulate
    from nvprobe.cli.pipeline import steady_part

    spare_inputs(settings.output, list(inputs))
    asked = Asked(remove_sync, cuda_graph, dict(speed_up), overlap, drop, batch or 1.0)
    found = simulate(steady_part(inputs), asked)
    changed = any((remove_sync, cuda_graph, speed_up, overlap, drop, batch))
    written = _json if settings.as_json else _text
    deliver(settings, written(found, asked, changed))


def _text(found: Simulation, asked: Asked, changed: bool) -> str:
    """The report."""
    from nvprobe.attribution.model import shown_path
    from nvprobe.report.console.format import time

    known = "measured" if found.calibration == "measured" else "estimated"
    lines = [f"A step takes {time(found.step_ns)} unprofiled ({known})"]
    if changed:
        low, mid, high = (time(ns) for ns in found.step_with_ns)
        times = asked.batch
        less = 1 - found.step_with_ns[1] / max(found.step_ns, 1) / times
        each = " per example" if times != 1 else ""
        words = f"{less:.0%} less" if less >= 0 else f"{-less:.0%} more"
        lines.append(f"With the changes {mid}, between {low} and {high}: {words}{each}")
    lines += ["", "Critical path" + (" with the changes" if changed else "") + " of a step"]
    for row in (found.after if changed else found.before)[:ROWS]:
        where = shown_path(row.path or "outside of ranges")
        lines.append(
            f"{time(row.ns):>9}  {' '.join(filter(None, (row.part, row.what))):<24} {where}"
            f"{f', {row.line}' if row.line else ''}"
        )
    return "\n".join(lines)


def _json(found: Simulation, asked: Asked, changed: bool) -> str:
    def rows(path: tuple[OnPath, ...]) -> list[dict[str, Any]]:
        return [row._asdict() for row in path]

    saving = {
        name: round(100 * share, 1)
        for name, share in (
            ("low", found.saving.low),
            ("mid", found.saving.mid),
            ("high", found.saving.high),
        )
    }
    document = {
        "step_ns": found.step_ns,
        "calibration": found.calibration,
        "replay_error": round(found.replay_error, 5),
        "saving": saving if changed and asked.batch == 1 else None,
        "step_with_changes_ns": list(found.step_with_ns) if changed else None,
        "critical_path": rows(found.before),
        "critical_path_with_changes": rows(found.after) if changed else None,
    }
    return json.dumps(document, indent=1, ensure_ascii=False)
