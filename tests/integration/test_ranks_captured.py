"""``nvprobe ranks`` on a planted pair that two H200s ran: collectives that wait, then hidden.

`scripts/gpu/ranks_captures.py` captured them; two steps of each are kept. Without a profiler, a
step of ``blocking`` takes 17.05 ms and one of ``hidden`` 15.98 ms. By events an all-reduce of
33.6 MB takes 135.6 µs, of which a step has sixteen.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from nvprobe.ranks.document import Document
from tests.conftest import ROOT
from tests.integration.test_ranks_corpus import document

GAIN_NS = 17_047_891 - 15_976_276
LARGE, LARGE_NS = 33_554_432, 135_600


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Document]:
    """The documents of both jobs."""
    folder: Path = tmp_path_factory.mktemp("two_ranks")
    with tarfile.open(ROOT / "tests/fixtures/two_ranks_h200.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return {kind: document(folder / kind) for kind in ("blocking", "hidden")}


def exposed_transfer(found: Document) -> list[int | None]:
    """What the finding promises, where there is one."""
    return [one.saves_ns for one in found.findings if one.id == "exposed_transfer"]


def test_finding_before_none_after_and_the_gain_within_it(captured: dict[str, Document]) -> None:
    (promised,) = exposed_transfer(captured["blocking"])
    assert promised is not None
    assert promised / 2 < GAIN_NS < promised
    assert promised < 16 * LARGE_NS * 1.1  # by hand it cannot be more
    assert exposed_transfer(captured["hidden"]) == []


def test_transfers_take_what_events_say(captured: dict[str, Document]) -> None:
    for found in captured.values():
        (large,) = (one for one in found.collectives if one.bytes == LARGE)
        assert large.count == 32
        assert 0.9 < large.transfer_ns / LARGE_NS < 1.1
        for one in found.ranks:
            assert (one.wait_ns or 0) + (one.transfer_ns or 0) == one.communication_ns


def test_nobody_is_named(captured: dict[str, Document]) -> None:
    """Nothing was planted there; a host is behind since it entered the capture 34 ms later."""
    assert [found.stragglers for found in captured.values()] == [[], []]
    (behind,) = (one for one in captured["hidden"].findings if one.id == "behind")
    assert behind.ranks == [1]
    assert behind.saves_ns is None
