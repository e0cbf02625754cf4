"""Which ranges are the steps, and their numbers."""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.analysis.steps import steps
from nvprobe.attribution import attribute
from nvprobe.trace import NO_PAYLOAD, RangeSource
from tests.unit.analysis.scenes import ADD, Scene


def test_a_numbered_step_of_torch_profiler_stands_above_an_engines_iteration() -> None:
    """It has its number from the sidecar; of the iterations alone the first would be step 0."""
    scene = Scene()
    for index in range(1, 4):
        name = f"iteration[prefill=0/0 decode={index}/{index}]"
        scene.inside("step", lambda name=name: scene.inside(name, lambda: scene.launch(ADD, 1_000)))
    trace = scene.trace()
    is_step = np.array([trace.text(name) == "step" for name in trace.ranges.name.tolist()])
    ranges = dataclasses.replace(
        trace.ranges,
        payload=np.where(is_step, 9 + np.cumsum(is_step), NO_PAYLOAD),
        source=np.full(len(is_step), RangeSource.ANNOTATION, np.int8),
    )
    found = steps(attribute(dataclasses.replace(trace, ranges=ranges)), np.empty(0, np.int64))
    assert found.index.tolist() == [10, 11, 12]
    assert found.decode_requests.tolist() == [1, 2, 3]
