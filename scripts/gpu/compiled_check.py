#!/usr/bin/env python3
"""Check the instrumentation of compiled code, backward and CUDA graphs on a GPU, unattended.

    python scripts/gpu/compiled_check.py --out FOLDER [--nsys PATH] [--only NAME,NAME] [--jobs 4]

Each check is a program of its own; its verdicts are true or false with what was seen. With nsys
three programs run again under it, each with its sidecar; where nvprobe can read reports on this
machine they are joined at once. Each check's verdicts are printed as soon as it has ended, within
two minutes. Writes ``compiled.json`` and ``compiled.tar.xz`` (slim exports and
sidecars, for joining elsewhere). Exit code 1 if any verdict is false or a program failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

PROGRAMS = ROOT / "scripts" / "gpu" / "compiled"
LIMIT_S = 110
"""Of one check, after which its verdict is that it did not run."""
CHECKS = sorted(file.stem.removeprefix("check_") for file in PROGRAMS.glob("check_*.py"))
CAPTURES = sorted(file.stem.removeprefix("capture_") for file in PROGRAMS.glob("capture_*.py"))


def environment(folder: Path, **more: str) -> dict[str, str]:
    """A child's environment: this tree importable, caches and sidecar of its own."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "NVPROBE_SIDECAR": str(folder / "sidecar"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "OMP_NUM_THREADS": "2",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **more,
    }


def run_check(name: str, scratch: Path, plain: bool) -> dict[str, Any]:
    """One check in a process of its own; ``plain``: without nvprobe, for its numbers."""
    folder = scratch / f"{name}{'.plain' if plain else ''}"
    folder.mkdir()
    script = PROGRAMS / f"check_{name}.py"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(folder, PLAIN=str(int(plain))),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result = json.loads(found[-1].removeprefix("RESULT ")) if found else {"verdicts": {}}
    result["seconds"] = round(time.monotonic() - began, 1)
    if done.returncode or not found:
        result["verdicts"]["ran"] = plain
        result["stderr"] = done.stderr[-1500:]
    return result


