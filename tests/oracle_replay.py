"""What a replay is, event by event in plain Python: the oracle of nvprobe.analysis.replay.

``joint_oracle`` replays ranks one by one, again and again, until no collective begins later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from nvprobe.analysis.replay.model import ALL, NOTHING, Model

__all__ = ["joint_oracle", "replay_oracle"]


def joint_oracle(
    models: Sequence[Model], codes: Sequence[Sequence[int]], begins: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Of each rank what ``replay_oracle`` gives. ``codes``: the collective of each op, or -1."""
    members = defaultdict(list)
    for rank, own in enumerate(codes):
        for op, code in enumerate(own):
            if code >= 0:
                members[code].append((rank, op))
    longest = {
        code: max(int(models[rank].ops.dur[op]) for rank, op in some)
        for code, some in members.items()
    }
    met = [code for code, some in members.items() if len(some) > 1 and longest[code] > 0]
    moved = [{op: longest[code] for code in met for r, op in members[code] if r == rank}
             for rank in range(len(models))]  # fmt: skip
    start = dict.fromkeys(met, 0)
    while True:
        not_before = [{op: start[code] for code in met for r, op in members[code] if r == rank}
                      for rank in range(len(models))]  # fmt: skip
        arrivals: list[dict[int, int]] = [{} for _ in models]
        ends = [
            replay_oracle(*given)
            for given in zip(models, begins, not_before, moved, arrivals, strict=True)
        ]
        latest = {code: max(arrivals[rank][op] for rank, op in members[code]) for code in met}
        if latest == start:
            return ends
        start = {code: max(latest[code], start[code]) for code in met}


def replay_oracle(
    model: Model,
    since: int = 0,
    not_before: Mapping[int, int] | None = None,
    moved: Mapping[int, int] | None = None,
    arrivals: dict[int, int] | None = None,
) -> tuple[list[int], list[int]]:
    """(end of each event, end of each op).

    Some ops are collectives: these arrive (noted in ``arrivals``), move nothing before an instant,
    and then take as long as in ``moved``.
    """
    held, length, arrived = not_before or {}, moved or {}, {} if arrivals is None else arrivals
    events, ops = model.events, model.ops
    host = [since] * model.lanes
    on_stream: list[list[int]] = [[] for _ in model.tails]
    event_end: list[int] = []
    op_end: list[int] = []
    launched: list[int] = []  # the last op of each launching event
    for e in range(len(events)):
        begin = host[events.lane[e]] + int(events.gap[e])
        mine = [k for k in range(len(ops)) if ops.event[k] == e]
        if mine and len(launched) >= model.queue:
            begin = max(begin, op_end[launched[-model.queue]])
        end = begin + int(events.dur[e])
        for k in mine:
            before = on_stream[ops.stream[k]]
            tail = op_end[before[-1]] if before else int(model.tails[ops.stream[k]]) + since
            bounds = [0, tail + int(ops.gap[k]), end + int(ops.lat[k])]
            if ops.dep[k] != NOTHING:
                bounds.append(op_end[ops.dep[k]] + int(ops.dep_lat[k]))
            arrived[k] = max(bounds)
            op_end.append(max(arrived[k], held.get(k, 0)) + length.get(k, int(ops.dur[k])))
            before.append(k)
        if mine:
            launched.append(mine[-1])
        if events.awaits[e] == ALL:
            tails = [
                op_end[s[-1]] if s else int(t) + since
                for s, t in zip(on_stream, model.tails, strict=True)
            ]
            end = max(end, max(tails) + int(events.ret[e]))
        elif events.awaits[e] != NOTHING:
            end = max(end, op_end[events.awaits[e]] + int(events.ret[e]))
        host[events.lane[e]] = end
        event_end.append(end)
    return event_end, op_end
