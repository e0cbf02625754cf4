"""Starting costs next to nothing: measured against a bare interpreter of the same machine."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = ("numpy", "pandas", "pyarrow", "torch", "adbc_driver_sqlite", "rich", "msgspec")


def best(*arguments: str, runs: int = 9) -> float:
    """CPU seconds of the quickest of several runs: what disturbs a machine only adds time."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def imported(statement: str) -> set[str]:
    """Top-level modules that a statement imports."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


def test_importing_nvprobe_takes_less_than_20_ms():
    bare = best("-c", "pass")
    # On a slow or shared machine the interpreter alone is the measure.
    assert best("-c", "import nvprobe") - bare < max(0.020, 2 * bare)


def test_help_takes_less_than_150_ms():
    bare = best("-c", "pass")
    assert best("-m", "nvprobe", "--help") < max(0.150, 8 * bare)


@pytest.mark.parametrize(
    "statement",
    [
        "import nvprobe",
        "import nvprobe.cli",
        "from nvprobe.cli import cli; cli.main(['--help'], standalone_mode=False)",
        "from nvprobe.cli import cli; cli.main(['analyze', '--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_imported_before_a_command_runs(statement):
    assert not imported(statement) & set(HEAVY)
