"""What a notebook's cell shows of an analysis: the report's first screen, findings, the page."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from nvprobe.analysis.result import Analysis
from nvprobe.analysis.verdict import duration
from nvprobe.report.cells import visible
from nvprobe.report.console.format import ROLE_WORDS, of_a_step
from nvprobe.report.console.terminal import print_report
from nvprobe.report.console.view import View

_WIDTH = 110
_SCREEN = '<pre style="font-family:monospace; line-height:1.3; white-space:pre">{code}</pre>'
_FRAME = '<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}" title="nvprobe"></iframe>'


@dataclass(frozen=True, slots=True)
class Page:
    """The report's page, with its timeline, in a cell."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        """The page in a frame of its own: it reaches neither the notebook nor a network."""
        style = f"width:100%; height:{self.height}px; border:1px solid gray"
        return _FRAME.format(page=html.escape(self.page), style=style)


def screen(analysis: Analysis) -> str:
    """The first screen of the terminal report as HTML."""
    console = Console(
        file=io.StringIO(), width=_WIDTH, record=True, markup=False, highlight=False, emoji=False,
        color_system="truecolor", force_terminal=True, force_jupyter=False,
    )  # fmt: skip
    print_report(console, analysis, View())
    return console.export_html(inline_styles=True, code_format=_SCREEN)


def findings(rows: list[dict[str, Any]]) -> str:
    """Rows of the table of findings as a list: what, where, what it saves, what to try."""
    return f"<ol>{''.join(map(_finding, rows))}</ol>"


def _finding(row: Mapping[str, Any]) -> str:
    places = zip(row["sources"], row["source_roles"], strict=True)
    where = ", ".join(f"{ROLE_WORDS.get(role, 'near')} {source}" for source, role in places)
    tried = "".join(f"<li>{_safe(text)}</li>" for text in row["try"])
    parts = [f"<b>{_safe(row['title'])}</b>", _safe(where), _safe(_saving(row))]
    return f"<li>{'<br>'.join(part for part in parts if part)}<ul>{tried}</ul></li>"


def _saving(row: Mapping[str, Any]) -> str:
    if row["step_saving_mid"] == row["step_saving_mid"]:  # a number
        low, mid, high = (row[f"step_saving_{name}"] for name in ("low", "mid", "high"))
        return f"saves {of_a_step(low, mid, high)}"
    most = int(row["saves_high_ns"])
    return f"saves up to {duration(most)}" if most else ""


def _safe(text: str) -> str:
    return html.escape(visible(text))
