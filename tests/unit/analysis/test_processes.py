"""Ranks in one capture: who waits for whom in their collectives. Values worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import to_dict

US = 1_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_128x128_64x6_2x1_v_bz_TNT"
Kernel = tuple[str, int, int, int]
"""Name, stream, begin and end in µs; launched a µs before it begins."""


class Job:
    """A torch trace into which a server merged the ranks of one machine."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def rank(self, number: int, steps: list[tuple[int, int]], kernels: list[Kernel]) -> None:
        """A rank on the GPU of its number: ``step`` annotations, and kernels with their calls."""
        label = f"[TP{number:02}]"
        host, gpu = f"{label} {50 + number}", f"{label} {number}"
        for row, (begin, end) in enumerate(steps):
            self._add("user_annotation", f"step {row}", host, 1, begin, end)
        for row, (name, stream, begin, end) in enumerate(kernels):
            join = {"correlation": row + 1}
            self._add("cuda_runtime", "cudaLaunchKernel", host, 1, begin - 1, begin, **join)
            where = {"device": number, "stream": stream, "context": 1, **join}
            self._add("kernel", name, gpu, stream, begin, end, **where)

    def _add(self, cat: str, name: str, pid: str, tid: int, begin: int, end: int, **args: int):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": begin,
             "dur": end - begin, "args": args}
        )  # fmt: skip

    def document(self, folder: Path) -> dict[str, Any]:
        """What the analysis says."""
        names = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "python"}}
            for pid in dict.fromkeys(event["pid"] for event in self.events)
        ]
        file = folder / "merged.json"
        file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": names + self.events}))
        return to_dict(analyze(attribute(load(file))))


def table(document: dict[str, Any]) -> dict[tuple[int, str], tuple[int, ...]]:
    """(process, path) → count, wait, transfer in µs, last, awaited in µs."""
    return {
        (row["process"], row["path"]): (
            row["count"], row["wait_ns"] // US, row["transfer_ns"] // US, row["last"],
            row["awaited_ns"] // US,
        )
        for row in document["collectives_by_process"]
    }  # fmt: skip


def test_each_ranks_wait_ends_when_the_last_arrives(tmp_path: Path) -> None:
    """Rank 1 computes 40 µs longer in both steps; in the second rank 2 is later still, by 10."""
    job, steps = Job(), [(100, 300), (300, 500)]
    for rank, (first, second) in enumerate([(150, 350), (190, 390), (150, 400)]):
        kernels = [
            (GEMM, 7, 110, first), (ALL_REDUCE, 20, first, 200),
            (GEMM, 7, 310, second), (ALL_REDUCE, 20, second, 410),
        ]  # fmt: skip
        job.rank(rank, steps, kernels)
    found = job.document(tmp_path)
    # First meeting: 190 - 150 twice, transfer 10 each. Second: 400 - 350 and 400 - 390.
    assert table(found) == {
        (50, "step"): (2, 40 + 50, 10 + 10, 0, 0),
        (51, "step"): (2, 0 + 10, 10 + 10, 1, 40 + 40),
        (52, "step"): (2, 40 + 0, 10 + 10, 1, 50 + 10),
    }
    (late,) = [one for one in found["findings"] if one["id"] == "late_process"]
    assert late["evidence"]["process"] == 51
    assert late["evidence"]["wait_ns"] == 80 * US
    assert late["saves_ns"] == [0, 80 * US]
    # Its GPU works 80 + 80 µs, the others 40 + 40 and 40 + 90: their median is 105.
    assert (late["evidence"]["own_gpu_ns"], late["evidence"]["usual_gpu_ns"]) == (160_000, 105_000)
    advice = " ".join(text for one in found["findings"] for text in one["try"])
    assert "other ranks" not in advice


def test_streams_are_groups_and_halves_of_steps_are_left_out(tmp_path: Path) -> None:
    """Of step 0 rank 1 has one collective of two: none of them is matched on that stream."""
    job, steps = Job(), [(100, 200), (200, 300)]
    tensor = [(ALL_REDUCE, 20, 120, 130), (ALL_REDUCE, 20, 140, 150), (ALL_REDUCE, 20, 220, 235)]
    data = [(ALL_REDUCE, 30, 160, 190), (SEND, 30, 240, 250), (ALL_REDUCE, 30, 260, 290)]
    job.rank(0, steps, [*tensor, *data])
    job.rank(1, steps, [tensor[1], (ALL_REDUCE, 20, 225, 235), (ALL_REDUCE, 30, 175, 190),
                        (ALL_REDUCE, 30, 280, 290)])  # fmt: skip
    # Stream 20: 5 of step 1. Stream 30: 15 of step 0, 20 of step 1; the send is not a meeting.
    assert table(job.document(tmp_path)) == {
        (50, "step"): (3, 5 + 15 + 20, 10 + 15 + 10, 0, 0),
        (51, "step"): (3, 0, 10 + 15 + 10, 3, 40),
    }


def test_waiting_that_compute_hides_is_not_to_be_gained(tmp_path: Path) -> None:
    job, steps = Job(), [(100, 200)]
    job.rank(0, steps, [(ALL_REDUCE, 20, 110, 190), (GEMM, 7, 120, 180)])
    job.rank(1, steps, [(GEMM, 7, 110, 180), (ALL_REDUCE, 20, 180, 190)])
    found = job.document(tmp_path)
    assert table(found)[50, "step"] == (1, 70, 10, 0, 0)
    # 20 of the 80 µs are exposed, so of the 70 that it waits no more than 20 can be gained.
    (late,) = [one for one in found["findings"] if one["id"] == "late_process"]
    assert late["evidence"]["wait_ns"] == 20 * US


def test_one_process_or_none_that_meets_has_no_table(tmp_path: Path) -> None:
    job = Job()
    job.rank(0, [(100, 200)], [(ALL_REDUCE, 20, 110, 190)])
    job.rank(1, [(100, 200)], [(GEMM, 7, 110, 190)])
    found = job.document(tmp_path)
    assert found["collectives_by_process"] is None
    assert any("other ranks" in text for one in found["findings"] for text in one["try"])
