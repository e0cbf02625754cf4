"""The page of a comparison in a real browser: what is seen, in both themes, with hostile names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nvprobe.comparison.model import Comparison
from nvprobe.comparison.page import page
from tests.unit.comparison.test_page import FOUND, STEP, same

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt-get install chromium)"),
]
NAME = "step/<img src=x onerror=alert(1)></svg><script>document.title='owned'</script>"
CONTRAST = """() => {
    const linear = (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
    const light = (element) => getComputedStyle(element).fill.match(/[\\d.]+/g).slice(0, 3)
        .map((one) => linear(Number(one) / 255))
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0.05);
    const boxes = [...document.querySelectorAll('.icicle > svg')];
    return boxes.filter((box) => box.querySelector('text')).map((box) => {
        const [low, high] = ['text', 'rect'].map((tag) => light(box.querySelector(tag)))
            .sort((a, b) => a - b);
        return high / low;
    });
}"""


def hostile() -> Comparison:
    step = msgspec.structs.replace(STEP, paths=[*STEP.paths, same(NAME, 100_000, 90_000)])
    return msgspec.structs.replace(FOUND, steps=[step])


def seen(tab: Any) -> list[str]:
    """Texts of the boxes."""
    return list(tab.locator(".icicle text").all_text_contents())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_and_does_nothing_else(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "diff.html"
    path.write_text(page(hostile()), "utf-8")
    requests: list[str] = []
    messages: list[str] = []
    with playwright.sync_playwright() as started:
        # CI runs as root in a container: there Chromium cannot make a sandbox of its own.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
        tab.on("request", lambda one: requests.append(one.url))
        tab.on("console", lambda one: messages.append(one.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(path.as_uri())
        assert tab.locator("h1").inner_text() == FOUND.verdict
        assert tab.title() == "comparison · nvprobe"
        assert tab.locator("script, img, a").count() == 0
        assert tab.locator("td", has_text=NAME).first.is_visible()
        assert seen(tab).count("attn  +66.7%") == 2
        assert min(tab.evaluate(CONTRAST)) >= 4.5
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(244, 246, 248)", "dark": "rgb(16, 21, 26)"}[scheme]
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        tab.keyboard.press("Tab")  # tables that scroll are reached without a mouse
        assert tab.evaluate("document.activeElement.getAttribute('role')") == "region"
        browser.close()
    assert requests == [path.as_uri()]
    assert not messages
