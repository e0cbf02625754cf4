"""nvprobe: where the GPU time of a model goes, what the GPU waits for, and why.

The public names below are loaded when first used, so that importing nvprobe in a training script
costs milliseconds and never pulls in pandas, pyarrow or torch.
"""

from __future__ import annotations

from importlib import import_module

from nvprobe.version import __version__

TYPE_CHECKING = False  # importing typing would take most of the time that importing nvprobe takes
if TYPE_CHECKING:
    from nvprobe.analysis.result import Analysis
    from nvprobe.api import Results, analyze
    from nvprobe.errors import InputError, NvprobeError, ToolError, UsageError
    from nvprobe.instrumentation.decorator import annotate
    from nvprobe.instrumentation.instrument import instrument
    from nvprobe.instrumentation.ranges import range  # noqa: A004
    from nvprobe.instrumentation.steps import step, steps
    from nvprobe.instrumentation.windows import window
    from nvprobe.merging.load import load
    from nvprobe.trace import Trace

_HOMES = {
    "Analysis": "nvprobe.analysis.result",
    "InputError": "nvprobe.errors",
    "NvprobeError": "nvprobe.errors",
    "Results": "nvprobe.api",
    "ToolError": "nvprobe.errors",
    "Trace": "nvprobe.trace",
    "UsageError": "nvprobe.errors",
    "analyze": "nvprobe.api",
    "annotate": "nvprobe.instrumentation.decorator",
    "instrument": "nvprobe.instrumentation.instrument",
    "load": "nvprobe.merging.load",
    "load_ipython_extension": "nvprobe.integrations.ipython",
    "range": "nvprobe.instrumentation.ranges",
    "step": "nvprobe.instrumentation.steps",
    "steps": "nvprobe.instrumentation.steps",
    "window": "nvprobe.instrumentation.windows",
}

__all__ = [
    "Analysis",
    "InputError",
    "NvprobeError",
    "Results",
    "ToolError",
    "Trace",
    "UsageError",
    "__version__",
    "analyze",
    "annotate",
    "instrument",
    "load",
    "range",
    "step",
    "steps",
    "window",
]


if not TYPE_CHECKING:  # a type checker knows the names above, and reports any other

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'nvprobe' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
