"""The document is what its structs say, in JSON, in its JSON Schema and in flat tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from hypothesis import given

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.report.document import Document, document, encode, json_schema
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import NAMED, arrow, fields, flat
from nvprobe.trace import Trace
from nvprobe.trace.rows import Row, is_, ns, pair
from tests.conftest import ROOT, examples
from tests.random_waits import wait_traces


class Part(Row, frozen=True):
    """A struct inside a row."""

    kind: Annotated[str | None, is_("a word")]


class Example(Row, frozen=True):
    """A row with everything that a row can hold."""

    path: Annotated[str, is_("a text")]
    gpu_ns: Annotated[int | None, ns("a time")]
    part: Annotated[Part | None, is_("a struct")]
    saves_ns: Annotated[tuple[int, int], pair("low_ns", "high_ns", "two times", "ns")]
    lines: Annotated[list[str], is_("some texts")]
    parts: Annotated[list[Part] | None, is_("some structs")]
    evidence: Annotated[dict[str, int | float | str | None], is_("some facts")]


ROWS = [
    Example("a", 1, Part("x"), (3, 4), ["l:1", "l:2"], None, {"n": 1, "share": 0.5, "op": "mm"}),
    Example("b", None, None, (5, 6), [], [Part("y")], {"none": None}),
]


def test_the_fields_of_a_row_become_columns() -> None:
    told = [(field.name, field.unit, field.type) for field in fields(Example)]
    assert told == [
        ("path", None, pa.string()),
        ("gpu_ns", "ns", pa.int64()),
        ("part_kind", None, pa.string()),
        ("low_ns", "ns", pa.int64()),
        ("high_ns", "ns", pa.int64()),
        ("lines", None, pa.list_(pa.string())),
        ("parts", None, pa.list_(pa.struct([("kind", pa.string())]))),
        ("evidence", None, pa.list_(NAMED)),
    ]
    table = arrow(Example, ROWS).drop_columns(["evidence"])
    assert table.to_pylist() == [
        {"path": "a", "gpu_ns": 1, "part_kind": "x", "low_ns": 3, "high_ns": 4,
         "lines": ["l:1", "l:2"], "parts": []},
        {"path": "b", "gpu_ns": None, "part_kind": None, "low_ns": 5, "high_ns": 6,
         "lines": [], "parts": [{"kind": "y"}]},
    ]  # fmt: skip
    assert arrow(Example, ()).schema == arrow(Example, ROWS).schema


def test_lists_become_tables_that_refer_to_their_row() -> None:
    found = flat("example", arrow(Example, ROWS))
    assert set(found) == {"example", "example_lines", "example_parts", "example_evidence"}
    assert found["example"].column_names == [
        "row", "path", "gpu_ns", "part_kind", "low_ns", "high_ns",
    ]  # fmt: skip
    assert found["example_lines"].to_pylist() == [
        {"example_row": 0, "place": 0, "value": "l:1"},
        {"example_row": 0, "place": 1, "value": "l:2"},
    ]
    assert found["example_parts"].to_pylist() == [{"example_row": 1, "place": 0, "kind": "y"}]
    facts = found["example_evidence"].to_pylist()
    assert [(one["example_row"], one["name"]) for one in facts] == [
        (0, "n"), (0, "share"), (0, "op"), (1, "none"),
    ]  # fmt: skip
    values = [(one["integer"], one["real"], one["text"]) for one in facts]
    assert values == [(1, None, None), (None, 0.5, None), (None, None, "mm"), (None, None, None)]


@examples(40)
@given(wait_traces())
def test_any_document_is_as_declared(trace: Trace) -> None:
    analysis = analyze(attribute(trace))
    found = document(analysis)
    assert msgspec.json.decode(encode(found), type=Document) == found
    tables = result_tables(analysis, found)
    assert set(tables) == set(RESULTS)
    for name, table in tables.items():
        assert table.column_names == [field.name for field in fields(RESULTS[name].row)]
    assert len(tables["idle_by_line"]) == len(found.idle.by_line or ())


def test_every_field_has_a_meaning() -> None:
    schema = json_schema()
    for name, struct in schema["$defs"].items():
        for field, told in struct["properties"].items():
            assert told.get("description"), f"{name}.{field}"
            timed = field.endswith("_ns") and "object" not in json.dumps(told)
            assert not timed or told.get("unit") == "ns", f"{name}.{field}"
    for table in RESULTS.values():
        assert table.about


def test_two_folders_of_answers_are_compared(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    row = {"path": "a", "places": [1], "gpu_ns": 5}
    for folder, told in (
        (before, row),
        (after, {"path": "a", "lines": [1], "gpu_ns": 6, "x": None}),
    ):
        folder.mkdir()
        (folder / "one.json").write_text(json.dumps({"schema": folder.name, "ranges": [told]}))
    command = [sys.executable, str(ROOT / "scripts/compare_answers"), str(before)]
    renamed = ["--renamed", "ranges[].places=ranges[].lines"]
    done = subprocess.run([*command, str(after), *renamed], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == (
        "ranges[].gpu_ns differs in 1 files, as in one.json: 5 -> 6\n1 files, 1 differences\n"
    )
    done = subprocess.run([*command, str(before), "--strict"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1 files, 0 differences\n")
