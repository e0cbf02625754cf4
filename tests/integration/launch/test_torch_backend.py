"""torch.profiler where there is no nsys, and beside it."""

from __future__ import annotations

import gzip
import html
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from nvprobe.api import analyze
from nvprobe.merging.load import load
from nvprobe.nsys import Nsys
from tests.conftest import ROOT
from tests.integration.launch.conftest import Launcher, ranges_in

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

EXAMPLE = str(ROOT / "examples" / "00_train.py")


@pytest.fixture
def bare(launch: Launcher, tmp_path: Path) -> Launcher:
    """A machine without nsys: the one that is named answers nothing."""
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    launch.environ["NVPROBE_NSYS"] = str(fake)
    return launch


def events(folder: Path) -> list[dict[str, Any]]:
    (trace,) = folder.glob("trace.*.json.gz")
    with gzip.open(trace, "rt") as file:
        return list(json.load(file)["traceEvents"])


def names(folder: Path, category: str) -> list[str]:
    return [event["name"] for event in events(folder) if event.get("cat") == category]


def test_the_example_ends_with_a_useful_report(bare: Launcher) -> None:
    result = bare(EXAMPLE, analyze=True)
    assert result.code == 0, result.err
    assert result.out.startswith("step 5: loss")
    assert "Warning" not in result.err, "of the program, because of nvprobe"
    assert "USDT" not in result.err, "Kineto's own messages"
    assert "Recording with torch.profiler instead" in result.err
    assert "torch.profiler records steps 0 to 9" in result.err
    annotations = names(result.folder, "user_annotation")
    assert annotations.count("step") >= 9
    assert {"forward", "backward", "optimizer", "data"} <= set(annotations)
    assert "aten::addmm" in names(result.folder, "cpu_op")
    for word in ("step", "forward", "backward"):
        assert word in result.err, "the summary"
    assert result.run["backend"] == "torch"
    assert result.run["steps"] == 20
    analysis = json.loads((result.folder / "analysis.json").read_text())
    page = html.unescape((result.folder / "report.html").read_text("utf-8"))
    assert analysis["verdict"] in page
    assert [step["index"] for step in analysis["steps"]] == list(range(10))


def test_steps_choose_what_is_recorded(bare: Launcher) -> None:
    result = bare("--backend", "torch", "--steps", "3:6", EXAMPLE, "--steps", "9")
    assert result.code == 0, result.err
    assert names(result.folder, "user_annotation").count("step") == 3
    assert "step 5: loss" in result.out


@pytest.mark.parametrize("ends", ["crash", "sigterm", "sigint"])
def test_what_was_recorded_is_kept(bare: Launcher, ends: str) -> None:
    program = bare.script(
        """
        import pathlib, sys, time
        import torch, nvprobe
        for i in nvprobe.steps(range(10_000)):
            torch.ones(100).sum()
            if i == 3:
                pathlib.Path("ready").touch()
                if sys.argv[1] == "crash":
                    raise RuntimeError("the user's own")
            time.sleep(0.01)
        """
    )
    process = bare.start("--backend", "torch", "--steps", "1:", program, ends)
    bare.wait_for("ready")
    if ends != "crash":
        process.send_signal(signal.SIGTERM if ends == "sigterm" else signal.SIGINT)
    result = bare.finish(process)
    assert result.code == {"crash": 1, "sigterm": 143, "sigint": 130}[ends]
    assert "aten::ones" in names(result.folder, "cpu_op")


def test_sigkill_says_why_there_is_no_trace(bare: Launcher) -> None:
    program = bare.script("import os, torch; os.kill(os.getpid(), 9)")
    result = bare("--backend", "torch", program)
    assert result.code == 137
    assert "signal 9 ended the program while it recorded" in result.err


def test_a_program_without_torch(bare: Launcher) -> None:
    result = bare("--backend", "torch", bare.script("print('ran')"))
    assert (result.code, result.out) == (0, "ran\n")
    assert "did not import torch" in result.err


def test_a_program_that_becomes_another_one(bare: Launcher) -> None:
    program = bare.script("import os, torch; os.execvp('true', ['true'])")
    result = bare("--backend", "torch", program)
    assert result.code == 0
    assert "no trace was written: the program ended while it recorded" in result.err


def test_a_program_that_ends_at_once(bare: Launcher) -> None:
    program = "import os, torch; torch.ones(100).sum(); os._exit(6)"
    result = bare("--backend", "torch", bare.script(program))
    assert result.code == 6
    assert "aten::ones" in names(result.folder, "cpu_op")


