"""Training of the transformer of ``step_cost.py`` that ``PROGRAM_MODEL`` names, eager."""

import os
import sys
from pathlib import Path

from clock import DEVICE, run

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from step_cost import Training

run(Training(DEVICE, os.environ.get("PROGRAM_MODEL", "small"), "eager").step)
