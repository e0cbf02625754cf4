"""What a person reads when something was mistyped, filtered away or failed; what pipes give."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from nvprobe.demo import unpacked
from tests.integration.report_captures import cpu_only, failed
from tests.unit.cli.test_commands import run


@pytest.fixture
def demo():
    with unpacked() as path:
        yield path


def verdict(text: str) -> str:
    """The first paragraph below the line of sources."""
    return text.split("\n\n")[1]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["anlyze", "x"], "did you mean 'analyze'?"),
        (["pyproject.toml"], 'did you mean "nvprobe analyze pyproject.toml"?'),
        (["demo", "--uunfold"], "--unfold"),
        (["demo", "--show", "kernel"], "did you mean kernels?"),
        (["demo", "--show", "rubbish"], "there are findings, ranges,"),
    ],
)
def test_what_was_meant(capsys, words, meant):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert meant in " ".join(err.split())


def test_a_path_is_named_as_it_was_typed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("deep").mkdir()
    Path("deep/a.sqlite").write_text("not a database")
    for typed in ("deep/a.sqlite", "../" + tmp_path.name + "/deep/a.sqlite", "deep/b.sqlite"):
        assert run(capsys, "analyze", typed)[2].startswith(f"nvprobe: {typed}: ")
    Path("deep/run.json").write_text("{}")
    assert run(capsys, "analyze", "deep")[2].startswith("nvprobe: deep/a.sqlite: ")


def test_a_time_without_gpu_work_says_when_there_is_some(capsys, demo):
    _, out, _ = run(capsys, "analyze", str(demo), "--time", "0:1us")
    assert "no GPU work lies inside the filters; the GPU works from " in verdict(out)


@pytest.mark.parametrize("words", [["--steps", "5:6"], ["--range", "step/forward"]])
def test_a_filter_does_not_deny_the_loop(capsys, demo, words):
    _, out, _ = run(capsys, "analyze", str(demo), *words)
    assert "no repeated step" not in verdict(out)


def test_what_stands_above_a_filter_has_no_number_of_calls(capsys, demo):
    words = ["--range", "step/forward/*", "--show", "ranges"]
    _, out, _ = run(capsys, "analyze", str(demo), *words)
    step = next(line for line in out.splitlines() if line.startswith("step "))
    assert step.split()[1] == "·"


def test_a_run_that_failed_at_once_says_so(tmp_path):
    analysis = failed(tmp_path)
    assert analysis.verdict == (
        "the program failed with exit code 1 after 0.4 s, before any GPU work was recorded"
    )
    advice = {one.what: one.how for one in analysis.missing}
    assert advice["NVTX ranges"].startswith("nvprobe launch ")


def test_a_folder_without_a_capture_says_why(capsys, tmp_path):
    run_json = {"schema": "nvprobe.run/1", "exit_code": 3, "duration_s": 1.25, "problem": "no GPU"}
    (tmp_path / "run.json").write_text(json.dumps(run_json))
    _, _, err = run(capsys, "analyze", str(tmp_path))
    assert "the program failed with exit code 3 after 1.2 s; no GPU; run it again" in err


def test_a_program_without_a_gpu_is_a_report_of_host_time(tmp_path):
    assert cpu_only(tmp_path).verdict.startswith("CPU only, no GPU work is recorded: 3.80 ms ")


def test_stdin_and_pipes_are_read(capsys, demo, tmp_path, monkeypatch):
    events = tmp_path / "trace.json"
    cpu_only(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(demo.read_bytes())))
    assert "stdin · nsys 2025.3" in run(capsys, "analyze", "-")[1]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    packed = gzip.compress(events.read_bytes())
    writer = threading.Thread(target=pipe.write_bytes, args=(packed,))
    writer.start()
    assert "CPU only" in run(capsys, "analyze", str(pipe))[1]
    writer.join()
