"""What the wrappers of ``forward`` do without torch."""

from __future__ import annotations

import inspect

import pytest

from nvprobe.instrumentation import forwards


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
