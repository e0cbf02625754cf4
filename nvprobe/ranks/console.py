"""The report of a job for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nvprobe.analysis.model import UNKNOWN
from nvprobe.ranks.document import Document
from nvprobe.report.console.format import path_cut, percent, plain, size, time
from nvprobe.report.console.tables import new_table

__all__ = ["print_job"]

_ROWS = 12
_PATH = 44


def print_job(console: Console, found: Document, *, rows: int | None = None) -> None:
    """Print the verdict, the ranks, what they wait for, and what to do."""
    console.print(plain(found.verdict, "bold"), overflow="fold", no_wrap=False)
    sections: tuple[Callable[[Document, int], RenderableType | None], ...] = (
        _about, _ranks, _findings, _collectives, _paths, _differences, _notes,
    )  # fmt: skip
    for section in sections:
        shown = section(found, rows or _ROWS)
        if shown is not None:
            console.print()
            console.print(shown)


def _about(found: Document, _: int) -> Text:
    number = len(found.ranks)
    whole = f" of {found.world_size}" if found.world_size else ""
    clock = {
        "one": "one clock",
        "unknown": "clocks not aligned",
        "aligned": f"clocks aligned by {found.clock.matched:,} collectives, "
        f"error {_time(found.clock.error_ns)}",
    }[found.clock.kind]
    return Text(f"{number}{whole} ranks, {len(found.steps)} steps; {clock}")


def _ranks(found: Document, rows: int) -> Table:
    columns = ("Step", "Compute", "Idle", "Communication", "Waits", "Transfer", "Last", "Late")
    table = new_table("Rank", *columns)
    order = sorted(found.ranks, key=lambda one: -(one.late_ns or 0))
    shown = order if len(order) <= rows else order[:rows]
    for one in sorted(shown, key=lambda one: one.rank):
        table.add_row(
            f"{one.rank} {one.source}",
            _time(one.step_ns),
            _time(one.compute_ns),
            _time(one.idle_ns),
            _time(one.communication_ns),
            _time(one.wait_ns),
            _time(one.transfer_ns),
            percent(one.last, found.clock.matched),
            _time(one.late_ns),
        )
    unit = "per step" if found.steps else "per collective"
    table.caption = (
        f"step, compute, idle: of a typical step; late: {unit}; the rest: of the whole capture"
        + (f"; the {rows} latest of {len(order)} are shown" if len(order) > rows else "")
    )
    table.caption_justify = "left"
    return table


def _findings(found: Document, _: int) -> Text | None:
    if not found.findings:
        return None
    out = Text("Findings\n", "bold dim")
    for one in found.findings:
        out.append_text(plain(f"• {one.title}"))
        if one.saves_ns is not None:
            out.append(f" (saves at most {time(one.saves_ns)} per step)")
        out.append("\n")
        kernel = one.evidence.get("kernel")
        if kernel:
            out.append_text(plain(f"    kernel {kernel}"))
            out.append("\n")
        own, usual = one.evidence.get("own_ns"), one.evidence.get("usual_ns")
        if isinstance(own, int) and isinstance(usual, int):
            out.append(f"    {time(own)} per step, the others {time(usual)}\n")
        for advice in one.try_[:2]:
            out.append(f"    try: {advice}\n")
    out.rstrip()
    return out


def _collectives(found: Document, rows: int) -> Table | None:
    if not found.collectives:
        return None
    names = {group.group: group.name or group.group for group in found.groups}
    roles = {group.group: group.role for group in found.groups}
    columns = ("Count", "Size", "Skew", "Waiting", "Transfer", "Bus", "Exposed", "Last")
    table = new_table("Collective", *columns)
    for one in found.collectives[:rows]:
        group = names[one.group] + (f" ({roles[one.group]})" if roles[one.group] else "")
        bus = "–" if one.bus_bytes_s is None else f"{size(round(one.bus_bytes_s))}/s"
        last = "–" if one.last_rank is None else f"{one.last_rank} in {one.last_share:.0%}"
        table.add_row(
            plain(f"{one.kind} {group}"),
            f"{one.count:,}",
            "–" if one.bytes is None else size(one.bytes),
            time(one.skew_ns),
            time(one.wait_ns),
            time(one.transfer_ns),
            bus,
            time(one.exposed_ns),
            last,
        )
    table.caption = "skew and transfer: median of one; waiting and exposed: of all members"
    table.caption_justify = "left"
    return table


def _paths(found: Document, rows: int) -> Table | None:
    some = [one for one in found.paths if one.longest_ns >= 10_000][: rows // 2]
    if not some:
        return None
    table = new_table("Ranks differ in", "What", "Median", "Longest", "Rank")
    for one in some:
        table.add_row(
            path_cut(one.path, _PATH),
            one.kind,
            time(one.median_ns),
            time(one.longest_ns),
            f"{one.longest_rank}",
        )
    return table


def _differences(found: Document, rows: int) -> Table | None:
    if not found.differences:
        return None
    table = new_table("Only on some ranks", "Ranks", "GPU time")
    for one in found.differences[: rows // 2]:
        ranks = ", ".join(map(str, one.ranks[:4])) + (", …" if one.number > 4 else "")
        table.add_row(plain(f"{one.kind} {one.name}"), ranks, _time(one.gpu_ns))
    return table


def _notes(found: Document, _: int) -> Text | None:
    lines = [*found.warnings, *(f"{one.source} was left out: {one.error}" for one in found.failed)]
    return Text("\n").join(plain(f"Note: {line}") for line in lines) if lines else None


def _time(ns: int | None) -> str:
    return time(UNKNOWN if ns is None else ns)
