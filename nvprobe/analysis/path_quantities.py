"""The quantities of every path (docs/attribution.md, "Quantities of a path").

What is counted by instance of a range: calls, host time, GPU spans, and replays.

Oracle: tests/analysis_oracle.py.

How long the GPU was busy for each path: the length of a union, not a sum.

Most ops overlap no other op of their device; such an op is busy for its duration, in every path
above it. Only the others need unions. These are made from the leaves of the trie upwards: what a
path's ops cover is merged with what its children cover, level by level, so that each level sorts
intervals that are already disjoint instead of expanding every op by its depth.

Oracle: tests/analysis_oracle.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.analysis.grouping import counts, distinct, push_up, sums
from nvprobe.analysis.model import UNKNOWN, PathQuantities, Steps
from nvprobe.analysis.overlap.communication import exposed_by_path
from nvprobe.analysis.timelines import Timeline, alone, thread_timeline
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.intervals import expand, merged, sorted_by, union_length
from nvprobe.attribution.model import Attribution, Method, PathTable
from nvprobe.attribution.nesting import nest
from nvprobe.trace import NO_ROW, Column, Ranges


def path_quantities(attribution: Attribution) -> PathQuantities:
    """Every quantity of every path; rows are those of ``attribution.paths``."""
    paths = attribution.paths
    size = len(paths.parent)
    own = sums(attribution.owner, attribution.duration, size)
    ops = push_up(paths, counts(attribution.owner, size))
    calls, wall, self_wall = host_times(attribution)
    captured = np.where(attribution.method == Method.GRAPH_CAPTURE, attribution.owner, -1)
    unseen = (calls == 0) & (push_up(paths, counts(captured, size)) > 0)
    replayed, replay_spans = replays(attribution, unseen)
    return PathQuantities(
        calls=calls + replayed,
        wall_ns=np.where(unseen, UNKNOWN, wall),
        self_wall_ns=np.where(unseen, UNKNOWN, self_wall),
        ops=ops,
        gpu_ns=push_up(paths, own),
        gpu_self_ns=own,
        gpu_busy_ns=busy_by_path(attribution),
        gpu_span_ns=gpu_spans(attribution) + replay_spans,
        order=walk_order(paths),
    )


def walk_order(paths: PathTable) -> Column:
    """Position of each path in a depth-first walk, siblings by row; int64 per path."""
    size = len(paths.parent)
    below = push_up(paths, np.ones(size, np.int64))
    position = np.zeros(size, np.int64)
    for depth, rows in enumerate(paths.levels()):
        parent = paths.parent[rows]
        order = np.argsort(parent, kind="stable")
        rows, parent = rows[order], parent[order]
        before = np.cumsum(below[rows]) - below[rows]  # among all of the level …
        first = np.searchsorted(parent, parent)
        before -= before[first]  # … among its siblings
        position[rows] = before + (position[parent] + 1 if depth else 0)
    return position


def host_times(attribution: Attribution) -> tuple[Column, Column, Column]:
    """(calls, wall_ns, self_wall_ns) per path, from the recorded instances alone."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    size = len(attribution.paths.parent)
    length = np.maximum(tree.end - ranges.start, 0)
    own = innermost_time(attribution)
    wall = sums(_instances(attribution), length - _time_of_closures(attribution), size)
    return recorded_calls(attribution), wall, sums(tree.path, own, size)


def recorded_calls(attribution: Attribution) -> Column:
    """Recorded instances per path."""
    return counts(_instances(attribution), len(attribution.paths.parent))


def _instances(attribution: Attribution) -> Column:
    """Path that each range is an instance of, -1.

    A folded duplicate is its parent again: not an instance, but its own time is the parent's.
    """
    return np.where(attribution.tree.folded, NO_ROW, attribution.tree.path)


def _time_of_closures(attribution: Attribution) -> Column:
    """Per range: host time of what closures opened inside it, where it is an optimizer's step."""
    ranges, tree, whole = attribution.trace.ranges, attribution.tree, attribution.whole
    opened = np.flatnonzero(whole.tree.closure)
    within, steps = opened, []
    while len(opened):
        around = whole.tree.parent[within]
        steps.append((around, opened))
        inner = _is_optimizer(whole, whole.tree.parent[around])
        opened, within = opened[inner], around[inner]
    if not steps:
        return np.zeros(len(ranges), np.int64)
    step, row = (np.concatenate(column) for column in zip(*steps, strict=True))
    start = np.maximum(whole.trace.ranges.start[row], ranges.start[step])
    end = np.minimum(whole.tree.end[row], tree.end[step])
    return union_length(step, start, end, len(ranges))


