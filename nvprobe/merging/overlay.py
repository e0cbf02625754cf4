"""Put the tables of a torch trace, its times brought onto the profile's, beside the profile's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.nesting import Nesting, nest
from nvprobe.merging.pairs import named_pairs
from nvprobe.merging.shared_operators import SharedOperators, shared_operators
from nvprobe.trace import (
    NO_DEVICE,
    NO_NAME,
    NO_PAYLOAD,
    NO_ROW,
    Clock,
    Column,
    Flows,
    Frames,
    MemoryEvents,
    Operators,
    Ranges,
    RangeSource,
    Threads,
    Trace,
)

_LEVELS = 16
"""Depth of ranges within reach of one edge that is still followed."""
T = TypeVar("T", Frames, Flows)
Times = Callable[[Column, Column], Column]
"""(thread of the torch trace, times) → times of the profile."""


def merged(
    profile: Trace, torch: Trace, threads: Column, times: Times, clock: Clock, error: int
) -> Trace:
    """One Trace: device times, calls and waits of the profile, the rest of the torch trace too.

    ``threads`` maps torch's threads to the profile's; ``error`` is how far a torch time may be off.
    Of what both say (a range of one name, an operator, modules) the profile's stays.
    """
    rows, table = _threads(profile, torch, threads)
    texts = np.append(len(profile.strings) + np.arange(len(torch.strings)), NO_NAME)
    ranges, operators = _ranges(profile, torch, (rows, table), times, texts, error)
    sources = (*profile.sources, *torch.sources)
    known = {missing.what for missing in profile.missing} | {"GPU work", "awaited streams"}
    added = tuple(one for one in torch.missing if one.what not in known)
    return dataclasses.replace(
        profile,
        strings=pa.concat_arrays([profile.strings.cast(pa.string()), torch.strings]),
        sources=sources,
        threads=table,
        ranges=ranges,
        operators=operators,
        frames=_placed(torch.frames, (rows, table), times, texts),
        flows=_placed(torch.flows, (rows, table), times, texts),
        memory=profile.memory if profile.memory.recorded else _memory(profile, torch, rows, times),
        clock=clock,
        warnings=(*profile.warnings, *torch.warnings),
        missing=(*profile.missing, *added),
    )


def _threads(profile: Trace, torch: Trace, threads: Column) -> tuple[Column, Threads]:
    """Row of each torch thread in the merged table; those the profile lacks are appended."""
    known = profile.threads
    new = np.flatnonzero(threads < 0)
    rows = threads.copy()
    rows[new] = len(known) + np.arange(len(new))
    process = _processes(profile, torch)[torch.threads.process[new]]
    name = _shifted_names(torch.threads.name[new], len(profile.strings))
    return rows, Threads(
        process=np.append(known.process, process),
        tid=np.append(known.tid, torch.threads.tid[new]),
        name=np.append(known.name, name),
    )


def _processes(profile: Trace, torch: Trace) -> Column:
    """The profile's row of each of torch's processes; of another run's, the first."""
    pids = {int(pid): row for row, pid in enumerate(profile.processes.pid)}
    return np.array([pids.get(pid, 0) for pid in torch.processes.pid.tolist()], np.int32)


def _shifted_names(names: Column, by: int) -> Column:
    return np.where(names >= 0, names + by, NO_NAME)


def _ranges(
    profile: Trace,
    torch: Trace,
    merged_threads: tuple[Column, Threads],
    times: Times,
    texts: Column,
    error: int,
) -> tuple[Ranges, Operators]:
    """The ranges of both, and the operators table on the merged rows."""
    theirs, (rows, table) = torch.ranges, merged_threads
    if not theirs.recorded:
        return profile.ranges, profile.operators
    ours = profile.ranges
    known = np.where(rows < len(profile.threads), rows, NO_ROW)
    both_have = shared_operators(profile, torch, known)
    keep = np.flatnonzero(_new_to_profile(profile, torch, known) & ~both_have.doubled)
    new = theirs.take(keep)
    start, end = times(new.thread, new.start), times(new.thread, new.end)
    thread = rows[new.thread]
    start, end = snapped(ours, thread, start, end, error)
    both = Ranges(
        process=np.append(ours.process, table.process[thread]),
        thread=np.append(ours.thread, thread),
        start=np.append(ours.start, start),
        end=np.append(ours.end, end),
        name=np.append(ours.name, texts[new.name]),
        domain=np.append(ours.domain, np.full(len(new), NO_NAME)),
        category=np.append(ours.category, np.full(len(new), NO_NAME)),
        source=np.append(ours.source, new.source),
        payload=_payload(ours, len(new)),
    )
    place = both_have.partner.copy()
    place[keep] = len(ours) + np.arange(len(keep))
    return both, _operators(torch, place, texts, both_have)


def _payload(ours: Ranges, added: int) -> Column | None:
    return None if ours.payload is None else np.append(ours.payload, np.full(added, NO_PAYLOAD))


