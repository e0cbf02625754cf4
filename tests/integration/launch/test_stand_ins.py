"""An nsys that hangs, fails, dies or prints nonsense never costs the program's own result.

Stand-ins for nsys answer its version and help as the real one does, then misbehave.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher, Result, left_after_a_while

pytestmark = [pytest.mark.nsys, pytest.mark.slow]

PROGRAM = """
    import os, pathlib, sys, time
    pathlib.Path("running").touch()
    while not os.path.exists("may-end"):
        time.sleep(0.05)
    print("result")
    sys.exit(5)
"""
TO_THE_COMMAND = 'while [ "${1#*python}" = "$1" ]; do shift; done'
UNTIL_IT_RUNS = "while [ ! -e running ]; do sleep 0.05; done"


@pytest.fixture
def stand_in(launch: Launcher, nsys: Nsys):
    def make(body: str) -> None:
        path = launch.folder / "bin" / "nsys"
        path.parent.mkdir()
        path.write_text(
            f"""#!/bin/sh
case "$*" in
--version) echo "NVIDIA Nsight Systems version {nsys.version_text}"; exit ;;
"profile --help") exec {nsys.path} profile --help ;;
esac
{body}
"""
        )
        path.chmod(0o755)
        launch.environ["NVPROBE_NSYS"] = str(path)

    return make


def run(launch: Launcher, *options: str, ends: bool = True) -> Result:
    """Launch the program; unless it ``ends`` by itself, the stand-in tells it when."""
    if ends:
        (launch.folder / "may-end").touch()
    result = launch(*options, launch.script(PROGRAM))
    assert (result.code, result.out) == (5, "result\n"), "the program ran once, to its end"
    assert "Traceback" not in result.err
    assert left_after_a_while(launch.environ["LAUNCH_TEST_MARK"]) == []
    return result


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exec sleep 300", "nsys did not start the program within 3 s"),
        ("trap '' INT TERM; sleep 300 & wait", "nsys did not start the program within 3 s"),
        ("echo 'Illegal --flag'; exit 1", "it said: Illegal --flag"),
        (
            "printf '\\033[31m\\000\\377?\\n'; exit 0",
            "nsys did not start the program (it said: [31m",
        ),
        ("exit 0", "nsys did not start the program (it said: nothing)"),
    ],
    ids=["hangs", "hangs and ignores signals", "fails", "nonsense", "does nothing"],
)
def test_before_the_program(launch: Launcher, stand_in, body: str, says: str) -> None:
    stand_in(body)
    patience = "3" if "within" in says else "100"
    assert says in run(launch, "--nsys-start-timeout", patience).err


@pytest.mark.parametrize(
    ("after", "says"),
    [
        ('"$@"; exec sleep 300', "no progress for 2 s after the program had ended"),
        ('"$@"; trap "" INT TERM; sleep 300 & wait', "no progress for 2 s"),
        (
            '"$@"; ln -s /bin/sh nsys; exec ./nsys -c "while :; do :; done" --start-agent',
            "no progress for 2 s",
        ),
        (f'"$@" & {UNTIL_IT_RUNS}; (sleep 1; touch may-end) & kill -9 $$', "killed by signal 9"),
        ('"$@"; exit 0', "no report was written"),
        ('"$@"; sleep 12', "the program has ended, nsys is writing its report"),
        (
            '"$@"; echo "No space left on device"; exit 0',
            "No space left on device (free some space",
        ),
        ('"$@"; printf "\\033[2Jhello\\n"; exit 3', "nsys said: [2Jhello"),
    ],
    ids=[
        "hangs",
        "hangs and ignores signals",
        "waits in a busy loop of its agent",
        "is killed",
        "no report",
        "slow",
        "disk",
        "nonsense",
    ],
)
def test_after_the_program(launch: Launcher, stand_in, after: str, says: str) -> None:
    stand_in(f"{TO_THE_COMMAND}; {after}")
    patience = "2" if "no progress" in says else "100"
    result = run(launch, "--nsys-timeout", patience, ends="may-end" not in after)
    assert says in result.err
    assert "\x1b" not in result.err


def test_a_signal_that_comes_before_the_program_reaches_it(launch: Launcher, stand_in) -> None:
    wait = "touch starting; while [ ! -e go ]; do sleep 0.05; done"
    stand_in(f'{wait}; {TO_THE_COMMAND}; exec "$@"')
    process = launch.start(launch.script(PROGRAM))
    launch.wait_for("starting")
    process.send_signal(signal.SIGTERM)
    (launch.folder / "go").touch()
    result = launch.finish(process)
    assert (result.code, result.out) == (143, ""), "the program never ends by itself"


def test_version_without_end(launch: Launcher, nsys: Nsys, tmp_path: Path) -> None:
    """A program called nsys that is something else: one line, and torch.profiler records."""
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\necho I am another nsys\n")
    fake.chmod(0o755)
    launch.environ["NVPROBE_NSYS"] = str(fake)
    result = launch(launch.script("print('ran')"))
    assert (result.code, result.out) == (0, "ran\n")
    assert f"at {tmp_path} is not Nsight Systems" in result.err
    assert "is not Nsight Systems" in str(result.run["notes"])
    assert str(tmp_path.parent) not in str(result.run["notes"])
    named = launch("--force", "--backend", "nsys", "job.py")
    assert (named.code, named.out) == (1, "")
    assert "is not Nsight Systems" in named.err


LATE = (
    "Agent launcher failed.",
    "[QuadDCommon::tag_message*] = Local Endpoint is not available.",
    "Connection reset by peer\nGood-bye",
)


@pytest.mark.parametrize("words", LATE)
def test_an_agent_that_is_late_gets_another_chance(launch: Launcher, stand_in, words: str) -> None:
    stand_in(
        f"""[ -e tried ] || {{ touch tried; echo "{words}"; exit 1; }}
{TO_THE_COMMAND}; exec "$@" """
    )
    assert "did not start" not in run(launch).err


@pytest.mark.parametrize("extra", [["--call-chains"], ["--nsys-arg", "--backtrace=nonsense"]])
def test_an_option_that_nsys_refuses_costs_no_ranges(
    launch: Launcher, stand_in, nsys: Nsys, extra: list[str]
) -> None:
    """The real nsys refuses the second; the stand-in the first, as 2022.4 refuses some values."""
    refuse = (
        "echo 'Illegal --cudabacktrace argument: sync:1.'; echo; echo 'Try nsys --help'; exit 1"
    )
    stand_in(f"""case "$*" in *--cudabacktrace*) {refuse} ;; esac
exec {nsys.path} "$@" """)
    result = run(launch, *extra)
    assert "nsys refuses an option (it said: Illegal --" in result.err
    assert f"): without {extra[0]}" in result.err
    assert result.run["backend"] == "nsys"
    assert "nvprobe clock" in str(result.ranges()) or result.run["problem"] is None
