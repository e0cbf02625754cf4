"""The program runs as if nvprobe were not there, and its ranges are in the report."""

from __future__ import annotations

import json
import os
import pty
import sys

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher

RANGES = """
    import nvprobe
    with nvprobe.range("outer"):
        for i in range(3):
            with nvprobe.range("inner"):
                pass
"""


@pytest.mark.nsys
def test_streams_arguments_and_exit_code(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import os, sys
        print(sys.argv[1:], sys.stdin.read(), os.environ.get("TMPDIR"))
        print("to stderr", file=sys.stderr)
        sys.exit(41)
        """
    )
    result = launch(program, "--steps", "x y", "-o", stdin="typed")
    assert result.code == 41
    assert result.out == "['--steps', 'x y', '-o'] typed None\n", "nothing of nsys in it"
    assert "to stderr" in result.err
    assert "Generating" not in result.err
    run = result.run
    assert run["exit_code"] == 41
    assert run["problem"] is None
    assert run["nsys"] == nsys.version_text
    assert "report.nsys-rep" in run["files"]


@pytest.mark.nsys
def test_all_ranges_are_in_the_report_and_the_summary_is_printed(
    launch: Launcher, nsys: Nsys
) -> None:
    result = launch(launch.script(RANGES), analyze=True)
    assert "no annotations" not in result.err
    assert result.code == 0, result.err
    names = [name for name in result.ranges() if not name.startswith("nvprobe clock")]
    assert names == ["outer", "inner", "inner", "inner"]
    assert "outer" in result.err
    assert "analyze" in result.err, "the next command is named"
    assert result.out == ""
    analysis = json.loads((result.folder / "analysis.json").read_text())
    assert analysis["schema"] == "nvprobe.analysis/2"
    assert "outer/inner" in {row["path"] for row in analysis["ranges"]}
    again = launch.run_nvprobe("analyze", "run", "--json")
    assert json.loads(again.stdout) == analysis, "that of the command, and it is no input"


@pytest.mark.nsys
def test_a_program_with_nothing_to_annotate(launch: Launcher, nsys: Nsys) -> None:
    result = launch(launch.script("print('hello')"), analyze=True)
    assert (result.code, result.out) == (0, "hello\n")
    assert "the program ran no model, no optimizer and no range of nvprobe" in result.err
    assert "nvtx package" not in result.err, "the pair of nvtx and nsys is not at fault"


@pytest.mark.nsys
def test_a_terminal_stays_a_terminal(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script("import sys; print(sys.stdout.isatty(), sys.stdin.isatty())")
    master, slave = pty.openpty()
    process = launch.start(program, stdin=slave, stdout=slave)
    os.close(slave)
    assert launch.finish(process).code == 0
    assert os.read(master, 100).decode().strip() == "True True"
    os.close(master)


@pytest.mark.nsys
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "job", "--x"],
        pytest.param([sys.executable, "-X", "dev", "-u", "job.py", "--x"], marks=pytest.mark.slow),
        pytest.param([sys.executable, "-m", "job", "--x"], marks=pytest.mark.slow),
        pytest.param(["./tool", "--x"], marks=pytest.mark.slow),
        ["sh", "-c", f"{sys.executable} job.py --x"],
    ],
    ids=["module option", "interpreter options", "python -m", "shebang", "shell"],
)
def test_ways_to_start_a_program(launch: Launcher, nsys: Nsys, words: list[str]) -> None:
    text = RANGES + "\n    import sys; print(sys.argv[1:], __name__, sys.flags.dev_mode)\n"
    launch.script(text)
    if words[0] == "./tool":
        tool = launch.folder / launch.script(text, "tool")
        tool.write_text(f"#!{sys.executable}\n" + tool.read_text())
        tool.chmod(0o755)
    launch.environ["PYTHONPATH"] += f"{os.pathsep}{launch.folder}"
    result = launch(*words)
    assert result.code == 0, result.err
    assert result.out == f"['--x'] __main__ {'dev' in words}\n"
    assert result.ranges().count("inner") == 3


@pytest.mark.nsys
def test_what_runs_is_what_dry_run_prints(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script("print('it', 'did')")
    shown = launch("--dry-run", "--nsys-arg=--stats=false", program)
    assert (shown.code, (launch.folder / "run").exists()) == (0, False)
    assert "it did" not in shown.out
    command = shown.out.splitlines()[-1]
    assert "--stats=false" in command
    assert launch("--nsys-arg=--stats=false", program).out == "it did\n"


@pytest.mark.nsys
def test_nothing_of_the_environment_is_written(launch: Launcher, nsys: Nsys) -> None:
    launch.environ["MY_SECRET"] = "sesame-4711"
    result = launch(launch.script("pass"), "--api-key", "hunter2", analyze=True)
    assert (result.folder / "analysis.json").exists()
    assert (result.folder / "report.html").stat().st_mode & 0o777 == 0o600
    for file in result.folder.iterdir():
        if file.suffix in {".json", ".jsonl"}:
            text = file.read_text()
            assert "sesame-4711" not in text
            assert "hunter2" not in text
            assert str(launch.folder) not in text
            assert os.path.dirname(sys.executable) not in text, file.name  # noqa: PTH120
            assert "kworker" not in text, "what else runs on the machine"


@pytest.mark.nsys
def test_an_earlier_run_is_not_overwritten(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script("print('ran')")
    assert launch(program).code == 0
    again = launch(program)
    assert (again.code, again.out) == (2, "")
    assert "--force" in again.err
    assert launch("--force", program).out == "ran\n"


@pytest.mark.nsys
def test_json_and_quiet(launch: Launcher, nsys: Nsys) -> None:
    result = launch("--json", "-q", launch.script("print('of the program')"))
    assert json.loads(result.out)["schema"] == "nvprobe.run/1"
    assert result.err == "of the program\n"


@pytest.mark.nsys
def test_files_of_the_program_have_the_modes_it_gives_them(launch: Launcher, nsys: Nsys) -> None:
    """nsys 2022.4 sets its umask to 0, with which everybody may write what the program makes."""
    result = launch(launch.script("import os; print(oct(os.umask(0)))"), umask=0o027)
    assert (result.code, result.out) == (0, "0o27\n"), result.err


def test_all_that_is_added_to_the_output_begins_with_nvprobe(launch: Launcher) -> None:
    launch.environ["NVPROBE_NSYS"] = "/bin/false"
    program = launch.script("import sys; print('out'); print('err', file=sys.stderr)")
    result = launch(program)
    own = [line for line in result.err.splitlines() if not line.startswith("nvprobe: ")]
    assert (result.out, own) == ("out\n", ["err"])
    assert any("wrote" in line for line in result.err.splitlines())


def test_no_such_program(launch: Launcher) -> None:
    for words, code, says in (
        (["no-such-program-here"], 127, "no-such-program-here: command not found"),
        (["./no-such-program"], 127, "./no-such-program: command not found"),
        (["no_such_script.py", "x"], 2, "no such file: no_such_script.py"),
        ([sys.executable, "-u", "no_such_script.py"], 2, "no such file: no_such_script.py"),
    ):
        result = launch(*words)
        assert (result.code, result.out, result.err) == (code, "", f"nvprobe: {says}\n")
        assert not result.folder.exists(), "nothing was begun"
