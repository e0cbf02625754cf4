"""What a command starts, and the command that starts it instrumented."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvprobe.errors import UsageError
from nvprobe.instrumentation.startup import PROGRAM_VARIABLE
from nvprobe.launch.launchers import find_job
from nvprobe.launch.options import LaunchOptions
from nvprobe.launch.plan import Plan
from nvprobe.launch.target import resolve


@pytest.mark.parametrize(
    ("command", "interpreter", "program"),
    [
        ("train.py --lr 1", [sys.executable], "train.py --lr 1"),
        ("python train.py -u", ["python"], "train.py -u"),
        ("/opt/venv/bin/python3.11 -u -X dev train.py", None, "train.py"),
        ("python -Wignore -W error::X a.py", ["python", "-Wignore", "-W", "error::X"], "a.py"),
        ("python -m pkg.train --x", ["python"], "-m pkg.train --x"),
        ("python -c pass -m x", ["python"], "-c pass -m x"),
        ("bash run.sh", [], "bash run.sh"),
    ],
)
def test_parts(command: str, interpreter: list[str] | None, program: str) -> None:
    words = command.split()
    target = resolve(words)
    if interpreter is not None:
        assert list(target.interpreter) == interpreter
    assert list(target.program) == program.split()
    expected = words if interpreter != [sys.executable] else [sys.executable, *words]
    assert list(target.argv) == expected


def test_options_glued_to_the_module_switch() -> None:
    target = resolve(["python", "-um", "pkg.train"])
    assert target.argv == ("python", "-u", "-m", "pkg.train")


def test_the_module_option_of_launch() -> None:
    target = resolve(["pkg.train", "-m", "x"], module=True)
    assert target.argv == (sys.executable, "-m", "pkg.train", "-m", "x")
    assert target.name == "train"


@pytest.mark.parametrize(
    ("options", "isolated"),
    [("-u -X dev", False), ("-I", True), ("-sE", True), ("-S", True), ("-W error", False)],
)
def test_python_that_ignores_its_environment_is_known(options: str, isolated: bool) -> None:
    command = ["python", *options.split(), "train.py", "-S"]
    assert resolve(command).isolated == isolated


def test_a_script_with_a_python_shebang_is_python(tmp_path: Path) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/usr/bin/env -S python3 -u\nprint()\n")
    assert resolve([str(script), "-x"]).argv == ("python3", "-u", str(script), "-x")
    script.write_text("#!/bin/sh\n")
    assert not resolve([str(script)]).is_python
    script.write_bytes(b"\x7fELF\x00\xff")
    assert not resolve([str(script)]).is_python


def test_a_folder_is_run_as_python_runs_it(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    with pytest.raises(UsageError, match=r"is a folder without __main__\.py"):
        resolve([str(app)]).check()
    (app / "__main__.py").touch()
    found = resolve([str(app), "--lr", "1"])
    found.check()
    assert found.argv == (sys.executable, str(app), "--lr", "1")


def test_a_name_is_fit_for_a_folder() -> None:
    assert resolve(["a/b c;rm.py"]).name == "b-c-rm"
    assert resolve(["./..."]).name == "run"


@pytest.mark.parametrize("command", [[], ["python"], ["python", "-"], ["python", "-m"]])
def test_nothing_to_run_is_a_usage_error(command: list[str]) -> None:
    with pytest.raises(UsageError):
        resolve(command)


@pytest.mark.parametrize(
    ("command", "prefix", "program"),
    [
        (
            "torchrun --standalone --nproc-per-node 2 train.py --m",
            "torchrun --standalone --nproc-per-node 2 --no-python",
            [sys.executable, "train.py", "--m"],
        ),
        (
            "torchrun --nproc_per_node=2 -m pkg.train --x",
            "torchrun --nproc_per_node=2 --no-python",
            [sys.executable, "-m", "pkg.train", "--x"],
        ),
        (
            "torchrun --no-python --nnodes 2 python -u train.py",
            "torchrun --nnodes 2 --no-python",
            ["python", "-u", "train.py"],
        ),
        (
            "python3 -u -m torch.distributed.run --nproc-per-node 2 train",
            "python3 -u -m torch.distributed.run --nproc-per-node 2 --no-python",
            ["python3", "train"],
        ),
        (
            "accelerate launch --multi_gpu --config_file c.yaml train.py x.py",
            "accelerate launch --multi_gpu --config_file c.yaml --no_python",
            [sys.executable, "train.py", "x.py"],
        ),
        (
            "accelerate launch --cpu -m pkg.train --a",
            "accelerate launch --cpu --no_python",
            [sys.executable, "-m", "pkg.train", "--a"],
        ),
        (
            "deepspeed --num_gpus 2 train.py --deepspeed ds.json",
            "deepspeed --num_gpus 2 --no_python",
            [sys.executable, "train.py", "--deepspeed", "ds.json"],
        ),
        (
            "mpirun -np 4 -x NCCL_DEBUG python train.py",
            "mpirun -np 4 -x NCCL_DEBUG",
            ["python", "train.py"],
        ),
        ("srun -N 2 ./train.py", "srun -N 2", [sys.executable, "./train.py"]),
    ],
)
def test_jobs(command: str, prefix: str, program: list[str]) -> None:
    job = find_job(command.split())
    assert job is not None
    assert list(job.prefix) == prefix.split()
    python, *words = job.program.argv
    # An installed launcher names its interpreter as it likes: python, python3, python3.11.
    if Path(python).is_absolute() and Path(python).samefile(sys.executable):
        python = sys.executable
    assert [python, *words] == program
    assert job.with_inner(["x"]) == (*prefix.split(), "x")


@pytest.mark.parametrize("command", ["python train.py", "train.py torchrun", "accelerate config"])
def test_single_programs_are_no_jobs(command: str) -> None:
    assert find_job(command.split()) is None


@pytest.mark.parametrize("command", ["mpirun -n 2 ./a.out", "torchrun --standalone"])
def test_where_the_program_starts_cannot_be_told(command: str) -> None:
    with pytest.raises(UsageError, match="the other way round"):
        find_job(command.split())


def test_python_that_a_shell_starts_is_instrumented_when_it_imports_torch(tmp_path: Path) -> None:
    options = LaunchOptions()
    for command, program in (["bash", "run.sh"], False), (["python", "train.py"], True):
        plan = Plan("nsys", resolve(command), program, options)
        added = plan.environ(tmp_path, tmp_path, {"PYTHONPATH": "/mine"})
        assert added["PYTHONPATH"].endswith(":/mine")
        assert (PROGRAM_VARIABLE in added) == program
    off = Plan("nsys", resolve(["bash", "run.sh"]), False, LaunchOptions(annotate=False))
    assert "PYTHONPATH" not in off.environ(tmp_path, tmp_path)
