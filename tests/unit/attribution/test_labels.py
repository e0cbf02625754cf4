"""The byte scan for attributes against a regular expression."""

from __future__ import annotations

import re

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvprobe.attribution.labels import labels

MARKER = re.compile(
    r", (?:stashed seq|seq|op_id|sizes|input_op_ids|trace_id|thread_id) = ", re.DOTALL
)
PIECES = [
    ", seq = ",
    ", stashed seq = ",
    ", op_id = ",
    ", sizes = ",
    "[[8, 4]]",
    ", ",
    ",",
    " seq = ",
    "7",
    "12",
    "1" * 19,
    "-3",
    "aten::mm",
    "é",
    "",
    ", seq =",
    " ",
]
texts = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)


NUMBERS = re.compile(
    r"(?:, seq = (?P<seq>[0-9]{1,18})(?=,|$))?(?:, op_id = (?P<op>[0-9]{1,18})(?=,|$))?", re.DOTALL
)


@settings(deadline=None)
@given(st.lists(st.one_of(texts, st.none()), max_size=8), st.integers(0, 3))
@example(["a,", " seq = 4"], 0)
@example([", seq = 4", None, "", "x, op_id = 5, seq = 6", "a, b, seq = 3, op_id = 4,"], 1)
def test_labels_are_what_a_regular_expression_finds(rows, skip):
    found = labels(pa.array(rows, pa.string())[skip:])
    for row, text in enumerate(rows[skip:]):
        name = MARKER.split(text or "")[0]
        attributes = NUMBERS.match((text or "")[len(name) :])
        assert (found.names[row].as_py() or "") == name
        assert found.sequence[row] == int(attributes["seq"] or -1)
        assert found.operator_id[row] == int(attributes["op"] or -1)
