"""What nsys does wrong, provoked: a usable report, or one line that says what to do.

NSYS.md's list with the real nsys. Each program makes ranges named ``work`` by nvprobe itself, so
that a report can be held against what it should contain.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher, Result, left_after_a_while

pytestmark = [pytest.mark.nsys, pytest.mark.slow]

WAITS = """
    import pathlib, time, nvprobe
    with nvprobe.range("work"):
        pass
    pathlib.Path("ready").touch()
    time.sleep(600)
"""


def one_line(result: Result, says: str) -> None:
    """One line of stderr carries the message; there is no traceback."""
    assert "Traceback" not in result.err, result.err
    lines = [line for line in result.err.splitlines() if says in line]
    assert len(lines) == 1, result.err


def test_a_window_that_never_opens(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script("import nvprobe\nfor _ in nvprobe.steps(range(4)): pass")
    result = launch("--steps", "10:15", program)
    assert result.code == 0
    one_line(result, "never opened: the program made 4 steps. Use --steps within 0:4")
    assert result.run["problem"]
    assert result.run["steps"] == 4


def test_a_window_without_any_step(launch: Launcher, nsys: Nsys) -> None:
    result = launch("--steps", "0:5", launch.script("print('no steps')"), analyze=True)
    assert (result.code, result.out) == (0, "no steps\n")
    one_line(result, "no step was seen")
    assert "analy" not in result.err, "there is nothing to analyze"


def test_a_wait_that_finds_no_batch_is_no_step(launch: Launcher, nsys: Nsys) -> None:
    """A loader without a length is asked once more than it has batches."""
    program = launch.script("import nvprobe\nfor _ in nvprobe.steps(iter(range(4))): pass")
    result = launch("--steps", "4:6", program)
    one_line(result, "holds no step: the program made 4 steps. Use --steps within 0:4")
    assert result.run["steps"] == 4


def test_a_program_that_ends_at_once(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import os, nvprobe
        for _ in nvprobe.steps(range(3)):
            with nvprobe.range("work"):
                pass
        os._exit(6)
        """
    )
    result = launch(program)
    assert (result.code, result.run["steps"], result.run["problem"]) == (6, 3, None)
    assert result.ranges().count("work") == 3


def test_steps_open_and_close_the_window(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import nvprobe
        for i in nvprobe.steps(range(8)):
            with nvprobe.range(f"body{i}"):
                pass
        print("the program goes on")
        """
    )
    result = launch("--steps", "2:5", program)
    assert (result.code, result.out) == (0, "the program goes on\n"), result.err
    bodies = [name for name in result.ranges() if name.startswith("body")]
    assert bodies == ["body2", "body3", "body4"]


def test_a_capture_end_that_kills_the_program(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import time, nvprobe
        for i in nvprobe.steps(range(4000)):  # goes on until it is killed
            with nvprobe.range("work"):
                time.sleep(0.05)
        """
    )
    result = launch(
        "--steps",
        "2:4",
        "--nsys-arg=--capture-range-end=stop-shutdown",
        "--nsys-arg=--kill=sigterm",
        program,
    )
    assert result.code == 143
    assert result.ranges().count("work") == 2


def test_output_that_appears_during_the_run(launch: Launcher, nsys: Nsys) -> None:
    """nsys keeps what is in the way and leaves its own report in its temporary folder."""
    program = launch.script(
        """
        import pathlib, nvprobe
        pathlib.Path("run/report.nsys-rep").write_text("in the way")
        with nvprobe.range("work"):
            pass
        """
    )
    result = launch(program)
    assert result.code == 0
    one_line(result, "moved here")
    assert "work" in result.ranges()