def same_bits(checked: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether losses and gradients of both runs are the same numbers."""
    keys = [key for key in checked.get("seen", {}) if key.startswith("bits")]
    return bool(keys) and all(checked["seen"][k] == plain.get("seen", {}).get(k) for k in keys)


def capture(name: str, nsys: str, scratch: Path) -> dict[str, Any]:
    """One program under nsys, exported, slimmed and joined with its sidecar."""
    folder = scratch / f"nsys.{name}"
    folder.mkdir()
    script = PROGRAMS / f"capture_{name}.py"
    command = [
        *(nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
        *("--cuda-graph-trace=node", "--capture-range=cudaProfilerApi"),
        *("--capture-range-end=stop", "--export=none", "-f", "true", "-o", str(folder / name)),
        *(sys.executable, str(script)),
    ]
    done = subprocess.run(
        command,
        env=environment(folder, UNDER_NSYS="1"),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    report = folder / f"{name}.nsys-rep"
    if not report.exists():
        return {"verdicts": {"recorded": False}, "stderr": (done.stdout + done.stderr)[-1500:]}
    export = [nsys, "export", "--type=sqlite", "--lazy=true", "-f", "true"]
    target = folder / f"{name}.sqlite"
    subprocess.run(
        [*export, "-o", str(target), str(report)], capture_output=True, check=True, timeout=LIMIT_S
    )
    from examples_capture import slim

    slim(target, scratch / f"{name}.sqlite")
    (written,) = (folder / "sidecar").glob("sidecar.*.jsonl")
    shutil.copyfile(written, scratch / f"{name}.sidecar.jsonl")  # it holds no folders and no host
    return joined(name, scratch)


def joined(name: str, folder: Path) -> dict[str, Any]:
    """What the capture and its sidecar together say of modules; needs nvprobe's readers."""
    try:
        import adbc_driver_sqlite  # noqa: F401
        import msgspec  # noqa: F401
    except ImportError as error:
        return {"verdicts": {"recorded": True}, "not joined": str(error)}
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from nvprobe.attribution import attribute
    from nvprobe.attribution.model import Method, ModuleMethod
    from nvprobe.attribution.modules import module_ledger, modules
    from nvprobe.readers import load
    from nvprobe.readers.sidecar import merge_sidecars, read_sidecar

    trace = load(folder / f"{name}.sqlite")
    trace = merge_sidecars(trace, [read_sidecar(folder / f"{name}.sidecar.jsonl")])
    attribution = attribute(trace)
    table = modules(attribution)
    ops, calls = trace.ops, trace.calls
    called = attribution.call >= 0
    backward = np.zeros(len(ops), bool)
    backward[called] = attribution.autograd[calls.thread[attribution.call[called]]]
    resolved = table.method < ModuleMethod.INDISTINGUISHABLE
    replayed = ops.graph_node != 0
    seen = {
        "ledger": {k.name: [v.ops, v.gpu_ns] for k, v in module_ledger(attribution, table).items()},
        "ops": len(ops),
        "backward": [int(backward.sum()), int((backward & resolved).sum())],
        "replayed": [int(replayed.sum()), int((replayed & resolved).sum())],
        "previous node": int((table.method == ModuleMethod.PREVIOUS_NODE).sum()),
        "warnings": list(trace.warnings),
    }
    verdicts = {
        "eager_backward": {
            "all backward kernels reach a module but the loss's": bool(backward.any())
            and _only_loss(attribution, np.flatnonzero(backward & ~resolved)),
            "AccumulateGrad too": seen["previous node"] > 0,
        },
        "graph_before_window": {
            "all replayed nodes reach a module": bool((resolved | ~replayed).all())
            and bool(replayed.any()),
            "through their capture": bool(
                (attribution.method[replayed] == Method.GRAPH_CAPTURE).all()
            ),
        },
        "reduce_overhead_before_window": {
            "all replayed nodes reach a module": bool((resolved | ~replayed).all())
            and bool(replayed.any()),
        },
        "compiled_break": {
            "all graph kernels reach a module": not bool(
                (table.method == ModuleMethod.INDISTINGUISHABLE).any()
            ),
            "manifests used": bool((table.method == ModuleMethod.MANIFEST).any()),
        },
    }[name]
    return {"verdicts": verdicts, "seen": seen}


def _only_loss(attribution: Any, ops: Any) -> bool:
    """Whether the ops belong to the two nodes that the programs compute outside the model."""
    texts = attribution.paths.texts()
    owners = {texts[row] for row in attribution.owner[ops]}
    return all("PowBackward" in path or "MeanBackward" in path for path in owners)


def compile_overhead() -> dict[str, Any]:
    """Functions that a compilation calls with and without nvprobe, by the benchmark's means."""
    script = ROOT / "scripts" / "benchmarks" / "compile_overhead.py"
    done = subprocess.run(
        [sys.executable, str(script), "--calls", "--blocks", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LIMIT_S,
    )
    if done.returncode:
        return {"verdicts": {"ran": False}, "stderr": done.stderr[-1500:]}
    seen = json.loads(done.stdout)
    more = seen["instrumented"][0] / seen["plain"][0] - 1
    return {"verdicts": {"at most 3 % more calls": more <= 0.03}, "seen": {**seen, "more": more}}


def main() -> int:
    """Run everything that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--nsys", default=shutil.which("nsys") or "")
    parser.add_argument("--only", default="", help="names of checks and captures, and overhead")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(","))) or {*CHECKS, *CAPTURES}
    options.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        scratch = Path(folder)
        jobs: dict[str, Any] = {}
        for name in [one for one in CHECKS if one in wanted]:
            jobs[name] = pool.submit(run_check, name, scratch, False)
            if "bits" in (PROGRAMS / f"check_{name}.py").read_text():
                jobs[f"{name}.plain"] = pool.submit(run_check, name, scratch, True)
        for name in [one for one in CAPTURES if one in wanted and options.nsys]:
            jobs[name] = pool.submit(capture, name, options.nsys, scratch)
        if "overhead" in wanted:
            jobs["overhead"] = pool.submit(compile_overhead)
        names = {job: name for name, job in jobs.items()}
        for job in as_completed(names):
            name = names[job]
            try:
                report[name] = job.result()
            except Exception as error:
                report[name] = {"verdicts": {"ran": False}, "error": repr(error)[-1500:]}
            print(name, json.dumps(report[name]), flush=True)
            (options.out / "compiled.json").write_text(json.dumps(report, indent=1))
        for name in [one for one in report if f"{one}.plain" in report]:
            plain = report.pop(f"{name}.plain")
            report[name]["verdicts"]["same bits as without nvprobe"] = same_bits(
                report[name], plain
            )
        with tarfile.open(options.out / "compiled.tar.xz", "w:xz") as archive:
            for file in sorted([*scratch.glob("*.sqlite"), *scratch.glob("*.sidecar.jsonl")]):
                archive.add(file, file.name)
    (options.out / "compiled.json").write_text(json.dumps(report, indent=1))
    failed = [f"{n}: {v}" for n, r in report.items() for v, ok in r["verdicts"].items() if not ok]
    print(json.dumps({"failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
