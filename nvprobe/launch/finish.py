"""After the capture: see whether ranges and GPU work were recorded, and what they say.

Training images often lack pandas and pyarrow: there the capture is kept, and the note says how to
analyze it elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nvprobe.errors import NvprobeError
from nvprobe.launch.nsys import trigger_for
from nvprobe.launch.options import LaunchOptions, Window
from nvprobe.launch.plan import Plan

DOMAIN = "nvprobe"
"""The NVTX domain that all annotations are written into."""

ANALYSIS_LIBRARIES = ("numpy", "pandas", "pyarrow", "adbc_driver_sqlite", "msgspec", "rich")
RANKS = "ranks.json"
RANKS_PAGE = "ranks.html"
"""What the comparison of its ranks leaves in the folder of a job."""
ANALYSIS = "analysis.json"
"""What the analysis of a run leaves in its folder, for scripts; nothing here reads it."""
PAGE = "report.html"
"""The same for people, in a browser."""


def check_capture(exported: Path, folder: Path, plan: Plan) -> list[str]:
    """One line for each thing that should have been recorded and was not."""
    try:
        from nvprobe.readers import load

        trace = load(exported)
    except ImportError:
        return _without_nvtx(folder, plan)
    except NvprobeError as error:
        return [f"the export cannot be read: {error}"]
    notes = []
    if plan.instrumented and plan.options.annotate and not _in_domain(trace, trace.ranges):
        seen = DOMAIN in trace.domains
        works = not seen or _in_domain(trace, trace.marks) > 0
        notes.append(annotation_note(plan, folder, pair_works=works))
    if plan.options.kernels_in_graphs and trace.ops.graph_node.any():
        notes.append(
            "kernels inside CUDA graphs were traced one by one, which slows graph replays "
            "(--graphs-whole records each graph as one)"
        )
    if plan.cuda and not len(trace.ops):
        notes.append(_gpu_note([text for severity, text in trace.diagnostics if severity >= 2]))
    return notes


def _without_nvtx(folder: Path, plan: Plan) -> list[str]:
    """What can be said by the sidecars alone: an environment without nvtx records no ranges."""
    headers = list(_sidecar_headers(folder))
    if not headers or _nvtx_of(headers) or not (plan.instrumented and plan.options.annotate):
        return []
    return [f"no annotations were recorded: {_NO_NVTX}"]


def recorded_pids(exported: Path) -> set[int] | None:
    """Processes of which an export has calls, ranges or GPU work; None where nothing reads it."""
    try:
        from nvprobe.readers import load

        trace = load(exported)
    except (ImportError, NvprobeError):
        return None
    rows = {int(row) for table in (trace.calls, trace.ops, trace.ranges)
            for row in set(table.process.tolist())}  # fmt: skip
    return {int(trace.processes.pid[row]) for row in rows}


def _in_domain(trace: Any, table: Any) -> int:
    """How many of the ranges or marks lie in our domain."""
    if table is None:
        return 0
    names = {name for name in set(table.domain.tolist()) if trace.text(name) == DOMAIN}
    return int(sum((table.domain == name).sum() for name in names))


def annotation_note(plan: Plan, folder: Path, *, pair_works: bool) -> str:
    """Why no annotation was recorded: nvtx missing, a pair that does not work, a short program."""
    headers = list(_sidecar_headers(folder))
    nvtx = _nvtx_of(headers)
    nsys = plan.nsys.version_text if plan.nsys else "unknown"
    if not headers:
        return (
            "no annotations were recorded: no instrumented Python process ran to its first line "
            "(was the program found, and does it start Python?)"
        )
    if nvtx is None:
        return f"no annotations were recorded: {_NO_NVTX}"
    if not pair_works:
        return (
            f"no annotations were recorded: nvtx {nvtx} and nsys {nsys} do not work together. "
            "Use nsys 2025.3 or newer, or pip install 'nvtx<0.2.12' in the program's environment"
        )
    where = "the program" if plan.options.window == Window() else "the capture window"
    return (
        f"no annotations were recorded: {where} ran no model, no optimizer and no range of nvprobe"
    )


_NO_NVTX = "the program's environment has no nvtx package. Install it there: pip install nvtx"


def why_no_window(plan: Plan, folder: Path) -> str | None:
    """Why nsys did not see the window that the program opened: its range needs nvtx."""
    headers = list(_sidecar_headers(folder))
    by_range = trigger_for(plan.options, cuda=plan.cuda) == "nvtx"
    if not by_range or not headers or _nvtx_of(headers):
        return None
    return f"the capture window ({plan.options.window}) never opened: {_NO_NVTX}"


def _nvtx_of(headers: Sequence[dict[str, Any]]) -> str | None:
    """The version of nvtx in the program's processes; None where they have none."""
    return next((header["nvtx"] for header in headers if header.get("nvtx")), None)


