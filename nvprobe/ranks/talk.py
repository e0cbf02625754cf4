"""The collectives of one rank: on its GPU, or, where nothing of them ran there, on the host."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping

import numpy as np

from nvprobe.analysis.grouping import sums
from nvprobe.analysis.overlap.combinations import Work
from nvprobe.analysis.overlap.communication import carried_messages, collective_names
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.kinds import OWN_DOMAIN
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.ranks.identity import communicator_sizes
from nvprobe.ranks.summary import Collectives, Groups
from nvprobe.trace import NO_NAME, NO_PAYLOAD, NO_ROW, Column

Rows = Callable[[Column], Column]
Texts = MutableMapping[str, int]
_LIBRARY = re.compile(r"^(?:gloo|mpi|ucc|nccl):")
_ALL_TO_ALL = re.compile(r"(?i)all_?to_?all")
_WORD = 1 << 64


def communicating(attribution: Attribution, waits: Waits, process: int) -> Column:
    """Rows of the communicating ops of a process in the order of time."""
    ops = attribution.trace.ops
    talks = attribution.valid & (waits.work == Work.COMMUNICATION) & (ops.process == process)
    rows = np.flatnonzero(talks)
    return rows[np.argsort(ops.start[rows], kind="stable")]


def gpu_collectives(
    attribution: Attribution, waits: Waits, process: int, step: Rows, paths: Rows, texts: Texts
) -> tuple[Collectives, Groups]:
    """Communicating kernels of a process; ``step`` and ``paths`` give rows of the summary."""
    trace, ops = attribution.trace, attribution.trace.ops
    rows = communicating(attribution, waits, process)
    call = attribution.call[rows]
    called = trace.calls.start[call] if len(trace.calls) else np.full(len(rows), -1)
    size, keys = _messages(attribution, rows)
    names = _group_names(attribution, attribution.owner[rows])
    sizes = communicator_sizes(trace, process)
    group, groups = _groups(keys, names, {_hex(key): n for key, n in sizes.items()}, texts)
    zero, path = trace.origin_ns or 0, paths(attribution.owner[rows])
    return Collectives(
        step=np.where(call >= 0, step(np.where(call >= 0, called, -1)), -1),
        group=group,
        kind=_kinds(collective_names(trace, ops.name[rows]), path, texts),
        path=path,
        start=ops.start[rows] + zero,
        end=ops.end[rows] + zero,
        exposed_ns=waits.exposed.between(ops.device[rows] + 1, ops.start[rows], ops.end[rows]),
        holds_ns=_holds(attribution, rows),
        bytes=size,
    ), groups


def _holds(attribution: Attribution, rows: Column) -> Column:
    """Of each op, its time after the device's next one was launched: only then it holds that up.

    Where the host launches the next one later, it is the host that the device waits for.
    """
    ops, calls = attribution.trace.ops, attribution.trace.calls
    start, end = ops.start[rows], ops.end[rows]
    launched = start.copy()
    for device in np.unique(ops.device[rows]):
        all_ops = np.flatnonzero((ops.device == device) & attribution.valid)
        all_ops = all_ops[np.argsort(ops.start[all_ops], kind="stable")]
        here = np.flatnonzero(ops.device[rows] == device)
        place = np.searchsorted(ops.start[all_ops], end[here])
        here, place = here[place < len(all_ops)], place[place < len(all_ops)]
        call = attribution.call[all_ops[place]]
        known = call >= 0
        launched[here[known]] = calls.start[call[known]]
    return end - np.clip(launched, start, end)


def _kinds(names: list[str], path: Column, texts: Texts) -> Column:
    """Rows of the kinds; sends and receives inside of an all-to-all are one."""
    exchanges = {row for text, row in list(texts.items()) if _ALL_TO_ALL.search(text)}
    found = [
        "all_to_all" if name == "send_recv" and row in exchanges else name
        for name, row in zip(names, path.tolist(), strict=True)
    ]
    return np.array([texts[name] for name in found], np.int32)


def _messages(attribution: Attribution, rows: Column) -> tuple[Column, list[str]]:
    """(bytes, -1 where unknown; what the group is called) of each communicating op.

    A kernel without a message belongs to the group of the others on its stream; without any, the
    streams are told apart by the order in which they first communicate.
    """
    ops = attribution.trace.ops
    place = np.full(len(ops), -1)
    place[rows] = np.arange(len(rows))
    size, keys = np.full(len(rows), -1), [""] * len(rows)
    if (carried := carried_messages(attribution, rows)) is not None and len(carried):
        at = place[carried.op]
        size = np.where(np.bincount(at, minlength=len(rows)) > 0,
                        sums(at, carried.bytes, len(rows)), -1)  # fmt: skip
        named = attribution.trace.texts(carried.group)
        for row, communicator, name in zip(at, carried.communicator, named, strict=True):
            known = communicator != NO_PAYLOAD
            keys[row] = _hex(int(communicator)) if known else f"group {name}" if name else ""
    streams: dict[int, str] = {}
    for stream, key in zip(ops.stream[rows].tolist(), keys, strict=True):
        streams[stream] = streams.get(stream) or key
    for number, stream in enumerate(streams):
        streams[stream] = streams[stream] or f"stream {number}"
    stream = ops.stream[rows].tolist()
    return size, [key or streams[own] for key, own in zip(keys, stream, strict=True)]


def _hex(communicator: int) -> str:
    return f"communicator {communicator % _WORD:016x}"


def _group_names(attribution: Attribution, owner: Column) -> list[str | None]:
    """The group that nvprobe's own range around a collective names: ``all_reduce tp``."""
    paths = attribution.paths
    domain = attribution.trace.texts(paths.domain)
    own = np.array([text == OWN_DOMAIN for text in domain], bool) & (paths.kind == Kind.COLLECTIVE)
    nearest = np.append(paths.nearest(own), NO_ROW)[owner]
    known = {
        row: _group_of(paths.names[int(paths.name[row])].as_py()) for row in set(nearest) - {-1}
    }
    return [known.get(row) for row in nearest.tolist()]


