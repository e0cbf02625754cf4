"""Wrong arguments of public functions: one line that says what to give instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import nvprobe
from nvprobe import limits
from nvprobe.instrumentation.instrument import is_on


def record(*given: Any) -> object:
    pytest.importorskip("torch")
    from nvprobe.integrations.loops import record_steps

    return record_steps([1, 2], *given)


def annotate(**options: Any) -> object:
    torch = pytest.importorskip("torch")
    return nvprobe.annotate(torch.nn.Linear(1, 1), **options)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "one step": (lambda: record(10), "steps=10: give the first step and the one after the last"),
    "a text": (lambda: record("ab"), "steps='ab': give the first step and the one after"),
    "three steps": (lambda: record((1, 2, 3)), "steps=(1, 2, 3): give the first step"),
    "half a step": (lambda: record((1.5, 3)), "steps=(1.5, 3): give the first step"),
    "steps back": (lambda: record((3, 1)), "steps=(3, 1): give the first step"),
    "no folder": (lambda: record((1, 2), 3), "output=3: give a path"),
    "a list of files": (lambda: nvprobe.load(["a", "b"]), "input=['a', 'b']: give a path"),
    "bytes": (lambda: nvprobe.load(b"a"), "input=b'a': give a path"),
    "no input": (lambda: nvprobe.analyze(None), "input=None: give a path"),
    "no depth": (lambda: annotate(depth="a"), "depth='a': give 0 (the root alone) or more"),
    "no modules": (lambda: annotate(modules=3), "modules=3: give a glob, a class, a function"),
    "no module": (lambda: annotate(modules=["a", 3]), "modules=3: give a glob, a class, a"),
    "instrument depth": (lambda: nvprobe.instrument(depth=-1), "depth=-1: give 0"),
    "instrument modules": (lambda: nvprobe.instrument(modules=3), "modules=3: give a glob"),
    "sidecar": (lambda: nvprobe.instrument(sidecar_folder=3), "sidecar_folder=3: give a path"),
    "limits": (lambda: limits.raised("a").__enter__(), "factor='a': give a number above 0"),
    "no limits": (lambda: limits.raised(0).__enter__(), "factor=0: give a number above 0"),
    "range": (lambda: nvprobe.range(3), "range name 3: give a text"),
    "range of a list": (lambda: nvprobe.range([]), "range name []: give a text"),
    "payload": (lambda: nvprobe.range("a", payload="b"), "payload='b': give a number"),
    "payload of a function": (
        lambda: nvprobe.annotate(payload="b")(len),
        "payload='b': give a number",
    ),
    "a name": (lambda: nvprobe.annotate(len, name=3), "range name 3: give a text"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_in_one_line(mistake: str):
    call, message = MISTAKES[mistake]
    with pytest.raises(nvprobe.UsageError) as raised:
        call()
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert not is_on()
