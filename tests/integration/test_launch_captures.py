"""Runs of ``nvprobe launch`` on an H200, as they were kept: each GPU op owned, each line found.

The archive comes from scripts/gpu/launch_check.py (slim, without host and environment): programs of
scripts/gpu/programs, unedited, ``--steps 16:20``, nsys 2025.3, torch 2.11. The JSON beside it holds
what ``run.json`` said of each, and the step time of the program alone.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import to_dict
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
RUNS: dict[str, dict[str, Any]] = json.loads((FIXTURES / "launch_h200.json").read_text())

METHODS = {
    "eager": {"launch": 516, "inherited": 120},
    "six_syncs": {"launch": 592, "inherited": 120},
    "workers": {"launch": 516, "inherited": 120},
    "compiled": {"launch": 632},
    "reduce_overhead": {"launch": 80, "graph_launch": 560},
    "eager_torch_backend": {"launch": 318},
    "eager_with_torch_trace": {"launch": 318},
}
MODULES = {
    "eager": {"range": 124, "sequence": 320, "previous_node": 120, "no_module": 72},
    "compiled": {"manifest": 560, "no_module": 72},
    "reduce_overhead": {"manifest": 564, "no_module": 76},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folders, as ``nvprobe launch`` leaves them."""
    top = tmp_path_factory.mktemp("launched")
    names = {"sqlite": "report.sqlite", "sidecar.jsonl": "sidecar.0.1.jsonl"}
    names["torch.json"] = "trace.0.1.json"
    for name, row in RUNS.items():
        (top / name).mkdir()
        (top / name / "run.json").write_text(json.dumps(row["run"]))
    with tarfile.open(FIXTURES / "launch_h200.tar.xz") as archive:
        for member in archive.getmembers():
            name, _, kind = member.name.partition(".")
            content = archive.extractfile(member)
            assert content is not None
            (top / name / names[kind]).write_bytes(content.read())
    return top


@pytest.fixture(scope="module")
def analyses(runs: Path) -> dict[str, Analysis]:
    return {name: analyze(attribute(load(runs / name))) for name in RUNS}


@pytest.fixture(scope="module")
def documents(analyses: dict[str, Analysis]) -> dict[str, dict[str, Any]]:
    return {name: to_dict(analysis) for name, analysis in analyses.items()}


@pytest.mark.parametrize("name", RUNS)
def test_every_op_has_its_owner(documents: dict[str, dict[str, Any]], name: str) -> None:
    ledger = documents[name]["ledger"]
    found = {method: row["ops"] for method, row in ledger["methods"].items() if row["ops"]}
    assert found == METHODS[name]
    assert ledger["unresolved"] == {}
    assert ledger["ops"] == sum(METHODS[name].values())
    if name in MODULES:
        assert {how: row["ops"] for how, row in ledger["modules"].items()} == MODULES[name]


@pytest.mark.parametrize("name", RUNS)
def test_the_window_holds_the_steps_asked_for(
    documents: dict[str, dict[str, Any]], name: str
) -> None:
    first, last = map(int, RUNS[name]["run"]["window"].removeprefix("steps ").split(":"))
    assert [step["index"] for step in documents[name]["steps"]] == list(range(first, last))
    assert RUNS[name]["run"]["steps"] == 24


def test_all_six_planted_lines_are_found_in_each_step(documents: dict[str, dict[str, Any]]) -> None:
    script = (ROOT / "scripts" / "gpu" / "programs" / "six_syncs.py").read_text().splitlines()
    planted = {n for n, line in enumerate(script, 1) if line.endswith("# sync")}
    assert len(planted) == 6
    found: dict[int, int] = {}
    for row in documents["six_syncs"]["syncs"]:
        file, _, line = (row["source"] or "").rpartition(":")
        if file.endswith("six_syncs.py"):
            found[int(line)] = found.get(int(line), 0) + row["count"]
    assert set(found) == planted
    assert all(count >= 4 for count in found.values()), found


@pytest.mark.parametrize("name", ["compiled", "reduce_overhead"])
def test_kernels_of_compiled_graphs_reach_modules_and_lines(
    documents: dict[str, dict[str, Any]], name: str
) -> None:
    graphs = documents[name]["compiled_graphs"]
    assert {(row["id"], row["phase"]) for row in graphs} == {("0/0", "fwd"), ("0/0", "bwd")}
    modules = {row["module"]: row for row in documents[name]["modules"]}
    for block in ("0", "1", "2"):
        assert modules[f"{block}.attention.qkv"]["forward_gpu_ns"] > 0
        assert modules[f"{block}.attention.qkv"]["backward_gpu_ns"] > 0
    sources = {source for row in modules.values() for source in row["sources"]}
    assert any(source.rpartition(":")[0].endswith("net.py") for source in sources)


def test_a_torch_trace_beside_the_report_names_operators(
    documents: dict[str, dict[str, Any]],
) -> None:
    both = documents["eager_with_torch_trace"]
    assert both["clock"]["kind"] == "shared"
    low, high = both["clock"]["offset_ns"]
    assert -1_000_000 < low <= high < 1_000_000
    gpu_ns: dict[str, int] = {}
    for row in both["operators"]:
        gpu_ns[row["name"]] = gpu_ns.get(row["name"], 0) + row["gpu_ns"]
    whole = both["ledger"]["gpu_ns"]
    assert 0 < gpu_ns["aten::gelu"] < gpu_ns["aten::addmm"] < whole


@pytest.mark.parametrize(
    ("name", "doing"),
    [("eager", "the host's own work"), ("eager_torch_backend", "aten::randn"), ("workers", None)],
)
def test_batches_made_by_the_loop_itself_are_a_pause_before_the_copy(
    documents: dict[str, dict[str, Any]], name: str, doing: str | None
) -> None:
    """``net.py`` draws its batches; the program with workers lets them do it."""
    titles = [one["title"] for one in documents[name]["findings"] if one["id"] == "host_work"]
    assert len(titles) == (doing is not None)
    said = f" per step for {doing} in step, before step/h2d"
    assert all(title.endswith(said) for title in titles)
