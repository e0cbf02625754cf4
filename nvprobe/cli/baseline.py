"""``nvprobe baseline``: runs that later ones are compared with, and the noise between them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nvprobe.cli.files import deliver, in_words, not_written
from nvprobe.cli.settings import INPUT, Settings, common_options
from nvprobe.errors import UsageError

if TYPE_CHECKING:
    from nvprobe.report.document import Document

FOLDER = "nvprobe-baseline"
"""Where the runs of a baseline are, below the working directory."""

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(FOLDER),
    show_default=True,
    help="Folder of the baseline.",
)


@click.group("baseline")
def command() -> None:
    """Keep runs to compare with, and show how much they differ among themselves.

    Three runs of one program or more measure the noise floor: "nvprobe compare nvprobe-baseline
    RUN" fails only beyond it.
    """


@command.command("add")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=INPUT)
@_folder
@common_options
@click.pass_obj
def add(settings: Settings, /, runs: tuple[str, ...], folder: Path) -> None:
    """Analyze runs and keep the analyses.

    Refuses a run that cannot be compared with those that are there: another GPU, another profiler.
    """
    from nvprobe.cli.documents import documents_of
    from nvprobe.comparison.comparability import differences
    from nvprobe.report.document import encode

    kept = _kept(settings, folder)
    for found in documents_of(settings, runs):
        bad = [one.what for one in differences([*kept][:1] or [found], [found]) if one.decides]
        if bad:
            raise UsageError(
                f"{in_words(_file(found))} cannot be compared with {in_words(folder)}: "
                f"it differs in {', '.join(bad)}; give another --folder"
            )
        path = _free(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(encode(found) + "\n", "utf-8")
        except OSError as error:
            raise not_written(path, error.strerror) from error
        kept.append(found)
        settings.note(f"Wrote {in_words(path)}")
    settings.note(f"next: nvprobe compare {in_words(folder)} RUN --fail-on-regression 5%")


@command.command("list")
@_folder
@common_options
@click.pass_obj
def list_(settings: Settings, /, folder: Path) -> None:
    """Show the runs of a baseline, and the noise floor that they measure."""
    from nvprobe.analysis.verdict import duration
    from nvprobe.comparison import compare

    files, kept = _files(folder), _kept(settings, folder)
    steps = [compare([one], [one]).steps[0].step.before_ns for one in kept]
    noise = compare(kept, kept[-1:]).noise if kept else None
    share = noise.share if noise is not None and noise.measured else None
    if settings.as_json:
        runs = [
            {"file": file.name, "steps": len(one.steps), "step_ns": step}
            for file, one, step in zip(files, kept, steps, strict=True)
        ]
        document = {"schema": "nvprobe.baseline/1", "runs": runs, "noise_share": share}
        deliver(settings, json.dumps(document, indent=1))
        return
    lines = [
        f"{file.name}  {in_words(_file(one))}  {len(one.steps)} steps of {duration(step)}"
        for file, one, step in zip(files, kept, steps, strict=True)
    ]
    if share is None:
        lines.append("noise floor: not measured; add three runs or more of one program")
    else:
        lines.append(f"noise floor of one run against these: {share:.1%} of a step")
    deliver(settings, "\n".join(lines))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json")) if folder.is_dir() else []


def _kept(settings: Settings, folder: Path) -> list[Document]:
    from nvprobe.cli.documents import documents_of

    return documents_of(settings, [str(file) for file in _files(folder)])


def _free(folder: Path) -> Path:
    """The next number."""
    numbers: Sequence[int] = [int(file.stem) for file in _files(folder) if file.stem.isdigit()]
    return folder / f"{max(numbers, default=0) + 1:03}.json"


def _file(found: Document) -> str:
    return found.sources[0].file if found.sources else "the run"
