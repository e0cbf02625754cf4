"""What an analysis of an Attribution holds: one field a table, numpy columns in each.

A field that is ``None`` was not computed; ``analyze`` lists it in ``missing``. The conventions are
those of ``analyze.model``.

To add an analysis: a module beside this one with a function of an ``Attribution``, a field here, a
line in ``analyze.__init__``, and its JSON in ``report.document``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvprobe.analysis.allocator import AllocatorUse
from nvprobe.analysis.code_places import CodePlaces
from nvprobe.analysis.critical_time import OnPath
from nvprobe.analysis.findings.model import Finding
from nvprobe.analysis.inference import Inference
from nvprobe.analysis.inference.client import Latency
from nvprobe.analysis.kernels.by_name import KernelTraits
from nvprobe.analysis.kernels.counters import CounterUse
from nvprobe.analysis.kernels.work import PathWork
from nvprobe.analysis.memory import Memory, SnapshotPeak
from nvprobe.analysis.model import (
    Copies,
    DeviceUse,
    Kernels,
    PathQuantities,
    SpanRows,
    Steps,
    StepSpread,
)
from nvprobe.analysis.profiler_cost import ProfilerCost
from nvprobe.analysis.steady import LeftOut
from nvprobe.analysis.step_parts import StepParts
from nvprobe.analysis.waiting.waits import Waits
from nvprobe.attribution.ledger import Ledger
from nvprobe.attribution.model import Attribution
from nvprobe.readers.memory_snapshot import MemorySnapshot
from nvprobe.trace import Missing


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
    inference: Inference | None = None
    """Phases of an inference program; None where no step has one."""
    client: list[Latency] | None = None
    """Latencies that a client measured; None where none was given or no step has a phase."""
    left_out: LeftOut | None = None
    """What of a whole run the tables are not about; None where they are about all of it."""
    warnings: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    modules: list[dict[str, Any]] | None = None
    """Rows of GPU time by module (analyze.modules)."""
    module_ledger: dict[str, dict[str, int]] | None = None
    operators: list[dict[str, Any]] | None = None
    """Rows of operators by name and shapes (analyze.operators)."""
    waits: Waits | None = None
    """Idle causes, synchronizing calls, overlap, collectives, host time."""
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
    profiler: ProfilerCost | None = None
    """A step without its profiler; None without steps."""
    critical_time: tuple[OnPath, ...] | None = None
    """Of the unprofiled step, as it is; None where no replay holds."""
    step_parts: StepParts | None = None
    """Where the time of each step goes; None without steps."""
    places: CodePlaces | None = None
    """Where ranges begin in the program, where a sidecar has it."""
