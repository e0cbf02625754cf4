"""Modules that are called again, and models that are evaluated: by their objects, and without."""

from __future__ import annotations

import pytest

from nvprobe.analysis.findings.sources import times
from nvprobe.trace.sidecar import ModuleObject, Sidecar
from tests.unit.analysis.scenes import ADD, BF16_GEMM, CUSTOM, Scene
from tests.unit.analysis.test_catalogue import US, found, many, named


def noted(*rows: tuple[str, int, bool | None]) -> Sidecar:
    """A sidecar that knows the objects of modules: name, number, whether it trains."""
    return Sidecar(
        objects=tuple(
            ModuleObject(name, number, trains=trains, process=0) for name, number, trains in rows
        )
    )


@pytest.mark.parametrize(
    ("turns", "modules", "expected"), [(40, 1, True), (40, 2, True), (40, 40, False), (4, 1, False)]
)
def test_a_module_that_is_called_in_a_loop(turns: int, modules: int, expected: bool) -> None:
    def body(scene: Scene) -> None:
        for _ in range(turns):
            scene.inside("fwd:cell", lambda: many(scene, ADD, 3, 2 * US))

    objects = (("fwd:cell", number, None) for number in range(modules))
    ids = found(body, sidecar=noted(*objects))
    assert ("repeated_module" in ids) is expected
    if expected:
        one = ids["repeated_module"]
        assert one.evidence["calls_per_step"] == turns
        assert one.evidence["modules_of_its_name"] == modules
        assert next(iter(ids)) == "repeated_module"


def test_what_different_layers_call_is_not_called_in_a_loop_either() -> None:
    def layer(scene: Scene) -> None:
        scene.inside("fwd:norm", lambda: many(scene, ADD, 4, 2 * US))

    def body(scene: Scene) -> None:
        for _ in range(12):
            scene.inside("fwd:Layer", lambda: layer(scene))

    layers = [("fwd:Layer", number, None) for number in range(12)]
    assert "repeated_module" not in found(body, sidecar=noted(*layers, ("fwd:norm", 99, None)))


@pytest.mark.parametrize(
    ("turns", "kernels", "sums", "expected"),
    [(40, 8, 2, True), (40, 20, 2, False), (40, 8, 1, False), (12, 8, 2, False), (40, 8, 0, False)],
)
def test_without_objects_a_cell_is_known_by_the_sums_of_its_gradients(
    turns: int, kernels: int, sums: int, expected: bool
) -> None:
    def body(scene: Scene) -> None:
        for _ in range(turns):
            scene.inside("fwd:cell", lambda: many(scene, CUSTOM, kernels, 2 * US))
        scene.inside("backward", lambda: many(scene, ADD, turns * sums + 1, 2 * US))

    assert ("repeated_module" in found(body)) is expected


@pytest.mark.parametrize(("in_one_process", "expected"), [(True, False), (False, True)])
def test_objects_are_counted_in_each_process_and_below_their_root(
    in_one_process: bool, expected: bool
) -> None:
    def loop_over_cells(scene: Scene) -> None:
        for _ in range(12):
            scene.inside("fwd:cell", lambda: many(scene, ADD, 4, 2 * US))

    rows = [
        ModuleObject("fwd:cell", number, "Net", process=0 if in_one_process else number)
        for number in range(2)
    ]
    others = [ModuleObject("fwd:cell", number, "Other", process=0) for number in range(5, 9)]
    ids = found(
        lambda scene: scene.inside("Net", lambda: loop_over_cells(scene)),
        sidecar=Sidecar(objects=(*rows, *others)),
    )
    assert ("repeated_module" in ids) is expected


def models(scene: Scene, trained: str, evaluated: str, parts: int = 2) -> None:
    """A training pass of one model, and a pass without gradients, as nvprobe's phases."""

    def layers(count: int) -> None:
        for part in range(count):
            scene.inside(f"fwd:{part}", lambda: many(scene, BF16_GEMM, 4))

    named(scene, "forward", f"fwd:{trained}", body=lambda: layers(2))
    named(scene, "evaluation", f"fwd:{evaluated}", body=lambda: layers(parts))


@pytest.mark.parametrize(
    ("number", "mode", "expected"), [(0, False, True), (1, False, False), (0, None, False)]
)
def test_an_evaluation_is_of_the_model_that_trains(
    number: int, mode: bool | None, expected: bool
) -> None:
    """Not of a teacher, and not a generator's pass for the other network, in training mode."""
    sidecar = noted(("fwd:Net", 0, True), ("fwd:Net", number, mode), ("fwd:0", 5, None))
    ids = found(lambda s: models(s, "Net", "Net"), sidecar=sidecar)
    assert ("evaluation_in_step" in ids) is expected


@pytest.mark.parametrize(
    ("evaluated", "parts", "expected"), [("Net", 2, True), ("Net", 4, False), ("Other", 2, False)]
)
def test_without_objects_an_evaluation_calls_the_modules_that_train(
    evaluated: str, parts: int, expected: bool
) -> None:
    ids = found(lambda s: models(s, "Net", evaluated, parts))
    assert ("evaluation_in_step" in ids) is expected


@pytest.mark.parametrize(("count", "text"), [(0.4, "0 times"), (1.4, "once"), (2, "2 times")])
def test_how_often_as_people_say_it(count: float, text: str) -> None:
    assert times(count) == text
