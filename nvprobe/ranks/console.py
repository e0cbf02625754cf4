"""The report of a job for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.text import Text

from nvprobe.analysis.model import UNKNOWN
from nvprobe.ranks.document import Document
from nvprobe.ranks.late_findings import by_replay
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.format import percent, plain, size, time
from nvprobe.report.console.tables import more, names, numbers, table, words

_ROWS = 12


def print_job(console: Console, found: Document, *, rows: int | None = None) -> None:
    """Print the verdict, the ranks, what they wait for, and what to do."""
    console.print(Text(plain(found.verdict), "bold"))
    sections: tuple[Callable[[Document, int, int], RenderableType | None], ...] = (
        _about, _ranks, _findings, _collectives, _paths, _differences, _notes,
    )  # fmt: skip
    for section in sections:
        shown = section(found, rows or _ROWS, console.width)
        if shown is not None:
            console.print()
            console.print(shown)


def _about(found: Document, _: int, __: int) -> Text:
    recorded = len(found.steps) if len(found.ranks) > 1 else found.ranks[0].steps
    world, steps = found.world_size, counted(recorded, "step")
    number = len(found.ranks)
    whole = f"{number:,} of {world:,} ranks" if world else counted(number, "rank")
    clock = {
        "one": "one clock",
        "unknown": "clocks not aligned",
        "aligned": f"clocks aligned by {found.clock.matched:,} collectives, "
        f"error {_time(found.clock.error_ns)}",
    }[found.clock.kind]
    return Text(f"{whole}, {steps}; {clock}")


def _ranks(found: Document, rows: int, width: int) -> RenderableType:
    order = sorted(found.ranks, key=lambda one: -(one.late_ns or 0))
    shown = sorted(order[:rows], key=lambda one: one.rank)
    listed = table(
        width,
        names("Rank", [f"{one.rank} {one.source}" for one in shown]),
        numbers("Step", [_time(one.step_ns) for one in shown], 1),
        numbers("Compute", [_time(one.compute_ns) for one in shown], 4),
        numbers("Idle", [_time(one.idle_ns) for one in shown], 3),
        numbers("Communication", [_time(one.communication_ns) for one in shown], 6),
        numbers("Waits", [_time(one.wait_ns) for one in shown]),
        numbers("Transfer", [_time(one.transfer_ns) for one in shown], 5),
        numbers("Last", [percent(one.last, found.clock.matched) for one in shown], 2),
        numbers("Late", [_time(one.late_ns) for one in shown]),
    )
    unit = "per step" if found.steps else "per collective"
    note = f"step, compute, idle: of a typical step; late: {unit}; the rest: of the whole capture"
    return Group(listed, *more(len(order) - len(shown), "rank", "--json"), Text(note, "dim"))


def _findings(found: Document, _: int, __: int) -> Text | None:
    if not found.findings:
        return None
    out = Text("Findings\n", "bold dim")
    for one in found.findings:
        out.append(plain(f"• {one.title}"))
        if one.saves_ns is not None:
            out.append(f" (saves at most {time(one.saves_ns)} per step)")
        out.append("\n")
        kernel = one.evidence.get("kernel")
        if kernel:
            out.append(plain(f"    kernel {kernel}") + "\n")
        own, usual = one.evidence.get("own_ns"), one.evidence.get("usual_ns")
        if isinstance(own, int) and isinstance(usual, int):
            out.append(f"    {time(own)} per step, the others {time(usual)}\n")
        if said := by_replay(one):
            out.append(f"    {said}\n")
        for advice in one.try_[:2]:
            out.append(f"    try: {advice}\n")
    out.rstrip()
    return out


def _collectives(found: Document, rows: int, width: int) -> RenderableType | None:
    if not found.collectives:
        return None
    groups = {group.group: group.name or group.group for group in found.groups}
    roles = {group.group: f" ({group.role})" for group in found.groups if group.role}
    shown = found.collectives[:rows]
    last = ["–" if one.last_rank is None else str(one.last_rank) for one in shown]
    share = ["" if one.last_rank is None else f" in {one.last_share:.0%}" for one in shown]
    listed = table(
        width,
        names("Collective", [_kind(one.kind, one.group, groups, roles) for one in shown]),
        numbers("Count", [f"{one.count:,}" for one in shown], 4),
        numbers("Size", ["–" if one.bytes is None else size(one.bytes) for one in shown], 2),
        numbers("Skew", [time(one.skew_ns) for one in shown], 5),
        numbers("Waiting", [time(one.wait_ns) for one in shown]),
        numbers("Transfer", [time(one.transfer_ns) for one in shown], 1),
        numbers("Bus", [_rate(one.bus_bytes_s) for one in shown], 3),
        numbers("Exposed", [time(one.exposed_ns) for one in shown], 6),
        numbers("Last", [a + b for a, b in zip(last, share, strict=True)], 7),
    )
    note = "skew and transfer: median of one; waiting and exposed: of all members"
    left = len(found.collectives) - len(shown)
    return Group(listed, *more(left, "collective", "--json"), Text(note, "dim"))


def _kind(kind: str, group: str, groups: dict[str, str], roles: dict[str, str]) -> str:
    return f"{kind} {groups[group]}{roles.get(group, '')}"


def _rate(bytes_s: float | None) -> str:
    return "–" if bytes_s is None else f"{size(round(bytes_s))}/s"


def _paths(found: Document, rows: int, width: int) -> RenderableType | None:
    some = [one for one in found.paths if one.longest_ns >= 10_000][: rows // 2]
    if not some:
        return None
    return table(
        width,
        names("Ranks differ in", [one.path or "–" for one in some]),
        words("What", [one.kind for one in some], 1),
        numbers("Median", [time(one.median_ns) for one in some]),
        numbers("Longest", [time(one.longest_ns) for one in some]),
        numbers("Rank", [f"{one.longest_rank}" for one in some]),
    )


def _differences(found: Document, rows: int, width: int) -> RenderableType | None:
    if not found.differences:
        return None
    some = found.differences[: rows // 2]
    ranks = [", ".join(map(str, one.ranks[:4])) + ", …" * (one.number > 4) for one in some]
    return table(
        width,
        names("Only on some ranks", [f"{one.kind} {one.name}" for one in some]),
        numbers("Ranks", ranks),
        numbers("GPU time", [_time(one.gpu_ns) for one in some]),
    )


def _notes(found: Document, _: int, __: int) -> Text | None:
    lines = [*found.warnings, *(f"{one.source} was left out: {one.error}" for one in found.failed)]
    return Text("\n".join(plain(f"Note: {line}") for line in lines)) if lines else None


def _time(ns: int | None) -> str:
    return time(UNKNOWN if ns is None else ns)
