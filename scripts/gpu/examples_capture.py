#!/usr/bin/env python3
"""Run every example on a GPU: measured without a profiler, then captured by nsys.

    python scripts/gpu/examples_capture.py --out FOLDER [--only 01,05] [--nsys PATH] [--no-fixed]
        [--backtraces]

For each example, as it is and with ``--fixed``: the step time without a profiler, then a capture
of a few steps, slimmed to the tables that nvprobe reads (an allow list: no environment, no paths,
no host) and packed. ``--backtraces`` captures each once more as it is, with Python back-traces of
its CUDA calls. Writes ``examples.json`` (times, errors), ``examples.tar.xz`` (one
``NN_name.sqlite`` and ``….sidecar.jsonl`` each; this one is the tests' fixture), and what is fixed
or has back-traces into ``examples_fixed.tar.xz`` and ``examples_backtraces.tar.xz``. Unattended:
one example's failure is a line in the JSON, not the end of the run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
NUMBERED = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
EXAMPLES = [path for path in NUMBERED if "from common import" in path.read_text()]
"""Those that open a window and measure themselves; the others are for ``nvprobe launch``."""

CAPTURED_STEPS = 3
SLOW = {"07_recompile_storm": ["--steps", "4"]}
"""Examples whose measured steps take so long that few must do."""

COMPILED = {"06_graph_break", "07_recompile_storm"}
"""Examples whose models are compiled: captured without ranges of modules."""
WITHOUT_MODULES = """
import runpy, sys
from importlib import import_module
from pathlib import Path
from nvprobe.instrumentation import sidecar
sidecar.open()
for part in ("phases", "syncs", "streams", "compiled"):
    import_module(f"nvprobe.instrumentation.{part}").install()
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

INSTRUMENTED = """
import runpy, sys
from pathlib import Path
import nvprobe
nvprobe.instrument()
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""

WITHOUT_STACKS = ("--sample=none",)
BACKTRACES = ("--sample=process-tree", "--cudabacktrace=all:0", "--python-backtrace=cuda")
"""Flags of nsys: it takes Python back-traces only beside native ones and sampling."""

KEPT = {
    "StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER", "NVTX_EVENTS",
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "CUDA_CALLCHAINS", "PROFILER_OVERHEAD", "PROCESSES", "ThreadNames", "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_SESSION_START_TIME", "META_DATA_EXPORT",
}  # fmt: skip
KEPT_METADATA = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION%")
FOLDER = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+(?=[\w.+-])")
"""The folders of an absolute path; its last part stays."""


def main() -> int:
    """Run everything; exit code 1 if any example failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out")))
    parser.add_argument("--only", default="", help="numbers, such as 01,05")
    parser.add_argument("--nsys", default=shutil.which("nsys") or "", help="path of nsys")
    parser.add_argument("--no-fixed", action="store_true", help="capture only what is planted")
    parser.add_argument("--backtraces", action="store_true", help="also with Python back-traces")
    parser.add_argument("--seconds", type=float, default=1800, help="start nothing after this")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wanted = set(filter(None, chosen.only.split(",")))
    results, end = [], time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(4) as exporting:
        waiting: list[Future[None]] = []
        for script in EXAMPLES:
            if wanted and script.name[:2] not in wanted:
                continue
            for fixed in (False, True):
                if time.monotonic() > end:
                    results.append({"example": script.stem, "fixed": fixed, "error": "no time"})
                    continue
                row = _one(script, fixed, chosen, Path(scratch), exporting, waiting)
                results.append(row)
                print(json.dumps(row), flush=True)
                (chosen.out / "examples.json").write_text(json.dumps(results, indent=1))
        errors = [str(job.exception()) for job in waiting if job.exception()]
        for kind in ("", "_fixed", "_backtraces"):
            _pack(Path(scratch), kind, chosen.out / f"examples{kind}.tar.xz")
    summary: dict[str, Any] = {"rows": results, "export_errors": errors}
    (chosen.out / "examples.json").write_text(json.dumps(summary, indent=1))
    print(json.dumps({"done": len(results), "export_errors": errors}))
    return int(bool(errors) or any("error" in row for row in results))


