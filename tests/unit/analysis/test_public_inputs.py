"""Inputs of the kinds that public reports are of: names, calls, large causes, Intel GPUs.

What each should give was worked out by hand before it ran.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import to_dict
from tests.unit.analysis.scenes import BF16_GEMM, Scene, loop
from tests.unit.readers.exports import THREAD, kernel, launch, strings, write

US = 1_000
Body = Callable[[Scene], None]


def document(body: Body, steps: int = 4) -> dict[str, Any]:
    """The analysis of a loop; a kernel of 10 µs begins each step and ends it."""

    def step(scene: Scene) -> None:
        scene.launch(BF16_GEMM, 10 * US)
        body(scene)
        scene.launch(BF16_GEMM, 10 * US)

    return to_dict(analyze(attribute(loop(step, steps=steps).trace())))


def inside(name: str, ns: int) -> Body:
    """Host work in a range of this name."""
    return lambda scene: scene.inside(name, lambda: scene.host(ns))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("load_data", "input"),
        ("load_database", "host"),
        ("all_gather_params", "collective"),
        ("all_gather_parameters_report", "host"),
    ],
)
def test_a_longer_name_waits_for_nothing(name: str, cause: str) -> None:
    """Four times 300 µs of host work between two kernels are idle, less the kernel's 10 µs."""
    causes = document(inside(name, 300 * US))["idle"]["causes"]
    others = sum(ns for one, ns in causes.items() if one in ("input", "collective", "host"))
    assert 4 * 280 * US <= causes[cause] <= 4 * 300 * US + 4 * 10 * US
    assert others - causes[cause] <= 4 * 10 * US


@pytest.mark.parametrize(
    ("call", "cause", "finding"),
    [
        ("cuGraphExecUpdate_v2", "other_call", "idle_other_call"),
        ("cudaMallocHost", "allocation", "pinned_allocation"),
        ("cuMemAddressReserve", "allocation", "idle_allocation"),
        ("cudaIpcOpenMemHandle", "allocation", "idle_allocation"),
        ("cudaEventCreateWithFlags", "other_call", "idle_other_call"),
        ("cudaExecutionCtxSynchronize", "sync", "blocking_sync"),
    ],
)
def test_idle_time_in_a_call_is_the_calls(call: str, cause: str, finding: str) -> None:
    """The call of 500 µs begins when the first kernel does: all but 10 µs of it are idle."""
    found = document(lambda scene: scene.call(call, 500 * US))
    assert found["idle"]["causes"][cause] >= 4 * 480 * US
    assert found["idle"]["causes"]["host"] <= 4 * 10 * US
    ids = [one["id"] for one in found["findings"]]
    named = json.dumps(found["findings"]) + json.dumps(found["syncs"])
    assert call.removesuffix("_v2") in named
    assert finding in ids or cause == "sync", ids


def test_every_large_cause_has_a_finding_with_its_path() -> None:
    """Streams are made in each step: 400 of about 430 µs a step pass in that call."""

    def body(scene: Scene) -> None:
        scene.inside("prepare", lambda: scene.call("cudaStreamCreateWithPriority", 400 * US))

    found = document(body)
    (one,) = [one for one in found["findings"] if one["id"] == "idle_other_call"]
    assert one["path"] == "step/prepare"
    assert "cudaStreamCreateWithPriority" in one["title"]
    # The first kernel of a step begins 1 µs after its launch and takes 10; but in the later steps
    # it waits for the last one, which ends 6 µs after that launch, and half a µs more.
    assert one["evidence"]["idle_ns"] == (400 - 11) * US + 3 * (400 - 16) * US - 3 * 500


def test_a_small_cause_has_none() -> None:
    found = document(lambda scene: scene.call("cudaStreamCreateWithPriority", 11 * US))
    assert not [one for one in found["findings"] if one["id"] == "idle_other_call"]


@pytest.mark.parametrize("nameless", [{"text": None}, {"text": ""}, {"text": "  "}])
def test_nameless_ranges_are_one_node_beside_no_path(tmp_path: Path, nameless: Any) -> None:
    """Three nameless ranges, one inside ``work``, and a kernel outside of all."""
    rows = [
        {"start": 10, "end": 20, **nameless},
        {"start": 30, "end": 40, **nameless},
        {"start": 50, "end": 90, "text": "work"},
        {"start": 60, "end": 80, **nameless},
    ]
    tables = {
        "StringIds": strings("cudaLaunchKernel_v7000", "gemm"),
        "NVTX_EVENTS": [{"eventType": 59, "globalTid": THREAD, "domainId": 0, **r} for r in rows],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(n, 10 * n + 5, 10 * n + 6) for n in (1, 3, 6, 9)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(n, 100 * n, 100 * n + n) for n in (1, 3, 6, 9)],
    }
    found = to_dict(analyze(attribute(load(write(tmp_path / "x.sqlite", tables)))))
    assert {row["path"]: (row["calls"], row["gpu_ns"]) for row in found["ranges"]} == {
        "(no name)": (2, 1 + 3), "work": (1, 6), "work/(no name)": (1, 6),
    }  # fmt: skip
    assert found["ledger"]["unresolved"]["no_range_open"]["gpu_ns"] == 9


def xpu(name: str, cat: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    """An event of a trace of an Intel GPU."""
    on_gpu = "sycl queue" in args
    return {"ph": "X", "cat": cat, "name": name, "pid": 0 if on_gpu else 9,
            "tid": args.get("sycl queue", 9), "ts": ts, "dur": dur, "args": args}  # fmt: skip


def test_intels_queues_wait_and_copy(tmp_path: Path) -> None:
    """A kernel, a wait for it, a copy to the host on another queue; 80 µs idle between."""
    events = [
        xpu("urEnqueueKernelLaunch", "xpu_runtime", 90, 5, correlation=1),
        xpu("gemm", "kernel", 100, 50, correlation=1, device=0, **{"sycl queue": 4}),
        xpu("urEventWait", "xpu_runtime", 100, 120),
        xpu("urEnqueueUSMMemcpy", "xpu_runtime", 225, 3, correlation=2),
        xpu("Memcpy D2M", "gpu_memcpy", 230, 20, correlation=2, device=0, **{"sycl queue": 5}),
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = to_dict(analyze(attribute(load(file))))
    assert found["overlap"]["classes"] == {"compute": 50 * US, "copy_d2h": 20 * US}
    assert {one["stream"] for one in found["overlap"]["streams"]} == {4, 5}
    causes = found["idle"]["causes"]
    # 150 to 220 in the wait; then what the host needs to go on is the wait's too (5 + 3 µs);
    # the rest, 228 to 230, waits on the device.
    assert found["idle"]["total_ns"] == 80 * US
    assert causes["sync"] == 78 * US
    assert causes["device_wait"] == 2 * US
    (sync,) = found["syncs"]
    assert (sync["call"], sync["wait_ns"]) == ("urEventWait", 120 * US)
    assert "nsys" not in json.dumps(found["findings"])
