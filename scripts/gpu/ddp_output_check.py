#!/usr/bin/env python3
"""Whether `nvprobe launch` adds nothing but its own lines to what a job of two ranks prints.

    python scripts/gpu/ddp_output_check.py [--out FOLDER] [--backend nsys|torch|…]

Runs ``programs/ddp_output.py`` under torchrun, alone twice and launched. The bytes of stdout must
be the same; of stderr, lines that begin with ``nvprobe:`` left out. Lines are compared in any
order, since ranks write at once; process ids and times are masked, as torch's own warnings have
them. Prints what differs; writes ``ddp_output.json``. Under a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "gpu" / "programs" / "ddp_output.py"
JOB = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
VARIABLE = re.compile(rb"\d{2,}|0x[0-9a-f]+")
"""Process ids, ports, times and addresses."""


def main() -> int:
    """Run and compare; exit code 1 if a line differs."""
    parser = argparse.ArgumentParser(description="Compare what a job of two ranks prints.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--backend", default="auto")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    alone, again = run(JOB), run(JOB)
    with tempfile.TemporaryDirectory() as name:
        launch = ["-m", "nvprobe", "launch", "--steps", "5:9", "--no-analyze", "-o", f"{name}/run"]
        launched = run([*launch, "--backend", chosen.backend, "torchrun", *JOB[2:]])
    result: dict[str, Any] = {"code": [alone.returncode, launched.returncode]}
    for stream in ("stdout", "stderr"):
        known = lines(getattr(alone, stream)) | lines(getattr(again, stream))
        seen = lines(getattr(launched, stream))
        fewest = lines(getattr(alone, stream)) & lines(getattr(again, stream))
        result[stream] = {
            "lines": seen.total(),
            "added": texts(seen - known),
            "missing": texts(fewest - seen),
        }
    own = [one for one in launched.stderr.splitlines() if one.startswith(b"nvprobe: ")]
    result["nvprobe"] = [one.decode(errors="replace") for one in own]
    result["same"] = result["code"] == [0, 0] and not any(
        result[stream][key] for stream in ("stdout", "stderr") for key in ("added", "missing")
    )
    (chosen.out / "ddp_output.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    return int(not result["same"])


def run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run Python with these words, as bytes."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_C")}
    environment = {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, timeout=100, check=False
    )


def lines(output: bytes) -> Counter[bytes]:
    """How often each line is there, but for nvprobe's own."""
    own = b"nvprobe:"
    kept = [one for one in output.splitlines(keepends=True) if not one.startswith(own)]
    return Counter(VARIABLE.sub(b"#", one) for one in kept)


def texts(few: Counter[bytes]) -> list[str]:
    """Lines as text."""
    return [one.decode(errors="replace") for one in few.elements()]


if __name__ == "__main__":
    sys.exit(main())
