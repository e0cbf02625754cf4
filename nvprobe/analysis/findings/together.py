"""Waits at several lines that are one matter.

Either they save nothing one by one, as the next waits for the same work where one of them goes; or
they read values in a row, which one copy reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from nvprobe.analysis.findings.loops import Proposed
from nvprobe.analysis.findings.model import Finding
from nvprobe.analysis.replay.edits.waits import reads_in_a_row, remove_sync
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
    proposed = _in_rows(by, proposed)
    waits = [one for one in proposed if one[0].id in _WAITS][:MOST]
    if len(waits) < 2 or by.sample.is_long:
        return list(proposed)
    model = by.models[0]
    alone = [expected(model, proposal.edit) for _, proposal in waits]
    touches = _touched(one for one, _ in waits)
    edit = remove_sync(by.sample, _events(by, touches))
    if expected(model, edit) < sum(alone) + NOTABLE:
        return list(proposed)
    small = {id(one) for (one, _), saved in zip(waits, alone, strict=True) if saved < NOTABLE}
    kept = [one for one in proposed if id(one[0]) not in small]
    return [*kept, (_one(tuple(one for one, _ in waits), touches), Proposal(edit, 1.0))]


def _in_rows(by: Replay, proposed: Sequence[Proposed]) -> list[Proposed]:
    """Lines that read values in the same rows are one finding, at the place of the first.

    Each of the others has most of its waits in rows in which the first one reads, too.
    """
    left, out = list(proposed), []
    row = reads_in_a_row(by.sample, _events(by, _touched(one for one, _ in proposed)))
    while left:
        finding, proposal = left.pop(0)
        mine = _rows_of(by, finding, row)
        if not _mostly(mine >= 0):
            out.append((finding, proposal))
            continue
        same = [one for one in left if _mostly(np.isin(_rows_of(by, one[0], row), mine[mine >= 0]))]
        left = [one for one in left if all(one is not other for other in same)]
        out.append(_read_in_rows(by, (finding, *(one for one, _ in same)), row))
    return out


def _read_in_rows(by: Replay, waits: tuple[Finding, ...], row: Column) -> Proposed:
    """The finding about values that are read one by one at some lines."""
    touches = _touched(waits)
    events = _events(by, touches)
    one, steps = _summed(waits, touches), by.sample.steps
    count = int(np.count_nonzero(events & (row >= 0))) / steps
    places = f"at {_places(waits)}" if one.sources else "one by one"
    return (
        dataclasses.replace(
            one,
            title=f"Values are read {places} with nothing launched between them: "
            f"{count:,.0f} per step, and the host waits for each",
            evidence={
                **one.evidence,
                "reads_in_a_row": round(count, 1),
                "rows_per_step": round(len(np.unique(row[events & (row >= 0)])) / steps, 1),
            },
            advice=(
                "read them at once: `.tolist()` or `.cpu()` of the whole tensor (torch.stack "
                "first, where they are several), and take the values from that",
                "do on the GPU what the loop does with them (comparisons, topk, sums), or do not "
                "read them in every step",
            ),
        ),
        Proposal(remove_sync(by.sample, events), 1.0),
    )


def _rows_of(by: Replay, finding: Finding, row: Column) -> Column:
    """Per sampled wait of a finding the number of its row of reads, -1."""
    if finding.id not in _WAITS:
        return np.empty(0, np.int64)
    return row[_events(by, _touched([finding]))]


def _mostly(hit: Column) -> bool:
    return 2 * int(np.count_nonzero(hit)) > len(hit)


def _events(by: Replay, touches: Column) -> Column:
    """Bool per event: one of some calls."""
    calls = by.sample.events.call
    return np.asarray(np.isin(calls, touches) & (calls >= 0))


def _touched(findings: Iterable[Finding]) -> Column:
    """The calls of findings about waits."""
    none = np.empty(0, np.int64)
    return np.concatenate(
        [
            none,
            *(one.touches for one in findings if one.id in _WAITS and one.touches is not None),
        ]
    )


def _one(waits: tuple[Finding, ...], touches: Column) -> Finding:
    """The finding about all of them: at the place of the first, which starves the GPU longest."""
    return dataclasses.replace(
        _summed(waits, touches),
        title=f"The host waits at {_places(waits)}, close together: without one of these waits the "
        "next takes as long",
    )


def _places(waits: tuple[Finding, ...]) -> str:
    sources = dict.fromkeys(source for one in waits for source in one.sources)
    return " and ".join(sources) if len(sources) == len(waits) <= 2 else f"{len(waits)} places"


def _summed(waits: tuple[Finding, ...], touches: Column) -> Finding:
    """The first of them with the lines and the evidence of all."""
    if len(waits) == 1:
        return waits[0]
    facts = {name: sum(int(one.evidence[name] or 0) for one in waits) for name in _SUMS}
    return dataclasses.replace(
        waits[0],
        sources=tuple(dict.fromkeys(source for one in waits for source in one.sources)),
        evidence={**waits[0].evidence, **facts, "places": len(waits)},
        touches=touches,
    )
