"""Input files to an Analysis, with progress: what the commands have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nvprobe.cli.progress import stages
from nvprobe.cli.settings import Settings

if TYPE_CHECKING:
    from nvprobe.analyze.model import Analysis

__all__ = ["analysis_of"]


def analysis_of(
    settings: Settings,
    inputs: Sequence[str],
    *,
    index_rules: Sequence[str] = (),
    process: int | None = None,
) -> Analysis:
    """Load, attribute, analyse. Raises NvprobeError with a line fit to show."""
    with stages(settings, 3) as stage:
        stage("reading")
        from nvprobe.attribute.together import load
        from nvprobe.load.select import of_process

        trace = load(*inputs)
        if process is not None:
            trace = of_process(trace, process)
        stage("attributing")
        from nvprobe.attribute import attribute

        attribution = attribute(trace, index_rules)
        stage("analysing")
        from nvprobe.analyze import analyze

        return analyze(attribution)
