"""Waits that save nothing one by one, values read in a row, whole devices, and no replay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis.findings.model import Finding
from nvprobe.analysis.replay import gate
from nvprobe.trace import Marks
from tests.unit.analysis.scenes import BF16_GEMM, CUSTOM, Scene, analysis_of, loop, unprofiled

US = 1000


def found(body: Callable[[Scene], None], mark: str = "") -> list[Finding]:
    scene = loop(body, steps=5)
    return list(
        analysis_of(scene, profiling=unprofiled(scene), **marked(scene, mark)).findings or ()
    )


def marked(scene: Scene, mark: str) -> dict[str, object]:
    """A mark after each wait."""
    waits = [end for _, end, name in scene.calls if "Synchronize" in name and mark]
    trace = scene.trace()
    zero = np.zeros(len(waits), np.int64)
    strings = pa.concat_arrays([trace.strings, pa.array([mark])])
    marks = Marks(zero, zero, np.array(waits) + 1, zero + len(trace.strings), zero - 1, zero - 1)
    return {"strings": strings, "marks": marks}


def launches(scene: Scene) -> None:
    for _ in range(20):
        scene.host(20 * US)
        scene.launch(CUSTOM, 15 * US)


def read_twice(scene: Scene, between: int) -> None:
    scene.inside("forward", lambda: launches(scene))
    scene.launch(BF16_GEMM, 500 * US)
    scene.inside("loss", scene.item)
    if between:
        scene.host(between)
        scene.launch(BF16_GEMM, 500 * US)
    scene.inside("accuracy", scene.item)


def test_two_reads_of_which_either_waits_for_what_the_other_waited_for() -> None:
    one = next(one for one in found(lambda scene: read_twice(scene, 0)) if "sync" in one.id)
    assert one.id == "implicit_sync"
    assert one.evidence["places"] == 2
    assert one.step_saving is not None
    assert one.step_saving.mid > 20


def test_reads_that_each_starve_the_gpu_stay_apart() -> None:
    waits = [one for one in found(lambda scene: read_twice(scene, 400 * US)) if "sync" in one.id]
    assert waits
    assert all("places" not in one.evidence for one in waits)


def read_in_a_loop(scene: Scene, launched: bool) -> None:
    """Twelve values at two lines in turn; the host takes as long for them as for the launches."""
    scene.inside("forward", lambda: launches(scene))
    for _ in range(6):
        for line in ("total", "word"):
            scene.host(30 * US)
            scene.inside(line, scene.item)
        if launched:
            scene.launch(CUSTOM, 15 * US)


def test_values_read_in_a_row_at_two_lines_are_one_finding_and_one_copy() -> None:
    (one,) = [one for one in found(lambda s: read_in_a_loop(s, False)) if "sync" in one.id]
    assert one.evidence["places"] == 2
    assert one.evidence["reads_in_a_row"] == 12
    assert type(one.evidence["reads_in_a_row"]) is float  # as JSON holds it
    assert one.evidence["rows_per_step"] == 1
    assert one.step_saving is not None
    assert one.step_saving.mid > 40
    assert ".tolist()" in one.advice[0]


def test_reads_with_launches_between_them_need_their_own_waits() -> None:
    waits = [one for one in found(lambda s: read_in_a_loop(s, True)) if "sync" in one.id]
    assert waits
    assert all("reads_in_a_row" not in one.evidence for one in waits)


def whole_device(scene: Scene, ns: int = 400 * US) -> None:
    for _ in range(3):
        launches(scene)
        scene.launch(BF16_GEMM, ns)
        end = max(scene.gpu_free.values())
        scene.call("cudaDeviceSynchronize", max(end - scene.now, 0) + 2 * US)


def test_a_wait_for_the_whole_device_reads_nothing_wherever_its_line_is() -> None:
    (one,) = [one for one in found(whole_device, "sync timing.py:7") if "sync" in one.id]
    assert one.id == "explicit_sync"
    assert one.sources == ("timing.py:7",)
    (one,) = [
        one for one in found(lambda s: read_twice(s, 0), "sync train.py:31") if "sync" in one.id
    ]
    assert one.id == "implicit_sync"


@pytest.mark.parametrize(("ns", "held_up"), [(400 * US, True), (60_000 * US, False)])
def test_without_a_replay_a_wait_costs_the_lead_that_the_host_would_have(
    monkeypatch: pytest.MonkeyPatch, ns: int, held_up: bool
) -> None:
    """As long as the host waited while the GPU worked, or as the GPU waits for it afterwards."""
    monkeypatch.setattr(gate, "LONGEST", 0)

    def body(scene: Scene) -> None:
        whole_device(scene, ns)

    one = next((one for one in found(body) if one.id == "explicit_sync"), None)
    assert (one is not None) == held_up
    if one is not None:
        bubble, busy = (int(one.evidence[name] or 0) for name in ("bubble_ns", "busy_ns"))
        assert bubble < one.saves_ns[1] <= bubble + busy