def test_sigkill_of_the_program(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import os, signal, nvprobe
        with nvprobe.range("work"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = launch(program)
    assert result.code == 137
    one_line(result, "killed by SIGKILL")
    assert (result.folder / "report.nsys-rep").exists()


def test_a_crash(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import nvprobe
        with nvprobe.range("work"):
            raise RuntimeError("the user's own")
        """
    )
    result = launch(program)
    assert result.code == 1
    assert "RuntimeError: the user's own" in result.err
    assert "work" in result.ranges()


def test_a_segmentation_fault(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import ctypes, nvprobe
        with nvprobe.range("work"):
            pass
        ctypes.string_at(0)
        """
    )
    result = launch(program)
    assert result.code == 139
    assert result.run["signal"] == signal.SIGSEGV
    assert result.run["problem"] is None or "Traceback" not in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_program_and_the_capture_is_kept(
    launch: Launcher, nsys: Nsys, number: int
) -> None:
    process = launch.start(launch.script(WAITS))
    launch.wait_for("ready")
    process.send_signal(number)
    result = launch.finish(process)
    assert result.code == 128 + number
    assert "work" in result.ranges()
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in result.err


@pytest.mark.parametrize("backend", ["nsys", "none"])
def test_what_nohup_ignores_stays_ignored(launch: Launcher, nsys: Nsys, backend: str) -> None:
    """A training started with nohup outlives its terminal: neither it nor nvprobe is told."""
    program = launch.script(
        """
        import pathlib, signal, time
        pathlib.Path("ready").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
        """
    )
    if backend == "none":
        launch.environ["NVPROBE_NSYS"] = "/bin/false"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit what is ignored
    try:
        process = launch.start(program)
    finally:
        signal.signal(signal.SIGHUP, before)
    launch.wait_for("ready")
    process.send_signal(signal.SIGHUP)
    (launch.folder / "go").touch()
    result = launch.finish(process)
    assert (result.code, result.out) == (0, "True\n"), result.err
    assert result.run["signal"] is None


def test_a_program_that_handles_the_signal_keeps_its_code(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import pathlib, signal, sys, time

        def checkpoint(*_):
            print("checkpoint", flush=True)
            pathlib.Path("printed").touch()

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        signal.signal(signal.SIGUSR1, checkpoint)
        pathlib.Path("ready").touch()
        while True:
            time.sleep(0.1)
        """
    )
    process = launch.start(program)
    launch.wait_for("ready")
    process.send_signal(signal.SIGUSR1)
    launch.wait_for("printed")  # the other signal's exit may cut this one's print in two
    process.send_signal(signal.SIGTERM)
    result = launch.finish(process)
    assert (result.code, result.out) == (7, "checkpoint\n")


def test_sigkill_of_nvprobe_leaves_nothing_running(launch: Launcher, nsys: Nsys) -> None:
    process = launch.start(launch.script(WAITS))
    launch.wait_for("ready")
    process.kill()
    process.communicate()
    assert left_after_a_while(launch.environ["LAUNCH_TEST_MARK"]) == []


def test_forked_and_spawned_children_are_recorded(launch: Launcher, nsys: Nsys) -> None:
    """As servers do it (vLLM): the parent starts workers and only waits for them."""
    program = launch.script(
        """
        import multiprocessing as mp
        import time
        import nvprobe

        def work(name):
            with nvprobe.range(name):
                time.sleep(0.3)  # nsys loses what a child does that ends within milliseconds

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                worker = mp.get_context(method).Process(target=work, args=(f"in {method}",))
                worker.start()
                worker.join()
        """
    )
    result = launch(program)
    assert result.code == 0, result.err
    assert {"in spawn", "in fork"} <= set(result.ranges())


def test_a_daemon_that_outlives_the_program(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import subprocess, nvprobe
        with nvprobe.range("work"):
            child = subprocess.Popen(["sleep", "900"], stdout=-3, stderr=-3, start_new_session=True)
        print(child.pid)
        """
    )
    result = launch(program)
    os.kill(int(result.out), signal.SIGTERM)  # it lives: that is the program's own affair
    assert "work" in result.ranges()


def test_a_full_disk_for_the_run(launch: Launcher, nsys: Nsys, small_disk: Path) -> None:
    program = launch.script("print('ran')")
    result = launch.finish(launch.start("-o", str(small_disk / "run"), program))
    assert (result.code, result.out) == (0, "ran\n")
    if not (small_disk / "run" / "report.sqlite").exists():
        one_line(result, "the disk is full")


def test_a_full_disk_for_nsys_itself(launch: Launcher, nsys: Nsys, small_disk: Path) -> None:
    launch.environ["TMPDIR"] = str(small_disk)
    program = launch.script("import os; print(os.environ['TMPDIR'])")
    result = launch(program)
    assert (result.code, result.out) == (0, f"{small_disk}\n")
    one_line(result, "the disk is full")


def test_a_read_only_folder(launch: Launcher, nsys: Nsys, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = launch.finish(
        launch.start("-o", str(small_disk / "run"), launch.script("print('ran')"))
    )
    assert (result.code, result.out) == (2, ""), "said before anything ran"
    one_line(result, "give a folder that can be written with -o")


def test_an_importer_that_is_not_where_nsys_looks(
    launch: Launcher, nsys: Nsys, tmp_path: Path
) -> None:
    """As in Debian's package: nsys ends with 0, a .qdstrm and no report."""
    home = nsys.path.resolve().parent
    moved = tmp_path / "opt" / home.name
    moved.mkdir(parents=True)
    for file in home.iterdir():
        (moved / file.name).symlink_to(file)
    (moved / "nsys").unlink()
    (moved / "nsys").write_bytes((home / "nsys").read_bytes())
    (moved / "nsys").chmod(0o755)
    launch.environ["NVPROBE_NSYS"] = str(moved / "nsys")
    program = launch.script("import nvprobe\nwith nvprobe.range('work'): pass")
    result = launch(program)
    assert result.code == 0
    assert "work" in result.ranges(), result.err


def test_nsys_hangs_after_the_program(launch: Launcher, nsys: Nsys) -> None:
    """The program stops its nsys (child, launcher, nsys) as its last act: it never goes on."""
    program = launch.script(
        """
        import os, pathlib, signal, nvprobe
        with nvprobe.range("work"):
            pass
        print("result", flush=True)

        def parent(pid):
            return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

        os.kill(parent(parent(os.getppid())), signal.SIGSTOP)
        """
    )
    result = launch("--nsys-timeout", "2", program)
    assert (result.code, result.out) == (0, "result\n")
    if not (result.folder / "report.nsys-rep").exists():
        one_line(result, "no progress for 2 s after the program had ended")
