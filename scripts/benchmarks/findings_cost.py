"""What findings, verdict and kernel traits add to the analysis they rest on: one JSON line.

CPU seconds of the rules against the rest of ``analyze(attribute(trace))`` in one run; the target
is at most 0.3. Usage, with an export grown by ``grow_nsys.py``:

    python scripts/benchmarks/findings_cost.py grown.sqlite
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers import load

RULES = {
    "nvprobe.analysis": ("findings", "bound", "kernel_traits"),
    "nvprobe.analysis.findings": ("classify_ops", "launch_fit", "work_items", "memory"),
}


def main() -> None:
    """Time the rules inside one analysis."""
    spent = [0.0]
    trace = load(sys.argv[1])
    for room, names in RULES.items():
        for name in names:
            setattr(sys.modules[room], name, timed(getattr(sys.modules[room], name), spent))
    begin = time.process_time()
    analyze(attribute(trace))
    rest = time.process_time() - begin - spent[0]
    figures = {"findings_cpu_s": spent[0], "rest_cpu_s": rest, "ratio": spent[0] / rest}
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The function, its CPU seconds added to ``spent``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[0] += time.process_time() - begin

    return call


if __name__ == "__main__":
    main()
