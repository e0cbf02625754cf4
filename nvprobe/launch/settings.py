"""What the launcher passes to the processes of the program, through their environment.

Written by the launcher, read inside the program by :mod:`nvprobe.launch.inprocess`. Variables that
belong to the annotation (``NVPROBE_SIDECAR``, ``NVPROBE_EMITTER``, …) are read by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

VARIABLE = "NVPROBE_INPROCESS"

TorchActivities = Literal["none", "cpu", "cuda"]


@dataclass(frozen=True)
class Settings:
    """How to record inside one process of the program."""

    status: str | None = None
    """Folder for ``window.<pid>.json``."""
    output: str | None = None
    """Folder for the torch trace."""
    first: int | None = None
    last: int | None = None
    by_request: bool = False
    """Whether ``first`` and ``last`` count requests, not steps."""
    at_least: int | None = None
    """Requests that have to be in a step for the window to open."""
    delay_s: float = 0.0
    duration_s: float | None = None
    warmup: int = 0
    trigger: Literal["none", "cuda", "nvtx"] = "none"
    torch: TorchActivities = "none"
    stacks: bool = False
    memory: bool = False
    progress: bool = False
    """Whether to write how many steps have been counted into ``progress.<pid>``, step by step."""

    def to_environ(self) -> dict[str, str]:
        """The variable that carries these settings."""
        return {VARIABLE: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Settings | None:
        """The settings of this process; None where nvprobe did not launch it."""
        try:
            return cls(**json.loads(environ[VARIABLE]))
        except (KeyError, ValueError, TypeError):
            return None
