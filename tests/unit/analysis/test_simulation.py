"""Steps with changes that are asked for, and the critical path before and after."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from nvprobe.analysis.simulation import Asked, Simulation, simulate
from nvprobe.attribution import attribute
from nvprobe.cli import main
from nvprobe.demo import unpacked
from nvprobe.errors import UsageError
from tests.unit.analysis.scenes import ADD, BF16_GEMM, Scene, loop, unprofiled

US = 1000


def body(scene: Scene) -> None:
    scene.inside("h2d", lambda: upload(scene))
    scene.inside("forward", lambda: [scene.launch(BF16_GEMM, 100 * US) for _ in range(10)][:0])
    scene.inside("log", lambda: slow(scene))


def upload(scene: Scene) -> None:
    scene.upload(200 * US, pageable=False)


def slow(scene: Scene) -> None:
    scene.item()
    scene.host(400 * US)
    scene.launch(ADD, 5 * US)


def simulated(**asked: object) -> Simulation:
    scene = loop(body, steps=6)
    trace = dataclasses.replace(scene.trace(), profiling=unprofiled(scene))
    return simulate(attribute(trace), Asked(**asked))  # type: ignore[arg-type]


def test_the_critical_path_is_the_step() -> None:
    found = simulated()
    assert found.saving.mid == 0
    assert sum(row.ns for row in found.before) == pytest.approx(found.step_ns, rel=0.01)
    assert found.before[0].part == "gpu"
    assert found.before[0].path == "step/forward"
    assert ("host", "step/log") in [(row.part, row.path) for row in found.before]


@pytest.mark.parametrize(
    ("asked", "saved_us"),
    [
        ({"speed_up": {"gemm": 2.0}}, 500),
        ({"drop": ["step/log"]}, 400),
        ({"drop": ["*/log", "*/h2d"]}, 600),
    ],
)
def test_what_a_change_saves(asked: dict[str, object], saved_us: int) -> None:
    found = simulated(**asked)
    assert found.saving.mid * found.step_ns == pytest.approx(saved_us * US, rel=0.1)
    assert found.saving.low <= found.saving.mid <= found.saving.high
    left = sum(row.ns for row in found.after)
    assert left == pytest.approx(found.step_ns * (1 - found.saving.mid), rel=0.01)


def test_changes_are_made_together() -> None:
    one, other = simulated(speed_up={"gemm": 2.0}), simulated(drop=["step/h2d"])
    both = simulated(speed_up={"gemm": 2.0}, drop=["step/h2d"])
    assert both.saving.mid >= max(one.saving.mid, other.saving.mid)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"drop": ["step/nothing"]}, "--drop step/nothing: not a path of the capture"),
        ({"remove_sync": ["train.py:1"]}, "--remove-sync train.py:1: nothing synchronizes there"),
        ({"speed_up": {"nonsense": 2.0}}, "--speed-up nonsense: classes are"),
        ({"speed_up": {"attention": 2.0}}, "--speed-up attention: no op of the steps"),
        ({"overlap": ["step/nothing"]}, "--overlap step/nothing: not a path of the capture"),
        ({"overlap": ["step/forward"]}, "--overlap step/forward: nothing is copied in this path"),
        ({"cuda_graph": ["step/nothing"]}, "--cuda-graph step/nothing: not a path of the capture"),
    ],
)
def test_what_the_capture_does_not_have_is_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulated(**asked)


def test_twice_as_many_examples() -> None:
    """Full kernels and uploads take twice as long, an optimizer and the host as long as before."""

    def training(scene: Scene) -> None:
        scene.inside("h2d", lambda: upload(scene))
        scene.inside("forward", lambda: products(scene))
        scene.inside("optimizer", lambda: adds(scene))

    def products(scene: Scene) -> None:
        for _ in range(5):
            scene.launch(BF16_GEMM, 200 * US)

    def adds(scene: Scene) -> None:
        scene.launch(ADD, 300 * US)

    scene = loop(training, steps=6)
    trace = dataclasses.replace(scene.trace(), profiling=unprofiled(scene))
    found = simulate(attribute(trace), Asked(batch=2.0))
    least, expected, most = found.step_with_ns
    assert found.step_ns == pytest.approx(1500 * US, rel=0.01)
    assert expected == pytest.approx(2700 * US, rel=0.01)
    assert least < expected < most


def test_kernels_that_do_not_fill_the_gpu_hardly_take_longer() -> None:
    def small(scene: Scene) -> None:
        for _ in range(10):
            scene.launch(BF16_GEMM, 100 * US, grid=33)

    scene = loop(small, steps=6)
    trace = dataclasses.replace(scene.trace(), profiling=unprofiled(scene))
    least, expected, most = simulate(attribute(trace), Asked(batch=2.0)).step_with_ns
    assert least < expected == pytest.approx(1000 * US, rel=0.02)
    assert most > 2000 * US


def test_without_sizes_of_launches_nothing_is_said_of_more_examples() -> None:
    trace = loop(body, steps=6).trace()
    bare = dataclasses.replace(trace, geometry=trace.geometry.take(np.empty(0, np.int64)))
    with pytest.raises(UsageError, match="sizes of launches"):
        simulate(attribute(bare), Asked(batch=2.0))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with unpacked() as path:
        with pytest.raises(SystemExit) as code:
            main(["simulate", str(path), "--json", "--speed-up", "gemm=2"])
        assert not code.value.code
        found = json.loads(capsys.readouterr().out)
        assert found["schema"] == "nvprobe.simulate/1"
        assert 0 <= found["saving"]["low"] <= found["saving"]["mid"] <= found["saving"]["high"]
        total = sum(row["ns"] for row in found["critical_path"])
        assert total == pytest.approx(found["step_ns"], rel=0.2)
        with pytest.raises(SystemExit) as code:
            main(["simulate", str(path)])
        text = capsys.readouterr().out
        assert text.startswith("A step takes ")
        assert "Critical path of a step" in text
        with pytest.raises(SystemExit) as code:
            main(["simulate", str(path), "--speed-up", "gemm"])
        assert code.value.code == 2
