"""The corpus's hand-kept kernel manifests, merged into a capture the way a sidecar is."""

from __future__ import annotations

import json
from pathlib import Path

from nvprobe.readers import load
from nvprobe.readers.sidecar import merge_sidecars
from nvprobe.readers.sidecar_kinds import read_sidecar
from nvprobe.trace import Trace


def capture_with_manifest(folder: Path, name: str, scratch: Path) -> tuple[Trace, dict]:
    """The Trace of ``<name>.sqlite`` with its manifest as sidecar, and the manifest's graphs."""
    graphs = json.loads((folder / f"{name}.manifest.json").read_text())["graphs"]
    trace = load(folder / f"{name}.sqlite")
    header = {"kind": "header", "schema": "nvprobe.sidecar/1", "pid": int(trace.processes.pid[0])}
    lines = [header, *({"kind": "graph", **graph} for graph in graphs.values())]
    file = scratch / "sidecar.0.1.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return merge_sidecars(trace, [read_sidecar(file)]), graphs
