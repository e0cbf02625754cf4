"""Shapes of ranges against plain string functions, in whatever batches they are read."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvprobe.analysis import shapes
from nvprobe.analysis.shapes import range_shapes
from nvprobe.trace import NO_NAME, Devices, Operators, Processes, Ranges, Source, Threads, Trace

PIECES = ["aten::mm", ", sizes = ", "[[8, 4]]", ", input_op_ids = ", "[(1,0)]", "é", ", ", "[]"]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def plain(text: str) -> str | None:
    """What stands between the first sizes and the operator ids behind them."""
    if ", sizes = " not in text:
        return None
    return text.split(", sizes = ", 1)[1].split(", input_op_ids = ", 1)[0]


def a_trace(strings: list[str], names: list[int], listed: dict[int, int]) -> Trace:
    """Ranges with these names; operators (range → string row of its shapes) beside them."""
    size, rows = len(names), sorted(listed)
    nothing = np.full(size, NO_NAME)
    return Trace(
        strings=pa.array(strings, pa.string()),
        sources=(Source("torch-trace", "made", None, None, {}),),
        processes=Processes(key=[1], pid=[1], name=[-1], rank=[-1]),
        threads=Threads(process=[0], tid=[1], name=[-1]),
        devices=Devices.empty(),
        ranges=Ranges(
            process=np.zeros(size),
            thread=np.zeros(size),
            start=np.arange(size),
            end=np.arange(size) + 1,
            name=names,
            domain=nothing,
            category=nothing,
            source=np.zeros(size),
        ),
        operators=Operators(
            range=rows,
            sequence=np.full(len(rows), -1),
            external=np.full(len(rows), -1),
            forward_thread=np.full(len(rows), -1),
            shapes=[listed[row] for row in rows],
            types=np.full(len(rows), -1),
        )
        if listed
        else Operators.absent(),
    )


def found(trace: Trace) -> list[str | None]:
    """The shapes of each range as text."""
    got = range_shapes(trace)
    return [None if code < 0 else got.texts[code].as_py() for code in got.code.tolist()]


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=9), st.data())
@example(["a, input_op_ids = , sizes = [[8, 4]], input_op_ids = x"], None)
def test_shapes_in_names_are_what_splitting_finds(rows: list[str], data) -> None:
    names = list(range(len(rows)))
    if data is not None:
        names = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=12))
    wanted = [None if name < 0 else plain(rows[name]) for name in names]
    for batch in (1, 3, 1 << 17):
        with patch.object(shapes, "_BATCH", batch):
            assert found(a_trace(rows, names, {})) == wanted


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=6), st.data())
def test_listed_shapes_count_where_the_name_has_none(rows: list[str], data) -> None:
    at = st.integers(-1, len(rows) - 1)
    names = data.draw(st.lists(at, min_size=1, max_size=8))
    listed = data.draw(st.dictionaries(st.integers(0, len(names) - 1), at))
    wanted = []
    for place, name in enumerate(names):
        told = None if name < 0 else plain(rows[name])
        row = listed.get(place, -1)
        wanted.append(told if told is not None or row < 0 else rows[row])
    assert found(a_trace(rows, names, listed)) == wanted


def test_equal_shapes_have_one_code() -> None:
    strings = [
        "mm, sizes = [[8]], input_op_ids = a",
        "mm, sizes = [[8]], input_op_ids = b",
        "[[8]]",
    ]
    got = range_shapes(a_trace(strings, [0, 1, -1], {2: 2}))
    assert got.code.tolist() == [0, 0, 0]
    assert got.texts.to_pylist() == ["[[8]]"]