def _sidecar_headers(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("sidecar.*.jsonl")):
        with suppress(OSError, ValueError), file.open("rb") as lines:
            yield dict(json.loads(lines.readline(65_536)))


_GPU_HINTS = (
    (
        "MULTIPLE_SUBSCRIBERS",
        "another profiler holds CUPTI in the program (a torch.profiler with CUDA activities, DCGM, "
        "or a second nsys): stop it, or record with --backend torch",
    ),
    (
        "INSUFFICIENT_PRIVILEGES",
        "this user or container may not profile the GPU: run it with --cap-add=SYS_ADMIN, or set "
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    ("driver", "nsys does not fit the installed driver: use a newer nsys"),
)


def _gpu_note(diagnostics: Sequence[str]) -> str:
    """Why no GPU work was recorded, from what the capture says of itself."""
    for word, advice in _GPU_HINTS:
        if any(word.lower() in text.lower() for text in diagnostics):
            return f"no GPU work was recorded: {advice}"
    return "no GPU work was recorded: the program did not use the GPU inside the capture window"


def analyse_runs(folders: Sequence[Path], shown: Path, options: LaunchOptions) -> list[str]:
    """Write `ANALYSIS` and `PAGE` into each run folder; print the summary of the one ``shown``.

    A process of its own for each: whatever an analysis does, the program's result stands. Gives
    notes on what could not be analyzed.
    """
    lacking = missing_libraries()
    if lacking:
        where = folders[0] if len(folders) == 1 else folders[0].parent
        return [
            f"captured, not analyzed: {', '.join(lacking)} missing here. Copy {where} to where "
            "nvprobe is fully installed, and run `nvprobe analyze` on it"
        ]
    notes: list[str] = []
    for folder in folders:
        words = own_command("analyze", os.fspath(folder), "--also-html", os.fspath(folder / PAGE))
        words += (
            ["--also-json", os.fspath(folder / ANALYSIS)] if folder == shown else _silently(folder)
        )
        words += ["-q"] * options.quiet + ["-v"] * options.verbose
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, umask=0o077
            )
        except KeyboardInterrupt:
            return [
                *notes,
                f"analysis interrupted: the capture is kept, run `nvprobe analyze {folder}`",
            ]
        if done.returncode:
            notes.append(
                f"analysis failed; the capture is kept: try `nvprobe analyze -vv {folder}`"
            )
    return notes


def analyse_job(folder: Path, ranks: Sequence[Path], options: LaunchOptions) -> list[str]:
    """Analyze every rank of a job, and print the report of the job, not that of one rank.

    `RANKS` keeps it. Processes whose ranks are not known have the summary of the first instead.
    """
    if not is_job(ranks):
        return analyse_runs(ranks, ranks[0], options)
    notes = analyse_runs(ranks, Path(), options)
    if notes and missing_libraries():
        return notes
    words = own_command("ranks", os.fspath(folder), "--also-json", os.fspath(folder / RANKS))
    words += ["--also-html", os.fspath(folder / RANKS_PAGE)]
    words += ["-q"] * options.quiet + ["-v"] * options.verbose
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False, umask=0o077
        )
    except KeyboardInterrupt:
        return [*notes, f"interrupted: run `nvprobe ranks {folder}`"]
    if done.returncode:
        notes.append(f"the ranks were not compared: try `nvprobe ranks -vv {folder}`")
    return notes


def is_job(ranks: Sequence[Path]) -> bool:
    """Whether folders are those of several ranks whose numbers are known."""
    return len(ranks) > 1 and all(folder.name.startswith("rank") for folder in ranks)


def _silently(folder: Path) -> list[str]:
    return ["--output", os.fspath(folder / ANALYSIS), "--force", "--quiet"]


def missing_libraries() -> list[str]:
    """Which libraries of the analysis this environment lacks; one that is broken counts."""
    return [name for name in ANALYSIS_LIBRARIES if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # an import hook, or a module without a spec
        return False


def own_command(*words: str) -> list[str]:
    """The words that start nvprobe's command line: its file by an absolute path.

    ``python -m nvprobe`` would import from the working directory first.
    """
    return [sys.executable, os.fspath(Path(__file__).resolve().parents[1] / "__main__.py"), *words]
