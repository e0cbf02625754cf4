"""Inputs of commands that compare runs: captures, analyses of them, and folders of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvprobe.cli.settings import Settings

if TYPE_CHECKING:
    from nvprobe.report.document import Document


_HEAD = 256
_MARK = b'"nvprobe.analysis/'


def documents_of(settings: Settings, inputs: Sequence[str]) -> list[Document]:
    """The analysis of each run: read where it is one, else made.

    A folder of run folders, or a baseline, stands for all runs in it. Raises InputError.
    """
    return [_document(settings, one) for given in inputs for one in _runs(Path(given))]


def document_of(settings: Settings, inputs: Sequence[str]) -> Document:
    """The analysis of one run: of a file that is one, else of all inputs together."""
    from nvprobe.cli.pipeline import analysis_of
    from nvprobe.report.document import document

    if len(inputs) == 1 and _is_analysis(Path(inputs[0])):
        return _document(settings, Path(inputs[0]))
    return document(analysis_of(settings, list(inputs)))


def _runs(path: Path) -> Iterator[Path]:
    """The runs that a path stands for."""
    inside = [] if not path.is_dir() or (path / "run.json").is_file() else sorted(path.iterdir())
    runs = [one for one in inside if (one / "run.json").is_file() or _is_analysis(one)]
    yield from runs or [path]


def _is_analysis(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK in file.read(_HEAD)


def _document(settings: Settings, path: Path) -> Document:
    from nvprobe.cli.pipeline import analysis_of
    from nvprobe.report.document import decode, document

    if _is_analysis(path):
        from nvprobe.readers.input_errors import shown

        return decode(path.read_bytes(), shown(path))
    return document(analysis_of(settings, [str(path)]))
