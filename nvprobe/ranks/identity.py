"""Which rank a capture is: what was written about it comes before what its name says."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path

import numpy as np

from nvprobe.analysis.overlap.communication import COMMUNICATOR
from nvprobe.errors import NvprobeError
from nvprobe.placement import ENVIRONMENT, Placement, placement_of
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.summary import Identity
from nvprobe.readers.nsys.report import exported
from nvprobe.trace import NO_ROW, Column, Trace

_RANK, _SIZE = "Rank", "No. of ranks"
"""Fields that NCCL attaches to the making of a communicator."""


def identities(source: Source, trace: Trace, processes: Column) -> list[tuple[int, Identity]]:
    """(process row, identity) of each rank in a capture; ``processes``: rows of its ranks.

    A capture of several processes is a rank each; where nothing says which, none has a number.
    """
    known = Identity(
        source=source.name,
        rank=source.rank,
        said_by=source.said_by,
        world_size=source.world_size,
        job=source.job,
        backend="torch" if trace.sources[0].kind == "torch-trace" else "nsys",
    )
    rows = processes.tolist()
    if len(rows) == 1:
        return [(rows[0], _of_process(known, trace, rows[0], source))]
    alone = dataclasses.replace(known, rank=None, said_by="nothing")
    return [
        (row, dataclasses.replace(_of_process(alone, trace, row), process=_name(trace, row)))
        for row in rows
    ]


def _of_process(known: Identity, trace: Trace, row: int, source: Source | None = None) -> Identity:
    """What the capture says of one process, in place of what the name says.

    ``source``: where it is the only process, so that the environment in it is its own.
    """
    if known.said_by == "run.json":
        return known
    rank, size = int(trace.processes.rank[row]), -1
    if trace.processes.world_size is not None:
        size = int(trace.processes.world_size[row])
    said_by = "the capture"
    if rank < 0:
        rank, size = _largest_communicator(trace, row, size)
        said_by = "its NCCL communicator"
    if rank < 0 and known.rank is None and (place := _environment(source)).rank is not None:
        rank, size = place.rank, place.world_size or size
        said_by = "its environment"
    if rank >= 0 and (rank != known.rank or size >= 0):
        known = dataclasses.replace(known, rank=rank, said_by=said_by)
    return known if size < 0 else dataclasses.replace(known, world_size=size)


def _environment(source: Source | None) -> Placement:
    """What the environment that nsys keeps in its export says; of a capture of one process."""
    for file in map(Path, () if source is None else source.files):
        with contextlib.suppress(sqlite3.Error, OSError, NvprobeError):
            if file.suffix == ".sqlite":
                return _in_export(file)
            if file.suffix == ".nsys-rep":
                with exported(file) as export:
                    return _in_export(export)
    return Placement()


def _in_export(file: Path) -> Placement:
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = ?"
    address = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        found = database.execute(query, (ENVIRONMENT,)).fetchone()
    return placement_of(str(found[0])) if found else Placement()


def _name(trace: Trace, row: int) -> str:
    return f"process {int(trace.processes.pid[row])}"


def _largest_communicator(trace: Trace, process: int, size: int) -> tuple[int, int]:
    """(rank, size) in the largest communicator whose making was recorded; -1 where none was."""
    ranks, sizes = (_said(trace, process, field) for field in (_RANK, _SIZE))
    known = [(sizes[event], rank) for event, rank in ranks.items() if event in sizes]
    if not known:
        return -1, size
    largest, rank = max(known)
    return rank, largest


def communicator_sizes(trace: Trace, process: int) -> dict[int, int]:
    """Members by communicator (its 64 bits), where its making was recorded."""
    communicators, sizes = (_said(trace, process, field) for field in (COMMUNICATOR, _SIZE))
    return {communicators[event]: size for event, size in sizes.items() if event in communicators}


def _said(trace: Trace, process: int, field: str) -> dict[int, int]:
    """Values of a field of NCCL's payloads by the range that they are attached to."""
    payloads = trace.payloads
    names = {text: row for row, text in enumerate(trace.texts(np.unique(payloads.field)))}
    if field not in names:
        return {}
    code = np.unique(payloads.field)[names[field]]
    rows = np.flatnonzero(
        (payloads.field == code) & (payloads.process == process) & (payloads.range != NO_ROW)
    )
    return dict(zip(payloads.range[rows].tolist(), payloads.integer[rows].tolist(), strict=True))
