"""docs/security.md names a test for each threat, and each of them exists."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = [file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in sources for name in re.findall(r"^def (test_\w+)\(", text, re.M)}
    assert len(named) > 40
    assert not named - there


def test_every_threat_has_a_test() -> None:
    sections = PAGE.split("\n## ")
    rows = [
        line
        for section in sections
        if "| threat |" in section
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| threat")
    ]
    assert len(rows) > 25
    assert [row for row in rows if "`test_" not in row.split("|")[3]] == []
