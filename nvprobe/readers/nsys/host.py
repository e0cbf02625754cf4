"""What nsys records of the host beside CUDA: OS calls, samples, scheduling, library calls."""

from __future__ import annotations

import numpy as np

from nvprobe.readers.nsys.event_rows import OS_CALLS, SAMPLES, SCHEDULE, Frames, possible
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.processes import People
from nvprobe.readers.nsys.versions import LIBRARIES
from nvprobe.trace import NO_NAME, OPEN, OsCalls, Ranges, RangeSource, Samples, Schedule

__all__ = ["read_library_calls", "read_os_calls", "read_samples", "read_schedule"]


def read_os_calls(frames: Frames, people: People, names: Names) -> OsCalls:
    """Calls of operating system libraries."""
    rows = frames.rows.get(OS_CALLS)
    if rows is None:
        return OsCalls.absent()
    thread = people.thread(OS_CALLS)
    return OsCalls(
        process=people.thread_process[thread],
        thread=thread,
        start=rows.ints("start", 0),
        end=rows.ints("end", 0),
        name=names.column(OS_CALLS, "nameId"),
        nesting=rows.ints("nestingLevel", 0),
        stack=rows.ints("callchainId", -1),
    )


def read_samples(frames: Frames, people: People) -> Samples:
    """Periodic samples; a sample's id is that of its stack."""
    rows = frames.rows.get(SAMPLES)
    if rows is None:
        return Samples.absent()
    thread = people.thread(SAMPLES)
    return Samples(
        process=people.thread_process[thread],
        thread=thread,
        time=rows.ints("start", 0),
        cpu=rows.ints("cpu", -1),
        stack=rows.ints("id", -1),
    )


def read_schedule(frames: Frames, people: People) -> Schedule:
    """Context switches of the CPUs."""
    rows = frames.rows.get(SCHEDULE)
    if rows is None:
        return Schedule.absent()
    thread = people.thread(SCHEDULE)
    return Schedule(
        process=people.thread_process[thread],
        thread=thread,
        time=rows.ints("start", 0),
        cpu=rows.ints("cpu", -1),
        running=rows.ints("isSchedIn", 0) != 0,
    )


def read_library_calls(frames: Frames, people: People, names: Names) -> list[Ranges]:
    """Calls of MPI, UCX, cuBLAS and cuDNN: they nest on their thread, as ranges of a domain."""
    return [
        _calls_of(table, frames, people, names)
        for table, rows in frames.get(*LIBRARIES)
        if len(rows)
    ]


def _calls_of(table: str, frames: Frames, people: People, names: Names) -> Ranges:
    rows = frames.rows[table]
    thread = people.thread(table)
    by_text, by_name = names.column(table, "textId"), names.column(table, "nameId")
    name = np.where(by_text == NO_NAME, by_name, by_text)
    end = rows.ints("end", OPEN)
    return Ranges(
        process=people.thread_process[thread],
        thread=thread,
        start=rows.ints("start", 0),
        end=np.where(possible(end), end, OPEN),
        name=np.where(name == NO_NAME, names.unnamed, name),
        domain=np.full(len(rows), names.library(table), np.int32),
        category=np.full(len(rows), NO_NAME, np.int32),
        source=np.full(len(rows), RangeSource.NVTX, np.int8),
    )
