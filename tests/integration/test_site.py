"""The site builds without a warning, shows every page, and asks nothing of the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS).with_suffix("")
    for path in DOCS.rglob("*.md")
    if not path.name.endswith((".head.md", ".tail.md"))
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", folder / "trees"]
    done = subprocess.run([*command, DOCS, folder / "html"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_in_the_navigation(site: Path) -> None:
    navigation = re.search(
        r'<div class="sidebar-tree">.*?</div>', (site / "index.html").read_text(), re.S
    )
    assert navigation is not None
    linked = {Path(link) for link in re.findall(r'href="([\w./-]+)\.html"', navigation[0])}
    assert {page for page in PAGES if page.name != "index"} <= linked


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [
        f"{page.name}: {tag}"
        for page in site.rglob("*.html")
        for tag in re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", page.read_text())
        if re.search(r'(?:src|href)="(?:https?:)?//', tag)
    ]
    styles = "".join(sheet.read_text() for sheet in site.rglob("*.css"))
    assert loaded == []
    assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", styles) == []


def test_a_link_to_nowhere_is_an_error(site: Path, tmp_path: Path) -> None:
    """So that the test above can fail: an anchor, a page and a file that are not there."""
    text = "# A page\n\n[a](#nowhere) [b](other.md) [c](../nowhere.txt)\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    for name in ("conf.py", "site.css"):
        (tmp_path / "docs" / name).write_text((DOCS / name).read_text())
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [*command, tmp_path / "docs", tmp_path / "html"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("WARNING") == 3, done.stderr
