"""torch memory snapshots (``torch.cuda.memory._dump_snapshot``), read without running anything.

A snapshot is a pickle, and a pickle can name any function to call. This reader knows plain
containers, numbers and text only: the first opcode that asks for a class or function ends it. What
torch 2.1 to 2.13 writes contains no such thing.

Unknown keys are ignored and known ones may be missing: the format has grown with every release.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from nvprobe import limits
from nvprobe.readers.input_errors import printable, too_much, unusable
from nvprobe.trace import Column, Table, column

NO_LINE = 0
"""Row of ``MemorySnapshot.lines`` for memory whose origin was not recorded."""
_MOST_DEVICES, _MOST_BYTES = 4096, 2**50
_SPARE_BYTES = 2**30
"""What other threads may ask for meanwhile."""
_LIBRARIES = ("site-packages/", "dist-packages/", "/torch/", "<frozen", "importlib.", "lib/python")


@dataclass(frozen=True, slots=True)
class SnapshotBlocks(Table):
    """What was allocated when the snapshot was taken."""

    device: Column = column("i4")
    address: Column = column("i8")
    bytes: Column = column("i8")
    line: Column = column("i4")
    """Row of :attr:`MemorySnapshot.lines`."""


@dataclass(frozen=True, slots=True)
class SnapshotEvents(Table):
    """Allocations and frees before it, in order; empty where no history was recorded."""

    device: Column = column("i4")
    address: Column = column("i8")
    bytes: Column = column("i8")
    """Positive for an allocation, negative for a free."""
    time: Column = column("i8")
    """UTC nanoseconds, 0 where the snapshot has no times (torch before 2.2)."""
    line: Column = column("i4")


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot as columns."""

    file: str
    lines: tuple[str, ...]
    """``model.py:31 forward``; the first is empty: origin unknown."""
    blocks: SnapshotBlocks
    events: SnapshotEvents
    reserved: Column
    """int64 bytes that the caching allocator held from the driver, per device."""
    segments_taken: int
    """cudaMalloc calls of the allocator in the history."""
    segments_returned: int
    out_of_memory: int


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers and text; whatever would be called or looked up is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to look anything up."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, identity: object) -> NoReturn:
        """Refuse references to other objects."""
        raise pickle.UnpicklingError("it refers to objects outside itself")


def load_memory_snapshot(path: str | os.PathLike[str]) -> MemorySnapshot:
    """Read a snapshot.

    Raises:
        InputError: The file cannot be read, is not a snapshot, or holds more than plain data.

    """
    raw = _unpickled(Path(path))
    known = isinstance(raw, Mapping) and isinstance(raw.get("segments"), list)
    if not known:
        raise unusable(
            path,
            "it is not a torch memory snapshot",
            "write one with torch.cuda.memory._dump_snapshot",
        )
    lines = _Lines()
    try:
        _check(path, raw)
        return _snapshot(Path(path).name, raw, lines)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        fault = f"it is a damaged torch memory snapshot ({printable(str(error))})"
        raise unusable(path, fault, "write it anew") from error


def _check(path: str | os.PathLike[str], raw: Mapping[str, Any]) -> None:
    """InputError where lists that name one thing often hold more rows than the file has bytes."""
    most = limits.rows(Path(path).stat().st_size, 1)
    count = len(raw["segments"]) + sum(map(len, raw.get("device_traces") or ()))
    for segment in raw["segments"]:
        count += len(segment.get("blocks", ()))
        if count > most:
            break
    if count > most:
        raise too_much(path, f"more than {most:,} blocks and events")


