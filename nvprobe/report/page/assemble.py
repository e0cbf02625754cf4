"""Scripts, style sheet and data put together to one HTML file, under a policy that seals it.

Whatever a capture's names hold, they stand in the file only inside JSON whose ``<`` are escaped.
The page puts them up as text nodes. The Content-Security-Policy lets nothing run but the one script
whose hash it names, and lets nothing be fetched at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from nvprobe.report.cells import visible

SCRIPTS = (
    "format.js",
    "dom.js",
    "data.js",
    "state.js",
    "levels.js",
    "tracks.js",
    "painter.js",
    "selection.js",
    "timeline.js",
    "icicle.js",
    "paths.js",
    "table.js",
    "charts.js",
    "summary.js",
    "sections.js",
    "search.js",
    "main.js",
)
"""In the order in which they depend on one another."""


def assemble(
    title: str, document: Mapping[str, Any], about: Mapping[str, Any], columns: str
) -> str:
    """The file. ``columns`` is base64, ``about`` says what is in it."""
    script, style = _script(), _read("page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types"
    )
    parts = {
        "policy": policy,
        "title": html.escape(visible(title)[:200]),
        "style": style,
        "document": _json(document),
        "about": _json(about),
        "columns": columns,
        "script": script,
    }
    page = _read("page.html")
    for name, text in parts.items():
        before, after = page.split(f"<!--{name}-->")
        page = before + text + after
    return page


@cache
def _script() -> str:
    """All scripts as one, so that one hash covers them and nothing of theirs is global."""
    return "\n".join(['"use strict";', *(_read(name) for name in SCRIPTS)])


@cache
def _read(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever its texts say."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.encode("utf-8", "replace").decode()  # lone surrogates
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
