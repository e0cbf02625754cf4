"""Ranges and torch.compile: nothing in the graph, everything around it."""

from __future__ import annotations

import pytest

from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")


def test_ranges_vanish_in_compiled_code(torch_recorder: Recorder):
    code = """
        import nvprobe
        import torch

        @nvprobe.annotate
        def helper(x):
            with nvprobe.range("inside", payload=3):
                return x * 2

        @torch.compile(backend="eager", fullgraph=True)
        def compiled(x):
            with nvprobe.range("direct"):
                return helper(x) + 1

        ranged = nvprobe.annotate(torch.compile(lambda x: x + 1, backend="eager", fullgraph=True))
        outer = torch.compile(helper, backend="eager", fullgraph=True)
        x = torch.ones(3)
        assert compiled(x).tolist() == [3.0] * 3
        assert ranged(x).tolist() == [2.0] * 3
        assert outer(x).tolist() == [2.0] * 3
        from torch._dynamo.utils import counters
        assert not counters["graph_break"], counters
        assert counters["stats"]["unique_graphs"] == 3
        helper(x)
    """
    recording = torch_recorder.run(code)
    assert recording.paths() == ["<lambda>", "helper", "helper", "helper/inside"]
