"""Ranks from what launchers leave in the environment."""

from __future__ import annotations

import pytest

from nvprobe.placement import Placement, placement

SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Placement()),
        ({"HOME": "/root", "RANK": "", "WORLD_SIZE": "2"}, Placement()),
        (
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "GROUP_RANK": "1"},
            Placement(3, 1, 4, 1, "torchrun"),
        ),
        (SLURM, Placement(5, 1, 8, 1, "slurm")),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "6"}, Placement(5, 1, 6, 1, "slurm")),
        (SLURM | {"RANK": "40", "WORLD_SIZE": "64"}, Placement(40, None, 64, None, "torchrun")),
        (
            SLURM | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
            Placement(2, None, 4, None, "openmpi"),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"},
            Placement(1, 0, 2, None, "mpich"),
        ),
        ({"MV2_COMM_WORLD_RANK": "0"}, Placement(0, launcher="mvapich")),
        ({"RANK": "one"}, Placement()),
        ({"RANK": "-1"}, Placement()),
        ({"RANK": "²"}, Placement()),
    ],
)
def test_placement(environment: dict[str, str], expected: Placement):
    assert placement(environment) == expected


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "7")
    assert placement().rank == 7
