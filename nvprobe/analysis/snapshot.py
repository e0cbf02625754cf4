"""What was in memory at the peak, by source line, from a torch memory snapshot.

The history is replayed: an allocation lives from its event to the free of the same address. What
the snapshot still holds and no event allocated was there before the history began. Bytes are those
the allocator handed out (rounded up), so that the sum at the end is the snapshot's own.

*Passing* memory was allocated before the peak and freed after it, inside the history: activations
and buffers, which checkpointing can recompute. *Lasting* memory was still there when the snapshot
was taken: weights, optimizer state, leaks. The oracle is in tests/unit/test_snapshot.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.model import Attribution
from nvprobe.readers.memory_snapshot import MemorySnapshot
from nvprobe.trace import NO_ROW, Column, Table, column

__all__ = ["Holders", "SnapshotPeak", "snapshot_peaks"]


@dataclass(frozen=True, slots=True)
class Holders(Table):
    """Who held memory at the peak, the largest first."""

    line: Column = column("i4")
    """Row of ``snapshot.lines``."""
    path: Column = column("i4")
    """Row of ``attribution.paths`` open when it was allocated, -1 unknown."""
    bytes: Column = column("i8")
    passing_bytes: Column = column("i8")
    allocations: Column = column("i8")


@dataclass(frozen=True, slots=True)
class SnapshotPeak:
    """The fullest instant of one device."""

    device: int
    peak_bytes: int
    """Allocated at that instant."""
    end_bytes: int
    """Allocated when the snapshot was taken."""
    reserved_bytes: int
    """Held from the driver when the snapshot was taken."""
    holders: Holders


@dataclass(frozen=True, slots=True)
class _Lives:
    """One row an allocation: from event ``born`` (-1: before the history) to before ``freed``."""

    born: Column
    freed: Column
    bytes: Column
    line: Column


def snapshot_peaks(
    snapshot: MemorySnapshot, attribution: Attribution | None = None
) -> tuple[SnapshotPeak, ...]:
    """Peak of every device that the snapshot knows.

    With the attribution of a capture of the same run, on a clock with a known origin, holders are
    told by path as well; otherwise their path is -1.
    """
    devices = np.union1d(snapshot.blocks.device, snapshot.events.device)
    paths = _paths(snapshot, attribution)
    return tuple(_peak(snapshot, int(device), paths) for device in devices)


def _peak(snapshot: MemorySnapshot, device: int, paths: Column) -> SnapshotPeak:
    rows = np.flatnonzero(snapshot.events.device == device)
    events = snapshot.events.take(rows)
    here = snapshot.blocks.take(snapshot.blocks.device == device)
    lives = _lives(events.address, events.bytes, events.line, here.address, here.bytes, here.line)
    change = np.zeros(len(rows) + 1, np.int64)
    np.add.at(change, lives.born + 1, lives.bytes)
    ends = lives.freed <= len(rows) - 1
    np.subtract.at(change, lives.freed[ends] + 1, lives.bytes[ends])
    in_use = np.cumsum(change)
    at = int(np.argmax(in_use)) - 1
    alive = (lives.born <= at) & (lives.freed > at)
    path = np.full(len(alive), NO_ROW, np.int32)
    told = lives.born >= 0
    path[told] = paths[rows[lives.born[told]]]
    passing = (lives.born >= 0) & ends
    reserved = snapshot.reserved
    return SnapshotPeak(
        device=device,
        peak_bytes=int(in_use[at + 1]),
        end_bytes=int(in_use[-1]),
        reserved_bytes=int(reserved[device]) if device < len(reserved) else 0,
        holders=_holders(lives, path, passing, alive),
    )


def _lives(
    address: Column, size: Column, line: Column, held: Column, held_size: Column, held_line: Column
) -> _Lives:
    """Pair each allocation with the next free of its address; then add what was never seen born."""
    n = len(address)
    order = np.lexsort((np.arange(n), address))
    sorted_address, allocates = address[order], size[order] > 0
    same = np.append(sorted_address[1:] == sorted_address[:-1], False)
    follows = np.append(~allocates[1:], False) & same & allocates
    freed_at = np.where(follows, np.append(order[1:], n), n)
    born = order[allocates]
    known_free = np.zeros(n, bool)
    known_free[freed_at[allocates & follows]] = True
    orphans = np.flatnonzero((size < 0) & ~known_free)
    unborn = ~np.isin(held, address[born[freed_at[allocates] == n]])
    return _Lives(
        born=np.concatenate([born, np.full(len(orphans) + int(unborn.sum()), -1)]),
        freed=np.concatenate([freed_at[allocates], orphans, np.full(int(unborn.sum()), n)]),
        bytes=np.concatenate([size[born], -size[orphans], held_size[unborn]]),
        line=np.concatenate([line[born], np.zeros(len(orphans), np.int64), held_line[unborn]]),
    )


def _holders(lives: _Lives, path: Column, passing: Column, alive: Column) -> Holders:
    """Group what is alive by line and path."""
    pairs = np.stack([lives.line[alive], path[alive]], axis=1)
    groups, place = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    place = place.reshape(-1)
    size = lives.bytes[alive]
    total = np.zeros(len(groups), np.int64)
    np.add.at(total, place, size)
    passed = np.zeros(len(groups), np.int64)
    np.add.at(passed, place, np.where(passing[alive], size, 0))
    order = np.argsort(-total, kind="stable")
    return Holders(
        line=groups[order, 0],
        path=groups[order, 1],
        bytes=total[order],
        passing_bytes=passed[order],
        allocations=np.bincount(place, minlength=len(groups))[order],
    )


def _paths(snapshot: MemorySnapshot, attribution: Attribution | None) -> Column:
    """Per event: what the initiating thread had open; -1 without a common clock or outside it."""
    unknown = np.full(len(snapshot.events), NO_ROW, np.int32)
    if attribution is None or attribution.trace.origin_ns is None:
        return unknown
    trace = attribution.trace
    threads = attribution.initiating[attribution.initiating >= 0]
    if len(threads) != 1 or not len(snapshot.events):
        return unknown  # of several processes the snapshot does not say whose it is
    time = snapshot.events.time - trace.origin_ns
    inside = (time >= trace.start_ns) & (time < trace.end_ns)
    thread = np.where(inside, threads[0], NO_ROW)
    return attribution.open.at(thread, time)
