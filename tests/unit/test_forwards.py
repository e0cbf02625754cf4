"""What the wrappers of ``forward`` do without torch."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import warnings

import pytest

from nvprobe.instrumentation import forwards, steps


def test_code_without_a_hash_can_be_asked_about():
    """Dynamo writes constants such as dictionaries into the code of frames around a model."""
    code = (lambda: None).__code__
    written = code.replace(co_consts=(*code.co_consts, {}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(written)
    assert not forwards.is_wrapper(written)


def test_a_signature_that_cannot_be_read_stops_no_program():
    """Python 3.14 evaluates annotations only then: names imported for type checkers are absent."""

    class Model:
        def forward(self) -> int:
            return 1

    Model.forward.__signature__ = "unreadable"
    with pytest.raises(TypeError):
        inspect.signature(Model.forward)
    pytest.importorskip("torch")
    try:
        assert forwards.wrap_class(Model) is Model
        assert forwards.is_wrapper(Model.forward.__code__)
        assert Model().forward() == 1
    finally:
        forwards.unwrap_classes()


def test_the_thread_of_a_forked_child_has_its_own_id():
    assert steps.threads.here.id == threading.get_native_id()
    child = os.fork()
    if child == 0:
        os._exit(int(steps.threads.here.id != threading.get_native_id()))
    assert os.waitpid(child, 0)[1] == 0


def test_warnings_and_logs_of_a_forward_look_past_its_wrapper():
    pytest.importorskip("torch")

    class Model:
        def forward(self) -> int:
            warnings.warn("of the caller", stacklevel=2)
            found = logging.getLogger().findCaller(stacklevel=2)
            return found[1]

    try:
        assert forwards.wrap_class(Model) is Model
        with pytest.warns(UserWarning, match="caller") as met:
            line, here = Model().forward(), sys._getframe().f_lineno
        assert (met[0].filename, met[0].lineno, line) == (__file__, here, here)
    finally:
        forwards.unwrap_classes()
