"""Memory snapshots: nothing is executed, and the peak is the one a plain replay finds."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.memory import snapshot_peaks
from nvprobe.errors import InputError
from nvprobe.readers.memory_snapshot import MemorySnapshot, load_memory_snapshot
from tests.conftest import examples

FORWARD = [
    {"filename": "/opt/site-packages/torch/nn/linear.py", "line": 9, "name": "forward"},
    {"filename": "/home/ann/model.py", "line": 31, "name": "forward"},
]
BUILD = [{"filename": "/home/ann/model.py", "line": 7, "name": "__init__"}]


def _block(address: int, size: int, frames: Any = BUILD) -> dict[str, Any]:
    return {"address": address, "size": size, "state": "active_allocated", "frames": frames}


def _event(action: str, address: int, size: int, time_us: int = 0) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": FORWARD,
            "time_us": time_us, "stream": 0}  # fmt: skip


def _segment(blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    size = sum(block["size"] for block in blocks)
    return {"device": device, "address": 1, "total_size": size + 512, "blocks": blocks,
            "segment_pool_id": (0, 1)}  # fmt: skip


def _write(path: Path, raw: Any) -> MemorySnapshot:
    path.write_bytes(pickle.dumps(raw))
    return load_memory_snapshot(path)


def test_a_peak_by_line(tmp_path: Path) -> None:
    events = [
        _event("segment_alloc", 1, 4096), _event("alloc", 300, 1000), _event("alloc", 400, 500),
        _event("free_requested", 300, 1000), _event("free_completed", 300, 1000),
        _event("alloc", 300, 200), _event("oom", 0, 9),
    ]  # fmt: skip
    blocks = [
        _block(100, 64), _block(300, 200, FORWARD), _block(400, 500, FORWARD),
        {"address": 900, "size": 7, "state": "inactive", "frames": []},
    ]  # fmt: skip
    raw = {"segments": [_segment(blocks)], "device_traces": [events]}
    snapshot = _write(tmp_path / "s.pickle", raw)
    assert (snapshot.segments_taken, snapshot.out_of_memory) == (1, 1)
    (peak,) = snapshot_peaks(snapshot)
    assert (peak.peak_bytes, peak.end_bytes) == (1564, 764)
    assert peak.reserved_bytes == 64 + 200 + 500 + 7 + 512
    holders = peak.holders
    assert [snapshot.lines[i] for i in holders.line] == [
        "model.py:31 forward",
        "model.py:7 __init__",
    ]
    assert holders.bytes.tolist() == [1500, 64]
    assert holders.passing_bytes.tolist() == [1000, 0]
    assert holders.allocations.tolist() == [2, 1]


def test_without_history_the_end_is_the_peak(tmp_path: Path) -> None:
    raw = {"segments": [_segment([_block(5, 10)]), _segment([_block(5, 20)], device=1)]}
    peaks = snapshot_peaks(_write(tmp_path / "s.pickle", raw))
    assert [(p.device, p.peak_bytes, p.end_bytes) for p in peaks] == [(0, 10, 10), (1, 20, 20)]


class _Evil:
    """Would run a command when unpickled."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.flag}",)


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    flag = tmp_path / "executed"
    for raw in (_Evil(flag), {"segments": [_Evil(flag)]}, {"segments": [], "x": len}):
        with pytest.raises(
            InputError, match=r"s\.pickle: it is not a plain pickle .*nothing in it"
        ):
            _write(tmp_path / "s.pickle", raw)
    assert not flag.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x80\x04", b"no pickle at all", pickle.dumps([1, 2]), pickle.dumps({"a": 1}),
        pickle.dumps({"segments": [{"blocks": [{"state": "active_allocated"}]}]})[:-9],
        pickle.dumps({"segments": [{"blocks": [{"size": "large"}]}]}), b"P12\n.", b"c\nos\n.",
        pickle.dumps({"segments": [{"blocks": 7}]}), pickle.dumps({"segments": [3]}),
        pickle.dumps({"segments": [{"blocks": [{}]}]}),
    ],
)  # fmt: skip
def test_other_files_give_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"^s\.pickle: [^\n]+$"):
        load_memory_snapshot(path)


def _replay(history: list[tuple[str, int, int]], held: dict[int, int]) -> int:
    """The fullest instant, event by event, from the known end backwards."""
    in_use = sum(held.values())
    fullest = in_use
    for action, _, size in reversed(history):
        in_use += size if action == "free_completed" else -size
        fullest = max(fullest, in_use)
    return fullest


@examples(60)
@given(
    wishes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 100)), max_size=40),
    before=st.dictionaries(st.integers(1, 6), st.integers(1, 100)),
    cut=st.integers(0, 40),
)
def test_the_peak_is_what_a_replay_finds(
    wishes: list[tuple[int, int]], before: dict[int, int], cut: int, tmp_path_factory: Any
) -> None:
    held, history = dict(before), []
    for address, size in wishes:
        if address in held:
            history.append(("free_completed", address, held.pop(address)))
        else:
            held[address] = size
            history.append(("alloc", address, size))
    history = history[min(cut, len(history)) :]  # the recorder forgets what is oldest
    raw = {
        "segments": [_segment([_block(a, s) for a, s in held.items()])],
        "device_traces": [[_event(*event) for event in history]],
    }
    snapshot = _write(tmp_path_factory.mktemp("snap") / "s.pickle", raw)
    for peak in snapshot_peaks(snapshot):
        assert peak.peak_bytes == _replay(history, held)
        assert peak.end_bytes == sum(held.values())
        assert int(peak.holders.bytes.sum()) == peak.peak_bytes
        assert (peak.holders.passing_bytes <= peak.holders.bytes).all()


@pytest.mark.parametrize(
    "strange", [{"device": 10**12}, {"device": -1}, {"total_size": 2**60}, {"total_size": -5}]
)
def test_an_impossible_segment_is_refused(tmp_path: Path, strange: dict[str, int]) -> None:
    """Before memory is asked for as many devices as it names."""
    raw = {"segments": [{**_segment([_block(1, 2)]), **strange}], "device_traces": []}
    with pytest.raises(InputError, match=r"damaged torch memory snapshot .*impossible device"):
        _write(tmp_path / "s.pickle", raw)