def _one(
    script: Path,
    fixed: bool,
    chosen: argparse.Namespace,
    scratch: Path,
    exporting: ThreadPoolExecutor,
    waiting: list[Future[None]],
) -> dict[str, Any]:
    """Measure and capture one example in one state."""
    name = script.stem + ("_fixed" if fixed else "")
    row: dict[str, Any] = {"example": script.stem, "fixed": fixed}
    flags = ["--fixed"] if fixed else []
    begin = time.monotonic()
    try:
        plain = _run([sys.executable, str(script), *flags, *SLOW.get(script.stem, [])], {})
        row["step_ms"] = plain["step_ms"]
        if chosen.nsys and not (fixed and chosen.no_fixed):
            captured = _capture(script, flags, name, chosen.nsys, scratch)
            row |= {"captured_step_ms": captured["step_ms"], "by": captured["by"]}
            waiting.append(exporting.submit(_export, chosen.nsys, scratch, name))
        if chosen.nsys and chosen.backtraces and not fixed:
            name += "_backtraces"
            captured = _capture(script, flags, name, chosen.nsys, scratch, BACKTRACES)
            row["backtraced_step_ms"] = captured["step_ms"]
            waiting.append(exporting.submit(_export, chosen.nsys, scratch, name))
    except (subprocess.SubprocessError, ValueError, KeyError, OSError) as error:
        row["error"] = _output(error)
    row["seconds"] = round(time.monotonic() - begin, 1)
    return row


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run a program; its last line that is a JSON object."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError(f"no result from {command[-1]}: {done.stdout[-300:]}")
    parsed: dict[str, Any] = json.loads(lines[-1])
    return parsed


def _capture(
    script: Path,
    flags: list[str],
    name: str,
    nsys: str,
    scratch: Path,
    stacks: tuple[str, ...] = WITHOUT_STACKS,
) -> dict[str, Any]:
    """One nsys capture of the example's own window: instrumented, else as it is."""
    sys.path.insert(0, str(ROOT))
    if importlib.util.find_spec("nvprobe.instrumentation.startup"):
        bootstrap = [sys.executable, "-c", INSTRUMENTED]
        if script.stem in COMPILED:
            bootstrap = [sys.executable, "-c", WITHOUT_MODULES]
        try:
            done = _profile(bootstrap, script, flags, name, nsys, scratch, stacks)
            return done | {"by": "bootstrap"}
        except (subprocess.SubprocessError, ValueError, OSError) as error:
            print(json.dumps({"bootstrap_failed": name, "why": _output(error)}), flush=True)
    done = _profile([sys.executable], script, flags, name, nsys, scratch, stacks)
    return done | {"by": "itself"}


def _output(error: BaseException) -> str:
    """The error and the end of what the program said."""
    said = getattr(error, "stderr", None) or getattr(error, "output", None) or ""
    return f"{error}"[:300] + " | " + str(said)[-700:]


def _profile(
    python: list[str],
    script: Path,
    flags: list[str],
    name: str,
    nsys: str,
    scratch: Path,
    stacks: tuple[str, ...],
) -> dict[str, Any]:
    """One run under nsys; the example opens and closes the window."""
    command = [
        nsys, "profile", "--trace=cuda,nvtx", *stacks, "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
        "--cuda-graph-trace=node", "--cuda-memory-usage=true", "--force-overwrite=true",
        "-o", str(scratch / name), *python, str(script), *flags,
        "--steps", str(CAPTURED_STEPS),
    ]  # fmt: skip
    return _run(command, {"NVPROBE_SIDECAR": str(scratch / f"{name}.sidecar")})


