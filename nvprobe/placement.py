"""Where this process stands in a distributed job, from the launcher's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """A process's place in its job; None where the launcher does not say.

    Attributes:
        rank: Global rank, from 0.
        local_rank: Rank within the node, from 0.
        world_size: Processes in the job.
        node: Index of the node, from 0.
        launcher: Who said so: ``torchrun``, ``openmpi``, ``mvapich``, ``mpich``, ``slurm`` or None.

    """

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    node: int | None = None
    launcher: str | None = None


@dataclass(frozen=True)
class _Launcher:
    """The variables of one launcher; the first one of each tuple that is set counts."""

    name: str
    rank: str
    local_rank: tuple[str, ...] = ()
    world_size: tuple[str, ...] = ()
    node: tuple[str, ...] = ()


# The innermost launcher first: torchrun and mpirun are themselves started by srun, whose own
# variables then describe the agent and not the process.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("GROUP_RANK",)),
    _Launcher(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
    ),
    _Launcher(
        "mvapich",
        "MV2_COMM_WORLD_RANK",
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
    ),
    _Launcher("mpich", "PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    _Launcher(
        "slurm",
        "SLURM_PROCID",
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        ("SLURM_NODEID",),
    ),
)


_VARIABLES = frozenset(
    name
    for launcher in _LAUNCHERS
    for name in (launcher.rank, *launcher.local_rank, *launcher.world_size, *launcher.node)
)
ENVIRONMENT = "DeviceEnvironment"
"""What nsys calls the environment that it was started in, variables parted by NUL."""


def launchers_variables(environment: str) -> str:
    """Of an environment as nsys keeps it what launchers of ranks set, whole numbers only."""
    known = (text.partition("=") for text in environment.split("\0"))
    return "\0".join(
        f"{name}={value}"
        for name, _, value in known
        if name in _VARIABLES and value.isascii() and value.isdigit()
    )


def placement_of(environment: str) -> Placement:
    """The same as :func:`placement`, of an environment as nsys keeps it."""
    return placement(dict(text.partition("=")[::2] for text in environment.split("\0")))


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a whole number."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


_declared: Placement | None = None


def declare(place: Placement | None) -> None:
    """Say where this process stands where its environment does not; None takes it back."""
    global _declared
    _declared = place


def placement(environment: Mapping[str, str] | None = None) -> Placement:
    """Find rank, local rank, world size and node; all None outside a distributed job.

    Args:
        environment: The variables to read; the process's own by default.

    """
    if environment is None:
        if _declared is not None:
            return _declared
        environment = os.environ
    for launcher in _LAUNCHERS:
        rank = _number(environment, (launcher.rank,))
        if rank is None:
            continue
        return Placement(
            rank=rank,
            local_rank=_number(environment, launcher.local_rank),
            world_size=_number(environment, launcher.world_size),
            node=_number(environment, launcher.node),
            launcher=launcher.name,
        )
    return Placement()
