"""The process between nsys and the program: how the program ended is told whatever comes."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT


def test_a_signal_after_the_program_has_ended_hides_no_exit_code() -> None:
    code = """
import os, signal
from nvprobe.launch import child

_, status = os.pipe()
ended = child.wait(child.start(["sh", "-c", "exit 5"], set()), status)
os.kill(os.getpid(), signal.SIGTERM)  # of a scheduler, to the whole group
print(ended)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(5, None)\n"), done.stderr
