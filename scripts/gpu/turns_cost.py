#!/usr/bin/env python3
"""What nvprobe adds to nsys, each program without it and with it in turns, in one process.

    python scripts/gpu/turns_cost.py --nsys PATH [--out FOLDER] [--only small_copies,…]
        [--seconds 8,14,0]

``programs/in_turns.py`` says how. A line for each program as soon as it has ended: the step without
nvprobe before and in the window, the median of the paired differences (with its 95 % confidence
interval) of nvprobe asleep before the window and of nvprobe in it, in percent; then what the window
costs less without each part. ``turns_cost.json`` has all times. ``--seconds``: of rounds before the
window, in it, and for the parts. About half a minute a program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "benchmarks")]

PROGRAMS = (
    "boolean_indexes",
    "item_per_parameter",
    "single_tensor_adamw",
    "small_copies",
    "compiled_gpu_bound",
    "fp64_product",
)
LIMITS = {"before": 3.0, "window": 10.0}
"""Percent that nvprobe may add."""


def main() -> int:
    """Run the programs; exit code 1 if one failed or is surely above its limit."""
    parser = argparse.ArgumentParser(description="Measure what nvprobe adds to nsys, in turns.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=os.environ.get("NVPROBE_NSYS") or shutil.which("nsys"))
    parser.add_argument("--only", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--seconds", default="8,14,0", help="before the window, in it, for parts")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    for name in chosen.only.split(","):
        result[name] = one = measure(name, chosen.nsys, chosen.seconds)
        (chosen.out / "turns_cost.json").write_text(json.dumps(result, indent=1))
        print(f"{name:20}", *lines(one), sep="\n  ", flush=True)
    return int(any("error" in one or above(one) for one in result.values()))


def measure(name: str, nsys: str | None, seconds: str) -> dict[str, Any]:
    """The times that one program prints, or what went wrong."""
    program = [sys.executable, str(HERE / "programs" / f"{name}.py")]
    with tempfile.TemporaryDirectory() as scratch:
        flags = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", f"{scratch}/turns"]
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        flags += ["--cuda-graph-trace=node"]
        words = [nsys, "profile", *flags, *program] if nsys else program
        try:
            done = subprocess.run(
                words,
                env=environment(scratch, seconds),
                capture_output=True,
                text=True,
                timeout=150,
                check=True,
                cwd=ROOT,
            )
            text = next(x for x in done.stdout.splitlines() if x.startswith('{"turns"'))
            return dict(json.loads(text)["turns"])
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            return {"error": str(getattr(error, "stderr", None) or repr(error))[-1500:]}


def environment(scratch: str, seconds: str) -> dict[str, str]:
    """Instrumented at its start and with a sidecar, as under ``nvprobe launch``."""
    from nvprobe.instrumentation import startup

    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_")}
    paths = [str(ROOT), str(HERE / "programs"), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    kept |= {"NVPROBE_SIDECAR": scratch, "PROGRAM_TURNS": seconds}
    return kept | startup.variables(kept, program=True)


def more(times: dict[str, list[float]], way: str, than: str) -> tuple[float, float, float]:
    """Percent more of one way than of another in the same round, and the 95 % interval."""
    from turns import interval

    pairs = zip(times[way], times[than], strict=False)
    middle, low, high, _ = interval(a / b for a, b in pairs)
    return 100 * (middle - 1), 100 * (low - 1), 100 * (high - 1)


def compared(one: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """What nvprobe adds before the window and in it."""
    return {
        "before": more(one["before"], "asleep", "plain"),
        "window": more(one["window"], "recorded", "plain"),
    }


def above(one: dict[str, Any]) -> bool:
    """Whether nvprobe surely adds more than it may."""
    return any(low > LIMITS[name] for name, (_, low, _) in compared(one).items())


def lines(one: dict[str, Any]) -> list[str]:
    """The rows of one program."""
    if "error" in one:
        return [one["error"]]
    found = []
    for name, (middle, low, high) in compared(one).items():
        plain = one[name]["plain"]
        found.append(
            f"{name:20} {statistics.median(plain):8.3f} ms, nvprobe {middle:+.1f} % "
            f"({low:+.1f} … {high:+.1f}), {len(plain)} rounds, limit {LIMITS[name]:.0f} %"
        )
    middle, low, high = more(one["window"], "asleep", "plain")
    found.append(f"asleep in the window {middle:+.1f} % ({low:+.1f} … {high:+.1f})")
    for way in sorted(key for key, times in one["parts"].items() if times and key != "recorded"):
        middle, low, high = more(one["parts"], way, "recorded")
        found.append(f"{way:20} {middle:+.1f} % ({low:+.1f} … {high:+.1f})")
    return found


if __name__ == "__main__":
    sys.exit(main())
