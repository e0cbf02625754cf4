"""``nvprobe simulate``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.files import deliver, spare_inputs
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options
from nvprobe.errors import InputError, UsageError

if TYPE_CHECKING:
    from nvprobe.analysis.critical_time import OnPath
    from nvprobe.analysis.simulation import Asked, Simulation
    from nvprobe.ranks.discovery import Source
    from nvprobe.ranks.simulation import JobSimulation, RankStep

ROWS = 12
SCHEMA = "nvprobe.simulate/1"


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
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=INPUT)
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
    metavar="PATH|KERNEL",
    help="Leave out what this path does on the host and on the GPU, or launches of this kernel "
    "(repeatable).",
)
@click.option(
    "--batch",
    type=Times(),
    metavar="xN",
    help="Give a step N times as many examples, as in x2; the host's work stays the same.",
)
@click.option(
    "--rank",
    "only",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="N",
    help="Make the changes on this rank of a job alone (repeatable).",
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
    only: tuple[int, ...],
) -> None:
    """Predict the step with changes, from a replay of the captured steps (docs/replay.md).

    All changes are made together. Without any: the critical path of the step as it is. Times are
    without the profiler. The ranks of a job (its folder, or those of its ranks) are replayed
    together: each waits in collectives for the others.
    """
    import numpy as np

    from nvprobe.analysis.simulation import Asked, simulate
    from nvprobe.cli.pipeline import steady_part

    spare_inputs(settings.output, list(inputs))
    asked = Asked(remove_sync, cuda_graph, dict(speed_up), overlap, drop, batch or 1.0)
    changed = any((remove_sync, cuda_graph, speed_up, overlap, drop, batch))
    if ranks := _ranks(inputs):
        deliver(settings, _of_job(ranks, asked, changed, only, settings.as_json))
        return
    attribution = steady_part(inputs)
    processes = np.unique(attribution.trace.ops.process)
    if len(processes) > 1 and (job := _of_processes(inputs, asked, only)):
        deliver(settings, (_job_json if settings.as_json else _job_text)(job, asked, changed))
        return
    if only:
        raise UsageError("--rank: the input is one run, not the ranks of a job")
    found = simulate(attribution, asked)
    written = _json if settings.as_json else _text
    deliver(settings, written(found, asked, changed))


def _of_processes(
    inputs: Sequence[str], asked: Asked, only: tuple[int, ...]
) -> JobSimulation | None:
    """Processes of one capture together; ``None`` where they are not ranks that can be."""
    from nvprobe.ranks.discovery import discover
    from nvprobe.ranks.simulation import JointReplay, NotTogether, read_job

    try:
        return JointReplay(*read_job(discover(inputs))).simulate(asked, only)
    except (NotTogether, InputError):
        return None


def _ranks(inputs: Sequence[str]) -> list[Source]:
    """The captures of a job, where the inputs are several that each say another rank."""
    from nvprobe.ranks.discovery import discover
    from nvprobe.ranks.roster import one_job

    if not all(Path(given).is_dir() or Path(given).is_file() for given in inputs):
        return []
    sources = discover(inputs)
    ranks = {one.rank for one in sources} - {None}
    if len(sources) < 2 or len(ranks) < len(sources):
        return []
    one_job(sources)
    return sources


def _of_job(
    sources: list[Source], asked: Asked, changed: bool, only: tuple[int, ...], as_json: bool
) -> str:
    """All ranks together; where that is not possible, why, and each by itself."""
    from nvprobe.analysis.selection import Selection, select
    from nvprobe.analysis.simulation import Asked, simulate
    from nvprobe.ranks.simulation import JointReplay, NotTogether, read_job

    job, captures = read_job(sources)
    try:
        found = JointReplay(job, captures).simulate(asked, only)
        return (_job_json if as_json else _job_text)(found, asked, changed)
    except NotTogether as error:
        reason = str(error)
    alone: dict[int, Any] = {}
    for number, one in zip(job.numbers, captures, strict=True):
        try:
            own = asked if not only or number in only else Asked()
            found_alone = simulate(select(one.attribution.trace, Selection()), own, one.process)
            written = (_json if as_json else _text)(found_alone, own, own != Asked())
            alone[number] = json.loads(written) if as_json else written
        except UsageError as error:
            alone[number] = {"error": str(error)} if as_json else str(error)
    if as_json:
        found_each = {"schema": SCHEMA, "not_together": reason, "ranks_alone": alone}
        return json.dumps(found_each, indent=1, ensure_ascii=False)
    parts = [f"Rank {number} by itself\n{text}" for number, text in alone.items()]
    return "\n\n".join([reason[:1].upper() + reason[1:], *parts])


def _job_text(found: JobSimulation, asked: Asked, changed: bool) -> str:
    """The report of a job."""
    from nvprobe.report.console.format import time

    lines = _first_lines(found, asked, changed, "A step of the job")
    lines[0] += f"; {len(found.ranks)} ranks, replayed together"
    lines += ["", _last(found, changed), "", f"{'Rank':<6}{'Step':>9}{'Waits':>9}{'Last':>7}"]
    lines[-1] += f"    {'With the changes':>16}{'Waits':>9}{'Last':>7}" if changed else ""
    for before, after in zip(found.ranks, found.ranks_with, strict=True):
        row = f"{before.rank:<6}{time(before.step_ns):>9}{time(before.waits_ns):>9}"
        row += f"{before.last:>7.0%}"
        if changed:
            row += f"    {time(after.step_ns):>16}{time(after.waits_ns):>9}{after.last:>7.0%}"
        lines.append(row)
    if found.missing_ranks:
        missing = ", ".join(map(str, found.missing_ranks))
        lines.append(f"Not captured: rank {missing}; waiting for it counts as transfer")
    path = found.after if changed else found.before
    return "\n".join([*lines, "", *_critical(path, changed)])


def _last(found: JobSimulation, changed: bool) -> str:
    """Who arrives last at most collectives."""

    def who(ranks: tuple[RankStep, ...]) -> str:
        most = max(ranks, key=lambda one: one.last)
        return f"rank {most.rank} at {most.last:.0%}" if most.last else "no rank at any"

    said = f"Last at collectives: {who(found.ranks)} of them"
    return f"{said}; with the changes {who(found.ranks_with)}" if changed else said


def _text(found: Simulation, asked: Asked, changed: bool) -> str:
    """The report."""
    lines = _first_lines(found, asked, changed, "A step")
    path = [(None, row) for row in (found.after if changed else found.before)]
    return "\n".join([*lines, "", *_critical(path, changed)])


def _first_lines(
    found: Simulation | JobSimulation, asked: Asked, changed: bool, what: str
) -> list[str]:
    from nvprobe.report.console.format import time

    known = "measured" if found.calibration == "measured" else "estimated"
    lines = [f"{what} takes {time(found.step_ns)} unprofiled ({known})"]
    if changed:
        low, mid, high = (time(ns) for ns in found.step_with_ns)
        less = 1 - found.step_with_ns[1] / max(found.step_ns, 1) / asked.batch
        each = " per example" if asked.batch != 1 else ""
        words = f"{less:.0%} less" if less >= 0 else f"{-less:.0%} more"
        lines.append(f"With the changes {mid}, between {low} and {high}: {words}{each}")
    return lines


def _critical(path: Sequence[tuple[int | None, OnPath]], changed: bool) -> Iterator[str]:
    """The heaviest parts of the critical path, of a job with the rank they lie on."""
    from nvprobe.attribution.model import shown_path
    from nvprobe.report.console.format import time

    yield "Critical path" + (" with the changes" if changed else "") + " of a step"
    for rank, row in path[:ROWS]:
        where = shown_path(row.path or "outside of ranges")
        on = "" if rank is None else f"rank {rank:<4} "
        yield (
            f"{time(row.ns):>9}  {on}{' '.join(filter(None, (row.part, row.what))):<24} {where}"
            f"{f', {row.line}' if row.line else ''}"
        )


def _json(found: Simulation, asked: Asked, changed: bool) -> str:
    saving = (found.saving.low, found.saving.mid, found.saving.high)
    paths = [[row._asdict() for row in path] for path in (found.before, found.after)]
    return _document(found, asked, changed, saving, paths, {})


def _job_json(found: JobSimulation, asked: Asked, changed: bool) -> str:
    def ranks(some: tuple[RankStep, ...]) -> list[dict[str, Any]]:
        return [dataclasses.asdict(one) for one in some]

    paths = [
        [{"rank": rank, **row._asdict()} for rank, row in path]
        for path in (found.before, found.after)
    ]
    of_job = {
        "missing_ranks": list(found.missing_ranks),
        "ranks": ranks(found.ranks),
        "ranks_with_changes": ranks(found.ranks_with) if changed else None,
    }
    return _document(found, asked, changed, found.saving, paths, of_job)


def _document(
    found: Simulation | JobSimulation, asked: Asked, changed: bool,
    saving: tuple[float, float, float], paths: list[list[dict[str, Any]]], of_job: dict[str, Any],
) -> str:  # fmt: skip
    """``paths``: the critical path, as it is and with the changes."""
    document = {
        "schema": SCHEMA,
        "step_ns": found.step_ns,
        "calibration": found.calibration,
        "replay_error": round(found.replay_error, 5),
        "saving": _saving(*saving) if changed and asked.batch == 1 else None,
        "step_with_changes_ns": list(found.step_with_ns) if changed else None,
        **of_job,
        "critical_path": paths[0],
        "critical_path_with_changes": paths[1] if changed else None,
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _saving(low: float, mid: float, high: float) -> dict[str, float]:
    """In percent."""
    shares = {"low": max(low, 0.0), "mid": mid, "high": min(high, 1.0)}
    return {name: round(100 * share, 1) for name, share in shares.items()}
