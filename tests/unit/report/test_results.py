"""The Python API: load, analyze, DataFrames."""

from __future__ import annotations

import inspect
import json
import sqlite3
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import nvprobe
from nvprobe.api import _Frame
from nvprobe.report.paths import _shapes
from nvprobe.report.result_tables import RESULTS
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def results(corpus: Path):
    return nvprobe.analyze(nvprobe.load(corpus / "nsys/h200/eager.sqlite"))


def test_frames_hold_exact_integers(results) -> None:
    ranges = results.ranges
    assert ranges.loc["step/backward", "ops"] == 484
    assert ranges.gpu_ns.dtype == "Int64"
    assert int(results.ledger.ops.sum()) == 668
    assert len(results.steps) == 4
    assert len(results.events("ops")) == 668
    assert results.events("samples").empty
    text = repr(results)
    assert text.startswith("<nvprobe results of eager.sqlite>")
    assert results.verdict in text
    assert len(text.splitlines()) <= 10


def test_every_property_is_a_frame(results) -> None:
    names = [name for name, value in vars(nvprobe.Results).items() if hasattr(value, "__get__")]
    frames = [name for name in names if isinstance(vars(nvprobe.Results)[name], _Frame)]
    assert {"kernels", "host", "overlap", "memory", "counters", "spans", "devices", "idle_by_line"}\
        <= set(frames)  # fmt: skip
    for name in ("ranges", *frames):
        assert isinstance(getattr(results, name), pd.DataFrame)


def test_files_and_filters(corpus: Path, tmp_path: Path) -> None:
    results = nvprobe.analyze(corpus / "nsys/h200/eager.sqlite", steps=(4, 5))
    assert len(results.steps) == 1
    results.to_sqlite(tmp_path / "a.sqlite")
    results.to_parquet(tmp_path / "p")
    results.to_csv(tmp_path / "c")
    text = results.to_json(tmp_path / "a.json")
    assert json.loads(text) == json.loads((tmp_path / "a.json").read_text())
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        assert database.execute("SELECT count(*) FROM steps").fetchone() == (1,)
    database.close()
    with pytest.raises(nvprobe.UsageError, match="exists already"):
        results.to_sqlite(tmp_path / "a.sqlite")


def test_a_notebook_cell_is_escaped(tmp_path: Path) -> None:
    from tests.unit.readers.exports import kernel, launch, pushed, strings, write

    path = write(
        tmp_path / "x.sqlite",
        {
            "StringIds": strings("cudaLaunchKernel", "k"),
            "NVTX_EVENTS": [pushed("<script>alert(1)</script>", 1, 90)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 10, 20)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 30, 40)],
        },
    )
    page = nvprobe.analyze(path)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_mistakes_are_reported(results, corpus: Path) -> None:
    trace = results.analysis.attribution.trace
    with pytest.raises(nvprobe.UsageError, match="'x' is not a table of results; there are paths"):
        results.table("x")
    with pytest.raises(nvprobe.UsageError, match="'x' is not a table of events"):
        results.events("x")
    with pytest.raises(nvprobe.UsageError, match="one Trace, or files"):
        nvprobe.analyze(trace, corpus / "nsys/h200/eager.sqlite")


def test_one_filter_may_stand_without_a_list(corpus: Path) -> None:
    path = corpus / "nsys/h200/eager.sqlite"
    one = nvprobe.analyze(path, ranges="step/forward")
    assert one.document == nvprobe.analyze(path, ranges=["step/forward"]).document
    assert (
        nvprobe.analyze(path, domains="", devices=0, processes=445, threads=445).ledger is not None
    )


def test_without_a_file_it_says_so() -> None:
    for function in (nvprobe.load, nvprobe.analyze):
        with pytest.raises(nvprobe.UsageError, match="give a file"):
            function()


def test_a_trace_shows_itself_in_a_line(corpus: Path) -> None:
    text = repr(nvprobe.load(corpus / "nsys/h200/eager.sqlite"))
    assert text == "<nvprobe trace of eager.sqlite: 668 GPU ops, 1162 calls, 128 ranges>"
    text = repr(nvprobe.load(corpus / "nsys/public/invalid_utf8.sqlite"))
    assert text == "<nvprobe trace of invalid_utf8.sqlite: no GPU ops, no calls, no ranges>"


def test_frames_without_rows_have_their_columns(corpus: Path) -> None:
    """So that ``results.syncs.bubble_ns.sum()`` is 0 where nothing waited."""
    full = nvprobe.analyze(corpus / "nsys/h200/eager.sqlite")
    empty = nvprobe.analyze(corpus / "nsys/public/invalid_utf8.sqlite")
    for name in ("kernels", "copies", "steps", "syncs", "findings", "idle", "ledger", "missing"):
        assert list(empty.table(name).columns) == list(full.table(name).columns), name
    assert len(empty.syncs) == 0
    assert empty.syncs.bubble_ns.sum() == 0
    assert list(empty.events("ops").columns) == list(full.events("ops").columns)


