"""What an analysis of an Attribution holds: one field a table, numpy columns in each.

A field that is ``None`` was not computed; ``analyze`` lists it in ``missing``. The conventions are
those of ``analyze.model``.

To add an analysis: a module beside this one with a function of an ``Attribution``, a field here, a
line in ``analyze.__init__``, and its JSON in ``report.tables``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvprobe.analyze.allocator import AllocatorUse
from nvprobe.analyze.code_places import CodePlaces
from nvprobe.analyze.findings.model import Finding
from nvprobe.analyze.kernels.counters import CounterUse
from nvprobe.analyze.kernels.traits import KernelTraits
from nvprobe.analyze.kernels.work import PathWork
from nvprobe.analyze.memory import Memory
from nvprobe.analyze.model import (
    Copies,
    DeviceUse,
    Kernels,
    PathQuantities,
    SpanRows,
    Steps,
    StepSpread,
)
from nvprobe.analyze.snapshot import SnapshotPeak
from nvprobe.analyze.waiting.waits import Waits
from nvprobe.attribute.ledger import Ledger
from nvprobe.attribute.model import Attribution
from nvprobe.load.memory_snapshot import MemorySnapshot
from nvprobe.trace import Missing

__all__ = ["Analysis"]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything a report shows of one run."""

    attribution: Attribution
    verdict: str
    ledger: Ledger
    ranges: PathQuantities
    kernels: Kernels
    copies: Copies
    steps: Steps
    step_spread: StepSpread | None
    spans: SpanRows
    devices: DeviceUse
    warnings: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    modules: list[dict[str, Any]] | None = None
    """Rows of GPU time by module (analyze.modules)."""
    module_ledger: dict[str, dict[str, int]] | None = None
    operators: list[dict[str, Any]] | None = None
    """Rows of operators by name and shapes (analyze.operators)."""
    waits: Waits | None = None
    """Idle causes, synchronising calls, overlap, collectives, host time."""
    memory: Memory | None = None
    allocator: AllocatorUse | None = None
    """Counters of torch's caching allocator; None where no sidecar has any."""
    counters: CounterUse | None = None
    compiled_graphs: list[dict[str, Any]] | None = None
    """Rows of compiled graphs by id and phase (analyze.compiled)."""
    findings: tuple[Finding, ...] | None = None
    """Ranked by what they save."""
    snapshot: MemorySnapshot | None = None
    """A torch memory snapshot given beside the capture."""
    snapshot_peaks: tuple[SnapshotPeak, ...] = ()
    traits: KernelTraits | None = None
    """Aligned with ``kernels``."""
    work: PathWork | None = None
    """Arithmetic by path, where shapes are recorded."""
    places: CodePlaces | None = None
    """Where ranges begin in the program, where a sidecar tells."""
