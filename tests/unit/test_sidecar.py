"""The sidecar: whole lines, whatever ends the program, forks it or fills the disk."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.nvtx_recorder import ROOT, Recorder


def lines(folder: Path) -> dict[str, list[dict]]:
    return {
        file.name: [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("sidecar.*"))
    }


def run(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if "RANK" not in key}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**kept, "PYTHONPATH": str(ROOT), "NVPROBE_SIDECAR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def only(folder: Path) -> list[dict]:
    (file,) = lines(folder).values()
    return file


def test_rows_of_a_window_are_written_at_its_end(tmp_path: Path):
    code = """
        from nvprobe.instrumentation import awake, sidecar
        path = sidecar.open()
        def rows():
            return path.read_text().count("module")
        def step(number):
            for i in range(300):
                sidecar.row("module", ("name", "first"), ("a", i))
            sidecar.step_ended()
        step(0)
        assert rows() == 2, rows()               # the whole run is recorded: every step is written
        awake.sleep()
        awake.wake()
        for number in range(3):
            step(number)
        assert rows() == 2, rows()
        awake.sleep()
        assert rows() == 2 + 4, rows()
        awake.wake()
        for number in range(sidecar.MOST_HELD // 300 + 1):
            step(number)
        assert rows() > 6 + 100, rows()          # memory is bounded
        awake.wake()
        step(0)
    """
    completed = run(code, tmp_path)
    assert completed.returncode == 0, completed.stderr
    written = [line["rows"] for line in only(tmp_path) if line["kind"] == "module"]
    assert max(map(len, written)) == 256
    assert sum(map(len, written)) == 300 * (4 + (2**15 // 300 + 1) + 1)  # the end writes the rest


def test_header_lines_and_rows(tmp_path: Path):
    code = """
        from nvprobe.instrumentation import sidecar
        assert not sidecar.is_open()
        sidecar.write("lost", reason="closed")
        path = sidecar.open()
        assert path.exists() and sidecar.open("elsewhere") == path
        sidecar.write("note", text="é\\n", of=object)
        for i in range(600):
            sidecar.row("module", ("name", "first"), ("a", i))
        sidecar.close()
        sidecar.write("lost", reason="closed")
    """
    completed = run(code, tmp_path, RANK="3", WORLD_SIZE="8", LOCAL_RANK="1")
    assert completed.returncode == 0, completed.stderr
    (name,) = lines(tmp_path)
    assert re.fullmatch(r"sidecar\.3\.\d+\.jsonl", name)
    header, clock, note, *rows, last_clock = only(tmp_path)
    assert header["kind"] == "header"
    assert header["schema"] == "nvprobe.sidecar/1"
    assert (header["rank"], header["world_size"], header["local_rank"]) == (3, 8, 1)
    assert clock["kind"] == last_clock["kind"] == "clock"
    assert note == {"kind": "note", "text": "é\n", "of": "<class 'object'>"}
    assert {row["kind"] for row in rows} == {"module"}
    assert all(row["columns"] == ["name", "first"] for row in rows)
    assert [one for row in rows for one in row["rows"]] == [["a", i] for i in range(600)]


def test_nothing_of_the_environment_or_the_machine_is_written(tmp_path: Path):
    folder = tmp_path / "out"
    code = "from nvprobe.instrumentation import sidecar; sidecar.open(); sidecar.write('x')"
    run(code, folder, SECRET_TOKEN="hunter2", HOME="/home/ann")
    (file,) = folder.iterdir()
    text = file.read_text()
    assert "hunter2" not in text
    assert "/home/ann" not in text
    assert str(ROOT) not in text
    assert str(tmp_path) not in text


def test_a_killed_run_keeps_its_lines(tmp_path: Path):
    code = """
        import os, signal
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        sidecar.write("before", n=1)
        sidecar.row("module", ("n",), (2,))
        sidecar.flush()
        sidecar.row("module", ("n",), (3,))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(code, tmp_path).returncode == -signal.SIGKILL
    kinds = [line["kind"] for line in only(tmp_path)]
    assert kinds == ["header", "clock", "before", "module"]


def test_forked_children_have_their_own_file_and_no_row_twice(tmp_path: Path):
    code = """
        import os
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        sidecar.row("module", ("n",), (1,))
        silent = os.fork()
        if silent == 0:
            os._exit(0)
        os.waitpid(silent, 0)
        child = os.fork()
        sidecar.write("who", child=child == 0)
        if child:
            os.waitpid(child, 0)
    """
    completed = run(code, tmp_path)
    assert completed.returncode == 0, completed.stderr
    files = lines(tmp_path)
    assert len(files) == 2
    for name, content in files.items():
        header, *rest = content
        assert header["pid"] == int(name.split(".")[2])
        (who,) = (line for line in rest if line["kind"] == "who")
        modules = [line for line in rest if line["kind"] == "module"]
        assert bool(modules) is not who["child"]


def test_a_full_file_says_so_and_stops(tmp_path: Path):
    code = """
        from nvprobe.instrumentation import sidecar
        sidecar.LIMIT = 4000
        sidecar.open()
        for i in range(1000):
            sidecar.row("module", ("n",), (i,)); sidecar.flush()
        sidecar.write("still", n=1)
        for i in range(1000):
            sidecar.write("line", n=i)
    """
    run(code, tmp_path)
    (file,) = tmp_path.iterdir()
    content = only(tmp_path)
    assert file.stat().st_size < 5000
    assert [line["kind"] for line in content].count("truncated") == 1
    assert {"kind": "still", "n": 1} in content


def test_an_unwritable_folder_does_not_stop_the_program(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code = """
        from nvprobe.instrumentation import sidecar
        assert sidecar.open() is None
        sidecar.write("x")
        print("went on")
    """
    completed = run(code, blocked / "folder")
    assert completed.stdout == "went on\n"
    assert "no sidecar" in completed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to fail a write with")
def test_a_full_disk_closes_it_silently(tmp_path: Path):
    code = """
        import os
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        os.dup2(os.open("/dev/full", os.O_WRONLY), sidecar._file.descriptor)
        sidecar.write("x")
        assert not sidecar.is_open()
        sidecar.write("x")
    """
    completed = run(code, tmp_path)
    assert completed.returncode == 0, completed.stderr


def test_a_disk_that_fills_at_the_end_of_a_step_stops_no_program(tmp_path: Path):
    code = """
        import os
        import nvprobe
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        os.dup2(os.open("/dev/full", os.O_WRONLY), sidecar._file.descriptor)
        for kind in ("module", "collective", "place"):
            sidecar.row(kind, ("name",), ("x",))
        with nvprobe.step():
            pass
        assert not sidecar.is_open()
    """
    completed = run(code, tmp_path)
    assert completed.returncode == 0, completed.stderr


def test_what_is_missing_is_told_without_folders(tmp_path: Path):
    code = """
        import json
        from nvprobe.instrumentation import hooks, sidecar, torch_hooks
        sidecar.open()
        try:
            from json import nothing
        except ImportError as error:
            assert json.__file__ in str(error)
            torch_hooks._report("ids", error)
            hooks.Hooks("names").missing("json.nothing", error)
    """
    completed = run(code, tmp_path)
    assert completed.returncode == 0, completed.stderr
    reasons = [line["reason"] for line in only(tmp_path) if line["kind"] == "hook"]
    assert len(reasons) == 2
    for reason in reasons:
        assert reason.endswith(
            "ImportError: cannot import name 'nothing' from 'json' (__init__.py)"
        )


def test_threads_write_whole_lines_and_lose_none(tmp_path: Path):
    code = """
        import threading
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        def work(who):
            for i in range(500):
                sidecar.row("module", ("who", "n"), (who, i))
                sidecar.write("line", who=who, n=i, pad="x" * 200)
        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        [one.start() for one in threads]; [one.join() for one in threads]
    """
    assert run(code, tmp_path).returncode == 0
    content = only(tmp_path)
    written = sorted((line["who"], line["n"]) for line in content if line["kind"] == "line")
    rows = sorted(
        tuple(row) for line in content if line["kind"] == "module" for row in line["rows"]
    )
    assert written == rows == [(who, i) for who in range(4) for i in range(500)]


def test_a_clock_that_is_set_back_is_not_waited_for(tmp_path: Path):
    code = """
        import time, types
        from nvprobe.instrumentation import sidecar
        sidecar.open()
        told = iter([10**18, 10**18 + 1])
        sidecar.time = types.SimpleNamespace(
            time_ns=lambda: next(told, 10**17), perf_counter_ns=time.perf_counter_ns
        )
        sidecar.clock()
        sidecar.time = time
    """
    assert run(code, tmp_path).returncode == 0
    clocks = [line["unix_ns"] for line in only(tmp_path) if line["kind"] == "clock"]
    assert len(clocks) == 2  # opened and closed
    assert 10**18 + 50_000 not in clocks


def test_clock_lines_and_marks_name_the_same_instant(recorder: Recorder, tmp_path: Path):
    code = "from nvprobe.instrumentation import sidecar; sidecar.open(); sidecar.clock()"
    recording = recorder.run(code, NVPROBE_SIDECAR=str(tmp_path))
    marks = {int(mark.text.removeprefix("nvprobe clock ")): mark for mark in recording.marks()}
    clocks = [line for line in only(tmp_path) if line["kind"] == "clock"]
    assert [line["unix_ns"] for line in clocks] == list(marks)
    assert len(clocks) == 3  # opened, asked for, closed
    for line in clocks:
        mark = marks[line["unix_ns"]]
        assert mark.payload == line["unix_ns"]
        assert line["mark_ns"][0] <= mark.unix_ns <= line["mark_ns"][1]
        assert line["unix_ns"] <= line["mark_ns"][0]


def test_versions_are_written_once_torch_is_imported_and_compared(tmp_path: Path):
    torch = pytest.importorskip("torch")
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build"
    (tmp_path / "version").write_text(line)
    code = f"""
        import pathlib
        import nvprobe
        from nvprobe.instrumentation import torch_hooks
        torch_hooks.DRIVER = pathlib.Path({str(tmp_path / "version")!r})
        nvprobe.instrument(children=False)
        import torch
    """
    assert run(code, tmp_path).returncode == 0
    (found,) = (line for line in only(tmp_path) if line["kind"] == "torch")
    assert found["version"] == torch.__version__
    assert (found["cuda"], found["driver"]) == (torch.version.cuda, "570.124.06")
