"""The last step leaves out the program's end."""

from __future__ import annotations

import pytest

from tests.unit.analysis.scenes import ADD, Scene, analysis_of

MS = 1_000_000


def walls(end_ns: int, *, late_call: bool = False) -> list[int]:
    """Step times where each lasts a millisecond, and the last ``end_ns`` longer."""
    scene = Scene()

    def step(more: int) -> None:
        scene.launch(ADD, 10_000)
        scene.host(MS + more)
        if late_call:
            scene.launch(ADD, 10_000)

    for index in range(5):
        scene.inside(f"step {index}", lambda index=index: step(end_ns if index == 4 else 0))
    return analysis_of(scene).steps.wall_ns.tolist()


def test_what_follows_a_step_for_several_steps_is_the_end() -> None:
    *others, last = walls(50 * MS)
    assert last == sorted(others)[2]


@pytest.mark.parametrize("more", [0, MS // 2])
def test_a_step_that_is_a_little_longer_stays(more: int) -> None:
    *others, last = walls(more)
    assert last == others[0] + more


def test_a_step_in_which_something_happens_stays() -> None:
    assert walls(50 * MS, late_call=True)[-1] > 50 * MS
