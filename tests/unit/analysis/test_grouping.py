"""Numbers of distinct keys against numpy's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nvprobe.analysis.grouping import numbered


@given(
    arrays(st.sampled_from([np.int32, np.int64]), st.integers(0, 40), elements=st.integers(-5, 9))
)
def test_numbers_are_those_of_sorted_distinct_keys(keys: np.ndarray) -> None:
    values, place = np.unique(keys, return_inverse=True)
    ours, at = numbered(keys)
    assert ours.dtype == keys.dtype
    assert (ours.tolist(), at.tolist()) == (values.tolist(), place.tolist())
