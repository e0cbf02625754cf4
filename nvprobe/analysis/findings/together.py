"""Waits that save nothing one by one: where one of them goes, the next waits for the same work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Finding
from nvprobe.analysis.replay.edits.waits import remove_sync
from nvprobe.analysis.replay.prepared import Replay
from nvprobe.analysis.replay.search import NOTABLE, Proposal, expected
from nvprobe.trace import Column

MOST = 8
"""Lines that one finding speaks of; those that starve the GPU for longest."""
_WAITS = ("implicit_sync", "explicit_sync")
_SUMS = ("count", "wait_ns", "busy_ns", "bubble_ns")


def waits_together(by: Replay, proposed: Sequence[Proposed]) -> list[Proposed]:
    """Several findings about waits as one, where they save notably more than one by one.

    Those that save nothing alone are left out then.
    """
    waits = [one for one in proposed if one[0].id in _WAITS][:MOST]
    if len(waits) < 2 or by.sample.is_long:
        return list(proposed)
    model = by.models[0]
    alone = [expected(model, proposal.edit) for _, proposal in waits]
    touches = np.concatenate([one.touches for one, _ in waits if one.touches is not None])
    calls = by.sample.events.call
    edit = remove_sync(by.sample, np.isin(calls, touches) & (calls >= 0))
    if expected(model, edit) < sum(alone) + NOTABLE:
        return list(proposed)
    small = {id(one) for (one, _), saved in zip(waits, alone, strict=True) if saved < NOTABLE}
    kept = [one for one in proposed if id(one[0]) not in small]
    return [*kept, (_one(tuple(one for one, _ in waits), touches), Proposal(edit, 1.0))]


def _one(waits: tuple[Finding, ...], touches: Column) -> Finding:
    """The finding about all of them: at the place of the first, which starves the GPU longest."""
    facts = {name: sum(int(one.evidence[name] or 0) for one in waits) for name in _SUMS}
    sources = dict.fromkeys(source for one in waits for source in one.sources)
    places = " and ".join(sources) if len(sources) == len(waits) == 2 else f"{len(waits)} places"
    return dataclasses.replace(
        waits[0],
        title=f"The host waits at {places}, close together: without one of these waits the next "
        "takes as long",
        sources=tuple(sources),
        evidence={**waits[0].evidence, **facts, "places": len(waits)},
        touches=touches,
    )