def _new_to_profile(profile: Trace, torch: Trace, threads: Column) -> Column:
    """Bool per range of torch's: not one that the program wrote into both; a module if it has none.

    ``threads`` maps torch's threads to the profile's, -1.
    """
    keep = np.ones(len(torch.ranges), bool)
    keep[named_pairs(profile, torch, threads)[1]] = False
    if _has_modules(profile):
        keep &= torch.ranges.source != RangeSource.MODULE
    return keep


def _has_modules(profile: Trace) -> bool:
    """Whether the profile has module ranges: by nvprobe's category, or named ``fwd:…``."""
    columns = ((profile.ranges.category, "^module$"), (profile.ranges.name, "^fwd:"))
    for column, pattern in columns:
        texts = profile.strings.take(pa.array(np.unique(column[column >= 0])))
        if pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            return True
    return False


def snapped(
    ours: Ranges, thread: Column, start: Column, end: Column, error: int
) -> tuple[Column, Column]:
    """Torch's ranges, an edge moved by up to twice ``error`` where one crosses a range of ours.

    A range that begins a little before one of ours and ends inside it began inside it, or ended
    before it, whichever is less far; the same at the other side. What is further off stays.
    """
    start, end = start.copy(), end.copy()
    if not len(ours) or not len(thread):
        return start, end
    last = int(max(thread.max(), ours.thread.max()))
    nesting = nest(ours.thread, ours.start, ours.end, last + 1)
    for _ in range(_LEVELS):  # an edge moved out of a range can lie in the one around that
        before = start, end
        start, end = _moved_begin(nesting, thread, start, end, 2 * error)
        start, end = _moved_finish(nesting, thread, start, end, 2 * error)
        if (before[0] == start).all() and (before[1] == end).all():
            break
    return start, end


def _moved_begin(
    nesting: Nesting, thread: Column, start: Column, end: Column, reach: int
) -> tuple[Column, Column]:
    """Where one of ours opens after ``start`` and ends after ``end``."""
    around = nesting.innermost(nesting.last_started(thread, end - 1), end)
    begin = nesting.start[around]
    crosses = (around >= 0) & (start < begin)
    inside, before = crosses & (begin - start <= reach), crosses & (end - begin <= reach)
    inside &= (begin - start <= end - begin) | ~before
    return np.where(inside, begin, start), np.where(before & ~inside, begin, end)


def _moved_finish(
    nesting: Nesting, thread: Column, start: Column, end: Column, reach: int
) -> tuple[Column, Column]:
    """Where one of ours opened before ``start`` and closes before ``end``."""
    around = nesting.innermost(nesting.last_started(thread, start - 1), start)
    finish = nesting.end[around]
    crosses = (around >= 0) & (finish < end)
    inside, after = crosses & (end - finish <= reach), crosses & (finish - start <= reach)
    inside &= (end - finish <= finish - start) | ~after
    return np.where(after & ~inside, finish, start), np.where(inside, finish, end)


def _operators(torch: Trace, place: Column, texts: Column, both_have: SharedOperators) -> Operators:
    table = torch.operators.take(place[torch.operators.range] >= 0)
    table = both_have.numbered(table, both_have.partner[table.range])
    return table.moved({"ranges": place, "strings": texts}, lambda _, times: times)


def _placed(table: T, merged_threads: tuple[Column, Threads], times: Times, texts: Column) -> T:
    """A table of the torch trace on the profile's threads and clock."""
    rows, threads = merged_threads

    def placed(column: str, instants: Column) -> Column:
        on = "end_thread" if column == "end_time" else "thread"
        return times(getattr(table, on), instants)

    moved = table.moved({"threads": rows, "strings": texts}, placed)
    return moved.with_columns(process=threads.process[moved.thread])


def _memory(profile: Trace, torch: Trace, rows: Column, times: Times) -> MemoryEvents:
    table = torch.memory
    if not len(table):
        return MemoryEvents.absent()
    process = _processes(profile, torch)[table.process]
    ordinal = np.append(torch.devices.id, NO_DEVICE)[table.device]  # of the host: the last
    return dataclasses.replace(
        table,
        process=process,
        thread=np.where(table.thread >= 0, rows[table.thread], NO_ROW),
        time=times(table.thread, table.time),
        device=_devices(profile, process, ordinal),
    )


def _devices(profile: Trace, process: Column, ordinal: Column) -> Column:
    """Rows of the profile's devices for torch's ordinals, which count what a process can see.

    The only GPU that the process ran work on, else the one of that number if it ran there; else
    nothing shows which it is. ``ordinal`` is -1 for the host.
    """
    out = np.full(len(ordinal), NO_DEVICE, np.int32)
    for one in np.unique(process[ordinal >= 0]).tolist():
        used = np.unique(profile.ops.device[profile.ops.process == one])
        used = used[used >= 0]
        mine = np.flatnonzero((process == one) & (ordinal >= 0))
        if len(used) == 1 and len(np.unique(ordinal[mine])) == 1:
            out[mine] = used[0]
            continue
        for row in used.tolist():
            out[mine[ordinal[mine] == profile.devices.id[row]]] = row
    return out
