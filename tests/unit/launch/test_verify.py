"""Why a launch left nothing to analyze."""

from __future__ import annotations

import pytest

from nvprobe.launch.options import Window
from nvprobe.launch.process import Ending
from nvprobe.launch.verify import never_opened


@pytest.mark.parametrize(
    ("ending", "steps", "text"),
    [
        (Ending(1), 1, "failed (exit code 1) before the capture window (steps 10:15) opened: 1 st"),
        (Ending(139, signal=11), 0, "failed (signal 11) before the capture window"),
        (Ending(0), 4, "never opened: the program made 4 steps"),
        (Ending(0), 0, "never opened: no step was seen"),
    ],
)
def test_a_program_that_failed_is_no_window_that_never_opened(
    ending: Ending, steps: int, text: str
):
    said = never_opened(Window(10, 15), steps, ending)
    assert text in said
    assert ("never opened" in said) == (not ending.code)
