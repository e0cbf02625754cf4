"""What is prepared before torch traces anything."""

from __future__ import annotations

import pytest

from nvprobe.instrumentation import compiling


def test_what_fails_before_the_first_trace_fails_neither_the_trace_nor_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    heard = []

    def fails() -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(compiling, "begun", False)
    monkeypatch.setattr(compiling, "compiling", bool)
    monkeypatch.setattr(compiling, "_listeners", [fails, lambda: heard.append(1)])
    traced = compiling._tracing(lambda: "traced")
    assert traced() == "traced"
    assert heard == [1]
    assert compiling.begun
