"""How a launch ended and what it left."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """A finished launch: the program's exit code and what was kept of it."""

    code: int
    folder: Path
    files: list[Path] = field(default_factory=list)
    rank: int | None = None
    """In a job that nvprobe started: whose outcome it is."""
    notes: list[str] = field(default_factory=list)
    problem: str | None = None

    @property
    def captured(self) -> bool:
        """Whether there is something to analyze: a report or a trace, not a sidecar alone."""
        return any(not file.name.startswith("sidecar.") for file in self.files)
