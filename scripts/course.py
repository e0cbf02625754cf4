"""The pages of the examples: question, command, and the report of the capture that is kept.

``scripts/docs`` writes them. The questions are those of examples/README.md, the rest of a page
comes from the program's own text and from tests/fixtures, so that a report that changes shows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
import tempfile
from pathlib import Path

from click.testing import CliRunner

from nvprobe.cli import cli
from nvprobe.cli.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
COLUMNS = "88"
LAUNCHED = {
    "00_train": "nvprobe launch --steps 10:15 examples/00_train.py",
    "13_late_rank": "nvprobe launch --steps 5:15 \\\n"
    "    torchrun --nproc-per-node 2 examples/13_late_rank.py",
}
"""The commands of those that do not open a window themselves."""


def questions() -> dict[str, str]:
    """The question of each example, by name."""
    rows = re.findall(
        r"^\| \[(\w+)\.py\]\(.*?\) \| (.*?) \|$", (ROOT / "examples/README.md").read_text(), re.M
    )
    return dict(rows)


def printed(folder: Path, *words: str) -> str:
    """What a command prints, run in a folder."""
    here = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(
            cli, words, obj=Settings(), env={"COLUMNS": COLUMNS}, catch_exceptions=False
        )
    finally:
        os.chdir(here)
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    return "\n".join(lines)


def report(name: str, folder: Path) -> str:
    """The report of an example's capture."""
    if name == "00_train":
        return printed(folder, "analyze", "first")
    if name == "13_late_rank":
        return printed(folder, "ranks", "late_rank")
    inputs = sorted((path.name for path in folder.glob(f"{name}.s*")), reverse=True)
    return printed(folder, "analyze", *inputs)


def tutorial(folder: Path) -> str:
    """The tutorial: what each command of its ``console`` blocks prints is put below it."""

    def answered(block: re.Match[str]) -> str:
        words = shlex.split(block[1].removeprefix("nvprobe "))
        return f"```console\n$ {block[1]}\n{printed(folder, *words)}\n```"

    text = (ROOT / "docs" / "tutorial.head.md").read_text()
    return re.sub(r"```console\n\$ (nvprobe .*)\n```", answered, text)


def paragraphs(program: str) -> list[str]:
    """The text at the head of a program, without indented lines."""
    text = program.split('"""')[1].strip()
    return [part for part in text.split("\n\n") if not part.startswith("    ")]


def measured(name: str) -> str:
    """What the advised change brought, without a profiler."""
    rows = json.loads((FIXTURES / "examples.json").read_text())["rows"]
    times = {row["fixed"]: row["step_ms"] for row in rows if row["example"] == name}
    if len(times) < 2:
        return ""
    return (
        f"Without a profiler a step of it takes {times[False]:.2f} ms on an H200, with `--fixed` "
        f"{times[True]:.2f} ms: {100 * (1 - times[True] / times[False]):.0f}% less."
    )


def page(name: str, question: str, folder: Path) -> str:
    """The page of an example."""
    program = (ROOT / "examples" / f"{name}.py").read_text()
    command = LAUNCHED.get(name, f"nvprobe launch examples/{name}.py")
    where = "two processes of a CPU (`--backend torch`)" if name == "13_late_rank" else "an H200"
    planted = [line for line in program.splitlines() if "# planted" in line]
    said, *more = [" ".join(part.split()).replace("``", "`") for part in paragraphs(program)]
    return "\n\n".join(
        (
            f"# {int(name[:2])}. {question}",
            f"```sh\n{command}\n```",
            f"On {where}:",
            f"```text\n{report(name, folder)}\n```",
            "## What it is",
            said,
            *(f"```py\n{line.strip()}\n```" for line in planted),
            *more,
            *filter(None, [measured(name)]),
            f"The program: [examples/{name}.py](../../examples/{name}.py)\n",
        )
    )


def pages() -> dict[str, str]:
    """The text of each page by file name, the list of them first."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for archive in ("examples", "late_rank", "tutorial"):
            with tarfile.open(FIXTURES / f"{archive}.tar.xz") as packed:
                packed.extractall(folder, filter="data")
        out["tutorial.md"] = tutorial(Path(folder))
        for name, question in questions().items():
            out[f"examples/{name}.md"] = page(name, question, Path(folder))
    rows = [
        f"* [{int(name[:2])}. {question}](examples/{name}.md)"
        for name, question in questions().items()
    ]
    head = (ROOT / "docs" / "examples.head.md").read_text().rstrip()
    return {"examples.md": "\n\n".join((head, "## The course", "\n".join(rows))) + "\n", **out}
