"""Settings of the site: Sphinx over these pages, which stay as GitHub shows them (scripts/site)."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

DOCS = Path(__file__).resolve().parent
REPOSITORY = "https://github.com/nvprobe/nvprobe"
LINK = re.compile(r"(?<=\]\()(\.\./[\w./-]+)")
ENTRY = re.compile(r"^\* \[(.*?)\]\((?!\w+:)([\w./-]+)\.md\)", re.MULTILINE)

project = "nvprobe"
author = "The nvprobe developers"
project_copyright = "the nvprobe developers, Apache-2.0"
extensions = ["myst_parser"]
exclude_patterns = ["*.head.md", "*.tail.md", "**/*.head.md", "**/*.tail.md"]
highlight_language = "text"
myst_heading_anchors = 4

html_theme = "furo"
html_title = "nvprobe"
html_copy_source = False
html_show_search_summary = False  # it would be fetched, which a browser refuses from a folder
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}


def prepare(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead links out of docs/ to the repository; make the lists of three pages the navigation."""
    folder = (DOCS / page).parent
    source[0] = LINK.sub(lambda found: outside(page, folder, found[1]), source[0])
    if page in ("index", "cli", "examples"):
        first, *sections = re.split(r"^## ", source[0], flags=re.MULTILINE)
        source[0] = "## ".join([first, *(section + toctree(section) for section in sections)])


def outside(page: str, folder: Path, link: str) -> str:
    """The address of a file of the repository that no page of the site shows."""
    target = (folder / link).resolve()
    if target.is_relative_to(DOCS):
        return link
    if not target.exists():
        getLogger(__name__).warning("%s is not in the repository", link, location=page)
    return f"{REPOSITORY}/blob/main/{target.relative_to(DOCS.parent)}"


def toctree(section: str) -> str:
    """What puts the pages that a section lists into the navigation, under its heading."""
    pages = "\n".join(f"{name} <{page}>" for name, page in ENTRY.findall(section))
    title = section.partition("\n")[0]
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n\n" if pages else ""


def setup(app: Sphinx) -> None:
    """Read every page through ``prepare``."""
    app.connect("source-read", prepare)
