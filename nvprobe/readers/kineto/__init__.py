"""torch.profiler traces (``trace.json``, ``.json.gz``) as a :class:`~nvprobe.trace.Trace`.

The file is read as a stream in pieces of about two megabytes; its Python objects live for one
piece. A torch trace is one process; its time zero here is the last whole second before its first
event, and ``origin_ns`` is that second as UTC.
"""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path

from nvprobe.errors import InputError
from nvprobe.readers.input_errors import printable, shown
from nvprobe.readers.kineto.assemble import assemble
from nvprobe.readers.kineto.collect import Collector
from nvprobe.readers.kineto.other_formats import no_torch_trace
from nvprobe.readers.kineto.reader import Damage, read_events
from nvprobe.trace import Trace

__all__ = ["MergedRanks", "load_kineto"]


class MergedRanks(InputError):
    """The file holds the traces of several ranks, which share ids of calls; ``labels`` names them.

    ``load_kineto`` reads them one at a time.
    """

    def __init__(self, path: Path, labels: set[str]) -> None:
        self.labels = sorted(labels)
        names = ", ".join(printable(one, 20) for one in self.labels[:8])
        super().__init__(
            f"{shown(path)}: the merged traces of {len(labels)} ranks ({names}); give that of one"
        )


def load_kineto(
    path: str | Path,
    *,
    python_stacks: bool = False,
    label: str | None = None,
    damage: bool = True,
) -> Trace:
    """Read one torch.profiler trace, plain or compressed, whole or damaged.

    With ``python_stacks`` the Python frames are read too (``Trace.frames``); they are most of a
    trace that was recorded ``with_stack``. What is broken is skipped, counted and reported
    in ``Trace.warnings``. ``label`` is the rank to read of a file that several were merged into;
    ``damage`` says whether what is broken in the whole file is this rank's to report.
    Raises :class:`MergedRanks` where it is missing, :class:`~nvprobe.errors.InputError` where
    nothing can be read.
    """
    path = Path(path)
    collector = Collector(python_stacks=python_stacks, label=label)
    try:
        reading = read_events(path, collector)
    except OSError as error:
        raise InputError(
            f"{shown(path)}: cannot be read: {error.strerror}; check the path"
        ) from None
    if len(collector.labels) > 1 and label is None:
        raise MergedRanks(path, collector.labels)
    if not collector.timed:
        raise no_torch_trace(path, reading, collector)
    if not damage:
        reading = dataclasses.replace(reading, damage=Damage())
    trace = assemble(path, collector, reading)
    _give_back_memory()
    return trace


def _give_back_memory() -> None:
    """Return to the system what the pieces left in the allocator: half of the peak of a large file.

    Only glibc keeps so much and has the call; elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
