"""What a person reads when something was mistyped, filtered away or failed; what pipes give."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path

import adbc_driver_manager.dbapi
import pytest

from nvprobe.demo import unpacked
from tests.integration.report_captures import cpu_only, failed, of
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


def test_a_folder_of_runs_names_the_last_one(capsys, tmp_path):
    for name in ("20260101-train", "20260102-train"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    code, _, err = run(capsys, "analyze", str(tmp_path))
    assert code == 1
    assert f"is a folder with 2 runs; give one, such as {tmp_path / '20260102-train'}" in err


def test_an_empty_input_is_no_folder(capsys):
    code, _, err = run(capsys, "analyze", "")
    assert (code, err) == (2, "nvprobe: an INPUT is empty, as from a variable that is not set\n")


def test_what_cannot_be_written_is_named_as_it_was_given(capsys, demo, tmp_path):
    target = str(tmp_path / "nosuch" / "copy.sqlite")
    assert run(capsys, "redact", str(demo), target)[2] == (
        f"nvprobe: No such file or directory: {target!r}\n"
    )
    assert run(capsys, "export", str(demo), "--to", "sqlite", "-o", target)[2] == (
        f"nvprobe: cannot write {target}: No such file or directory; choose another output\n"
    )


def test_an_interrupt_that_a_library_made_an_error_of(capsys, demo, monkeypatch):
    def importing(*_: object, **__: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("partially initialized module")

    monkeypatch.setattr("nvprobe.cli.pipeline.trace_of", importing)
    assert run(capsys, "analyze", str(demo)) == (130, "", "nvprobe: interrupted\n")


def test_a_pipe_or_a_device_is_written_to_and_never_replaced(capsys, demo, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert run(capsys, "analyze", str(demo), "--force", "-o", str(pipe))[0] == 0
    reader.join()
    assert read[0].startswith(b"h200_eager.sqlite")
    code, _, err = run(capsys, "export", str(demo), "--to", "json", "--force", "-o", str(pipe))
    assert (code, err) == (2, f"nvprobe: {pipe} is a pipe or a device; name a file\n")
    assert pipe.is_fifo()


def test_a_full_disk_is_said_of_the_copy_and_not_of_the_export(capsys, demo, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise adbc_driver_manager.OperationalError(
            "INTERNAL: database or disk is full\nquery was: COMMIT",
            status_code=adbc_driver_manager.AdbcStatusCode.INTERNAL,
        )

    monkeypatch.setattr(adbc_driver_manager.dbapi.Cursor, "adbc_ingest", full)
    code, _, err = run(capsys, "redact", str(demo), str(tmp_path / "copy.sqlite"))
    said = "copy.sqlite cannot be written (INTERNAL: database or disk is full); name another"
    assert (code, err) == (1, f"nvprobe: {said}\n")


def test_a_run_that_failed_later_says_what_its_host_did(tmp_path):
    cpu_only(tmp_path)
    run_json = {"schema": "nvprobe.run/1", "files": ["trace.json"], "exit_code": 1, "duration_s": 4}
    (tmp_path / "run.json").write_text(json.dumps(run_json))
    assert of([tmp_path]).verdict.startswith(
        "the program failed with exit code 1 after 4.0 s, no GPU work is recorded: 3.80 ms in range"
    )


def test_an_input_that_may_not_be_read_is_named_by_its_reader(capsys, tmp_path, monkeypatch):
    secret = tmp_path / "secret.sqlite"
    secret.touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # what click asks
    opened = Path.open

    def refused(self: Path, *more: object, **named: object) -> object:
        if self == secret:
            raise PermissionError(13, "Permission denied", str(secret))
        return opened(self, *more, **named)

    monkeypatch.setattr(Path, "open", refused)
    for words in (["analyze"], ["facts"], ["simulate"], ["redact"], ["verify", str(secret)]):
        code, _, err = run(capsys, *words, str(secret), *(["x"] if words == ["redact"] else []))
        said = "secret.sqlite: cannot be opened (Permission denied); check its permissions"
        assert (words, code, said in err) == (words, 1, True)
