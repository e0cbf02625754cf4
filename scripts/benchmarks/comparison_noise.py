#!/usr/bin/env python3
"""How often `nvprobe compare` fails where nothing changed, and finds what did: simulated runs.

    scripts/benchmarks/comparison_noise.py [--pairs 200] CAPTURE

CAPTURE gives the documents their shape: any capture with steps. tests/simulated_runs.py says how
runs are simulated. Takes about two minutes for 200 pairs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import document
from tests.simulated_runs import outcomes, template_of


def main() -> None:
    """Print a row for each number of runs and steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--pairs", type=int, default=200)
    given = parser.parse_args()
    template = template_of(document(analyze(attribute(load(given.capture)))))
    print("runs   steps  limit  no change: fail, cannot tell   5% over the floor found: step, path")
    for runs, steps in (((1, 1), 20), ((1, 1), 50), ((3, 3), 20), ((5, 1), 50)):
        for most in (0.0, 0.05):
            common = {"pairs": given.pairs, "steps": steps, "runs": runs, "most": most}
            same = outcomes(template, **common)
            more = 0.05 if most == 0 else 0.05 + most
            found = [
                outcomes(template, **common, over_floor=more, path=path).failed
                for path in ("step", "step/forward/attn")
            ]
            print(
                f"{runs[0]} : {runs[1]}  {steps:>4}  {most:>5.0%}  {same.failed:>16.1%} "
                f"{same.cannot_tell:>12.1%} {found[0]:>26.1%} {found[1]:>8.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
