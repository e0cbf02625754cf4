"""The documentation says what the program does."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from nvprobe.cli import COMMANDS, main
from tests.conftest import ROOT


def test_cli_page_is_what_help_says():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/docs"), "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_and_json_key_is_documented(capsys):
    page = (ROOT / "docs/cli.md").read_text()
    for name in COMMANDS:
        assert f"## nvprobe {name}" in page
    try:
        main(["demo", "--json"])
    except SystemExit:
        document = json.loads(capsys.readouterr().out)
    for key in document:
        assert f"`{key}" in page, f"docs/cli.tail.md does not mention {key}"
    for name in (
        *("ranges", "kernels", "copies", "steps", "spans", "devices", "sources"),
        *("syncs", "host", "findings"),
    ):
        for key in document[name][0] if document[name] else ():
            assert f"`{key}`" in page, f"docs/cli.tail.md does not mention {name}[].{key}"


def test_readme_opens_with_the_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert blocks[0] == "pip install -e . && nvprobe demo\n"
    assert blocks[1] == "pip install -c constraints.txt -e '.[dev]' && scripts/check\n"
    pattern = re.search(r"grep -m1 '(.*)' README.md", (ROOT / ".ci/run").read_text())
    first = next(line for line in readme.splitlines() if re.match(pattern[1], line))
    assert first == blocks[1].strip()
