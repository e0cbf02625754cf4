"""Jobs of several ranks: a folder each, in both nesting orders, and none lost with another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from tests.conftest import ROOT
from tests.integration.launch.conftest import PATIENCE_S, Launcher, Result, ranges_in

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO_RANKS = ["--nproc-per-node", "2", "--master-port", "0", "--standalone"]

GLOO = """
    import os, sys, torch, nvprobe
    import torch.distributed as dist
    dist.init_process_group("gloo")
    with nvprobe.range(f"work of rank {dist.get_rank()}"):
        value = torch.ones(4)
        dist.all_reduce(value)
    assert value[0] == 2
    dist.destroy_process_group()
"""


def ranks_of(result: Result) -> dict[str, Path]:
    return {path.name: path for path in sorted(result.folder.glob("rank[0-9]*"))}


def run_ranks(launch: Launcher, order: str, *words: str) -> Result:
    """A launch of torchrun, or within each of its ranks, to the end."""
    if order == "outside":
        *options, program = words
        return launch(*options, *TORCHRUN, *TWO_RANKS, program)
    inner = [sys.executable, "-m", "nvprobe", "launch", "--no-analyze", "-o", "run", *words]
    done = subprocess.run(
        [*TORCHRUN, *TWO_RANKS, "--no-python", *inner],
        cwd=launch.folder,
        env=launch.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr, launch.folder / "run")


@pytest.mark.nsys
@pytest.mark.parametrize("order", ["outside", "inside"])
def test_both_nesting_orders(launch: Launcher, nsys: Nsys, order: str) -> None:
    program = launch.script(GLOO)
    result = run_ranks(launch, order, program)
    assert result.code == 0, result.err
    ranks = ranks_of(result)
    assert list(ranks) == ["rank0", "rank1"]
    for number, folder in enumerate(ranks.values()):
        run = json.loads((folder / "run.json").read_text())
        assert (run["rank"], run["world_size"], run["exit_code"]) == (number, 2, 0)
        names = ranges_in(folder / "report.sqlite")
        assert f"work of rank {number}" in names
        assert f"work of rank {1 - number}" not in names


@pytest.mark.nsys
def test_a_rank_that_dies_costs_no_other_its_report(launch: Launcher, nsys: Nsys) -> None:
    program = launch.script(
        """
        import os, pathlib, time, nvprobe
        rank = os.environ["RANK"]
        with nvprobe.range(f"work of rank {rank}"):
            pass
        other = pathlib.Path("rank 0 has worked")
        if rank == "1":
            while not other.exists():
                time.sleep(0.05)
            raise SystemExit(3)
        other.touch()
        for _ in range(60_000):  # until torchrun ends it; nsys 2022.4 may lose a single range then
            with nvprobe.range(f"work of rank {rank}"):
                time.sleep(0.001)
        """
    )
    result = launch(*TORCHRUN, *TWO_RANKS, program)
    assert result.code == 1, "torchrun's own code"
    ranks = ranks_of(result)
    assert list(ranks) == ["rank0", "rank1"]
    assert "work of rank 0" in ranges_in(ranks["rank0"] / "report.sqlite")
    assert "work of rank 1" in ranges_in(ranks["rank1"] / "report.sqlite")
    assert json.loads((ranks["rank1"] / "run.json").read_text())["exit_code"] == 3


@pytest.mark.nsys
def test_only_the_ranks_asked_for_are_profiled(launch: Launcher, nsys: Nsys) -> None:
    """Ranks named as Slurm does it; a restart of a rank gets a folder of its own."""
    program = launch.script("import os, sys; print(os.environ['SLURM_PROCID'], sys.argv)")
    launch.environ |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "9"}
    for rank in ("0", "1", "8", "0"):
        launch.environ["SLURM_PROCID"] = rank
        result = launch("--ranks", "0,8", program, "x")
        assert (result.code, result.out) == (0, f"{rank} ['job.py', 'x']\n"), result.err
    assert list(ranks_of(result)) == ["rank0", "rank0-2", "rank8"]
    for folder in ranks_of(result).values():
        assert (folder / "report.nsys-rep").exists()


@pytest.mark.nsys
def test_mpi_starts_one_launch_a_rank(launch: Launcher, nsys: Nsys) -> None:
    """A stand-in for mpirun starts the command twice, as Open MPI names its ranks."""
    mpirun = launch.folder / "mpirun"
    mpirun.write_text(
        """#!/bin/sh
shift 2
for rank in 0 1; do OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 "$@" || exit 1; done
"""
    )
    mpirun.chmod(0o755)
    program = launch.script(
        """
        import os, nvprobe
        with nvprobe.range("work"):
            print(os.environ["OMPI_COMM_WORLD_RANK"])
        """
    )
    result = launch(str(mpirun), "-np", "2", sys.executable, program, analyze=True)
    assert (result.code, result.out) == (0, "0\n1\n"), result.err
    assert list(ranks_of(result)) == ["rank0", "rank1"]
    for folder in ranks_of(result).values():
        analysis = json.loads((folder / "analysis.json").read_text())
        assert "work" in {row["path"] for row in analysis["ranges"]}
    assert "Heaviest paths" not in result.err, "no rank speaks for the job"
    assert "2 of 2 ranks" in result.err
    assert json.loads((result.folder / "ranks.json").read_text())["schema"] == "nvprobe.ranks/1"
    assert result.err.count("nvprobe: wrote ") == 1
    assert result.err.rstrip().endswith("next: nvprobe ranks run")
    whole = launch.run_nvprobe("analyze", "run")
    assert (whole.returncode, whole.stdout) == (1, "")
    assert "holds the runs of 2 ranks; nvprobe ranks compares them; or give one" in whole.stderr


def test_a_job_that_never_starts_a_rank(launch: Launcher) -> None:
    false = shutil.which("false")
    mpirun = launch.folder / "mpirun"
    mpirun.write_text(f"#!/bin/sh\nexec {false}\n")
    mpirun.chmod(0o755)
    result = launch(str(mpirun), "-np", "2", "python", "job.py")
    assert result.code == 1
    assert "before any rank was recorded" in result.err
    assert not result.folder.exists(), "nothing was written"


@pytest.mark.slow
def test_two_ranks_print_what_they_print_alone(tmp_path: Path):
    """Under DDP on gloo: torch's own warnings, its threads without Python, the program's lines."""
    script = ROOT / "scripts" / "gpu" / "ddp_output_check.py"
    words = [sys.executable, str(script), "--out", str(tmp_path), "--backend", "torch"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout
