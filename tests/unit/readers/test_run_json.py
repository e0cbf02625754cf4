"""What run.json tells of the profiler's cost, and what it must not be taken for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.readers.run_json import read_profiling_cost
from nvprobe.trace import DEFAULT_COSTS, StepTime

RUN: dict[str, Any] = {
    "schema": "nvprobe.run/1",
    "backend": "nsys",
    "nsys_flags": ["--trace=cuda,nvtx", "--cuda-graph-trace=graph", "--cuda-graph-trace=node"],
    "files": ["report.nsys-rep", "report.sqlite"],
    "overhead": {
        "bare": {"step_ns": 18_600_000, "spread_ns": 100_000, "steps": 10, "groups": 2},
        "window": {"step_ns": 28_700_000, "spread_ns": None, "steps": 4, "groups": 1},
    },
    "calibration": {"call_ns": 3_100.5, "graph_node_ns": 900, "host": "a"},
}


def folder(path: Path, **changes: object) -> Path:
    (path / "run.json").write_text(json.dumps(RUN | changes), "utf-8")
    (path / "report.sqlite").touch()
    return path


def timed(kind: str, first: object, end: int, elapsed_ns: int = 1) -> dict[str, Any]:
    return {"kind": kind, "first": first, "end": end, "elapsed_ns": elapsed_ns}


@pytest.mark.parametrize("given", ["", "report.sqlite"])
def test_of_a_folder_and_of_a_file_in_it(tmp_path: Path, given: str) -> None:
    cost = read_profiling_cost(folder(tmp_path) / given)
    assert cost is not None
    assert cost.bare == StepTime(18_600_000, 100_000, 10, 2)
    assert cost.window == StepTime(28_700_000, None, 4, 1)
    assert (cost.backend, cost.graph_nodes) == ("nsys", True)
    assert (cost.costs.source, cost.costs.call_ns, cost.costs.graph_node_ns) == (
        "measured",
        3_100.5,
        900.0,
    )
    assert cost.costs.range_ns == DEFAULT_COSTS.range_ns, "what was not measured is the default"


def test_a_run_of_an_earlier_nvprobe_measured_nothing_to_rely_on(tmp_path: Path) -> None:
    earlier = {"plain_ns": 124_223_096, "profiled_ns": 9_401_713, "slowdown": 0.08}
    cost = read_profiling_cost(
        folder(tmp_path, overhead=earlier, calibration=None, nsys_flags=[], backend="torch")
    )
    assert cost is not None
    assert (cost.bare, cost.window, cost.costs) == (None, None, DEFAULT_COSTS)
    assert (cost.backend, cost.graph_nodes) == ("torch", None)


def test_damaged_sections_are_absent(tmp_path: Path) -> None:
    damaged = {"bare": {"step_ns": "18"}, "window": {"step_ns": 0}}
    cost = read_profiling_cost(
        folder(tmp_path, overhead=damaged, calibration={"call_ns": True, "range_ns": -1})
    )
    assert cost is not None
    assert (cost.bare, cost.window, cost.costs) == (None, None, DEFAULT_COSTS)


def test_another_run_beside_the_file_says_nothing_of_it(tmp_path: Path) -> None:
    assert read_profiling_cost(folder(tmp_path, files=["other.sqlite"]) / "report.sqlite") is None
    assert read_profiling_cost(folder(tmp_path, schema="other/1")) is None
    (tmp_path / "run.json").write_text("[", "utf-8")
    assert read_profiling_cost(tmp_path) is None
    assert read_profiling_cost(tmp_path / "nowhere" / "report.sqlite") is None


def test_the_host_of_bare_steps_is_their_period_but_of_the_last_which_waits(tmp_path: Path) -> None:
    periods = {"first": 2, "host_ns": [90, 80, 5, 7, 6, 400, 8, 9, 500, 20, 50, 50, 50, 50]}
    groups = [
        timed("bare", 4, 8), timed("bare", 8, 11), timed("window", 11, 12), timed("bare", 12, 16)
    ]  # fmt: skip
    cost = read_profiling_cost(folder(tmp_path, step_periods=periods, step_groups=groups))
    assert cost is not None
    assert cost.host_ns == 7


@pytest.mark.parametrize(
    "damaged",
    [
        {"step_groups": [timed("bare", 0, 3)]},  # two periods
        {"step_groups": [timed("bare", "0", 9), timed("window", 10, 12)]},
        {"step_groups": [timed("bare", 0, 9, 0), timed("window", 10, 12)]},
        {"step_groups": [7]},
        {"step_groups": 7},
        {"step_periods": {"first": 0, "host_ns": 9}},
        {"step_periods": {"first": 0, "host_ns": ["9", None, 3, 4]}},
    ],
)
def test_too_few_or_damaged_periods_say_nothing_of_the_host(
    tmp_path: Path, damaged: dict[str, Any]
) -> None:
    known = {
        "step_periods": {"first": 0, "host_ns": [1, 2, 3, 4]},
        "step_groups": [timed("bare", 0, 4)],
    }
    cost = read_profiling_cost(folder(tmp_path, **known | damaged))
    assert cost is not None
    assert cost.host_ns is None


def test_one_group_of_a_host_that_runs_ahead_cannot_say_how_steps_vary(tmp_path: Path) -> None:
    overhead = {
        "bare": {"step_ns": 15_000, "spread_ns": 26_000, "steps": 5, "groups": 1},
        "window": {"step_ns": 16_000, "spread_ns": 22_000, "steps": 5, "groups": 1},
    }
    bare, window = timed("bare", 3, 8, 75_000), timed("window", 10, 15, 80_000)
    periods = {"first": 3, "host_ns": [2_000] * 4 + [67_000] + [2_000] * 6 + [70_000]}
    known: dict[str, Any] = {"overhead": overhead, "step_periods": periods}
    cost = read_profiling_cost(folder(tmp_path, step_groups=[bare, window], **known))
    assert cost is not None
    assert (cost.bare, cost.window) == (
        StepTime(15_000, None, 5, 1), StepTime(16_000, None, 5, 1)
    )  # fmt: skip
    after = timed("bare", 16, 21, 76_000)
    cost = read_profiling_cost(folder(tmp_path, step_groups=[bare, window, after], **known))
    assert cost is not None
    assert cost.bare == StepTime(15_000, 26_000, 5, 1), "of the groups, by a later launch"


def test_groups_after_the_window_count_only_where_none_is_before_it(tmp_path: Path) -> None:
    overhead = {"bare": {"step_ns": 8_000, "spread_ns": 1_000, "steps": 15, "groups": 3}}
    window, after = timed("window", 10, 15, 50_000), [
        timed("bare", 16, 21, 40_000), timed("bare", 21, 26, 41_000)
    ]  # fmt: skip
    groups = [timed("bare", 3, 8, 30_000), window, *after]
    cost = read_profiling_cost(folder(tmp_path, overhead=overhead, step_groups=groups))
    assert cost is not None
    assert cost.bare == StepTime(6_000, None, 5, 1)
    overhead = {"bare": {"step_ns": 8_100, "spread_ns": 100, "steps": 10, "groups": 2}}
    cost = read_profiling_cost(folder(tmp_path, overhead=overhead, step_groups=[window, *after]))
    assert cost is not None
    assert cost.bare == StepTime(8_100, 100, 10, 2)
