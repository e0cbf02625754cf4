"""What a run leaves is its owner's alone, and its export holds no environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher, Result

pytestmark = pytest.mark.slow

SECRET = "zebra-unicorn-4242"
PROGRAM = """
    import sys, torch, nvprobe
    print(sys.argv[1:])
    for step in nvprobe.steps(range(3)):
        with nvprobe.range("work"):
            torch.ones(3).sum()
"""


def run(launch: Launcher, *options: str) -> Result:
    """A run with a secret in its environment and one in its arguments, umask 0."""
    launch.environ |= {"ONE_PRIVATE_VARIABLE": SECRET}
    words = [launch.script(PROGRAM), f"sk-{SECRET}", "--password", SECRET]
    before = os.umask(0)
    try:
        result = launch(*options, *words, analyze=True)
    finally:
        os.umask(before)
    assert result.code == 0, result.err
    assert SECRET in result.out, "the program gets what it was given"
    return result


def assert_private(result: Result, *but: str) -> None:
    assert SECRET not in result.err
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in [result.folder, *result.folder.rglob("*")]
        if path.stat().st_mode & 0o777 != (0o700 if path.is_dir() else 0o600)
    }
    assert not modes
    files = [path for path in result.folder.rglob("*") if path.is_file() and path.name not in but]
    assert len(files) >= 4
    assert not [path.name for path in files if SECRET.encode() in path.read_bytes()]


def test_with_torch(launch: Launcher) -> None:
    pytest.importorskip("torch")
    result = run(launch, "--backend", "torch")
    assert_private(result)
    assert {path.suffix for path in result.folder.iterdir()} == {".json", ".jsonl", ".gz", ".html"}


@pytest.mark.nsys
def test_with_nsys(launch: Launcher, nsys: Nsys) -> None:
    result = run(launch)
    if result.run["backend"] != "nsys":
        pytest.skip(f"nsys does not start here: {result.run['notes']}")
    assert_private(result, "report.nsys-rep")
    assert "report.nsys-rep holds the environment" in result.err
    assert len(result.ranges()) > 3


def test_a_dry_run_shows_no_secret(launch: Launcher, tmp_path: Path) -> None:
    words = ["--backend", "torch", launch.script("pass"), f"hf_{'a' * 30}", "--api-key", SECRET]
    done = launch.run_nvprobe("launch", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    assert "a" * 30 not in done.stdout
    assert SECRET not in done.stdout
    assert "***" in done.stdout
    assert not (tmp_path / "run").exists()


def test_run_json_has_the_words_but_no_secret(launch: Launcher) -> None:
    result = launch("--backend", "torch", launch.script("pass"), "--lr=3e-4", "Bearer", SECRET)
    command = json.loads((result.folder / "run.json").read_text())["command"]
    assert command[-3:] == ["--lr=3e-4", "Bearer", "***"]