def test_a_program_that_is_not_python(bare: Launcher) -> None:
    result = bare("--backend", "torch", "ls")
    assert result.code == 2
    assert "install nsys" in result.err


@pytest.mark.nsys
def test_a_torch_trace_of_the_same_steps_on_one_clock(launch: Launcher, nsys: Nsys) -> None:
    result = launch("--with-torch-trace", "--steps", "3:6", EXAMPLE, "--steps", "9")
    assert result.code == 0, result.err
    assert ranges_in(result.folder / "report.sqlite").count("step") == 3
    assert "aten::addmm" in names(result.folder, "cpu_op")
    marks = [name for name in names(result.folder, "user_annotation") if "nvprobe clock" in name]
    assert len(marks) == 2, "one at each end"
    times = [int(re.search(r"\d+", mark)[0]) for mark in marks]
    assert times[0] < times[1]
    trace = load(result.folder)
    assert trace.clock is not None
    assert trace.clock.kind == "shared"
    low, high = trace.clock.offset_ns
    assert -1_000_000_000 < low <= high < 1_000_000_000  # a busy machine's marks bound it loosely


@pytest.mark.nsys
def test_overhead_is_measured_on_steps_outside_the_window(launch: Launcher, nsys: Nsys) -> None:
    result = launch("--steps", "10:15", EXAMPLE, "--steps", "27")
    assert result.code == 0, result.err
    groups = [(one["kind"], one["first"], one["end"]) for one in result.run["step_groups"]]
    assert groups == [("bare", 3, 8), ("window", 10, 15), ("bare", 16, 21), ("bare", 21, 26)]
    overhead = result.run["overhead"]
    assert (overhead["bare"]["steps"], overhead["window"]["steps"]) == (5, 5), "before and in it"
    assert overhead["slowdown"] == overhead["window"]["step_ns"] / overhead["bare"]["step_ns"] > 0
    assert re.search(r"overhead: a step takes .* ms unprofiled \(5 steps\)", result.err)
    profiling = load(result.folder).profiling
    assert profiling is not None
    assert profiling.bare is not None
    assert profiling.bare.step_ns == overhead["bare"]["step_ns"]


@pytest.mark.slow
def test_overhead_of_the_torch_backend_is_measured_after_an_early_window(bare: Launcher) -> None:
    result = bare("--backend", "torch", "--steps", "2:5", EXAMPLE, "--steps", "17")
    assert result.code == 0, result.err
    groups = [(one["kind"], one["first"], one["end"]) for one in result.run["step_groups"]]
    assert groups == [("window", 3, 5), ("bare", 6, 11), ("bare", 11, 16)]


THREADS = """
import threading, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
for steps in (6, 6):
    thread = threading.Thread(target=train, args=(steps,))
    thread.start()
    thread.join()
print("trained")
"""


@pytest.mark.parametrize("steps", ["0:4", "4:9"])
def test_steps_of_threads(bare: Launcher, steps: str) -> None:
    """Torch crashes where another thread than its own stops a profiler."""
    result = bare("--steps", steps, "python", "-c", THREADS)
    assert (result.code, result.out) == (0, "trained\n"), result.err
    assert events(result.folder)


OWN = """
import torch
from torch.profiler import profile, ProfilerActivity
model = torch.nn.Linear(2, 2)
for _ in range(3):
    with profile(activities=[ProfilerActivity.CPU]) as own:
        model(torch.ones(1, 2))
    print(*sorted(event.key for event in own.key_averages()))
"""


def test_a_program_with_a_profiler_of_its_own(bare: Launcher) -> None:
    """Torch crashes where two profilers end; the program's records what it does without us."""
    result = bare("--backend", "torch", "python", "-c", OWN)
    assert result.code == 0, result.err
    assert len(set(result.out.splitlines())) == 1
    assert "forward" not in result.out
    assert "Linear" not in result.out
    assert "the trace ends here" in result.err
    assert events(result.folder)


WARM_UP = """
import torch, nvprobe
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def work():
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
for _ in range(5):
    work()
for _ in range(8):
    with nvprobe.step():
        work()
"""


def test_steps_found_in_a_warm_up_are_left_out_of_a_whole_run(bare: Launcher) -> None:
    result = bare("--steps", "0:100", "python", "-c", WARM_UP)
    assert result.code == 0, result.err
    steps = analyze(result.folder).steps
    assert steps["index"][steps["steady"]].min() >= 5
