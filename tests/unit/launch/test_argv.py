"""Options to flags of the nsys at hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nvprobe.errors import UsageError
from nvprobe.launch import plan as plan_module
from nvprobe.launch.nsys import WINDOW_RANGE, profile_argv
from nvprobe.launch.options import LaunchOptions, Window, parse_ranks, parse_steps
from nvprobe.launch.plan import make_plan
from nvprobe.launch.target import resolve
from nvprobe.nsys import Nsys

COMMON = ("--capture-range", "--cuda-graph-trace", "--trace-fork-before-exec")
OLD = Nsys(
    Path("/x/nsys"), (2022, 4, 2), "2022.4.2", dict.fromkeys([*COMMON, "--gpu-metrics-device"], "")
)
NEW = Nsys(
    Path("/x/nsys"),
    (2025, 3, 1),
    "2025.3.1",
    dict.fromkeys(
        [
            *COMMON,
            "--gpu-metrics-devices",
            "--gpu-metrics-frequency",
            "--python-backtrace",
            "--python-sampling",
            "--cudabacktrace",
        ],
        "",
    ),
)


def flags(
    nsys: Nsys, options: LaunchOptions, *, cuda: bool = True
) -> tuple[dict[str, str], list[str]]:
    argv, notes = profile_argv(nsys, options, Path("run/report"), ["python", "a.py"], cuda=cuda)
    assert argv[:2] == ["/x/nsys", "profile"]
    assert argv[-2:] == ["python", "a.py"]
    named = dict(word.split("=", 1) for word in argv[2:-2])
    assert len(named) == len(argv) - 4, "each flag once"
    return named, notes


def test_nothing_that_costs_is_on_by_default() -> None:
    named, notes = flags(NEW, LaunchOptions())
    assert notes == []
    assert named == {
        "--output": "run/report",
        "--force-overwrite": "false",
        "--trace": "cuda,nvtx",
        "--sample": "none",
        "--cpuctxsw": "none",
        "--backtrace": "none",
        "--trace-fork-before-exec": "true",
        "--wait": "primary",
        "--kill": "none",
        "--cuda-graph-trace": "node",
    }


def test_steps_open_the_window_with_cuda_or_else_with_a_range() -> None:
    options = LaunchOptions(window=Window(10, 15))
    cuda, _ = flags(NEW, options)
    assert cuda["--capture-range"] == "cudaProfilerApi"
    ranges, _ = flags(NEW, options, cuda=False)
    assert (ranges["--capture-range"], ranges["--nvtx-capture"]) == (
        "nvtx",
        f"{WINDOW_RANGE}@nvprobe",
    )
    for named in (cuda, ranges):
        assert named["--capture-range-end"] == "stop", "the default terminates the program"


def test_python_is_sampled_where_nsys_can() -> None:
    asked = LaunchOptions(python_samples=True)
    old, notes = flags(OLD, asked)
    assert "--python-sampling" not in old
    assert notes == ["nsys 2022.4.2 has no --python-sampling: Python is not sampled"]
    new, notes = flags(NEW, asked)
    assert (new["--python-sampling"], new["--sample"], notes) == ("true", "none", [])


def test_a_window_of_time() -> None:
    named, _ = flags(NEW, LaunchOptions(window=Window(delay_s=2, duration_s=0.5)))
    assert (named["--delay"], named["--duration"]) == ("2", "0.5")
    assert named["--kill"] == "none"


def test_what_a_version_lacks_is_left_out_and_said() -> None:
    asked = LaunchOptions(gpu_metrics=True, python_backtraces=True)
    old, notes = flags(OLD, asked)
    assert old["--gpu-metrics-device"] == "all"
    assert "--python-backtrace" not in old
    assert notes == ["nsys 2022.4.2 has no --python-backtrace: Python back-traces are not recorded"]
    new, notes = flags(NEW, asked)
    assert new["--gpu-metrics-devices"] == "cuda-visible"
    assert new["--python-backtrace"] == "cuda"
    assert (new["--cudabacktrace"], new["--sample"]) == ("all:1", "process-tree")
    assert (old.get("--cudabacktrace"), old["--sample"]) == (None, "none")
    assert notes == []


def test_counters_need_a_gpu() -> None:
    named, notes = flags(NEW, LaunchOptions(gpu_metrics=True), cuda=False)
    assert not any(flag.startswith("--gpu-metrics") for flag in named)
    assert notes == []


def test_flags_of_the_user_replace_ours() -> None:
    argv, _ = profile_argv(
        NEW,
        LaunchOptions(nsys_args=("-t", "cuda,osrt", "--kill=sigterm")),
        Path("r"),
        ["x"],
        cuda=True,
    )
    assert [word for word in argv if word.startswith(("--trace=", "--kill"))] == ["--kill=sigterm"]
    assert argv[-4:] == ["-t", "cuda,osrt", "--kill=sigterm", "x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10:15", (10, 15)), ("10:", (10, None)), (":5", (0, 5)), ("7", (7, 8)), (":", (0, None))],
)
def test_steps(text: str, expected: tuple[int, int | None]) -> None:
    assert parse_steps(text) == expected


@pytest.mark.parametrize("text", ["", "5:5", "6:2", "a", "1:2:3", "-1:3"])
def test_wrong_steps(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_ranks() -> None:
    assert parse_ranks("0,8") == {0, 8}
    assert parse_ranks("0-2, 5") == {0, 1, 2, 5}
    with pytest.raises(UsageError, match="--ranks x"):
        parse_ranks("x")


def test_what_is_done_otherwise_than_asked_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "find_nsys", lambda: OLD)
    target = resolve([sys.executable, "train.py"])
    options = LaunchOptions(export_kind="parquet", with_torch_trace=True)
    notes = "\n".join(make_plan(target, options, {"CUDA_VISIBLE_DEVICES": ""}).notes)
    assert "exports no parquet" in notes
    assert "the torch trace beside nsys ends with step 9" in notes
    chosen = replace(options, export_kind="auto", window=Window(3, 5))
    notes = "\n".join(make_plan(target, chosen, {"CUDA_VISIBLE_DEVICES": ""}).notes)
    assert "parquet" not in notes
    assert "torch trace" not in notes
