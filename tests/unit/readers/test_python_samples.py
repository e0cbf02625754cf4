"""Python stacks that nsys sampled, as its NVTX marks hold them; and who held the GIL.

No capture with Python samples is at hand (the installed nsys is older than the option): the
export is made by hand after what readers of such captures say of them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from nvprobe.readers import load
from nvprobe.trace import Trace
from tests.unit.readers.exports import (
    PROCESS,
    THREAD,
    kernel,
    launch,
    pushed,
    strings,
    texts,
    write,
)
from tests.unit.readers.payloads import TABLES

DOMAIN, GIL, OTHER = 3, 4, 5
SCHEMA = 77
ROOT = "/home/ann/project"
NAMES = strings(
    "cudaLaunchKernel_v7000", "kernel",
    "step", f"{ROOT}/train.py", "load", f"{ROOT}/data/loader.py",
    "linear", "/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py",
    "run", "/usr/lib/python3.12/threading.py", "Python Periodic Sampling",
    "cudaStreamSynchronize_v3020",
    "/home/ann/run.py", "/opt/ours/src/lib/net.py", "/home/bob/net.py", "/net.py",
)  # fmt: skip
STEP, LOAD, LINEAR, RUN = (3, 4), (5, 6), (7, 8), (9, 10)


def stack(*frames: tuple[tuple[int, int], int], cut: int = 0) -> bytes:
    """The payload of one sample: frames, innermost first, as ((function, file), line)."""
    body = struct.pack("<QII", 0, 1, len(frames))
    body += b"".join(struct.pack("<QQQ", *names, line) for names, line in frames)
    head = struct.pack("<QQQQ", DOMAIN, SCHEMA, len(body), 32)
    return (head + body)[: len(head + body) - cut]


def sample(start: int, payload: bytes | None, thread: int = THREAD, **more: Any) -> dict[str, Any]:
    """A mark in the domain of the samples."""
    row = {"start": start, "eventType": 34, "globalTid": thread, "domainId": DOMAIN}
    return {**row, "binaryData": payload, **more}


def domain(number: int, **name: Any) -> dict[str, Any]:
    """The creation of an NVTX domain."""
    return {"start": 0, "eventType": 75, "domainId": number, "globalTid": THREAD, **name}


def export(
    tmp_path: Path,
    events: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    kernels: list[dict[str, Any]],
) -> Path:
    """An export with these NVTX events inside a step."""
    path = write(
        tmp_path / "x.sqlite",
        {
            "StringIds": NAMES,
            "NVTX_EVENTS": [pushed("step", 1, 90_000)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        },
    )
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT")
        for event in events:
            marks = ", ".join("?" * len(event))
            sql = f"INSERT INTO NVTX_EVENTS ({', '.join(event)}) VALUES ({marks})"
            database.execute(sql, list(event.values()))
    return path


def sampled(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    """A capture with these NVTX events beside a step and a kernel."""
    return load(export(tmp_path, list(events), [launch(7, 10, 20)], [kernel(8, 30, 40)]))


def test_samples_are_stacks_and_no_marks(tmp_path: Path) -> None:
    first = stack((LINEAR, 2125), (STEP, 12))
    trace = sampled(
        tmp_path,
        domain(DOMAIN, textId=11),
        sample(5, first),
        sample(6, stack((LOAD, 40), (RUN, 1012)), thread=THREAD + 9),
        sample(8, first),
        {"start": 9, "eventType": 34, "globalTid": THREAD, "text": "a mark"},
    )
    assert texts(trace, trace.marks.name) == ["a mark"]
    assert trace.domains == ()
    samples, stacks = trace.python_samples, trace.python_stacks
    assert samples.time.tolist() == [5, 6, 8]
    assert samples.stack.tolist() == [0, 1, 0]
    assert trace.threads.tid[samples.thread].tolist() == [
        THREAD & 0xFFFFFF,
        (THREAD & 0xFFFFFF) + 9,
        THREAD & 0xFFFFFF,
    ]
    assert stacks.chain.tolist() == [0, 0, 1, 1]
    assert stacks.depth.tolist() == [0, 1, 0, 1]
    assert texts(trace, stacks.symbol) == [
        "torch/nn/functional.py(2125): linear",
        "train.py(12): step",
        "data/loader.py(40): load",
        "threading.py(1012): run",
    ]
    assert not any("home" in text for text in trace.strings.to_pylist() if text)


@pytest.mark.parametrize(
    ("file", "shown"), [(14, "src/lib/net.py"), (15, "net.py"), (16, "net.py")]
)
def test_files_without_a_folder_in_common_show_no_ones_home(
    tmp_path: Path, file: int, shown: str
) -> None:
    """A package beside the script that is installed to be edited; or the files of two persons."""
    frames = stack((LOAD, 40), ((5, file), 1), ((5, 13), 7))
    trace = sampled(tmp_path, domain(DOMAIN, textId=11), sample(5, frames))
    assert texts(trace, trace.python_stacks.symbol) == [
        "project/data/loader.py(40): load",
        f"{shown}(1): load",
        "run.py(7): load",
    ]


def test_what_is_no_stack_is_counted(tmp_path: Path) -> None:
    trace = sampled(
        tmp_path,
        domain(DOMAIN, text="Python Periodic Sampling"),
        sample(5, None),
        sample(6, stack((STEP, 12), cut=8)),
        sample(7, stack((STEP, 12), cut=3)),
        sample(8, b""),
        sample(9, stack((STEP, 13))),
        sample(10, struct.pack("<QQQQQII", 3, 7, 16, 32, 0, 1, 2**31)),
    )
    assert trace.python_samples.time.tolist() == [9]
    assert any("5 Python samples" in text for text in trace.warnings)


def test_only_their_own_domain_holds_samples(tmp_path: Path) -> None:
    trace = sampled(
        tmp_path,
        domain(DOMAIN, text="Python Periodic Sampling"),
        domain(OTHER, text="mine"),
        sample(5, stack((STEP, 12))),
        sample(6, stack((STEP, 12)), domainId=OTHER, text="mine"),
        sample(7, stack((STEP, 12)), thread=PROCESS + (1 << 24), text="another process"),
    )
    assert trace.python_samples.time.tolist() == [5]
    assert texts(trace, trace.marks.name) == ["mine", "another process"]


def test_who_holds_the_gil_is_no_range(tmp_path: Path) -> None:
    trace = sampled(
        tmp_path,
        domain(GIL, text="GIL Trace"),
        pushed("Holding GIL", 0, 15, domainId=GIL),
        pushed("Waiting for GIL", 15, 33, domainId=GIL),
        pushed("forward", 5, 25),
    )
    assert texts(trace, trace.ranges.name) == ["step", "forward"]
    assert texts(trace, trace.spans.name) == ["Holding GIL", "Waiting for GIL"]
    assert trace.spans.end.tolist() == [15, 33]
    assert (trace.spans.end_thread == trace.spans.thread).all()
    assert trace.domains == ()


def test_the_schemas_of_stacks_are_no_lost_payloads(tmp_path: Path) -> None:
    """nsys registers them like a program does; that their bytes are there shows in the stacks."""
    for readable in (True, False):
        (tmp_path / f"{readable}").mkdir()
        path = export(
            tmp_path / f"{readable}",
            [
                domain(DOMAIN, text="Python Periodic Sampling"),
                sample(5, stack((STEP, 12)) if readable else None),
            ],
            [launch(7, 10, 20)],
            [kernel(8, 30, 40)],
        )
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
            database.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            row = f"domainId, schemaId, idx, type, name) VALUES ({DOMAIN}, {SCHEMA}, 0, 5, 'x')"
            database.execute(f"INSERT INTO {table} ({row}")
        lost = [one.what for one in load(path).missing if "payloads" in one.what]
        assert lost == ([] if readable else ["structured NVTX payloads"])
