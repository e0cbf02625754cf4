"""The critical path of the step as it is: its parts add up to the unprofiled step."""

from __future__ import annotations

import json

import pytest

from nvprobe.report.document import to_json
from tests.unit.analysis.scenes import BF16_GEMM, Scene, analysis_of, loop, unprofiled

US = 1000


def body(scene: Scene) -> None:
    def forward() -> None:
        for _ in range(4):
            scene.host(20 * US)
            scene.launch(BF16_GEMM, 200 * US)

    scene.inside("forward", forward)
    scene.item()
    scene.host(300 * US)


def test_its_parts_add_up_to_the_step() -> None:
    scene = loop(body, steps=5)
    analysis = analysis_of(scene, profiling=unprofiled(scene))
    found = analysis.critical_time
    assert found is not None
    assert analysis.profiler is not None
    assert sum(one.ns for one in found) == pytest.approx(analysis.profiler.unprofiled_ns, rel=0.01)
    first, second = found[:2]
    assert (first.part, first.what, first.path) == ("gpu", "gemm", "step/forward")
    assert first.ns == pytest.approx(800 * US, rel=0.01)
    assert (second.part, second.path) == ("host", "step")
    returned = [one for one in found if one.part == "return"]
    assert [one.what for one in returned] == ["cudaStreamSynchronize"]
    rows = json.loads(to_json(analysis))["critical_path"]
    assert rows[0] == {
        "part": "gpu", "what": "gemm", "path": "step/forward", "line": None, "ns": first.ns
    }  # fmt: skip


def test_without_steps_there_is_none() -> None:
    analysis = analysis_of(loop(body, steps=1))
    assert analysis.critical_time is None
    assert json.loads(to_json(analysis))["critical_path"] is None
