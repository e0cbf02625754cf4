"""The scripts of scripts/gpu start without a GPU, and keep what they measured."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")
GPU = ROOT / "scripts" / "gpu"
HELP = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        assert ended.code in (0, None), script
"""


def functions(name: str) -> dict[str, Any]:
    return runpy.run_path(str(GPU / f"{name}.py"))


def test_every_script_can_say_what_it_does() -> None:
    """In one process: all that they import at their start is there, and their options are sound."""
    scripts = sorted(
        str(file)
        for file in GPU.glob("*.py")
        if {"ArgumentParser", "pair_runner"} & set(re.findall(r"\w+", text := file.read_text()))
        and "__main__" in text
    )
    assert {str(GPU / "pairs.py"), str(GPU / "judge_programs.py")} < set(scripts)
    done = subprocess.run(
        [sys.executable, "-c", HELP, *scripts], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("usage:") == len(scripts)


def test_rows_leave_no_pipe_open(tmp_path: Path) -> None:
    """Else a test that reads them fails by a warning after it."""
    program = tmp_path / "rows.py"
    program.write_text("print('{\"row\": 1}')")
    script = functions("annotate_cost")
    script["step_rows"].__globals__["STEP_COST"] = program
    assert list(script["step_rows"]([])) == [{"row": 1}]


def test_a_failing_kind_is_a_row() -> None:
    def rows() -> Any:
        yield {"kind": "gpu", "within": True}
        raise RuntimeError("no GPU any more")

    first, failed = functions("overhead_check")["kept_going"]("gpu", rows())
    assert first["within"]
    assert not failed["within"]
    assert "no GPU any more" in failed["error"]


def test_verdicts_say_what_the_interval_holds() -> None:
    verdict = functions("hot_loops")["verdict"]
    assert [verdict(0.3, low, high)[:4] for low, high in ((0, 0.5), (0.6, 1), (0, 1))] == [
        "pass", "fail", "open",
    ]  # fmt: skip
    times = {"plain": [1.0] * 9, "asleep": [1.01] * 9, "recorded": [1.2] * 9}
    turns = functions("turns_cost")["verdict"]({"before": times, "window": times})
    assert turns["before"].startswith("pass: +1.0")
    assert turns["window"].startswith("fail: +20.0")
    assert functions("turns_cost")["verdict"]({"before": times})["window"] == "fail: not measured"


def test_two_ways_without_kernels_do_not_agree() -> None:
    check = functions("integrations_check")
    way = {"steps": [1], "phases": {}, "ops_per_step": [0], "operator_calls": 1}
    same = check["agreement"](*[{**way, "busy_us_per_step": [0.0]}] * 2)
    assert not check["good"]({"library": "lightning", "same": same})
    same = check["agreement"](*[{**way, "busy_us_per_step": [5.0]}] * 2)
    assert check["good"]({"library": "lightning", "same": same})
    assert not check["good"]({"outside": "accelerate"})


def test_a_callback_costs_nothing_outside_only_where_the_turns_or_its_calls_say_so() -> None:
    judged = functions("integrations_check")["judged"]
    plain = [1e7 + 1e4 * (n % 7) for n in range(30)]
    row = {"program": "trainer", "calls": 2.0, "own_ns": 5_000.0}

    def verdict(more: list[float], own_ns: float = 5_000.0) -> str:
        turns = {"plain": plain, "attached": [a * b for a, b in zip(plain, more * 15, strict=True)]}
        said: str = judged({**row, "own_ns": own_ns, "turns": turns})["verdict"]
        return said

    assert verdict([0.999, 1.001]) == "pass"
    assert verdict([0.9, 1.1]) == "pass", "its own calls take less than a thousandth of a step"
    assert verdict([0.9, 1.1], own_ns=50_000.0) == "open"
    assert verdict([1.02, 1.03]) == "fail"


def test_launches_that_take_longer_after_a_window_are_a_failure() -> None:
    check = functions("integrations_check")
    found = {"program": "accelerate", "calls": 2.0, "own_ns": 5_000.0,
             "turns": {"plain": [1e7] * 9, "attached": [1e7] * 9}}  # fmt: skip
    for after, expected in (("pass", 4_000), ("fail", 4_400)):
        times = {"before": [4_000.0] * 20, "after": [float(expected)] * 20}
        row = check["judged"]({**found, "launch_ns": times})
        assert (row["after"], check["good"](row)) == (after, after == "pass")


def test_a_late_host_is_held_against_both_hosts_by_hand() -> None:
    """Of two ranks, of three steps after the first: 65 against 48 ms."""
    slower = functions("ranks_captures")["slower"]
    hosts = [{"steps": [48, 55, 48, 47]}, {"steps": [68, 67, 63, 65]}]
    late = {"rank": 1, "cause": "host", "late_ns": 17}
    assert slower(late, {"hosts_ns": hosts})
    assert not slower(late | {"late_ns": 30}, {"hosts_ns": hosts})
    assert not slower(late | {"rank": 0}, {"hosts_ns": hosts})
    assert not slower(late | {"cause": "compute"}, {"hosts_ns": hosts})


def test_a_spin_may_cost_nothing_where_the_gpu_idles_for_longer() -> None:
    checks_of = functions("ranks_captures")["of_the_plant"]
    spin = {"kind": "kernel", "ranks": [1], "gpu_ns": 4 * 1_500}
    late = {"rank": 1, "path": "step", "late_ns": 1_600, "cause": "compute"}

    def checks(idle_ns: int, stragglers: list[Any]) -> dict[str, bool]:
        """What is checked of a job whose rank 1 spins for 1,500 ns in each of four steps."""
        ranks = [{}, {"idle_ns": idle_ns, "steps": 4}]
        row = {"ranks": ranks, "differences": [spin], "stragglers": stragglers}
        return {key: check() for key, check in checks_of(row, 1_500).items()}

    assert checks(2_000, []) == {"plant_seen": True, "named_by_hand": True}
    assert checks(1_000, [late]) == {"late_rank_named": True, "delay": True}
    assert not checks(1_000, [late | {"late_ns": 1_800}])["delay"]


def test_no_finding_of_exposed_transfer_needs_a_reason() -> None:
    agrees = functions("ranks_captures")["exposed_agrees"]
    found = {"ours_ns": [], "by_hand_ns": 1_000, "idle_ns": 0, "of_step": 0.05}
    assert not agrees(found, (0.75, 1.33))
    assert agrees(found | {"idle_ns": 2_000}, (0.75, 1.33))
    assert agrees(found | {"of_step": 0.01}, (0.75, 1.33))
    assert agrees(found | {"ours_ns": [900]}, (0.75, 1.33))
    assert not agrees(found | {"ours_ns": [500]}, (0.75, 1.33))
