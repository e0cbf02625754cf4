"""What listens to the program's calls may go at any instant: another thread ends the window."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest

from nvprobe.instrumentation import compiled, emitter, forwards, graphs
from tests.unit.test_awake import state

__all__ = ["state"]  # awake


class Model:
    """What has a ``forward``; `call` is replaced by what is tested."""

    def forward(self) -> int:
        return 1


def root() -> int:
    record = forwards.make_record("m", None, emitter.label("m", emitter.Category.MODULE))
    return forwards.call(Model.forward, record, Model(), (), {})


def module() -> int:
    return Model().forward()


def graph() -> int:
    return compiled._ranged(lambda _inputs: 1, "0/0", backward=False)([])


def replay() -> int:
    return graphs._replay(lambda _self: 1)(Model())


GONE = dict.fromkeys(
    ("root_called", "before_call", "graph_called", "before_replay"), emitter.nobody
) | {"find_root": None}
"""What stands in their places where nobody listens."""


@pytest.fixture(autouse=True)
def wrapped(state: None):
    pytest.importorskip("torch")
    forwards.wrap_class(Model)
    yield
    forwards.unwrap_classes()


@pytest.mark.parametrize(
    ("call", "of", "name"),
    [
        (root, forwards, "root_called"),
        (module, forwards, "find_root"),
        (graph, compiled, "before_call"),
        (graph, compiled, "graph_called"),
        (replay, graphs, "before_replay"),
    ],
)
def test_a_call_does_not_fail_when_its_listener_goes_meanwhile(
    call: Callable[[], int], of: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
):
    heard: list[Any] = []
    for instant in itertools.count():
        monkeypatch.setattr(of, name, lambda *given: heard.append(given))
        if not interrupted(call, instant, lambda: setattr(of, name, GONE[name])):
            break
    assert len(heard) > 1
    assert instant > len(heard), "it was never taken away before it was called"


def interrupted(call: Callable[[], int], instant: int, then: Callable[[], None]) -> bool:
    """Whether ``then`` was called during the call: before its instruction of this number."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            if count == instant:
                then()
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert call() == 1
    finally:
        sys.settrace(before)
    return count > instant


@pytest.mark.parametrize(
    ("call", "of", "name"), [(graph, compiled, "before_call"), (replay, graphs, "before_replay")]
)
def test_a_listener_that_fails_does_not_stop_the_program(
    call: Callable[[], int], of: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_given: object) -> None:
        raise LookupError

    monkeypatch.setattr(of, name, fail)
    assert call() == 1
