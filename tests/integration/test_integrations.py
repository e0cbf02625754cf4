"""Callbacks that record in place, with the real libraries on the CPU, against launches."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import nvprobe
from tests.conftest import ROOT
from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROGRAM = str(ROOT / "scripts/gpu/programs/trained_by.py")
LIBRARIES = {
    "lightning": "pytorch_lightning",
    "trainer": "transformers",
    "accelerate": "accelerate",
}
COUNTED = """
import sys
import {module}
from nvprobe.instrumentation import forwards

frames, steps = [], 0

def count(frame, event, argument):
    code = frame.f_code
    if event == "call" and ("/nvprobe/" in code.co_filename or forwards.is_wrapper(code)):
        frames.append(code.co_qualname if sys.version_info >= (3, 11) else code.co_name)

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

def stepped(*_):
    global steps
    print("step", steps, *frames)
    frames.clear()
    steps += 1

register_optimizer_step_post_hook(stepped)
sys.setprofile(count)
sys.argv = ["trained_by.py", "{library}", "--record", "{folder}", "--width", "8"]
exec(compile(open({program!r}).read(), "trained_by.py", "exec"))
"""
"""Prints the functions of nvprobe that ran up to each step of the optimizer."""


def python(*words: str, timeout: int = 300) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def needs(library: str) -> None:
    for name in {LIBRARIES[library], "accelerate" if library == "trainer" else "torch"}:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("library", LIBRARIES)
def test_in_place_is_what_a_launch_records(library: str, tmp_path: Path):
    """And a callback that is there in a launch leaves the recording to it."""
    needs(library)
    checks = runpy.run_path(str(ROOT / "scripts/gpu/integrations_check.py"))
    words = [PROGRAM, library, "--width", "8"]
    alone = python("-c", COUNTED.format(
        module=LIBRARIES[library], library=library, folder=tmp_path / "place", program=PROGRAM
    ))  # fmt: skip
    launch = [*checks["LAUNCH"], "--backend", "torch", "-o", str(tmp_path / "launched")]
    python(*launch, *words, "--record", str(tmp_path / "not-made"))
    assert f"nvprobe: steps 10:15 recorded: nvprobe analyze {tmp_path / 'place'}" in alone.stderr
    assert not (tmp_path / "not-made").exists()
    place, launched = (checks["facts"](tmp_path / way) for way in ("place", "launched"))
    assert place["steps"] == [10, 11, 12, 13, 14]
    phases = place["phases"]
    assert phases["step: backward"] == phases["step: optimizer"] == 5
    assert phases["evaluation: evaluation"] == (2 if library == "accelerate" else 1)
    assert phases["checkpoint: checkpoint"] == 1
    assert place == launched

    counted = [line.split()[1:] for line in alone.stdout.splitlines() if line.startswith("step ")]
    ran = {int(step): functions for step, *functions in counted}
    assert len(ran) == 24
    for step in (1, 2, 3, 4, 5, 6, 17, 18, 19, 20, 21, 22, 23):
        assert len(ran[step]) <= 4, (step, ran[step])  # the layer's own call, and its count
    assert len(ran[12]) > 100


def test_callbacks_come_and_go_in_turns():
    """The measurement of what they cost outside of their window."""
    for library in LIBRARIES:
        needs(library)
    turns = str(ROOT / "scripts/gpu/programs/callback_turns.py")
    done = python(turns, ",".join(LIBRARIES), "--width", "8", "--seconds", "0.5")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"program"')]
    assert [row["program"] for row in rows] == list(LIBRARIES)
    for row in rows:
        assert 0 < row["calls"] <= 5
        assert row["own_ns"] > 0
        assert len(row["turns"]["plain"]) == len(row["turns"]["attached"]) > 0
    assert len(rows[-1]["launch_ns"]["before"]) == len(rows[-1]["launch_ns"]["after"]) > 0


@pytest.mark.parametrize("library", ["lightning", "trainer"])
def test_epochs_are_spans_and_evaluations_in_no_step(library: str, recorder: Recorder):
    needs(library)
    code = f"""