def _is_optimizer(attribution: Attribution, row: Column) -> Column:
    """Bool per row of the ranges: an optimizer's step; not for -1."""
    path = np.where(row == NO_ROW, NO_ROW, attribution.tree.path[row])
    name = np.where(path == NO_ROW, NO_ROW, attribution.paths.name[path])
    return np.asarray((name != NO_ROW) & attribution.open.trie.optimizers[name])


def innermost_time(attribution: Attribution) -> Column:
    """Per range: host time during which no range opened after it was open on its thread."""
    ranges, tree = attribution.trace.ranges, attribution.tree
    child = tree.parent != NO_ROW
    if np.any(tree.end[child] > tree.end[tree.parent[child]]):
        return _innermost_of_crossing(attribution, ranges)
    length = np.maximum(tree.end - ranges.start, 0)
    return length - sums(tree.parent, length, len(length))


def _innermost_of_crossing(attribution: Attribution, ranges: Ranges) -> Column:
    """The same where ranges cross: look up the innermost one between any two borders."""
    end = attribution.tree.end
    threads = len(attribution.trace.threads)
    nesting = nest(ranges.thread, ranges.start, end, threads)
    lane = np.repeat(np.arange(threads), np.diff(nesting.first))
    lane, time = np.tile(lane, 2), np.concatenate((nesting.start, nesting.end))
    order = np.lexsort((time, lane))
    lane, time = lane[order], time[order]
    length = np.where(lane[1:] == lane[:-1], time[1:] - time[:-1], 0)
    here = np.flatnonzero(length > 0)
    query, position = nesting.open_chains(nesting.last_started(lane[here], time[here]), time[here])
    last = np.append(query[1:] != query[:-1], True)[: len(query)]  # the innermost of each chain
    own = np.zeros(len(ranges), np.int64)
    np.add.at(own, nesting.row[position[last]], length[here][query[last]])
    return own


def gpu_spans(attribution: Attribution) -> Column:
    """Per path: first op start to last op end of each recorded instance, summed."""
    ranges, ops = attribution.trace.ranges, attribution.trace.ops
    total = np.zeros(len(attribution.paths.parent), np.int64)
    tree, timeline = attribution.tree, thread_timeline(attribution)
    kept = np.flatnonzero(~tree.folded)
    steps = _is_optimizer(attribution, kept)
    total += _spans_of_own_ops(attribution, timeline, kept[steps])
    kept = kept[~steps]
    low, high = timeline.slices(ranges.thread[kept], ranges.start[kept], tree.end[kept])
    filled = high > low
    path, low, high = tree.path[kept[filled]], low[filled], high[filled]
    valid = attribution.valid[timeline.op]
    first = np.where(valid, ops.start[timeline.op], np.iinfo(np.int64).max)
    last = np.where(valid, ops.end[timeline.op], np.iinfo(np.int64).min)
    depth = attribution.paths.depth[path]
    for level in np.unique(depth):
        at = np.flatnonzero(depth == level)
        begin = _reduced(np.minimum, first, low[at], high[at])
        end = _reduced(np.maximum, last, low[at], high[at])
        np.add.at(total, path[at], np.where(end > begin, end - begin, 0))
    return total


def _spans_of_own_ops(attribution: Attribution, timeline: Timeline, rows: Column) -> Column:
    """The spans of optimizers' steps, per path: without the ops of closures called inside."""
    ranges, tree, paths = attribution.trace.ranges, attribution.tree, attribution.paths
    low, high = timeline.slices(ranges.thread[rows], ranges.start[rows], tree.end[rows])
    instance, place = expand(low, high)
    op, path = timeline.op[place], tree.path[rows[instance]]
    own = attribution.valid[op] & below(paths, attribution.owner[op], path)
    op, instance = op[own], instance[own]
    begin = np.full(len(rows), np.iinfo(np.int64).max)
    end = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(begin, instance, attribution.trace.ops.start[op])
    np.maximum.at(end, instance, attribution.trace.ops.end[op])
    return sums(tree.path[rows], np.where(end > begin, end - begin, 0), len(paths.parent))


def below(paths: PathTable, path: Column, above: Column) -> Column:
    """Bool per pair: a path is ``above`` itself or inside it; -1 is inside nothing."""
    first = walk_order(paths)
    size = push_up(paths, np.ones(len(first), np.int64))
    place = np.where(path < 0, -1, first[path])
    return np.asarray((place >= first[above]) & (place < first[above] + size[above]))


def _reduced(ufunc: np.ufunc, values: Column, low: Column, high: Column) -> Column:
    """``ufunc`` over each slice [low, high); slices are not empty.

    ``reduceat`` also reduces what lies between two slices: sorted by ``low``, and with slices of
    one level that hardly overlap, that is no more than the values once.
    """
    order = np.argsort(low, kind="stable")
    borders = np.empty(2 * len(low), np.int64)
    borders[::2], borders[1::2] = low[order], high[order]
    padded = np.append(values, values[-1:])
    out = np.empty(len(low), np.int64)
    out[order] = ufunc.reduceat(padded, borders)[::2]
    return out


