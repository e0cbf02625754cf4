"""CUDA graphs, collectives and backward names under a real NVTX tool, as far as a CPU goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.readers.sidecar_kinds import read_sidecar
from tests.nvtx_recorder import Recorder, Recording

pytest.importorskip("torch")

FAKE = """
from nvprobe.instrumentation import emitter, graphs, sidecar
from nvprobe.instrumentation.emitter import Category
sidecar.open("side")
import torch, torch.cuda.graphs

class CUDAGraph:
    '''What torch.cuda.CUDAGraph does, without a GPU.'''
    fails = False
    def capture_begin(self, pool=None, capture_error_mode="global"):
        if self.fails:
            raise RuntimeError("no capture")
    def capture_end(self): pass
    def replay(self): return "replayed"

torch.cuda.graphs.CUDAGraph = CUDAGraph
early = CUDAGraph()
early.capture_begin(); early.capture_end()
graphs.install()
def module(name):
    return emitter.label(name, Category.MODULE)
"""


def lines(recording: Recording, kind: str) -> list[dict]:
    files = sorted((recording.folder / "side").glob("sidecar.*"))
    read = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line for line in read if line["kind"] == kind]


def test_captures_and_replays_have_ranges_and_the_sidecar_what_was_open(torch_recorder: Recorder):
    recording = torch_recorder.run(
        FAKE
        + """
        first, second = CUDAGraph(), CUDAGraph()
        emitter.push(module("Net"))
        first.capture_begin()
        for block in range(2):
            emitter.push(module(f"blocks.{block}"))
            emitter.push(module(f"blocks.{block}.fc"))
            emitter.pop()
            emitter.pop()
        first.capture_end()
        emitter.pop()
        second.capture_begin(); second.capture_end()
        assert first.replay() == second.replay() == early.replay() == "replayed"
        first.capture_begin(); first.capture_end()      # captured anew: another id
        first.replay()
        assert not graphs.capturing()
        """.replace("\n        ", "\n")
    )
    assert recording.paths("cudagraph") == [
        "Net/cudagraph capture 1",
        "cudagraph capture 2",
        "cudagraph replay 1",
        "cudagraph replay 2",
        "cudagraph replay 0",
        "cudagraph capture 3",
        "cudagraph replay 3",
    ]
    payloads = [one.payload for one in recording.ranges("cudagraph")]
    assert payloads == [1, 2, 1, 2, 0, 3, 3]
    noted, *empty = lines(recording, "cudagraph")
    assert noted["columns"] == ["name", "depth", "start_ns", "end_ns", "category"]
    assert [(name, depth) for name, depth, *_ in noted["ranges"]] == [
        ("blocks.0", 0),
        ("blocks.0.fc", 1),
        ("blocks.1", 0),
        ("blocks.1.fc", 1),
    ]
    for _, _, start, end, category in noted["ranges"]:
        assert category == "module"
        assert noted["start_ns"] <= start <= end <= noted["end_ns"]
    assert [one["ranges"] for one in empty] == [[], []]
    by_tool = {one.name: one for one in recording.ranges("module")}
    for name, _, start, end, _ in noted["ranges"]:
        seen = by_tool[name]
        assert start - 1_000_000 < seen.start_ns <= seen.end_ns < end + 1_000_000
    read_sidecar(next((recording.folder / "side").glob("sidecar.*")))


def test_a_capture_that_fails_leaves_everything_balanced(torch_recorder: Recorder):
    recording = torch_recorder.run(
        FAKE
        + """
        verbs = emitter.push, emitter.pop
        CUDAGraph.fails = True
        for _ in range(2):
            try:
                CUDAGraph().capture_begin()
            except RuntimeError:
                pass
        CUDAGraph.fails = False
        graph = CUDAGraph()
        graph.capture_begin()
        try:
            emitter.push(module("broken"))
            try:
                raise ValueError
            finally:
                emitter.pop()
        except ValueError:
            graph.capture_end()
        assert (emitter.push, emitter.pop) == verbs
        graph.capture_end()                             # a second end closes nothing
        """.replace("\n        ", "\n")
    )
    assert len(recording.names("cudagraph")) == 3
    assert [one["ranges"][0][0] for one in lines(recording, "cudagraph")] == ["broken"]


def test_hooks_of_nvprobe_step_aside_for_make_graphed_callables(torch_recorder: Recorder):
    torch_recorder.run(
        """
        import torch, torch.cuda.graphs
        from torch import nn
        from nvprobe.instrumentation import graphs
        seen = []
        def make(callables, sample_args):
            for one in callables if isinstance(callables, tuple) else (callables,):
                seen.append((len(one._forward_pre_hooks), len(one._forward_hooks)))
            return callables
        torch.cuda.graphs.make_graphed_callables = torch.cuda.make_graphed_callables = make
        graphs.install()
        def ours(*_): pass
        ours.__module__ = "nvprobe.instrumentation.modules"
        def theirs(*_): pass
        a, b, c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        for one in (a, b):
            one.register_forward_pre_hook(ours)
            one.register_forward_hook(ours, always_call=True)
        b.register_forward_hook(theirs)
        before = [list(m._forward_hooks.items()) for m in (a, b, c)]
        assert torch.cuda.make_graphed_callables((a, b, c), ()) == (a, b, c)
        assert seen == [(0, 0), (0, 1), (0, 0)], seen
        assert [list(m._forward_hooks.items()) for m in (a, b, c)] == before
        assert len(a._forward_pre_hooks) == 1
        function = lambda x: x
        try:
            torch.cuda.make_graphed_callables(function, ())
        except AttributeError:
            pass                                       # this fake wants modules
        """
    )


def test_collectives_have_group_bytes_and_operation(torch_recorder: Recorder):
    recording = torch_recorder.run(
        """
        from nvprobe.instrumentation import collectives, sidecar
        sidecar.open("side")
        collectives.install()
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tensor = torch.ones(256)
        dist.all_reduce(tensor)
        dist.all_gather([torch.empty(256)], tensor)
        other = dist.new_group([0], group_desc="tensor_parallel")
        dist.broadcast(tensor, src=0, group=other)
        dist.barrier()
        import torch.distributed._functional_collectives as functional
        functional.all_reduce(tensor, "sum", dist.group.WORLD).sum()
        @torch.compile(backend="aot_eager", fullgraph=True)
        def compiled(x):
            y = x * 2
            dist.all_reduce(y)
            return y + 1
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
        torch._dynamo.reset()
        @torch.compile(backend="aot_eager")
        def broken(x):
            for _ in range(2):
                torch._dynamo.graph_break()    # the frame runs as it is, its calls are compiled
                dist.all_reduce(x)
            return x + 1
        broken(torch.ones(3))
        frames = [m.co_filename for m in torch._dynamo.utils.get_compilation_metrics()]
        assert not [name for name in frames if "nvprobe" in name], frames
        collectives.uninstall()
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        """
    )
    got = [(one.name, one.payload) for one in recording.ranges("collective")]
    assert got == [
        ("all_reduce default", 1024),
        ("all_gather default", 2048),
        ("broadcast tensor_parallel", 1024),
        ("barrier default", 0),
        ("functional all_reduce default", 1024),
        ("all_reduce default", 12),
        ("all_reduce default", 12),
    ]
    rows = [
        dict(zip(line["columns"], row, strict=True))
        for line in lines(recording, "collective")
        for row in line["rows"]
    ]
    assert [(row["op"], row["group"], row["ranks"], row["bytes"]) for row in rows] == [
        ("all_reduce", "default", 1, 1024),
        ("all_gather", "default", 1, 2048),
        ("broadcast", "tensor_parallel", 1, 1024),
        ("barrier", "default", 1, 0),
        ("functional all_reduce", "default", 1, 1024),
        ("all_reduce", "default", 1, 12),
        ("all_reduce", "default", 1, 12),
    ]
    assert all(row["start_ns"] <= row["end_ns"] for row in rows)


def test_a_collective_under_an_old_name_counts_once_and_its_warning_names_the_program(
    torch_recorder: Recorder,
):
    recording = torch_recorder.run(
        """
        import warnings
        from nvprobe.instrumentation import collectives, sidecar
        sidecar.open("side")
        collectives.install()
        import torch, torch.distributed as dist
        import torch.distributed._functional_collectives as functional
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        tensor, out = torch.ones(256), torch.empty(256)
        dist.all_gather_into_tensor(out, tensor)
        dist.reduce_scatter_tensor(out, tensor)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, tensor)
        dist.all_gather_object([None], "text")             # two: its length, then itself
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            functional.all_gather_tensor(tensor, 0, dist.group.WORLD).sum()
        assert all(one.filename == __file__ for one in caught), [str(one) for one in caught]
        @torch.compile(backend="aot_eager", fullgraph=True)
        def compiled(x):
            dist.all_gather_into_tensor(out, x)
            getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, x)
            return out + 1
        assert torch.equal(compiled(tensor), torch.full((256,), 2.0))
        dist.destroy_process_group()
        """
    )
    rows = [row for line in lines(recording, "collective") for row in line["rows"]]
    assert [row[0] for row in rows] == [
        *("all_gather_into_tensor", "reduce_scatter_tensor", rows[2][0]),
        *("all_gather", "all_gather", "functional all_gather_tensor"),
    ]
    assert rows[2][0] in ("all_gather_single", "all_gather_into_tensor")
    assert [row[3] for row in rows[:3]] == [2048] * 3
    ranges = recording.ranges("collective")
    assert [one.name for one in ranges] == [f"{row[0]} default" for row in rows]
    assert all(len(one.path) == 1 for one in ranges)


def test_backward_is_left_alone_where_torch_has_no_nvtx_state(torch_recorder: Recorder):
    """A torch without CUDA: one debug line, the right gradients, the engine put back."""
    recording = torch_recorder.run(
        """
        import logging, sys
        logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
        logging.getLogger("nvprobe").setLevel(logging.DEBUG)
        import torch
        original = torch.autograd.graph._engine_run_backward
        from nvprobe.instrumentation import autograd
        autograd.install()
        assert torch.autograd.graph._engine_run_backward is not original
        x = torch.ones(3, requires_grad=True)
        for _ in range(2):
            (x * 2).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 4.0))
        if not torch.cuda.is_available():
            assert torch.autograd.graph._engine_run_backward is original
        autograd.uninstall()
        with torch.profiler.profile() as prof:
            (x * 2).sum().backward()
        """
    )
    assert isinstance(recording.folder, Path)
    told = [line for line in recording.stdout.splitlines() if "backward nodes" in line]
    assert len(told) <= 1
