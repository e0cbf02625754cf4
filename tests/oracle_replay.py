"""What a replay is, event by event in plain Python: the oracle of nvprobe.analysis.replay.run."""

from __future__ import annotations

from nvprobe.analysis.replay.model import ALL, NOTHING, Model

__all__ = ["replay_oracle"]


def replay_oracle(model: Model) -> tuple[list[int], list[int]]:
    """(end of each event, end of each op)."""
    events, ops = model.events, model.ops
    host = [0] * model.lanes
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
            tail = op_end[before[-1]] if before else int(model.tails[ops.stream[k]])
            bounds = [0, tail + int(ops.gap[k]), end + int(ops.lat[k])]
            if ops.dep[k] != NOTHING:
                bounds.append(op_end[ops.dep[k]] + int(ops.dep_lat[k]))
            op_end.append(max(bounds) + int(ops.dur[k]))
            before.append(k)
        if mine:
            launched.append(mine[-1])
        if events.awaits[e] == ALL:
            tails = [
                op_end[s[-1]] if s else int(t) for s, t in zip(on_stream, model.tails, strict=True)
            ]
            end = max(end, max(tails) + int(events.ret[e]))
        elif events.awaits[e] != NOTHING:
            end = max(end, op_end[events.awaits[e]] + int(events.ret[e]))
        host[events.lane[e]] = end
        event_end.append(end)
    return event_end, op_end
