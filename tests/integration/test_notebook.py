"""The example notebook runs, and what its cells show is safe to show."""

from __future__ import annotations

import json

import nbclient
import nbformat
import pytest

import nvprobe
from nvprobe.demo import unpacked
from tests.conftest import ROOT
from tests.integration.report_captures import hostile_file

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@pytest.mark.slow
def test_the_example_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    shown = [json.dumps(output[-1]["data"].get("text/html", "")) for output in outputs]
    assert "Copies from pageable memory in step/side_h2d" in shown[0]
    assert "saves about" in shown[1]
    assert "<table" in shown[2]
    assert "<iframe srcdoc=" in shown[4]


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_a_cell_shows_the_first_screen_and_findings_as_a_list():
    with unpacked() as path:
        results = nvprobe.analyze(path)
    assert "Heaviest paths" in results._repr_html_()
    listed = results.findings._repr_html_()
    assert listed.count("<b>") == len(results.findings)
    assert "<li>pin the memory" in listed
    assert "<table" in results.findings[["id", "title"]]._repr_html_()


def test_hostile_names_are_text(tmp_path):
    results = nvprobe.analyze(hostile_file(tmp_path))
    for shown in (
        results._repr_html_(),
        results.ranges._repr_html_(),
        results.findings._repr_html_(),
    ):
        assert "</script>" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
