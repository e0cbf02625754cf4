"""Start nvprobe in a process of its own, with nothing of the working directory on its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def own_command(*words: str) -> list[str]:
    """The words that start nvprobe's command line: its file by an absolute path.

    ``python -m nvprobe`` would import from the working directory first.
    """
    return [sys.executable, os.fspath(Path(__file__).resolve().parents[1] / "__main__.py"), *words]
