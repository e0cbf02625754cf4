"""A page without a script: drawn once, in the style of the report, light or dark as the reader's.

Nothing can run in it and nothing can be fetched: its policy lets in one style sheet, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from importlib.resources import files

from nvprobe.report.cells import visible

_DARK = ':root[data-theme="dark"] {'
_STYLE = """
svg text { font: 11px var(--font); fill: var(--faint); }
figure { overflow-x: auto; } figcaption { color: var(--faint); margin-top: 6px; }
"""


def still_page(title: str, parts: Iterable[str], own_style: str) -> str:
    """The file: sections one below the other. ``own_style`` comes last, ``title`` is a text."""
    style = _style() + own_style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)} · nvprobe</title>\n<style>{style}</style>\n</head>\n"
        "<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    """That of the report, whose dark colors wait for a script there."""
    style = (files(__package__) / "page.css").read_text("utf-8")
    dark = style.partition(_DARK)[2].partition("}")[0]
    return f"{style}@media (prefers-color-scheme: dark) {{ :root {{{dark}}} }}\n{_STYLE}"


def escaped(text: str, most: int = 400) -> str:
    """A text of a capture, which cannot be markup."""
    return html.escape(visible(text)[:most])


def panel(title: str, inside: str, caption: str = "") -> str:
    """A section with a heading; ``inside`` is markup."""
    below = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    heading = f"<h2>{escaped(title)}</h2>"
    return f'<section class="panel">{heading}<figure>{inside}{below}</figure></section>'


def tile(name: str, value: str, more: str = "") -> str:
    """A figure and what it is."""
    below = f"<p>{escaped(more)}</p>" if more else ""
    figure = f'<p class="big">{escaped(value)}</p>'
    return f'<div class="tile"><h3>{escaped(name)}</h3>{figure}{below}</div>'
