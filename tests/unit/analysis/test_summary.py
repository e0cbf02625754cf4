"""Paths in sentences."""

from __future__ import annotations

import pytest

from nvprobe.analysis.verdict import short_path

SHORTENED = {
    "step/forward": "step/forward",
    "step/" + "block/" * 12 + "fwd:attention": "step/…/" + "block/" * 6 + "fwd:attention",
    "step/backward/engine/## Call CompiledFxGraph " + "f" * 52: (
        "step/…/## Call CompiledFxGraph " + "f" * 28 + "…"
    ),
    "step/" + "y" * 80: "step/" + "y" * 54 + "…",
    "x" * 80: "x" * 59 + "…",
    "a" * 40 + "/b/" + "c" * 30: "…/b/" + "c" * 30,
    "step/" + "z/" * 30 + r"graph 0\/0 fwd": "step/…/" + "z/" * 20 + "graph 0:0 fwd",
    r"load \/data\/train.bin/graph 1\/0_1 bwd": "load :data:train.bin/graph 1:0_1 bwd",
}


@pytest.mark.parametrize("path", SHORTENED)
def test_a_long_path_keeps_whole_names(path: str) -> None:
    short = short_path(path)
    assert short == SHORTENED[path]
    assert len(short) <= 60
