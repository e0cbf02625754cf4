"""Programs that do not know nvprobe and compile: at import, in spawned and torchrun children."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder, Recording

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import multiprocessing
import torch

run = torch.compile(lambda x: (x * 2 + 1).tanh())       # before any other import of the program
run(torch.ones(3, requires_grad=True)).sum().backward()

if __name__ == "__main__":
    children = multiprocessing.get_context("spawn")
    child = children.Process(target=print, args=("in the child",))   # imports this file again
    child.start()
    child.join()
    assert child.exitcode == 0
"""
RANKS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
run = torch.compile(lambda x: (x * 2 + 1).tanh())
x = torch.ones(3, requires_grad=True)
run(x).sum().backward()
dist.all_reduce(x.grad)
dist.destroy_process_group()
"""


def check(recording: Recording, sidecars: Path, processes: int) -> None:
    """Each process has its graph ranges, and a manifest with the user's line in its sidecar."""
    ranges = recording.ranges("graph")
    graphs = {
        pid: [one.name for one in ranges if one.pid == pid and one.name.startswith("graph ")]
        for pid in {one.pid for one in ranges}
    }
    assert len(graphs) == processes
    assert all(names == ["graph 0/0 fwd", "graph 0/0 bwd"] for names in graphs.values()), graphs
    manifests = {}
    for file in sidecars.glob("sidecar.*"):
        read = [json.loads(line) for line in file.read_text().splitlines()]
        found = [line for line in read if line["kind"] == "graph"]
        if found:
            manifests[read[0]["pid"]] = found
    assert set(manifests) == set(graphs)
    for found in manifests.values():
        assert [one["phase"] for one in found] == ["fwd", "bwd"]
        nodes = [node for one in found for kernel in one["kernels"] for node in kernel["nodes"]]
        assert nodes
        assert all(node["src"].partition(":")[0].endswith("script.py") for node in nodes)


def test_compiled_at_import_and_in_a_spawned_child(recorder: Recorder, tmp_path: Path):
    recording = recorder.run(
        PROGRAM,
        launched=True,
        timeout=560,
        NVPROBE_SIDECAR=str(tmp_path / "side"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert "in the child" in recording.stdout
    check(recording, tmp_path / "side", 2)


def test_compiled_under_torchrun(recorder: Recorder, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    launcher = f"""
import runpy, sys
sys.argv = ["torchrun", "--nproc-per-node=2", "--standalone", {str(script)!r}]
runpy.run_module("torch.distributed.run", run_name="__main__")
"""
    recording = recorder.run(
        launcher,
        launched=True,
        timeout=560,
        NVPROBE_SIDECAR=str(tmp_path / "side"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
        OMP_NUM_THREADS="1",
    )
    check(recording, tmp_path / "side", 2)
    assert {one.name for one in recording.ranges("collective")} >= {"all_reduce default"}
    ranks = sorted(file.name.split(".")[1] for file in (tmp_path / "side").glob("sidecar.*"))
    assert ranks.count("1") == 1
