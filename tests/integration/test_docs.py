"""The documentation says what the program does."""

from __future__ import annotations

import re
import subprocess
import sys

from nvprobe.cli import COMMANDS
from tests.conftest import ROOT


def test_generated_pages_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/docs"), "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_readme_shows_what_the_demo_prints():
    [sample] = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    printed = (ROOT / "tests/integration/snapshots/training_80.txt").read_text()
    assert all(line in printed.splitlines() for line in sample.splitlines())


def test_every_command_is_documented():
    listed = (ROOT / "docs/cli.md").read_text()
    for name in COMMANDS:
        assert f"(commands/{name}.md)" in listed
        assert f"# nvprobe {name}\n" in (ROOT / f"docs/commands/{name}.md").read_text()


def test_readme_opens_with_the_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert blocks[0] == "pip install -e . && nvprobe demo\n"
    assert blocks[1] == "pip install -c constraints.txt -e '.[dev]' && scripts/check\n"
    pattern = re.search(r"grep -m1 '(.*)' README.md", (ROOT / ".ci/run").read_text())
    first = next(line for line in readme.splitlines() if re.match(pattern[1], line))
    assert first == blocks[1].strip()
