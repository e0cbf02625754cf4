"""What a report says is missing: of the capture, and how to record it."""

from __future__ import annotations

from pathlib import Path

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.document import to_dict
from tests.unit import test_kineto as kineto
from tests.unit.analysis.scenes import ADD, Scene, analysis_of


def test_no_field_is_blamed_on_nvprobe_that_the_capture_has_nothing_for() -> None:
    scene = Scene()
    scene.inside("step 1", lambda: scene.launch(ADD, 20_000))
    told = {one["what"]: one for one in to_dict(analysis_of(scene))["missing"]}
    assert told["counters"]["why"] == "the capture has no GPU metrics"
    assert told["memory"]["how"].startswith("profile with profile_memory=True")
    assert not any("upgrade" in one["how"] for one in told.values())


def test_steps_come_from_a_schedule_in_a_torch_trace(tmp_path: Path) -> None:
    events = [event for event in kineto.EVENTS if "step 3" not in event]
    analysis = analyze(attribute(load(kineto.write(tmp_path, kineto.document(*events)))))
    (how,) = (one.how for one in analysis.missing if one.what == "steps")
    assert how.startswith("give the profiler a schedule and call its step()")
    assert how.endswith('or open a range named "step N"')
