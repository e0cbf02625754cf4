"""What is kept of synchronizations: no more than needed, and for every thread."""

from __future__ import annotations

import itertools
import sys
from functools import partial

import pytest

from nvprobe.instrumentation import emitter, places, syncs
from tests.unit.test_awake import state
from tests.unit.test_listeners import interrupted

__all__ = ["state"]  # awake


def test_lines_that_are_made_without_end_are_not_kept(state: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(syncs, "_sites", {})
    monkeypatch.setattr(places, "MOST", 8)
    marks: list[object] = []
    monkeypatch.setattr(emitter, "mark", marks.append)
    for number in range(20):
        code = compile("note('item', frame())", f"/job/{number}.py", "exec")
        exec(code, {"note": syncs._note, "frame": sys._getframe})
    assert len(marks) == 20
    assert len(syncs._sites) == 8


def test_a_line_that_another_thread_has_shown_meanwhile_is_shown_again(state: None):
    def again() -> int:
        syncs._show_again(1)
        return 1

    for instant in itertools.count():
        registry = {"before": 1, "meanwhile": 1}
        syncs._shown.append((registry, "before"))
        meanwhile = partial(syncs._shown.append, (registry, "meanwhile"))
        more = interrupted(again, instant, meanwhile)
        again()
        assert more == ("meanwhile" not in registry)
        assert "before" not in registry
        if not more:
            break
    assert instant > 10
