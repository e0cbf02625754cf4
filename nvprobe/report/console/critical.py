"""The critical path of an unprofiled step in the terminal report."""

from __future__ import annotations

from rich.console import Group, RenderableType

from nvprobe.analysis.result import Analysis
from nvprobe.report.console.format import percent, time
from nvprobe.report.console.tables import more, names, numbers, table, words
from nvprobe.report.console.view import View


def critical(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """What the step consists of, the longest first."""
    found = analysis.critical_time
    if not found:
        return None
    total = sum(one.ns for one in found)
    shown = found[: view.rows()]
    listed = table(
        width,
        names("Critical path", [one.path or "outside of ranges" for one in shown]),
        words("Part", [" ".join(filter(None, (one.part, one.what))) for one in shown]),
        words("Line", [one.line or "" for one in shown]),
        numbers("Per step", [time(one.ns) for one in shown], 4),
        numbers("%", [percent(one.ns, total) for one in shown], 3),
    )
    return Group(listed, *more(len(found) - len(shown), "part"))
