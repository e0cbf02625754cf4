"""The page of a job: what it draws, and that no text of a capture is markup in it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

from nvprobe.ranks.discovery import discover
from nvprobe.ranks.document import Failed
from nvprobe.ranks.job import Job, job, of_job
from nvprobe.ranks.map import summarize
from nvprobe.ranks.page import MOST_LANES, MOST_ROWS, page
from nvprobe.ranks.summary import Summary
from tests.unit.ranks.traces import write_job


def summaries(folder: Path, ranks: int) -> list[Summary]:
    job_folder = write_job(folder / "job", ranks=ranks, late_us={1: 300})
    return [one for source in discover([job_folder]) for one in summarize(source)]


def many(found: list[Summary], number: int) -> list[Summary]:
    """The ranks again and again, under other numbers."""
    out = []
    for rank in range(number):
        one = found[1 if rank == 1 else 0]
        identity = dataclasses.replace(one.identity, rank=rank, world_size=number)
        out.append(dataclasses.replace(one, identity=identity))
    return out


def drawings(found: Job) -> tuple[str, list[ElementTree.Element]]:
    text = page(found, of_job(found))
    return text, [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_what_is_drawn(tmp_path: Path) -> None:
    text, (strip, delays, waiting, timeline) = drawings(job(summaries(tmp_path, 3)))
    assert "Rank 1 is late: the others wait 300 µs per step" in text
    bars = [bar.findtext("title") for bar in strip.iter("rect")]
    assert bars == ["rank 0: 0 ns", "rank 1: 300 µs", "rank 2: 0 ns"]
    assert len(list(delays.iter("rect"))) == len(list(waiting.iter("rect"))) == 3 * 4
    titles = [rect.findtext("title") for rect in timeline.iter("rect")]
    assert titles.count("all_reduce: waits 300 µs, transfer 100 µs") == 2 * 2  # two parts each
    assert titles.count("all_reduce: waits 0 ns, transfer 100 µs") == 1
    assert "default-src 'none'" in text
    assert "<script" not in text


def test_many_ranks_share_rows(tmp_path: Path) -> None:
    found = job(many(summaries(tmp_path, 2), 600))
    _, (strip, delays, _, timeline) = drawings(found)
    assert len(list(strip.iter("rect"))) == 200 <= MOST_ROWS
    assert "ranks 0–2: 300 µs" in [bar.findtext("title") for bar in strip.iter("rect")]
    assert len(list(delays.iter("rect"))) == 200 * 4
    lanes = [text.text for text in timeline.iter("text")]
    assert len(lanes) == MOST_LANES
    assert "rank 1" in lanes


def test_texts_are_no_markup(tmp_path: Path) -> None:
    found = job(summaries(tmp_path, 2))
    failed = [Failed("</title><script>alert(1)</script>", "<img src=x>")]
    text = page(found, of_job(found, failed))
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; was left out: &lt;img" in text
