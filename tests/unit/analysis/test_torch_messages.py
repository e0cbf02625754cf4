"""Messages that torch records of kernels: sizes, groups and peers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvprobe.analysis import analyze
from nvprobe.analysis.selection import Selection, select
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.merging.several_traces import joined
from nvprobe.readers.kineto import load_kineto
from nvprobe.report.document import to_dict

COLUMNS = ("count", "messages", "bytes", "known_ops", "communicators", "peers")


def kernel(name: str, start: int, **said: Any) -> dict[str, Any]:
    """A kernel of 10 µs with what torch says of its message."""
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": 10,
        "args": {"device": 0, "context": 1, "stream": 7, "correlation": start, **said},
    }  # fmt: skip


def message(collective: str, dtype: str, elements_in: int, elements_out: int, **more: Any) -> Any:
    """What Kineto copies to the kernel."""
    return {
        "Collective name": collective, "dtype": dtype, "In msg nelems": elements_in,
        "Out msg nelems": elements_out, "Process Group Name": "dp", "Group size": 4, **more,
    }  # fmt: skip


def collectives(folder: Path, *events: Any, name: str = "trace.json") -> dict[str, tuple[Any, ...]]:
    """What the document says of each kernel's messages."""
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    document = to_dict(analyze(attribute(load(path))))
    return {row["name"]: tuple(row[c] for c in COLUMNS) for row in document["collectives"]}


def test_a_size_is_what_a_rank_puts_in_of_a_reduce_scatter_what_it_gets(tmp_path: Path) -> None:
    shards = message("_reduce_scatter_base", "Float", 4000, 1000)
    gathered = message("_allgather_base", "BFloat16", 500, 2000)
    found = collectives(
        tmp_path,
        kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()", 100, **shards),
        kernel("ncclDevKernel_AllGather_RING_LL()", 200, **gathered),
        kernel("ncclDevKernel_AllGather_RING_LL()", 300),
    )
    assert found == {
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL()": (1, 1, 4000, 1, ["dp"], []),
        "ncclDevKernel_AllGather_RING_LL()": (2, 1, 1000, 1, ["dp"], []),
    }


def test_sends_have_peers_and_unknown_types_no_size(tmp_path: Path) -> None:
    send = message("send", '"Float8_e4m3fn"', 64, 64, **{"Src Rank": 0, "Dst Rank": 3})
    receive = message("recv", "Half", 0, 32, **{"Src Rank": 2, "Dst Rank": 0})
    found = collectives(
        tmp_path,
        kernel("ncclDevKernel_SendRecv()", 100, **send),
        kernel("ncclDevKernel_SendRecv()", 200, **receive),
        kernel("ncclDevKernel_SendRecv()", 300, **message("coalesced", "Byte", 0, 0)),
        kernel("ncclDevKernel_Broadcast()", 400, **message("broadcast", "Posit", 9, 9)),
    )
    assert found == {
        "ncclDevKernel_SendRecv()": (3, 2, 64 + 64, 2, ["dp"], [2, 3]),
        "ncclDevKernel_Broadcast()": (1, 0, None, 0, [], []),
    }


def test_messages_follow_their_kernels_into_a_selection_and_a_joined_trace(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        one = message("allreduce", "Double", 10 + rank, 10 + rank)
        other = kernel("ncclDevKernel_Broadcast()", 150, **message("broadcast", "Int", 7, 7))
        first = kernel("ncclDevKernel_AllReduce_Sum_f64()", 100, **one)
        call = {
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 50 + rank,
            "tid": 1, "ts": 90, "dur": 5, "args": {"correlation": 100},
        }  # fmt: skip
        head = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18 + rank * 1000}
        about = {"distributedInfo": {"rank": rank}, "traceEvents": [call, first, other]}
        (folder / f"rank{rank}.json").write_text(json.dumps(head | about))
    ranks = [load_kineto(folder / f"rank{rank}.json") for rank in (0, 1)]
    whole = joined(ranks)
    sums = {
        row["collective"]: row["bytes"] for row in to_dict(analyze(attribute(whole)))["collectives"]
    }
    assert sums == {"all_reduce": 8 * 10 + 8 * 11, "broadcast": 2 * 7 * 4}
    second = to_dict(analyze(select(whole, Selection(processes=(51,)))))["collectives"]
    found = {row["collective"]: row["bytes"] for row in second}
    assert found == {"all_reduce": 8 * 11, "broadcast": 7 * 4}


def test_kernels_of_a_trace_without_threads_are_idle_for_unknown_causes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel("gemm", 100), kernel("gemm", 200)]}))
    document = to_dict(analyze(attribute(load(path))))
    assert document["idle"]["total_ns"] == document["idle"]["causes"]["unknown"] == 90_000
