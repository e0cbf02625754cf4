"""After the run: is there a report, and if not, what can be saved and what went wrong.

nsys ends with exit code 0 in many cases that leave no usable report, so its code is not asked;
the files are. Every failure becomes one line that says what happened and what to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from nvprobe.errors import ToolError
from nvprobe.launch.options import Timeouts, Window
from nvprobe.launch.overhead import WindowStatus
from nvprobe.launch.process import LOG, Ending
from nvprobe.launch.rundir import REPORT, disk_full
from nvprobe.nsys import Nsys, export, find_importer, import_qdstrm

_SMALLEST_REPORT = 1024
_LARGE_REPORT = 200 * 2**20
"""Reports above this are exported to parquet, which nsys writes faster and smaller."""
TRANSIENT = re.compile("Agent launcher failed|Connection reset|Endpoint is not available")
"""What nsys says where it did not get to start the program and may the next time: its agent came
up too late on a machine under load or as another nsys began, or waited for a lock that a killed one
held."""
REFUSED = re.compile("Illegal |unrecogni[sz]ed option|nvalid argument", re.IGNORECASE)
"""What nsys says of an option, or a value of one, that it does not take (2022.4, 2025.3)."""
DISK_FULL = "the disk is full. Free some space, or give -o (or TMPDIR) on another one"

_LOG_HINTS = (
    (r"no space left", "free some space, or give -o (or TMPDIR) on another disk"),
    (r"permission denied|operation not permitted", "nsys was denied permission"),
    (r"unrecogni[sz]ed option|unknown option|Illegal --|argument .* is invalid|usage: nsys", None),
    (r"no such file or directory", None),
)


@dataclass
class Capture:
    """What a run under nsys left: its report (if any) and what to report to the user."""

    report: Path | None = None
    exported: Path | None = None
    notes: list[str] = field(default_factory=list)
    """One line each: things worth knowing, a salvaged report for one."""
    problem: str | None = None
    """Why there is no report, and what to do."""


def collect(
    nsys: Nsys,
    folder: Path,
    temporary: Path,
    ending: Ending,
    window: Window,
    status: WindowStatus,
    timeouts: Timeouts,
) -> Capture:
    """Find the report in the run's ``folder``, else save it from nsys's ``temporary`` one."""
    capture = Capture()
    _note_ending(capture, ending, timeouts)
    target = folder / f"{REPORT}.nsys-rep"
    if not _usable(target):
        _salvage(capture, nsys, folder, temporary, target, timeouts)
    if _usable(target):
        capture.report = target
    else:
        capture.problem = _why_none(folder, temporary, window, status, ending, capture)
    return capture


def _usable(report: Path) -> bool:
    with contextlib.suppress(OSError):
        return report.stat().st_size >= _SMALLEST_REPORT
    return False


def _note_ending(capture: Capture, ending: Ending, timeouts: Timeouts) -> None:
    if ending.trouble == "finish-timeout":
        capture.notes.append(
            f"nsys made no progress for {timeouts.finish_s:g} s after the program had ended, and "
            "was stopped (--nsys-timeout sets how long to wait)"
        )
    elif ending.nsys_code is not None and ending.nsys_code < 0:
        capture.notes.append(f"nsys was killed by signal {-ending.nsys_code}")
    elif ending.trouble == "died":
        capture.notes.append(
            "nsys and the program were killed together, by SIGKILL or out of memory"
        )
    if ending.signal == 9:
        capture.notes.append(
            "the program was killed by SIGKILL: ranges and GPU work it had not flushed are lost"
        )


def _salvage(
    capture: Capture, nsys: Nsys, folder: Path, temporary: Path, target: Path, timeouts: Timeouts
) -> None:
    """A finished report that nsys left in its temporary folder, else a stream to import."""
    for left in (*temporary.rglob("*.nsys-rep"), *folder.glob("*.nsys-rep")):
        if left != target and _usable(left):
            with contextlib.suppress(OSError):
                shutil.move(left, target)
                capture.notes.append("nsys left its report in a temporary folder: moved here")
                return
    streams = sorted(
        (path for root in (temporary, folder) for path in root.rglob("*.qdstrm")),
        key=lambda path: path.stat().st_size,
    )
    if not streams:
        return
    importer = find_importer(nsys)
    if importer is None:
        capture.notes.append(
            f"nsys {nsys.version_text} recorded, but its importer (host-linux-*/QdstrmImporter) is "
            "not beside it: install the complete package, or link that folder there "
            "(scripts/install-nsys does)"
        )
        _keep(streams[-1], folder)
        return
    try:
        import_qdstrm(importer, streams[-1], target, timeouts.export_s)
        capture.notes.append("nsys did not finish its report: nvprobe imported what was recorded")
    except ToolError as error:
        capture.notes.append(f"the recording could not be imported: {error}")
        _keep(streams[-1], folder)


def _keep(stream: Path, folder: Path) -> None:
    """Keep the raw recording: another machine may be able to import it."""
    with contextlib.suppress(OSError):
        shutil.move(stream, folder / f"{REPORT}.qdstrm")


def _why_none(
    folder: Path,
    temporary: Path,
    window: Window,
    status: WindowStatus,
    ending: Ending,
    capture: Capture,
) -> str:
    """Why there is no report, the likeliest reason first."""
    log = _log(temporary)
    if window.by_steps and status.opened is None:
        return never_opened(window, status.steps, ending)
    if disk_full(folder) or disk_full(temporary):
        return f"no report was written: {DISK_FULL}"
    if not os.access(folder, os.W_OK):
        return f"no report was written: {folder} cannot be written. Give another folder with -o"
    for pattern, advice in _LOG_HINTS:
        line = _line_with(log, pattern)
        if line:
            return f"no report was written. nsys said: {line}" + (f" ({advice})" if advice else "")
    if capture.notes:
        return f"no report was written: {capture.notes.pop()}"
    said = _line_with(log, r"\S") or "nothing"
    return f"no report was written. nsys said: {said} (see nsys.log in the run folder)"


def never_opened(window: Window, steps: int, ending: Ending) -> str:
    """Why a window of steps recorded nothing, and which window would."""
    if ending.code or ending.signal:
        how = f"signal {ending.signal}" if ending.signal else f"exit code {ending.code}"
        begun = f"{steps} step{'s' * (steps != 1)}" if steps else "no step"
        return (
            f"the program failed ({how}) before the capture window ({window}) opened: "
            f"{begun} had begun"
        )
    if steps and window.unit == "requests":
        return (
            f"the capture window ({window}) never opened: the program made {steps} steps, but not "
            "so many requests that nvprobe knows of. Use --steps"
        )
    if steps:
        return (
            f"the capture window ({window}) never opened: the program made {steps} steps. "
            f"Use --steps within 0:{steps}, or leave it out to record the whole run"
        )
    return (
        f"the capture window ({window}) never opened: no step was seen. Steps are found by the "
        "optimizer or nvprobe.steps(loader); leave out --steps to record the whole run, or use "
        "--duration"
    )


def no_step_inside(window: Window, steps: int) -> str:
    """A window that opened as the program looked for a batch and found no more."""
    return (
        f"the capture window ({window}) holds no step: the program made {steps} steps. "
        f"Use --steps within 0:{steps}"
    )


def _log(temporary: Path) -> str:
    with contextlib.suppress(OSError):
        text = (temporary / LOG).read_bytes()[-200_000:].decode("utf-8", "replace")
        return re.sub(r"[^\n\x20-\x7e]+", " ", text.replace("\r", "\n"))
    return ""


def _line_with(log: str, pattern: str) -> str | None:
    """The last line of the log that matches, progress bars aside."""
    lines = [line.strip() for line in log.splitlines() if not re.match(r"\s*\[\d/\d\]", line)]
    matching = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
    return matching[-1][:200] if matching else None


def export_report(
    nsys: Nsys,
    report: Path,
    kind: Literal["auto", "sqlite", "parquet"],
    *,
    wide: bool,
    timeouts: Timeouts,
) -> Path:
    """Export beside the report: parquet where this nsys has it and the data is much (``wide``).

    Raises:
        ToolError: nsys could not export it.

    """
    large = wide or report.stat().st_size > _LARGE_REPORT
    wanted = kind == "parquet" or (kind == "auto" and large and find_spec("pyarrow") is not None)
    if wanted and nsys.supports("--export", "parquetdir"):
        folder = report.with_name(f"{report.stem}_pqtdir")
        return export(nsys, report, folder, "parquetdir", timeouts.export_s)
    return export(nsys, report, report.with_suffix(".sqlite"), "sqlite", timeouts.export_s)


def why_no_trace(window: Window, status: WindowStatus, ending: Ending) -> str:
    """Why the torch profiler left nothing."""
    how = f"signal {ending.signal} ended the program" if ending.signal else "the program ended"
    if status.opened is not None and status.closed is None:
        return f"no trace was written: {how} while it recorded"
    if status.opened is not None:
        return "no trace was written: torch.profiler failed, or the program did not import torch"
    if window.first or window.unit == "requests":
        return never_opened(window, status.steps, ending)
    before = "ended before the window opened" if window.delay_s else "did not import torch"
    return f"no trace was written: the program {before}"


def last_words(log: Path) -> str:
    """The line in which nsys refuses something, else the last it printed; fit for a terminal."""
    lines = reversed(log_tail(log).splitlines())
    clean = [re.sub(r"[^\x20-\x7e]+", " ", line).strip()[:200] for line in lines]
    refusals = (line for line in clean if REFUSED.search(line))
    return next(refusals, None) or next(filter(None, clean), "nothing")


def log_tail(log: Path) -> str:
    """The last of what nsys printed."""
    with contextlib.suppress(OSError):
        return log.read_bytes()[-4096:].decode("utf-8", "replace")
    return ""
