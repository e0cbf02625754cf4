"""Input files to an Analysis, with progress: what the commands have in common."""

from __future__ import annotations

import os
import select
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from nvprobe.cli.files import as_typed, in_words
from nvprobe.cli.progress import stages
from nvprobe.cli.settings import Settings
from nvprobe.errors import InputError, UsageError

if TYPE_CHECKING:
    from nvprobe.analysis.result import Analysis
    from nvprobe.analysis.selection import Selection
    from nvprobe.attribution.model import Attribution
    from nvprobe.trace import Trace


PIPE_SECONDS = 60
"""How long the first byte of a pipe is waited for."""


def trace_of(inputs: Sequence[str], *, python_stacks: bool | None = None) -> Trace:
    """Load files, folders, pipes and stdin (``-``). Raises InputError with paths as typed."""
    from nvprobe.merging.load import load

    with tempfile.TemporaryDirectory(prefix="nvprobe-") as folder:
        files = [_file(given, Path(folder, f"pipe{at + 1}")) for at, given in enumerate(inputs)]
        try:
            return load(*files, python_stacks=python_stacks)
        except InputError as error:
            raise as_typed(error, inputs) from error


def _file(given: str, spooled: Path) -> str:
    """The input itself, or what comes out of a pipe as a file."""
    if not given:
        raise UsageError("an INPUT is empty, as from a variable that is not set")
    if given != "-" and not Path(given).is_fifo():
        return given
    place = spooled.with_name("stdin" if given == "-" else spooled.name)
    with place.open("xb") as file:
        if given == "-":
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with _pipe(given) as pipe:
                shutil.copyfileobj(pipe, file)
    return str(place)


def _pipe(given: str) -> BinaryIO:
    """A named pipe, once something is in it."""
    number = os.open(given, os.O_RDONLY | os.O_NONBLOCK)
    if not select.select([number], [], [], PIPE_SECONDS)[0]:
        os.close(number)
        raise InputError(f"{in_words(given)}: nothing writes to this pipe; write it to a file")
    os.set_blocking(number, True)
    return os.fdopen(number, "rb")


def analysis_of(
    settings: Settings,
    inputs: Sequence[str],
    *,
    index_rules: Sequence[str] = (),
    selection: Selection | None = None,
    memory_snapshot: str | None = None,
    client_results: str | None = None,
    python_stacks: bool | None = None,
) -> Analysis:
    """Load, attribute, analyze. Raises NvprobeError with a line fit to show."""
    with stages(settings, 3) as stage:
        stage("reading")
        trace = trace_of(inputs, python_stacks=python_stacks)
        snapshot = None
        if memory_snapshot is not None:
            from nvprobe.readers.memory_snapshot import load_memory_snapshot

            snapshot = load_memory_snapshot(memory_snapshot)
        client = None
        if client_results is not None:
            from nvprobe.readers.client_results import load_client_results

            client = load_client_results(client_results)
        stage("attributing")
        from nvprobe.analysis.selection import Selection, select

        chosen = Selection() if selection is None else selection  # one of step names alone is falsy
        attribution = select(trace, chosen, index_rules)
        settings.note_all(_unused_names(trace, chosen.step_names))
        stage("analyzing")
        from nvprobe.analysis import analyze

        return analyze(attribution, snapshot, client)


def steady_part(inputs: Sequence[str]) -> Attribution:
    """What ``nvprobe analyze`` reports on without options: owners of the steady steps' work."""
    from nvprobe.analysis.selection import Selection, select

    return select(trace_of(inputs), Selection())


def _unused_names(trace: Trace, rules: Sequence[str]) -> list[str]:
    """A line for each ``--step-name`` that no range has."""
    if not rules:
        return []
    import pyarrow as pa

    from nvprobe.attribution.engines import unmatched
    from nvprobe.attribution.labels import labels

    names = labels(pa.array(set(trace.texts(trace.ranges.name)), pa.string())).names
    return [f"--step-name {rule!r}: no range has such a name" for rule in unmatched(names, rules)]


def exports_beside(settings: Settings, inputs: Sequence[str]) -> None:
    """Put the exports of the reports among ``inputs`` beside them; UsageError without any."""
    from nvprobe.readers.nsys.report import keep_export
    from nvprobe.readers.sniff import Format, sniff

    reports = [Path(given) for given in inputs if sniff(given) is Format.NSYS_REPORT]
    if not reports:
        raise UsageError("--keep-export: no input is a report (.nsys-rep)")
    for report in reports:
        settings.note(f"Wrote {in_words(keep_export(report))}")
