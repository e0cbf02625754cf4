"""Which torch traces belong to one run, and what is said of those that do not.

* The files of one rank of a run: cycles of its profiler (one process, one after the other) and
  processes that ran at the same time. In a folder that ``nvprobe launch`` wrote all files are of
  one run, also processes that followed each other.
* Several *ranks* are a job: their clocks are those of several machines.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from nvprobe.errors import UsageError
from nvprobe.merging.several_traces import joined
from nvprobe.readers.input_errors import shown
from nvprobe.readers.kineto.metadata import rank_of
from nvprobe.trace import Trace

_LAUNCHED = re.compile(r"^trace\.(\d{1,6})\.\d+\.json")


def not_of_one_run(files: Sequence[str]) -> str:
    """The line that refuses several captures at once."""
    return (
        f"{', '.join(map(shown, files))}: several captures at once; "
        "give one; what belongs to one run is a report, torch traces of its process and sidecars; "
        "nvprobe ranks compares the ranks of a job"
    )


def first_rank(folder: Path, files: list[Path], notes: list[str]) -> list[Path]:
    """The traces of the lowest rank, by their names; ``notes`` says which were left."""
    by_rank: dict[int, list[Path]] = {}
    for file in files:
        by_rank.setdefault(_rank_in_name(file), []).append(file)
    if len(by_rank) < 2:
        return files
    lowest, *others = sorted(by_rank)
    named = ", ".join(map(str, others[:8])) + (", …" if len(others) > 8 else "")
    first = "the trace without a rank" if lowest < 0 else f"rank {lowest}"
    notes.append(
        f"{shown(folder)}: only {first} is analyzed; traces of ranks {named} lie beside it and "
        "are left out (give one of them to see it; nvprobe ranks compares them)"
    )
    return by_rank[lowest]


def _rank_in_name(file: Path) -> int:
    launched = _LAUNCHED.match(file.name)
    return int(launched[1]) if launched else rank_of({}, file)


def of_one_run(traces: Sequence[Trace], *, one_run: bool) -> Trace:
    """One Trace of torch traces; UsageError where they are not of one rank of one run."""
    ordered = sorted(traces, key=_window)
    files = [one.sources[0].file for one in ordered]
    ranks = {int(rank) for one in traces for rank in one.processes.rank if rank >= 0}
    ranks |= {int(found[1]) for file in files if (found := _LAUNCHED.match(Path(file).name))}
    if len(ranks) > 1:
        named = ", ".join(map(str, sorted(ranks)))
        raise UsageError(
            f"{', '.join(map(shown, files))}: traces of ranks {named}; give those of one rank, or "
            "all of them to nvprobe ranks"
        )
    for first, second in itertools.combinations(ordered, 2):
        same = bool(set(first.processes.pid.tolist()) & set(second.processes.pid.tolist()))
        together = _window(second)[0] < _window(first)[1]
        if same and together:
            raise UsageError(
                f"{shown(first.sources[0].file)} and {shown(second.sources[0].file)} record the "
                "same process at the same time; give one of them"
            )
    if not one_run and not _linked(ordered):
        raise UsageError(not_of_one_run(files))
    return joined(ordered)


def _linked(ordered: Sequence[Trace]) -> bool:
    """Whether every trace shares a process or an instant with one before it."""
    pids: set[int] = set()
    reached: int | None = None
    for one in ordered:
        start, end = _window(one)
        own = set(one.processes.pid.tolist())
        if reached is not None and start >= reached and not own & pids:
            return False
        pids |= own
        reached = end if reached is None else max(reached, end)
    return True


def _window(trace: Trace) -> tuple[int, int]:
    """Begin and end in UTC."""
    zero = trace.origin_ns or 0
    return zero + trace.start_ns, zero + trace.end_ns
