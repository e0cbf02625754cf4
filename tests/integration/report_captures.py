"""Captures of different kinds whose reports are pinned: recorded ones, and small ones made here."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.selection import Selection, select
from nvprobe.demo import unpacked
from nvprobe.merging.load import load
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
HOSTILE = (
    "\x1b[31mred",
    "right-to-left \u202eesrever",
    "</script>",
    "quote \" ' `",
    "a/b",
    "x" * 1_000_000,
)


def recorded(archive: str, *names: str) -> Callable[[Path], Analysis]:
    """A capture of a fixture, with what lies beside it."""

    def make(folder: Path) -> Analysis:
        with tarfile.open(FIXTURES / f"{archive}.tar.xz") as files:
            for name in names:
                files.extract(name, folder, filter="data")
        return of([folder / name for name in names])

    return make


def of(inputs: Sequence[Path], selection: Selection | None = None) -> Analysis:
    """The analysis of files."""
    return analyze(select(load(*inputs), selection or Selection(), ()))


def demo(folder: Path) -> Analysis:
    """The capture that ships along."""
    return of([demo_file(folder)])


def one_step(folder: Path) -> Analysis:
    """A part of a loop."""
    return of([demo_file(folder)], Selection(steps=(5, 6)))


def lost_kernels(folder: Path) -> Analysis:
    """Launches without a GPU record."""
    file = demo_file(folder)
    with sqlite3.connect(file) as database:
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 7 = 0")
    return of([file])


def demo_file(folder: Path) -> Path:
    """A copy that may be changed."""
    with unpacked() as path:
        return Path(shutil.copy(path, folder))


def failed(folder: Path) -> Analysis:
    """A run folder of a program that failed before it used a GPU."""
    file = demo_file(folder)
    with sqlite3.connect(file) as database:
        for table in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION"):
            database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
        database.execute("DELETE FROM NVTX_EVENTS")
    run = {"schema": "nvprobe.run/1", "files": [file.name], "exit_code": 1, "duration_s": 0.4}
    (folder / "run.json").write_text(json.dumps(run))
    return of([file])


def trace(folder: Path, events: Iterator[dict[str, object]]) -> Path:
    """A torch trace of some events."""
    file = folder / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return file


def event(cat: str, name: str, start: float, length: float, **more: object) -> dict[str, object]:
    """A complete event of thread 7."""
    own = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 7}
    return own | more


def cpu_only(folder: Path) -> Analysis:
    """Steps of a program without a GPU."""

    def events() -> Iterator[dict[str, object]]:
        for step in range(4):
            begin = step * 1000 + 1000
            yield event("user_annotation", f"ProfilerStep#{step}", begin, 950)
            for layer in range(6):
                yield event("user_annotation", f"layer.{layer}", begin + 20 + 100 * layer, 90)
                yield event("cpu_op", "aten::linear", begin + 25 + 100 * layer, 80 - layer)
            yield event("user_annotation", "optimizer", begin + 700, 150)

    return of([trace(folder, events())])


def hostile(folder: Path) -> Analysis:
    """The analysis of `hostile_file`."""
    return of([hostile_file(folder)])


def hostile_file(folder: Path) -> Path:
    """Names that would drive a terminal, a page or a spreadsheet."""

    def events() -> Iterator[dict[str, object]]:
        for step in range(4):
            for number, name in enumerate(HOSTILE):
                start, one = step * 1000 + number * 100 + 1000, step * 100 + number
                yield event("user_annotation", name, start, 90)
                yield event("cuda_runtime", "cudaLaunchKernel", start + 5, 5,
                            args={"correlation": one + 1})  # fmt: skip
                yield event("kernel", f"kernel {name}", start + 20, 60, pid=0,
                            args={"correlation": one + 1, "device": 0, "stream": 7})  # fmt: skip

    return trace(folder, events())


KINDS: dict[str, Callable[[Path], Analysis]] = {
    "training": demo,
    "one_step": one_step,
    "lost_kernels": lost_kernels,
    "failed": failed,
    "cpu_only": cpu_only,
    "hostile": hostile,
    "slow_input": recorded(
        "examples", "02_slow_dataloader.sqlite", "02_slow_dataloader.sidecar.jsonl"
    ),
    "allocation": recorded(
        "examples", "08_cudamalloc_churn.sqlite", "08_cudamalloc_churn.sidecar.jsonl"
    ),
    "graph_break": recorded(
        "compiled_h200", "compiled_break.sqlite", "compiled_break.sidecar.jsonl"
    ),
    "graph_replays": recorded(
        "launch_h200", "reduce_overhead.sqlite", "reduce_overhead.sidecar.jsonl"
    ),
    "waits": recorded("launch_h200", "six_syncs.sqlite", "six_syncs.sidecar.jsonl"),
    "torch_trace": recorded(
        "launch_h200", "eager_torch_backend.torch.json", "eager_torch_backend.sidecar.jsonl"
    ),
    "two_sources": recorded(
        "launch_h200",
        "eager_with_torch_trace.sqlite",
        "eager_with_torch_trace.torch.json",
        "eager_with_torch_trace.sidecar.jsonl",
    ),
}
"""By the name of the pinned report."""
