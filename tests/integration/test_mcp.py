"""``nvprobe mcp`` with the SDK's own client over stdin and stdout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import nvprobe
from nvprobe.demo import unpacked

pytest.importorskip("mcp.server.mcpserver")
anyio = pytest.importorskip("anyio")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with unpacked() as path:
        for name in ("before.sqlite", "after.sqlite"):
            shutil.copyfile(path, folder / name)
    (folder.parent / "outside.sqlite").write_bytes((folder / "before.sqlite").read_bytes())
    (folder / "link.sqlite").symlink_to(folder.parent / "outside.sqlite")
    return folder


def ask(folder: Path, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The tools of the server, and its answers: text, and whether it is an error."""
    from mcp import Client, StdioServerParameters

    async def talk() -> tuple[list[Any], list[Any]]:
        words = ["-m", "nvprobe", "mcp", "--root", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = StdioServerParameters(command=sys.executable, args=words, env=environment)
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = []
            for name, arguments in calls:
                answer = await client.call_tool(name, arguments)
                answers.append((answer.content[0].text, bool(answer.is_error)))
            return tools, answers

    return anyio.run(talk)


def test_tools_answer_with_the_numbers_of_the_analysis(runs: Path):
    results = nvprobe.analyze(runs / "before.sqlite")
    path = results.ranges["gpu_ns"].idxmax()
    tools, answers = ask(
        runs,
        ("facts", {"run": "before.sqlite"}),
        ("tables", {"run": "before.sqlite"}),
        ("table", {"run": "before.sqlite", "name": "kernels", "sort": "gpu_ns", "limit": 2}),
        ("table", {"run": "before.sqlite", "name": "kernels", "sort": "gpu_ns", "offset": 1,
                   "limit": 1}),
        ("table", {"run": "before.sqlite", "name": "paths", "contains": "backward"}),
        ("kernels", {"run": "before.sqlite", "path": path}),
        ("compare", {"before": "before.sqlite", "after": "after.sqlite"}),
        ("simulate", {"run": "before.sqlite", "speed_up": {"gemm": 2}}),
    )  # fmt: skip
    assert {tool.name for tool in tools} == {
        "facts", "tables", "table", "kernels", "compare", "simulate",
    }  # fmt: skip
    assert all(len(tool.description) > 60 for tool in tools)
    texts = [text for text, failed in answers]
    assert not [text for text, failed in answers if failed]
    assert json.loads(texts[0])["verdict"] == results.verdict
    assert f"kernels: {len(results.kernels)} rows" in texts[1]
    first, second = json.loads(texts[2]), json.loads(texts[3])
    assert first["total"] == len(results.kernels)
    assert first["rows"][1] == second["rows"][0]
    assert first["rows"][0][first["columns"].index("gpu_ns")] == results.kernels["gpu_ns"].max()
    backward = json.loads(texts[4])
    assert backward["total"] == sum("backward" in one for one in results.ranges.index)
    in_path = json.loads(texts[5])
    column = in_path["columns"].index("gpu_ns")
    assert sum(row[column] for row in in_path["rows"]) <= results.ranges["gpu_ns"].max()
    assert len(in_path["rows"]) == min(30, in_path["total"]) > 0
    assert len(texts[6].splitlines()) <= 25
    predicted = json.loads(texts[7])
    assert predicted["step_with_changes_ns"] <= predicted["step_ns"]


def test_nothing_outside_of_the_roots_is_read(runs: Path):
    outside = [
        "../outside.sqlite",
        str(runs.parent / "outside.sqlite"),
        "link.sqlite",
        "/etc/passwd",
    ]
    _, answers = ask(
        runs,
        *(("facts", {"run": run}) for run in outside),
        ("table", {"run": "before.sqlite", "name": "kernels", "sort": "nothing"}),
    )
    assert all(failed for _, failed in answers)
    assert all("no such run below" in text for text, _ in answers[:-1])
    assert "no column 'nothing'" in answers[-1][0]
