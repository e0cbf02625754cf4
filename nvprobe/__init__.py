"""nvprobe: which part of a model the GPU spends, loses or waits its time for, and why.

The public names below are loaded when first used, so that importing nvprobe in a training script
costs milliseconds and never pulls in pandas, pyarrow or torch.
"""

from __future__ import annotations

from importlib import import_module

from nvprobe.version import __version__

TYPE_CHECKING = False  # importing typing would take most of the time that importing nvprobe takes
if TYPE_CHECKING:
    from typing import Any

    from nvprobe.annotate.decorator import annotate
    from nvprobe.annotate.instrument import instrument
    from nvprobe.annotate.ranges import range  # noqa: A004
    from nvprobe.annotate.steps import step, steps
    from nvprobe.attribute.together import load
    from nvprobe.errors import GateFailed, InputError, NvprobeError, ToolError, UsageError
    from nvprobe.results import analyze

_HOMES = {
    "GateFailed": "nvprobe.errors",
    "InputError": "nvprobe.errors",
    "NvprobeError": "nvprobe.errors",
    "ToolError": "nvprobe.errors",
    "UsageError": "nvprobe.errors",
    "analyze": "nvprobe.analyze",
    "annotate": "nvprobe.annotate",
    "instrument": "nvprobe.annotate.instrument",
    "load": "nvprobe.load",
    "range": "nvprobe.annotate.ranges",
    "step": "nvprobe.annotate.steps",
    "steps": "nvprobe.annotate.steps",
}

__all__ = [
    "GateFailed",
    "InputError",
    "NvprobeError",
    "ToolError",
    "UsageError",
    "__version__",
    "analyze",
    "annotate",
    "instrument",
    "load",
    "range",
    "step",
    "steps",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'nvprobe' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    # A room named like its most used function is that function: its module can be called.
    value = home if _HOMES[name] == f"nvprobe.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
