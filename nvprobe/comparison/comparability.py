"""What besides the program differs between two sides, and so whether times can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nvprobe.comparison.model import Difference
from nvprobe.comparison.samples import step_count
from nvprobe.report.document import Document

_CLOCK_CLOSE = 0.02


def differences(before: Sequence[Document], after: Sequence[Document]) -> list[Difference]:
    """Facts that differ, those that decide first; also within a side."""
    found = []
    for what, (decides, fact) in _FACTS.items():
        was, now = ([fact(run) for run in side] for side in (before, after))
        if len({*was, *now}) > 1 and not _unknown(was, now):
            found.append(Difference(what, _listed(was), _listed(now), decides))
    found += _notes(before, after)
    return sorted(found, key=lambda one: not one.decides)


def _unknown(was: Sequence[str | None], now: Sequence[str | None]) -> bool:
    """Whether a whole side says nothing, which does not count as a difference."""
    return not any(was) or not any(now)


def _listed(values: Sequence[str | None]) -> str | None:
    return (
        " | ".join(dict.fromkeys(value or "unknown" for value in values)) if any(values) else None
    )


def _gpus(run: Document) -> str | None:
    names = [one.name or "unknown" for one in run.devices]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or None


def _backend(run: Document) -> str | None:
    kinds = [one.kind for one in run.sources if one.kind != "sidecar"]
    return ("nsys" if kinds[0].startswith("nsys") else kinds[0]) if kinds else None


def _profiler_version(run: Document) -> str | None:
    return next((one.product_version for one in run.sources if one.kind != "sidecar"), None)


def _clock(run: Document) -> str | None:
    """The highest clock, rounded so that close ones are the same."""
    if run.counters is None or not run.counters.clock_mhz[1]:
        return None
    high = run.counters.clock_mhz[1]
    step = high * _CLOCK_CLOSE
    return f"{round(high / step) * step:.0f} MHz"


def _basis(run: Document) -> str | None:
    return run.step_parts.basis if run.step_parts else None


def _graph_mode(run: Document) -> str | None:
    """How CUDA graphs are recorded; None where none are."""
    counts = run.step_parts.counts if run.step_parts else ()
    if not any(one.graph_launches for one in counts):
        return None
    return "node by node" if any(one.graph_nodes for one in counts) else "whole"


def _copied_in(run: Document) -> str | None:
    """Bytes copied to the GPU per step: another batch, most often."""
    found = [one.bytes for one in run.copies if one.name == "Memcpy HtoD" and one.bytes is not None]
    return f"{sum(found) // step_count(run):,} bytes per step" if found else None


def _filters(run: Document) -> str:
    """The filters that the user gave: steady steps are compared with steady steps without any."""
    given = run.ledger.outside if run.left_out is None else None
    return ", ".join(given.filters) if given else "none"


_FACTS: dict[str, tuple[bool, Callable[[Document], str | None]]] = {
    "GPU": (True, _gpus),
    "profiler": (True, _backend),
    "what a step is measured on": (True, _basis),
    "version of the profiler": (False, _profiler_version),
    "version of nvprobe": (False, lambda run: run.nvprobe),
    "highest clock": (False, _clock),
    "CUDA graphs recorded": (True, _graph_mode),
    "copied to the GPU (the batch)": (False, _copied_in),
    "filters": (True, _filters),
}  # fmt: skip


def _notes(before: Sequence[Document], after: Sequence[Document]) -> list[Difference]:
    """Facts that the captures state: versions of torch, CUDA and driver, flags, the window."""
    stated = [[_stated(run) for run in side] for side in (before, after)]
    names = dict.fromkeys(name for side in stated for run in side for name in run)
    found = []
    for name in names:
        was, now = ([run.get(name) for run in side] for side in stated)
        if len({*was, *now}) > 1 and not _unknown(was, now):
            found.append(Difference(name, _listed(was), _listed(now), False))
    return found


def _stated(run: Document) -> dict[str, str]:
    return {name: value for one in run.sources for name, value in one.notes.items()}
