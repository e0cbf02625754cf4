"""Random models: few nanoseconds, so that every edge binds somewhere."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from nvprobe.analysis.replay.model import (
    ALL,
    NEVER,
    NOTHING,
    EventKind,
    HostEvents,
    Model,
    QueuedOps,
)

short = st.integers(0, 9)


@st.composite
def models(draw, least: int = 1) -> Model:
    """One to three lanes and streams, a short queue, graphs whose nodes wait for one another."""
    lanes, streams = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    events, ops = [], []
    for row in range(draw(st.integers(least, 14))):
        first = len(ops)
        if draw(st.integers(0, 4)) == 0:
            events.append((0, draw(short), 0, EventKind.STEP, NOTHING, 0, first))
            continue
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 3]))):
            dep = draw(st.integers(-1, len(ops) - 1)) if draw(st.booleans()) else NOTHING
            lat = draw(st.one_of(st.integers(-5, 9), st.just(NEVER)))
            ops.append(
                (row, draw(st.integers(0, streams - 1)), draw(short), draw(short), lat, dep,
                 draw(st.integers(-2, 9)))
            )  # fmt: skip
        awaits = NOTHING
        if draw(st.integers(0, 3)) == 0:
            awaits = draw(st.sampled_from([ALL, *range(len(ops))])) if ops else NOTHING
        events.append(
            (draw(st.integers(0, lanes - 1)), draw(short), draw(short), EventKind.LAUNCH, awaits,
             draw(st.integers(-3, 5)), first)
        )  # fmt: skip
    tails = draw(st.lists(st.one_of(st.just(NEVER), short), min_size=streams, max_size=streams))
    return Model(
        HostEvents(*_columns(events, 7)), QueuedOps(*_columns(ops, 7)), lanes,
        np.array(tails, np.int64), queue=draw(st.integers(1, 4)),
    )  # fmt: skip


def _columns(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(len(rows), width).T)
