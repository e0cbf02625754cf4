"""What the methods of tensors are given by the program."""

from __future__ import annotations

from nvprobe.instrumentation import sync_methods


def test_an_index_that_refuses_its_type_is_the_tensor_s_trouble():
    class Index:
        @property
        def dtype(self) -> object:
            raise ValueError("undecided")

    assert not sync_methods._is_mask(Index())