def replays(attribution: Attribution, unseen: Column) -> tuple[Column, Column]:
    """(calls, gpu_span_ns) per path of ranges seen only inside graph replays.

    ``unseen`` is a bool per path: graph replays ran it and it has no instance of its own. Then each
    graph launch counts as an instance.
    """
    paths = attribution.paths
    size = len(paths.parent)
    calls, spans = np.zeros(size, np.int64), np.zeros(size, np.int64)
    op = np.flatnonzero(attribution.method == Method.GRAPH_CAPTURE)
    path = attribution.owner[op]
    for level in range(int(paths.depth[path].max(initial=-1)), -1, -1):
        here = np.flatnonzero(paths.depth[path] == level)
        inside = here[unseen[path[here]]]
        replayed, begin, end = _launch_windows(attribution, op[inside], path[inside])
        np.add.at(calls, replayed, 1)
        np.add.at(spans, replayed, np.where(end > begin, end - begin, 0))
        if level:
            path[here] = paths.parent[path[here]]
    return calls, spans


def _launch_windows(
    attribution: Attribution, op: Column, path: Column
) -> tuple[Column, Column, Column]:
    """(path, first op start, last op end) of each pair of path and graph launch."""
    ops = attribution.trace.ops
    valid = attribution.valid[op]
    launch = attribution.call[op] + 1  # 0: the launch itself was not recorded
    pair, group = distinct(path.astype(np.int64) << 40 | launch)
    begin = np.full(len(pair), np.iinfo(np.int64).max)
    end = np.full(len(pair), np.iinfo(np.int64).min)
    np.minimum.at(begin, group[valid], ops.start[op[valid]])
    np.maximum.at(end, group[valid], ops.end[op[valid]])
    return pair >> 40, begin, end


def busy_by_path(attribution: Attribution) -> Column:
    """``gpu_busy_ns`` of every path: per device, summed over devices; int64 per path."""
    ops, paths = attribution.trace.ops, attribution.paths
    size = len(paths.parent)
    if not size:
        return np.zeros(size, np.int64)
    rows = np.flatnonzero(attribution.valid & (attribution.owner >= 0))
    device, start, end = ops.device[rows] + 1, ops.start[rows], ops.end[rows]
    order = sorted_by(device, start)
    rows, device, start, end = rows[order], device[order], start[order], end[order]
    single = alone(device, start, end)
    lengths = sums(attribution.owner[rows[single]], (end - start)[single], size)
    crowd = ~single
    owner = attribution.owner[rows[crowd]]
    return push_up(paths, lengths) + _unions(
        attribution, owner, device[crowd], start[crowd], end[crowd]
    )


def _unions(
    attribution: Attribution, owner: Column, device: Column, start: Column, end: Column
) -> Column:
    """Length of the union per path and device, summed over devices, for overlapping ops."""
    paths = attribution.paths
    total = np.zeros(len(paths.parent), np.int64)
    devices = int(device.max()) + 1 if len(device) else 1
    depth = paths.depth[owner]
    below = tuple(np.empty(0, np.int64) for _ in range(3))  # (group, start, end) of one level down
    for level in range(len(paths.levels()) - 1, -1, -1):
        here = depth == level
        group = owner[here].astype(np.int64) * devices + device[here]
        group, first, last = merged(
            np.concatenate((below[0], group)),
            np.concatenate((below[1], start[here])),
            np.concatenate((below[2], end[here])),
        )
        path = group // devices
        np.add.at(total, path, last - first)
        if level:
            group = paths.parent[path].astype(np.int64) * devices + group % devices
        below = (group, first, last)
    return total


def with_waits(ranges: PathQuantities, attribution: Attribution, waits: Waits) -> PathQuantities:
    """``ranges`` with ``sync_ns``, ``idle_ns`` and ``exposed_comm_ns`` where they can be known."""
    trace, paths = attribution.trace, attribution.paths
    size = len(paths.parent)
    if trace.calls.recorded:
        sites = waits.syncs.sites
        waited = push_up(paths, sums(sites.path, sites.wait_ns, size))
        ranges = dataclasses.replace(ranges, sync_ns=waited)
    if attribution.valid.any():
        idle = push_up(paths, sums(waits.idle.path, waits.idle.ns, size))
        exposed = exposed_by_path(attribution, waits.work, waits.exposed)
        ranges = dataclasses.replace(ranges, idle_ns=idle, exposed_comm_ns=exposed)
    return ranges


def idle_of_steps(waits: Waits, steps: Steps) -> Column:
    """``idle_ns`` of every step: over devices, cut at its borders."""
    idle = sums(waits.idle.step, waits.idle.ns, len(steps))
    return idle if steps.steady is None else np.where(steps.steady, idle, UNKNOWN)