def _export(nsys: str, scratch: Path, name: str) -> None:
    """Report to SQLite to the slim copy; the sidecar beside it."""
    whole = scratch / f"{name}.whole.sqlite"
    subprocess.run(
        [nsys, "export", "--type=sqlite", "--lazy=true", "--force-overwrite=true",
         *(["--include-blobs=true"] if name.endswith("_backtraces") else []),
         f"--output={whole}", str(scratch / f"{name}.nsys-rep")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    slim(whole, scratch / f"{name}.sqlite")
    lines = [
        scrub_line(line)
        for path in sorted((scratch / f"{name}.sidecar").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    if lines:
        (scratch / f"{name}.sidecar.jsonl").write_text("\n".join(lines) + "\n")


def slim(source: Path, target: Path) -> None:
    """Copy an nsys SQLite export: only the tables of ``KEPT`` and the strings they name."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    connection = sqlite3.connect(target)
    tables = [
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    for table in tables:
        if table not in KEPT and not table.startswith("sqlite_"):
            connection.execute(f'DROP TABLE "{table}"')
    kept = [table for table in tables if table in KEPT]
    if "META_DATA_EXPORT" in kept:
        known = " OR ".join("name LIKE ?" for _ in KEPT_METADATA)
        connection.execute(f"DELETE FROM META_DATA_EXPORT WHERE NOT ({known})", KEPT_METADATA)
    if "NVTX_EVENTS" in kept:
        connection.create_function("unfold", 1, lambda text: FOLDER.sub("", text))
        connection.execute("UPDATE NVTX_EVENTS SET text = unfold(text) WHERE text LIKE '%/%'")
    _drop_other_processes(connection, kept)
    if "PROCESSES" in kept:
        connection.execute("UPDATE PROCESSES SET name = 'python3' WHERE name IS NOT NULL")
    if "StringIds" in kept:
        used = {*_string_references(connection, kept), *_strings_of_stacks(connection)}
        for identity, text in connection.execute("SELECT id, value FROM StringIds").fetchall():
            if identity not in used:
                connection.execute("DELETE FROM StringIds WHERE id = ?", (identity,))
            elif "/" in text and FOLDER.search(text):
                clean = (FOLDER.sub("", text), identity)
                connection.execute("UPDATE StringIds SET value = ? WHERE id = ?", clean)
    connection.commit()
    connection.execute("VACUUM")
    connection.close()


def _drop_other_processes(connection: sqlite3.Connection, tables: list[str]) -> None:
    """nsys names every process and thread of the machine: keep those that recorded something."""
    found: set[int] = set()
    for table in set(tables) - {"PROCESSES", "ThreadNames"}:
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        for column in {"globalTid", "globalPid"}.intersection(columns):
            query = f'SELECT DISTINCT "{column}" >> 24 FROM "{table}" WHERE "{column}" IS NOT NULL'
            found.update(row[0] for row in connection.execute(query))
    ours = ",".join(map(str, sorted(found)))
    for table, column in (("PROCESSES", "globalPid"), ("ThreadNames", "globalTid")):
        if table in tables:
            connection.execute(f"DELETE FROM {table} WHERE {column} >> 24 NOT IN ({ours})")


def _string_references(connection: sqlite3.Connection, tables: list[str]) -> Iterator[int]:
    """Every integer of a column that may point into StringIds."""
    names = {"textId", "nameId", "jsonTextId", "demangledName", "shortName", "mangledName",
             "symbol", "module", "name"}  # fmt: skip
    for table in tables:
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        for column in names.intersection(columns) if table != "StringIds" else ():
            query = f'SELECT DISTINCT "{column}" FROM "{table}"'
            yield from (row[0] for row in connection.execute(query) if isinstance(row[0], int))


def _strings_of_stacks(connection: sqlite3.Connection) -> Iterator[int]:
    """String ids of functions and files in Python back-traces: of each frame's three words two."""
    columns = [row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")]
    if "binaryData" not in columns:
        return
    query = "SELECT CAST(binaryData AS BLOB) FROM NVTX_EVENTS WHERE binaryData IS NOT NULL"
    for (payload,) in connection.execute(query):
        frames = payload[48:]  # behind the header and the number of frames
        for function, file, _ in struct.iter_unpack("<QQQ", frames[: len(frames) // 24 * 24]):
            yield from (function, file)


def scrub_line(line: str) -> str:
    """A line of the sidecar without the machine's name and without folders."""
    fields = json.loads(line)
    if "node" in fields:
        fields["node"] = None
    return FOLDER.sub("", json.dumps(fields, separators=(",", ":")))


def _pack(scratch: Path, kind: str, target: Path) -> None:
    """The slim copies and sidecars of one kind (``""``, ``_fixed``, …) in one archive."""
    names = {f"{script.stem}{kind}" for script in EXAMPLES}
    found = [*scratch.glob("[0-9]*.sqlite"), *scratch.glob("*.sidecar.jsonl")]
    wanted = sorted(path for path in found if _stem(path) in names)
    if not wanted:
        return
    with tarfile.open(target, "w:xz") as archive:
        for path in wanted:
            archive.add(path, arcname=path.name)


def _stem(path: Path) -> str:
    """The capture's name; that of a whole export keeps its second word."""
    return path.name.removesuffix(".sqlite").removesuffix(".sidecar.jsonl")


if __name__ == "__main__":
    sys.exit(main())
