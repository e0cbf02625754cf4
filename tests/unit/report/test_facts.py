"""``nvprobe facts``: the document's own numbers, in a bounded size."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import nvprobe
from nvprobe.cli import main
from nvprobe.demo import unpacked
from nvprobe.report.facts import BYTES, MOST, encode, facts


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_are_those_of_the_document(capsys, tmp_path: Path):
    with unpacked() as path:
        document = nvprobe.analyze(path).document
        found = run(capsys, "facts", path, "--json")
        analysis = tmp_path / "run.json"
        with pytest.raises(SystemExit):
            main(["analyze", str(path), "--json", "-o", str(analysis)])
        capsys.readouterr()
    assert run(capsys, "facts", analysis) == found
    assert found["schema"] == "nvprobe.facts/1"
    assert found["verdict"] == document.verdict
    assert (found["ops"], found["gpu_ns"]) == (document.ledger.ops, document.ledger.gpu_ns)
    assert found["idle_causes"] == document.idle.causes
    heaviest = sorted(document.ranges, key=lambda one: -one.gpu_ns)[0]
    assert found["paths"][0] == {
        "path": heaviest.path, "calls": heaviest.calls, "gpu_ns": heaviest.gpu_ns,
    }  # fmt: skip
    assert [one["id"] for one in found["findings"]] == [one.id for one in document.findings]
    assert [one["what"] for one in found["missing"]] == [one.what for one in document.missing]


def test_names_without_end_stay_within_bounds():
    with unpacked() as path:
        document = nvprobe.analyze(path).document
    name = "é" * 1_000_000
    ranges = [msgspec.structs.replace(one, path=name) for one in document.ranges] * 100
    kernels = [msgspec.structs.replace(one, name=name) for one in document.kernels] * 100
    findings = [
        msgspec.structs.replace(one, title=name, try_=[name] * 100, evidence={name: name})
        for one in document.findings
    ] * 100
    found = facts(
        msgspec.structs.replace(
            document,
            verdict=name,
            warnings=[name] * 100,
            ranges=ranges,
            kernels=kernels,
            findings=findings,
        )
    )
    assert len(encode(found)) < BYTES
    assert len(found.findings) == MOST
    assert found.left_out >= len(findings) - MOST + len(ranges) - MOST
