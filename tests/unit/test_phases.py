"""What phases ask of the program's own objects, which may answer as they like."""

from __future__ import annotations

from typing import Any

import pytest

from nvprobe.instrumentation import phases


def test_a_sampler_that_refuses_its_length_stops_no_loop():
    class Loading:
        _num_yielded = 1

        def __len__(self) -> int:
            raise NotImplementedError

    assert not phases._exhausted(Loading())


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_a_step_that_is_no_method_of_its_instance_stays_as_it_is(
    kind: Any, monkeypatch: pytest.MonkeyPatch
):
    class Optimizer:
        step = kind(lambda *_given: 1)

    monkeypatch.setattr(phases._hooks, "active", True)
    own = Optimizer.__dict__["step"]
    phases.wrap_step(Optimizer, phases._optimizing)
    assert Optimizer.__dict__["step"] is own
