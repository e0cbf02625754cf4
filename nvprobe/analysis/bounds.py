"""The verdict's first words: what bounds the run, never stronger than the evidence.

Idle is held against the window, causes against all idle. A cause is named alone from three tenths
of the window on; a smaller one stands behind "mostly GPU-bound". Where records are missing or
nothing repeats, the verdict is unclear and says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from nvprobe.analysis.findings import Evidence, Finding
from nvprobe.analysis.findings.sources import common_path, named
from nvprobe.analysis.replay.prepared import Replay
from nvprobe.analysis.waiting.host_causes import HOST_LATE, Cause

BUSY = 0.95
LARGE = 0.3
MOSTLY = 0.7
FEW_OPS = 4
_ALONE = {
    "exposed_communication": "exposed communication",
    "pageable_copy": "bound by copies",
    "exposed_copy": "bound by copies",
}
"""Findings about time in which the GPU is busy, but computes nothing."""
_HOST = {"launch-bound", "host-bound"}
_CALLS = {"graph_rebuilt", "context_creation", "idle_other_call"}
"""Findings about host time that is spent in calls, not in Python."""
_PHRASES: tuple[tuple[str, tuple[Cause, ...]], ...] = (
    ("waits for data", (Cause.INPUT,)),
    ("waits for requests", (Cause.NO_WORK,)),
    ("held up by synchronization", (Cause.SYNC,)),
    ("held up by allocation", (Cause.ALLOCATION,)),
    ("held up by compilation", (Cause.COMPILATION,)),
    ("held up by collectives", (Cause.COLLECTIVE,)),
    ("host-bound", HOST_LATE),
    ("waits between queued work", (Cause.DEVICE_WAIT,)),
)


def bound(evidence: Evidence, found: Sequence[Finding], by: Replay | None = None) -> str:
    """``launch-bound in step/forward``, ``GPU-bound``, ``unclear: …``.

    ``by``: a host that only the profiler makes slow bounds nothing. It knows the steps, so what
    the GPU waits between them has to be little.
    """
    if not evidence.idle_trusted:
        return f"unclear: {evidence.lost_launches:,} launches left no GPU record"
    if len(evidence.ops) < FEW_OPS and not found:
        return f"unclear: hardly any GPU work is recorded ({len(evidence.ops)} ops)"
    for one in found:
        if one.id in _ALONE and one.saves_ns[1] >= LARGE * evidence.window_ns:
            return f"{_ALONE[one.id]} in {named(evidence.attribution.paths, one.path)}"
    if evidence.busy_share >= BUSY:
        gain = any(one.severity != "info" for one in found)
        return "GPU-bound" if gain else "GPU-bound, nothing found to gain"
    if not len(evidence.trace.calls):
        return "unclear: no CUDA calls are recorded, so what the GPU waits for is unknown"
    words = _by_cause(evidence, found)
    if _HOST & set(words.split()) and by is not None and by.busy_share >= BUSY:
        alone = evidence.busy_ns + evidence.idle_between_steps_ns
        return "GPU-bound without the profiler" if evidence.busy_ns >= BUSY * alone else words
    return words


def _by_cause(evidence: Evidence, found: Sequence[Finding]) -> str:
    """The cause with most idle time, if it is most of it and belongs to something that repeats."""
    paths = evidence.attribution.paths
    total = evidence.window_ns - evidence.busy_ns
    sums = [(int(idle.sum()), phrase, idle) for phrase, causes in _PHRASES
            for idle in (evidence.idle(*causes),)]  # fmt: skip
    most, phrase, idle = max(sums, key=lambda one: one[0])
    if evidence.busy_share < MOSTLY:
        if not evidence.repeats and not evidence.of_a_loop:
            return "unclear: the capture shows no repeated step, so waiting may be start-up"
        if sum(one[0] for one in sums) < total / 2:
            return "unclear: most idle time lies outside of repeated steps"
        if most < total / 2:
            return "unclear: the GPU waits for several things"
    first = {one.id for one in found[:1]}
    host = [one.id for one in found if one.id in ("launch_bound", "host_work")]
    launches = host[:1] == ["launch_bound"]  # the one that matters more
    words = "launch-bound" if launches and phrase == "host-bound" else phrase
    if first & {"implicit_sync", "explicit_sync"} and words == "host-bound":
        words = "held up by synchronization"  # what the host does late, after it was held
    if first & _CALLS and words == "host-bound":
        words = "held up by calls that launch nothing"
    if first & {"allocator", "pinned_allocation"} and phrase == "held up by synchronization":
        words = "held up by allocation"  # frees that wait synchronize, too
    place = f" in {named(paths, common_path(paths, idle))}"
    if most >= LARGE * evidence.window_ns:
        return words + place
    return f"mostly GPU-bound, then {words}{place}" if most >= total / 2 else "mostly GPU-bound"