def _group_of(name: str) -> str | None:
    return name.rpartition(" ")[2] if " " in name else None


def _groups(
    keys: list[str], names: list[str | None], sizes: dict[str, int], texts: Texts
) -> tuple[Column, Groups]:
    """(group row of each collective, the groups)."""
    order = list(dict.fromkeys(keys))
    called = {key: name for key, name in zip(keys, names, strict=True) if name}
    place = {key: row for row, key in enumerate(order)}
    return np.array([place[key] for key in keys], np.int32), Groups(
        key=np.array([texts[key] for key in order], np.int32),
        name=np.array([texts[called[k]] if k in called else NO_NAME for k in order], np.int32),
        size=np.array([sizes.get(key, -1) for key in order], np.int64),
    )


def host_collectives(
    attribution: Attribution, waits: Waits, process: int, step: Rows, paths: Rows, texts: Texts
) -> tuple[Collectives, Groups]:
    """Collectives of the host's own libraries, from the ranges around them.

    A library's own range (``gloo:all_reduce``) lasts from the beginning of its work to its end; the
    range around a call is taken where there is none.
    """
    trace, tree = attribution.trace, attribution.tree
    rows, kinds, names = _host_ranges(attribution, process)
    rows_order = np.argsort(trace.ranges.start[rows], kind="stable")
    rows = rows[rows_order]
    kinds, names = [kinds[k] for k in rows_order], [names[k] for k in rows_order]
    start, end, zero = trace.ranges.start[rows], tree.end[rows], trace.origin_ns or 0
    keys = ["host" if name is None else f"group {name}" for name in names]
    group, groups = _groups(keys, names, {}, texts)
    return Collectives(
        step=step(start),
        group=group,
        kind=np.array([texts[kind] for kind in kinds], np.int32),
        path=paths(tree.path[rows]),
        start=start + zero,
        end=end + zero,
        exposed_ns=end - start,
        holds_ns=end - start,
        bytes=np.full(len(rows), -1),
    ), groups


def _host_ranges(
    attribution: Attribution, process: int
) -> tuple[Column, list[str], list[str | None]]:
    """(rows of ranges, collective, group) of a process's collectives on the host."""
    trace, tree, paths = attribution.trace, attribution.tree, attribution.paths
    here = (trace.ranges.process == process) & (tree.path >= 0) & ~tree.folded
    rows = np.flatnonzero(here & (tree.kind == Kind.COLLECTIVE))
    texts = {
        path: paths.names[int(paths.name[path])].as_py() for path in set(tree.path[rows].tolist())
    }
    library = np.array([bool(_LIBRARY.match(texts[p])) for p in tree.path[rows].tolist()], bool)
    if library.any():
        rows = rows[library]
        found = [texts[path].partition(":")[2] for path in tree.path[rows].tolist()]
        return rows, found, [None] * len(rows)
    own = np.array([text == OWN_DOMAIN for text in trace.texts(trace.ranges.domain[rows])], bool)
    rows = rows[own] if own.any() else rows
    found = [texts[path].removeprefix("functional ") for path in tree.path[rows].tolist()]
    return rows, [one.partition(" ")[0] for one in found], [_group_of(one) for one in found]
