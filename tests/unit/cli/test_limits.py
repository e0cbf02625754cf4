"""Output is complete or an error, and one option raises every limit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from nvprobe.cli import cli
from nvprobe.cli.files import deliver
from nvprobe.cli.settings import Settings
from nvprobe.errors import InputError


class Hesitant:
    """A stream that takes ten bytes at a time, as a file without a buffer takes 2 GiB."""

    def __init__(self) -> None:
        self.taken = b""

    def write(self, data: memoryview) -> int | None:
        self.taken += data[:10]
        return min(len(data), 10)

    def flush(self) -> None:
        """Nothing is kept back."""


def test_json_is_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Hesitant()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stdout, flush=stdout.flush))
    deliver(Settings(as_json=True), json.dumps(list(range(100))))
    assert json.loads(stdout.taken) == list(range(100))


def deep(file: Path, levels: int) -> str:
    """A trace whose ranges are nested."""
    shared = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    events = [
        {**shared, "name": f"r{n}", "ts": n + 9, "dur": 2 * (levels - n) + 1} for n in range(levels)
    ]
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(file)


def test_ranges_nested_without_end(tmp_path: Path) -> None:
    words = ["analyze", "--json", deep(tmp_path / "trace.json", 20_000)]
    result = CliRunner().invoke(cli, words, obj=Settings())
    assert isinstance(result.exception, InputError)
    assert str(result.exception).startswith("ranges are nested more than 5,000 deep; ")
    assert "--raise-limits" in str(result.exception)
    assert result.stdout == ""


def test_a_limit_is_raised_by_an_option_and_only_for_its_command(tmp_path: Path) -> None:
    file = deep(tmp_path / "trace.json", 5_500)
    words = ["analyze", "--json", file]
    result = CliRunner().invoke(cli, [*words, "--raise-limits", "2"], obj=Settings())
    assert len(json.loads(result.stdout)["ranges"]) == 5_500
    assert CliRunner().invoke(cli, words, obj=Settings()).exit_code != 0
