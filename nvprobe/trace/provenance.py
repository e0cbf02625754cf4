"""Where a trace comes from, how its clocks relate, and what it cannot say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Missing:
    """Something a report cannot say, why, and how to record it."""

    what: str
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: what it is and who wrote it. ``file`` is a base name, never a path."""

    kind: str
    """``nsys-sqlite``, ``nsys-parquet``, ``nsys-rep``, ``torch-trace`` or ``sidecar``."""
    file: str
    product_version: str | None = None
    lost_events: int | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Clock:
    """How the times of merged sources relate; the JSON ``clock``."""

    kind: str
    """``single`` (one source, or torch traces of one run), ``shared`` (one process under both) or
    ``sequence`` (two runs)."""
    offset_ns: tuple[int, int] | None = None
    """Bounds of what was added to the second source's raw times, beyond the difference of their
    origins, to bring them onto the first's clock; ``None`` where times are never compared."""
    matched_share: float | None = None
    """Share of the first source's kernels that found their partner in the second."""