def _unpickled(path: Path) -> Any:
    try:
        with path.open("rb") as file, _memory_bounded(path.stat().st_size):
            return _PlainUnpickler(file).load()
    except OSError as error:
        fault = error.strerror or "it cannot be read"
        raise unusable(path, fault, "check the path") from error
    except (
        pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError, KeyError,
        TypeError, MemoryError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        fault = f"it is not a plain pickle ({printable(str(error) or type(error).__name__)})"
        raise unusable(
            path, fault, "nothing in it was executed; write the snapshot anew"
        ) from error


@contextlib.contextmanager
def _memory_bounded(size: int) -> Iterator[None]:
    """Bound this process while it unpickles: five bytes can ask for tables of 34 GB."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _mapped_bytes() + limits.unpacked(size) + _SPARE_BYTES
    bounds = [bound for bound in (before, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _mapped_bytes() -> int:
    """Address space in use, where Linux says so; else a lot, and there is no bound."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        return pages * resource.getpagesize()
    return 2**60


class _Lines:
    """Interns the user's line of a stack; stacks are shared objects, so each is judged once."""

    def __init__(self) -> None:
        self.row: dict[str, int] = {"": NO_LINE}
        self.seen: dict[int, int] = {}

    def of(self, frames: object) -> int:
        """Row of the innermost frame of the user's own code, else of any Python code."""
        if not isinstance(frames, list) or not frames:
            return NO_LINE
        known = self.seen.get(id(frames))
        if known is None:
            known = self.row.setdefault(_own_line(frames), len(self.row))
            self.seen[id(frames)] = known
        return known


def _own_line(frames: list[Any]) -> str:
    python = [f for f in frames if isinstance(f, dict) and ".py" in str(f.get("filename", ""))]
    own = [f for f in python if not any(part in f["filename"] for part in _LIBRARIES)]
    for frame in own[:1] or python[:1]:
        file = str(frame["filename"]).replace("\\", "/").rsplit("/", 1)[-1]
        return sys.intern(f"{file}:{frame.get('line', 0)} {frame.get('name', '')}".strip())
    return ""


def _snapshot(file: str, raw: Mapping[str, Any], lines: _Lines) -> MemorySnapshot:
    segments = raw["segments"]
    blocks = _blocks(segments, lines)
    traces = raw.get("device_traces") or []
    events = _events(traces, lines)
    actions = [str(entry.get("action")) for trace in traces for entry in trace]
    return MemorySnapshot(
        file=file,
        lines=tuple(lines.row),
        blocks=blocks,
        events=events,
        reserved=_reserved(segments),
        segments_taken=actions.count("segment_alloc"),
        segments_returned=actions.count("segment_free"),
        out_of_memory=actions.count("oom"),
    )


def _reserved(segments: Iterable[Mapping[str, Any]]) -> Column:
    """Bytes held from the driver, per device."""
    rows = [(int(s.get("device", 0)), int(s.get("total_size", 0))) for s in segments]
    device, held = _columns(rows, 2)
    if ((device < 0) | (device >= _MOST_DEVICES) | (held < 0) | (held > _MOST_BYTES)).any():
        raise ValueError("a segment of an impossible device or size")
    out = np.zeros(int(device.max(initial=-1)) + 1, np.int64)
    np.add.at(out, device, held)
    return out


def _blocks(segments: Iterable[Mapping[str, Any]], lines: _Lines) -> SnapshotBlocks:
    rows = []
    for segment in segments:
        address = int(segment.get("address", 0))
        for block in segment.get("blocks", ()):
            size = int(block["size"])
            if block.get("state") != "inactive":
                where = int(block.get("address", address))
                rows.append((int(segment.get("device", 0)), where, size, lines.of(_frames(block))))
            address += size
    device, where_, size_, line = _columns(rows, 4)
    return SnapshotBlocks(device=device, address=where_, bytes=size_, line=line)


def _frames(block: Mapping[str, Any]) -> object:
    """A block's stack; torch before 2.1 kept it in a history list."""
    history = block.get("history")
    return history[0].get("frames") if history else block.get("frames")


def _events(traces: Iterable[Iterable[Mapping[str, Any]]], lines: _Lines) -> SnapshotEvents:
    """Memory is free again when its free has completed, not when it was asked for."""
    rows = []
    for device, trace in enumerate(traces):
        for entry in trace:
            action = entry.get("action")
            if action not in ("alloc", "free_completed"):
                continue
            size = int(entry["size"]) * (1 if action == "alloc" else -1)
            time = int(entry.get("time_us", 0)) * 1000
            line = lines.of(entry.get("frames"))
            rows.append((device, int(entry.get("addr", entry.get("address", 0))), size, time, line))
    device_, address, size_, time_, line_ = _columns(rows, 5)
    return SnapshotEvents(device=device_, address=address, bytes=size_, time=time_, line=line_)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> tuple[Column, ...]:
    table = np.array(rows, np.int64).reshape(len(rows), width)
    return tuple(table.T)
