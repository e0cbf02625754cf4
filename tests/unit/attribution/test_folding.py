"""Phases that nvprobe found inside ranges of their name, and loaders with no further batch."""

from __future__ import annotations

from nvprobe.attribution import attribute
from nvprobe.attribution.model import Kind
from tests.random_traces import AUTOMATIC, NAMES, build

STEP_1, STEP_2, FORWARD = (NAMES.index(name) for name in ("step 1", "step 2", "forward"))
LAYER, EXHAUSTED = NAMES.index("layer 3"), NAMES.index("data exhausted")


def paths(*rows: tuple[int, int, int]) -> list[tuple[str, bool]]:
    """Path of each range ``(start, end, name)`` of one thread, and whether it is folded."""
    tree = attribution_of(*rows)
    texts = tree.paths.texts()
    return [
        (texts[path], bool(folded))
        for path, folded in zip(tree.tree.path, tree.tree.folded, strict=True)
    ]


def attribution_of(*rows: tuple[int, int, int]):
    return attribute(build([0], [100], [100], [(0, *row) for row in rows], [], [], []))


def test_a_found_phase_folds_into_the_range_of_its_name_around_it():
    assert paths((1, 30, STEP_1), (2, 20, FORWARD), (3, 19, AUTOMATIC), (4, 18, LAYER)) == [
        ("step", False),
        ("step/forward", False),
        ("step/forward", True),
        ("step/forward/layer 3", False),
    ]


def test_only_directly_inside_and_only_found_phases_fold():
    assert paths((1, 30, FORWARD), (2, 29, FORWARD), (3, 28, LAYER), (4, 20, AUTOMATIC)) == [
        ("forward", False),
        ("forward/forward", False),
        ("forward/forward/layer 3", False),
        ("forward/forward/layer 3/forward", False),
    ]


def test_a_step_that_found_no_batch_is_no_call_of_step():
    rows = ((1, 10, STEP_1), (11, 20, STEP_2), (12, 15, LAYER), (16, 17, EXHAUSTED))
    assert paths(*rows) == [
        ("step", False),
        ("data exhausted", False),
        ("data exhausted/layer 3", False),
        ("data exhausted", True),
    ]
    assert attribution_of(*rows).tree.kind[1] == Kind.PHASE


def test_a_mark_in_no_step_renames_nothing():
    assert paths((1, 30, FORWARD), (2, 10, STEP_1), (12, 13, EXHAUSTED)) == [
        ("forward", False),
        ("forward/step", False),
        ("forward/data exhausted", False),
    ]