def test_the_public_functions_say_what_they_take() -> None:
    """As an editor shows them: names, types and a docstring, and no ``*args, **kwargs``."""
    for function in (nvprobe.load, nvprobe.analyze):
        assert inspect.isfunction(function)
        parameters = inspect.signature(function).parameters.values()
        assert all(one.annotation is not one.empty for one in parameters), function
        assert not any(one.kind is one.VAR_KEYWORD for one in parameters)
        assert "Raises" in (inspect.getdoc(function) or "")
    assert typing.get_type_hints(nvprobe.analyze)["return"] is nvprobe.Results
    assert typing.get_type_hints(nvprobe.load)["return"] is nvprobe.Trace
    for name in nvprobe.__all__:
        assert getattr(nvprobe, name) is not None


@pytest.mark.slow
def test_a_type_checker_follows_the_public_names(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pandas as pd\n"
        "import nvprobe\n"
        "trace: nvprobe.Trace = nvprobe.load('a.sqlite')\n"
        "results: nvprobe.Results = nvprobe.analyze(trace, steps=(1, 2), ranges='step')\n"
        "analysis: nvprobe.Analysis = results.analysis\n"
        "frame: pd.DataFrame = results.idle_by_line\n"
        "ns: int = results.document.kernels[0].gpu_ns\n"
        "nvprobe.analyze(trace, step=(1, 2))\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(found) == 1, done.stdout
    assert 'program.py:8: error: Unexpected keyword argument "step"' in found[0]


def test_frames_are_made_once_and_cannot_be_spoiled(results) -> None:
    first = results.kernels
    first["mine"] = 1
    assert "mine" not in results.kernels.columns
    assert results.document is results.document
    assert results.document.kernels[0].gpu_ns == int(first.gpu_ns[0])
    assert results.to_dict() == json.loads(results.to_json())


def test_no_column_holds_json(corpus: Path) -> None:
    results = nvprobe.analyze(corpus / "nsys/h200/eager.sqlite")
    finding = results.findings.iloc[0]
    assert isinstance(finding.evidence, dict)
    assert finding.evidence == results.document.findings[0].evidence
    assert isinstance(finding["try"], list)
    assert (finding.saves_low_ns, finding.saves_high_ns) == results.document.findings[0].saves_ns
    for name in RESULTS:
        frame = results.table(name)
        for column in frame.columns:
            texts = [value for value in frame[column] if isinstance(value, str)]
            assert not any(text[:1] in "[{" for text in texts if text), name


def test_filters_are_named_in_words_that_fit_both(corpus: Path) -> None:
    with pytest.raises(nvprobe.UsageError, match=r"^steps 90:91: the capture has steps 4 to 7"):
        nvprobe.analyze(corpus / "nsys/h200/eager.sqlite", steps=(90, 91))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"steps": 5}, r"steps=5: give two whole numbers"),
        ({"steps": (5, None)}, r"steps=\(5, None\): give two whole numbers"),
        ({"steps": ("a", 2)}, r"steps=\('a', 2\): give two whole numbers"),
        ({"steps": (6, 5)}, r"steps=\(6, 5\): nothing lies between 6 and 5"),
        ({"time": (1, 2, 3)}, r"time=\(1, 2, 3\): give two whole numbers"),
        ({"processes": "445"}, r"processes='445': a whole number is needed"),
        ({"devices": 0.5}, r"devices=0.5: a whole number is needed"),
        ({"ranges": 3}, r"ranges=3: a text is needed"),
        ({"index_rules": "("}, r"index rule '\('"),
    ],
)
def test_a_filter_of_a_wrong_kind_is_named(results, filters, message: str) -> None:
    with pytest.raises(nvprobe.UsageError, match=f"^{message}"):
        nvprobe.analyze(results.analysis.attribution.trace, **filters)


def test_numbers_of_numpy_are_numbers(results) -> None:
    trace = results.analysis.attribution.trace
    steps = results.steps["index"].to_numpy()
    part = nvprobe.analyze(trace, steps=(steps[1], steps[2]), devices=np.array([0]))
    assert len(part.steps) == 1


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (None, None),
        ("[[2048, 512], [512], []]", [[2048, 512], [512], []]),
        ("[[[2, 3], [4]], [5]]", [[2, 3], [4], [5]]),
        ("[[2, 1e3", None),
        ("[[99999999999999999999]]", None),
        ('[["a"]]', None),
        ("[" * 3000, None),
        ("7", None),
    ],
)
def test_shapes_are_numbers(text: str | None, shapes: list[list[int]] | None) -> None:
    assert _shapes(text) == shapes


def test_shapes_are_readable_in_sql(corpus: Path, tmp_path: Path) -> None:
    results = nvprobe.analyze(corpus / "kineto/h200/eager.json.gz")
    results.to_sqlite(tmp_path / "a.sqlite")
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        found = database.execute(
            "SELECT s.value FROM operators o JOIN operators_shapes s ON s.operators_row = o.row "
            "WHERE o.name = 'aten::_log_softmax' ORDER BY s.place"
        ).fetchall()
    database.close()
    assert found == [("2048x1000",), ("",), ("",)]
    row = results.operators.set_index("name").loc["aten::_log_softmax"]
    assert row["shapes"] == [[2048, 1000], [], []]
