"""What the wrappers of ``forward`` do without torch."""

from __future__ import annotations

import pytest

from nvprobe.instrumentation import forwards


def test_code_without_a_hash_can_be_asked_about():
    """Dynamo writes constants such as dictionaries into the code of frames around a model."""
    code = (lambda: None).__code__
    written = code.replace(co_consts=(*code.co_consts, {}))
    with pytest.raises(TypeError, match="unhashable"):
        hash(written)
    assert not forwards.is_wrapper(written)
