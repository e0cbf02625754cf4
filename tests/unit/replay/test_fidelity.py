"""The unchanged replay gives the captured step, on scenes and on every capture of the corpus."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.replay import gate
from nvprobe.analysis.replay.build import Captured, build
from nvprobe.analysis.replay.gate import CLOSE, fidelity
from nvprobe.analysis.replay.model import ALL, NOTHING, EventKind
from nvprobe.analysis.replay.run import replay_cost
from nvprobe.analysis.selection import Selection, select
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.waits import waits
from nvprobe.merging.load import load
from nvprobe.trace import Trace
from tests.conftest import CORPUS
from tests.unit.analysis.scenes import ADD, Scene, loop

US = 1000
CAPTURES = sorted([*CORPUS.glob("pairs/*/report.sqlite"), *CORPUS.glob("runs/**/report.sqlite")])
OTHERS = sorted([*CORPUS.glob("nsys/h200/*.sqlite"), *CORPUS.glob("kineto/h200/*.json.gz")])


def built(trace: Trace) -> Captured | None:
    attribution = select(trace, Selection())
    found = steps(attribution, lost_launches(attribution))
    return build(attribution, found.shown, waits(attribution, found))


def sidecars(capture: Path) -> list[Path]:
    return sorted(capture.parent.glob("sidecar.*.jsonl")) if "h200" not in str(capture) else []


@pytest.mark.parametrize("capture", [*CAPTURES, *OTHERS], ids=lambda p: "/".join(p.parts[-2:]))
def test_the_unchanged_replay_is_the_captured_step(capture: Path) -> None:
    captured = built(load(capture, *sidecars(capture)))
    if captured is None:  # no steps, no calls, or no process that launches in its steps
        assert "runs" not in capture.parts
        assert "pairs" not in capture.parts
        return
    found = fidelity(captured)
    assert found.error <= CLOSE
    assert found.passed


def mixed(scene: Scene) -> None:
    scene.upload(40 * US, pageable=True)
    for _ in range(6):
        scene.host(8 * US)
        scene.launch(ADD, 12 * US)
    scene.launch(ADD, 90 * US)
    scene.item()
    scene.call("cudaDeviceSynchronize", 4 * US)
    scene.host(30 * US)


def test_steps_that_take_too_long_to_replay_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = built(loop(mixed, steps=5).trace())
    assert captured is not None
    assert not fidelity(captured).too_long
    cost = replay_cost(captured.model)
    monkeypatch.setattr(gate, "LONGEST", cost // 5 - 1)
    found = fidelity(captured)
    assert found.too_long
    assert not found.passed


def test_a_scene_is_replayed_exactly() -> None:
    captured = built(loop(mixed, steps=5).trace())
    assert captured is not None
    found = fidelity(captured)
    assert (found.error, found.late_ns, found.lost_ops) == (0, 0, 0)
    kinds = captured.model.events.kind
    assert np.count_nonzero(kinds == EventKind.STEP) == 6
    assert np.count_nonzero(kinds == EventKind.BLOCKING_COPY) == 5
    awaits = captured.model.events.awaits
    assert np.count_nonzero(awaits == ALL) == 10  # stream and device synchronizations of the scene
    assert np.all(awaits[kinds == EventKind.LAUNCH] == NOTHING)


@pytest.mark.parametrize("pageable", [True, False])
def test_a_copy_that_the_host_stages_begins_late_for_a_known_reason(pageable: bool) -> None:
    def body(scene: Scene) -> None:
        scene.host(300 * US)
        scene.gpu_free[7] = scene.now + 105 * US
        scene.upload(200 * US, pageable=pageable)
        scene.launch(ADD, 50 * US)
        scene.item()

    captured = built(loop(body, steps=5).trace())
    assert captured is not None
    found = fidelity(captured)
    assert (found.late_ns == 0) == pageable
    assert found.passed == pageable


def test_of_a_long_capture_some_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = built(loop(mixed, steps=60).trace())
    assert captured is not None
    whole, replayed = fidelity(captured), []
    monkeypatch.setattr(gate, "MANY", 200)
    once = gate.replay
    monkeypatch.setattr(gate, "replay", lambda m: (replayed.append(len(m.events)), once(m))[1])
    assert fidelity(captured) == whole
    assert len(replayed) == 6
    assert sum(replayed) < len(captured.model.events)


@pytest.mark.parametrize("lost", ["ops", "calls"])
def test_a_capture_without_a_table_has_no_model(lost: str) -> None:
    trace = loop(mixed, steps=5).trace()
    empty = getattr(trace, lost).take(np.empty(0, np.int64))
    assert built(dataclasses.replace(trace, **{lost: empty})) is None


def test_two_steps_are_no_loop() -> None:
    assert built(loop(mixed, steps=2).trace()) is None


def test_a_pause_of_one_step_does_not_make_the_model_wrong() -> None:
    pauses = iter((2, 2, 300, 2, 2))

    def paused(scene: Scene) -> None:
        mixed(scene)
        scene.host(next(pauses) * US)

    captured = built(loop(paused, steps=5).trace())
    assert captured is not None
    assert np.any(captured.model.events.gap < captured.uncut.events.gap)
    assert fidelity(captured).error == 0