import nvprobe; nvprobe.instrument(children=False)
import sys; sys.argv = ["trained_by.py", {library!r}, "--width", "8", "--steps", "6"]
exec(compile(open({PROGRAM!r}).read(), "trained_by.py", "exec"))
"""
    recording = recorder.run(code, timeout=300)
    spans = [one for one in recording.events if one.kind in ("start", "end")]
    assert [one.kind for one in spans] == ["start", "end"] * 2
    assert [(one.text, one.payload) for one in spans[::2]] == [("epoch", 0), ("epoch", 1)]
    assert [one.payload for one in recording.ranges("step")] == [0, 1, 2, 3, 4, 5]
    evaluations = [one.path for one in recording.ranges("phase") if one.name == "evaluation"]
    assert set(evaluations) == {("evaluation",)}


def test_ranks_of_lightning_record_themselves(tmp_path: Path):
    """Processes that Lightning starts have no rank in their environment."""
    needs("lightning")
    (tmp_path / "train.py").write_text(textwrap.dedent("""
        import sys, torch
        import pytorch_lightning as pl
        from nvprobe.integrations.lightning import NvprobeCallback

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(4, 4)
            def training_step(self, batch, index):
                return self.net(batch).square().mean()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.1)

        pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            callbacks=[NvprobeCallback((2, 4), sys.argv[1])],
        ).fit(Module(), torch.utils.data.DataLoader(torch.ones(32, 4), 2))
    """))  # fmt: skip
    done = python(str(tmp_path / "train.py"), str(tmp_path / "job"))
    assert f"nvprobe ranks {tmp_path / 'job'}" in done.stderr
    for rank in (0, 1):
        results = nvprobe.analyze(tmp_path / "job" / f"rank{rank}")
        assert results.steps["index"].tolist() == [2, 3]
    shown = python("-m", "nvprobe", "ranks", str(tmp_path / "job")).stdout
    assert "2 of 2 ranks" in shown


LOOP = """
import sys, torch
from nvprobe.integrations.loops import record_steps

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.ones(24, 4), 2)
loader = record_steps(loader, (3, 5), sys.argv[1])
def train():
    for _ in range(2):
        for number, batch in enumerate(loader):
            net(batch).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    left = type(net).forward.__code__.co_freevars + torch.save.__code__.co_freevars
    print("trained", len(loader), loader.batch_size, left)
"""


def test_a_loop_with_accumulated_gradients(tmp_path: Path):
    python("-c", LOOP + "train()", str(tmp_path / "run"))
    results = nvprobe.analyze(tmp_path / "run")
    assert results.steps["index"].tolist() == [3, 4]
    assert results.ranges.loc["step/forward"]["calls"] == 4


@pytest.mark.nsys
def test_under_nsys_the_window_is_its_own(tmp_path: Path):
    nsys = shutil.which("nsys") or pytest.skip("nsys is not installed")
    words = (
        "profile --trace=nvtx --sample=none --cpuctxsw=none --export=sqlite --capture-range=nvtx"
    )
    window = ["--capture-range-end=stop", "--nvtx-capture=nvprobe.window@nvprobe"]
    report = ["--output", str(tmp_path / "report")]
    subprocess.run(
        [nsys, *words.split(), *window, *report, sys.executable, "-c", LOOP + "train()", "run"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"},
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    (sidecar,) = (tmp_path / "run").iterdir()
    results = nvprobe.analyze(tmp_path / "report.sqlite", sidecar)
    assert results.steps["index"].tolist() == [3, 4]
    assert results.ranges.loc["step/forward/Linear", "calls"] == 4


def test_a_training_that_ends_before_the_window(tmp_path: Path):
    done = python("-c", LOOP.replace("(3, 5)", "(12, 15)") + "train()", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert "nothing is recorded: step 12 was not reached" in done.stderr


@pytest.mark.parametrize(
    "trouble",
    [
        "open(sys.argv[1], 'w').close(); train()",
        "with torch.profiler.profile(): train()",
        "from nvprobe.launch import window as w; w.StepWatch.finish = None; train()",
    ],
)
def test_a_failure_of_ours_is_none_of_the_training(tmp_path: Path, trouble: str):
    done = python("-c", f"{LOOP}{trouble}", str(tmp_path / "run"))
    assert done.stdout == "trained 12 2 ()\n"
    assert "these steps are not recorded: " in done.stderr
