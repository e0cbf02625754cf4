"""The profiler's cost from the ``run.json`` beside a capture (docs/cost.md)."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import msgspec

from nvprobe import limits
from nvprobe.readers.input_errors import printable
from nvprobe.trace import DEFAULT_COSTS, ProfilingCost, RecordCosts, StepTime

_SCHEMA = "nvprobe.run/1"
_OPTIONS = (
    "trace", "sample", "cpuctxsw", "backtrace", "cuda-graph-trace", "cuda-memory-usage",
    "gpu-metrics-devices", "gpu-metrics-set", "python-sampling", "python-backtrace",
)  # fmt: skip
"""Options of nsys that decide what is recorded and what it costs; others may hold paths."""
_LEAST_PERIODS = 3


def read_profiling_cost(capture: Path) -> ProfilingCost | None:
    """The cost of the run that wrote ``capture``, a run folder or a file in one.

    ``None`` where there is no ``run.json``, or none of a run that wrote this file. Sections that
    an earlier nvprobe did not write, or that are damaged, are taken as absent.
    """
    folder = capture if capture.is_dir() else capture.parent
    run = _run(folder)
    if run is None:
        return None
    if folder != capture and capture.name not in (run.get("files") or ()):
        return None
    overhead = _section(run, "overhead")
    cost = ProfilingCost(
        backend="torch" if run.get("backend") == "torch" else "nsys",
        bare=_before_window(run, _step_time(_section(overhead, "bare"))),
        window=_step_time(_section(overhead, "window")),
        costs=_costs(_section(run, "calibration")),
        graph_nodes=_graph_nodes(run),
        failure=_failure(run),
        host_ns=_host_step(run),
    )
    return _without_spread(cost) if cost.host_is_ahead and _is_single(run) else cost


def _without_spread(cost: ProfilingCost) -> ProfilingCost:
    """The same without what is said of how steps vary."""
    bare, window = (
        time and dataclasses.replace(time, spread_ns=None) for time in (cost.bare, cost.window)
    )
    return dataclasses.replace(cost, bare=bare, window=window)


def recorded_with(capture: Path) -> dict[str, str]:
    """The `_OPTIONS` that nsys had, by the ``run.json`` beside a capture."""
    folder = capture if capture.is_dir() else capture.parent
    flags = (_run(folder) or {}).get("nsys_flags")
    pairs = (str(one).removeprefix("--").partition("=") for one in flags or ())
    return {f"nsys --{name}": printable(value) for name, _, value in pairs if name in _OPTIONS}


def why_empty(folder: Path) -> str:
    """Why a run folder has no capture, as far as its ``run.json`` says."""
    run = _run(folder) or {}
    reasons = [_failure(run), run.get("problem")]
    return "; ".join(printable(str(one)) for one in reasons if one)


def _run(folder: Path) -> dict[str, Any] | None:
    try:
        with (folder / "run.json").open("rb") as file:
            run = json.loads(file.read(limits.record_bytes()))
    except (OSError, ValueError, RecursionError):
        return None
    return run if isinstance(run, dict) and run.get("schema") == _SCHEMA else None


def _failure(run: dict[str, Any]) -> str | None:
    """How the program ended, where it did not end well."""
    code, number, seconds = (run.get(name) for name in ("exit_code", "signal", "duration_s"))
    after = f" after {seconds:.1f} s" if isinstance(seconds, int | float) else ""
    if isinstance(number, int):
        return f"the program ended by signal {number}{after}"
    if isinstance(code, int) and code:
        return f"the program failed with exit code {code}{after}"
    return None


def _section(run: dict[str, Any], name: str) -> dict[str, Any]:
    value = run.get(name)
    return value if isinstance(value, dict) else {}


def _step_time(facts: dict[str, Any]) -> StepTime | None:
    step, spread = facts.get("step_ns"), facts.get("spread_ns")
    if not isinstance(step, int) or step <= 0:
        return None
    spread = spread if isinstance(spread, int) else None
    return StepTime(step, spread, int(facts.get("steps") or 0), int(facts.get("groups") or 0))


def _before_window(run: dict[str, Any], bare: StepTime | None) -> StepTime | None:
    """``bare``, without groups after the window where there are others before it.

    What nsys has recorded it still works on then, and steps take up to half as long again. Earlier
    versions counted those groups, too.
    """
    groups = _bare_groups(run)
    if bare is None or not groups or len(groups) == bare.groups:
        return bare
    steps = [group["end"] - group["first"] for group in groups]
    each = [group["elapsed_ns"] / count for group, count in zip(groups, steps, strict=True)]
    spread = round((max(each) - min(each)) / 2) if len(each) > 1 else None
    return StepTime(round(statistics.median(each)), spread, sum(steps), len(each))


def _is_single(run: dict[str, Any]) -> bool:
    """Whether one group of bare steps was timed in all: it cannot say how a GPU's steps vary.

    Earlier versions took the last period of a group, which waits for the GPU, as the host's.
    """
    return sum(one["kind"] == "bare" for one in _groups(run)) == 1


def _groups(run: dict[str, Any]) -> list[dict[str, Any]]:
    known = run.get("step_groups")
    return [one for one in known if _is_group(one)] if isinstance(known, list) else []


def _bare_groups(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The timed groups of bare steps: those before the window, where there are any."""
    groups = _groups(run)
    bare = [one for one in groups if one["kind"] == "bare"]
    opened = next((one["first"] for one in groups if one["kind"] == "window"), 0)
    return [one for one in bare if one["first"] < opened] or bare


def _is_group(one: object) -> bool:
    """Whether it says of which steps it is, and how long they took."""
    if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
        return False
    first, end, elapsed = (one.get(name) for name in ("first", "end", "elapsed_ns"))
    if not (isinstance(first, int) and isinstance(end, int) and isinstance(elapsed, int)):
        return False
    return first < end and elapsed > 0


def _host_step(run: dict[str, Any]) -> int | None:
    """The median time from one bare step to the next; the last of a group waits for the GPU."""
    periods = _section(run, "step_periods")
    found: list[int] = []
    try:
        first, known = periods["first"], periods["host_ns"]
        for group in _bare_groups(run):
            begin, last = group["first"], group["end"] - 1
            found += known[max(begin - first, 0) : max(last - first, 0)]
        return round(statistics.median(found)) if len(found) >= _LEAST_PERIODS else None
    except (KeyError, TypeError):
        return None


def _costs(facts: dict[str, Any]) -> RecordCosts:
    """The machine's own costs; the defaults for those that it could not measure."""
    names = [name for name in RecordCosts.__struct_fields__ if name != "source"]
    known = {name: float(facts[name]) for name in names if _is_number(facts.get(name))}
    if not known:
        return DEFAULT_COSTS
    return msgspec.structs.replace(DEFAULT_COSTS, source="measured", **known)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _graph_nodes(run: dict[str, Any]) -> bool | None:
    """Whether nsys traced CUDA graphs by node: the last flag counts."""
    flags = run.get("nsys_flags") or []
    kinds = [str(flag).partition("=")[2] for flag in flags if "--cuda-graph-trace=" in str(flag)]
    return kinds[-1].startswith("node") if kinds else None
