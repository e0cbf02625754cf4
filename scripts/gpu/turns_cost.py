#!/usr/bin/env python3
"""What nvprobe adds to nsys, each program without it and with it in turns, in one process.

    python scripts/gpu/turns_cost.py --nsys PATH [--out FOLDER] [--only small_copies,…]
        [--seconds 8,14,0] [--alone]

``programs/in_turns.py`` says how. A line for each program as soon as it has ended: the step without
nvprobe before and in the window, the median of the paired differences (with its 95 % confidence
interval) of nvprobe asleep before the window and of nvprobe in it, in percent; then what the window
costs less without each part. ``turns_cost.json`` has all times. ``--seconds``: of rounds before the
window, in it, and for the parts. About half a minute a program. ``--alone``: without nsys and a
sidecar, where a step may take 1 % more: ``--alone --only transformer --seconds 20,0,0``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
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
"""Percent that nvprobe may add to nsys."""
ALONE = {"before": 1.0}
"""Percent that it may add where no tool is attached."""
START_S = 75
"""Seconds beside those of the rounds: imports, and the report of nsys."""


def main() -> int:
    """Run the programs; exit code 1 if one failed or is surely above its limit."""
    parser = argparse.ArgumentParser(description="Measure what nvprobe adds to nsys, in turns.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=os.environ.get("NVPROBE_NSYS") or shutil.which("nsys"))
    parser.add_argument("--only", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--seconds", default="8,14,0", help="before the window, in it, for parts")
    parser.add_argument("--alone", action="store_true", help="without nsys and a sidecar")
    chosen = parser.parse_args()
    limits = ALONE if chosen.alone else LIMITS
    chosen.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    result: dict[str, Any] = {}
    for name in chosen.only.split(","):
        result[name] = one = measure(name, None if chosen.alone else chosen.nsys, chosen.seconds)
        (chosen.out / "turns_cost.json").write_text(json.dumps(result, indent=1))
        print(f"{name:20}", *lines(one, limits), sep="\n  ", flush=True)
    verdicts = {name: verdict(one, limits) for name, one in result.items()}
    print(json.dumps({"limits_%": limits, "verdicts": verdicts}), flush=True)
    return int(any("fail" in str(one) for one in verdicts.values()))


def measure(name: str, nsys: str | None, seconds: str) -> dict[str, Any]:
    """The times that one program prints, or what went wrong."""
    program = [sys.executable, str(HERE / "programs" / f"{name}.py")]
    with tempfile.TemporaryDirectory() as scratch:
        flags = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "-o", f"{scratch}/turns"]
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        flags += ["--cuda-graph-trace=node"]
        words = [nsys, "profile", *flags, *program] if nsys else program
        said, problem = Path(scratch) / "said", Path(scratch) / "problem"
        with said.open("w") as out, problem.open("w") as err:
            child = subprocess.Popen(
                words, env=environment(scratch if nsys else "", seconds), stdout=out, stderr=err,
                cwd=ROOT, start_new_session=True,
            )  # fmt: skip
            try:
                child.wait(sum(map(float, seconds.split(","))) + START_S)
            except subprocess.TimeoutExpired:
                print(f"{name}: ended after {START_S} s more than it measures", file=err)
            finally:
                end(child)
        found = [x for x in said.read_text().splitlines() if x.startswith('{"turns"')]
        if not found:
            return {"error": problem.read_text()[-1500:] or f"exit code {child.returncode}"}
        return dict(json.loads(found[-1])["turns"])


def end(child: subprocess.Popen[bytes]) -> None:
    """End nsys and the program under it, where they still run."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def environment(sidecar: str, seconds: str) -> dict[str, str]:
    """Instrumented at its start, and with a sidecar in that folder, as under ``nvprobe launch``."""
    from nvprobe.instrumentation import startup

    kept = {key: value for key, value in os.environ.items() if not key.startswith("NVPROBE_")}
    paths = [str(ROOT), str(HERE / "programs"), kept.get("PYTHONPATH", "")]
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    kept |= {"NVPROBE_SIDECAR": sidecar, "PROGRAM_TURNS": seconds}
    return kept | startup.variables(kept, program=True)


def more(times: dict[str, list[float]], way: str, than: str) -> tuple[float, float, float]:
    """Percent more of one way than of another in the same round, and the 95 % interval."""
    from turns import interval

    pairs = zip(times[way], times[than], strict=False)
    middle, low, high, _ = interval(a / b for a, b in pairs)
    return 100 * (middle - 1), 100 * (low - 1), 100 * (high - 1)


def compared(one: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """What nvprobe adds before the window and in it."""
    ways = {"before": "asleep", "window": "recorded"}
    return {
        name: more(one[name], way, "plain")
        for name, way in ways.items()
        if one.get(name, {}).get(way)
    }


def verdict(one: dict[str, Any], limits: dict[str, float] = LIMITS) -> dict[str, str] | str:
    """Whether nvprobe adds at most what it may: ``open`` where the interval holds the limit."""
    if "error" in one:
        return "failed"
    found = dict.fromkeys(limits, "fail: not measured")
    for name, (middle, low, high) in compared(one).items():
        sure = "pass" if high <= limits[name] else "fail" if low > limits[name] else "open"
        found[name] = f"{sure}: {middle:+.1f} ({low:+.1f} … {high:+.1f})"
    return found


def lines(one: dict[str, Any], limits: dict[str, float]) -> list[str]:
    """The rows of one program."""
    if "error" in one:
        return [one["error"]]
    found = []
    for name, (middle, low, high) in compared(one).items():
        plain = one[name]["plain"]
        found.append(
            f"{name:20} {statistics.median(plain):8.3f} ms, nvprobe {middle:+.1f}% "
            f"({low:+.1f} … {high:+.1f}), {len(plain)} rounds, limit {limits[name]:.0f}%"
        )
    if one.get("window", {}).get("asleep"):
        middle, low, high = more(one["window"], "asleep", "plain")
        found.append(f"asleep in the window {middle:+.1f}% ({low:+.1f} … {high:+.1f})")
    parts = one.get("parts", {})
    for way in sorted(key for key, times in parts.items() if times and key != "recorded"):
        middle, low, high = more(one["parts"], way, "recorded")
        found.append(f"{way:20} {middle:+.1f}% ({low:+.1f} … {high:+.1f})")
    return found


if __name__ == "__main__":
    sys.exit(main())
