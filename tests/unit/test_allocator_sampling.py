"""Readings of the caching allocator between steps, with a stand-in for torch's counters.

What the real counters cost and say needs a GPU: tests/gpu/test_annotate.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_sidecar import only, run

STAND_IN = """
    import sys, types

    class Clock:
        now = 0
        def __call__(self):
            return Clock.now

    read = []

    def counters(device):
        read.append(device)
        Clock.now += 10_000
        level = 100 * len(read)
        both = {"all": {"current": level, "peak": level + 5}}
        held = {"all": {"current": 4096 if device != 1 else 0, "peak": 8192}}
        return {"allocated_bytes": both, "reserved_bytes": held, "num_alloc_retries": 1,
                "num_device_alloc": len(read), "num_ooms": 0}

    cuda = types.SimpleNamespace(is_initialized=lambda: started, device_count=lambda: 3,
                                 memory_stats_as_nested_dict=counters,
                                 get_allocator_backend=lambda: backend)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
    started, backend = True, "native"

    from nvprobe.instrumentation import allocator, sidecar, steps
    allocator.time = types.SimpleNamespace(perf_counter_ns=Clock(), time_ns=lambda: 77)
    sidecar.open()
    allocator.install()
    allocator.install()

    def step(length_ns):
        steps.begin("call")
        Clock.now += length_ns
        steps.end()
"""


def _rows(folder: Path, code: str) -> list[dict]:
    completed = run(STAND_IN + code, folder)
    assert completed.returncode == 0, completed.stderr
    found = [line for line in only(folder) if line["kind"] == "allocator"]
    return [dict(zip(line["columns"], row, strict=True)) for line in found for row in line["rows"]]


def test_devices_in_use_are_read_at_the_edges_of_steps(tmp_path: Path) -> None:
    rows = _rows(
        tmp_path,
        """
    for _ in range(3):
        step(10**9)
    """,
    )
    assert [(row["steps"], row["device"]) for row in rows] == [
        (0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2), (3, 0), (3, 2),
    ]  # fmt: skip
    first = rows[0]  # the fourth reading: three looked which devices are in use
    assert first == {
        "steps": 0, "device": 0, "time_ns": 77, "allocated": 400, "reserved": 4096,
        "peak_allocated": 405, "peak_reserved": 8192, "retries": 1, "device_allocs": 4,
        "device_frees": None, "out_of_memory": 0,
    }  # fmt: skip


def test_short_steps_share_a_reading(tmp_path: Path) -> None:
    """A reading of two devices takes 20 µs here: the next may come 2 ms later."""
    rows = _rows(
        tmp_path,
        """
    for _ in range(64):
        step(250_000)
    """,
    )
    ended = [row["steps"] for row in rows if row["device"] == 0]
    assert ended[0] == 0
    assert {later - earlier for earlier, later in zip(ended[1:], ended[2:], strict=False)} == {8}


def test_cuda_is_never_started_and_a_failure_costs_rows_alone(tmp_path: Path) -> None:
    rows = _rows(
        tmp_path,
        """
    started = False
    step(10**9)
    assert not read
    started = True
    del cuda.memory_stats_as_nested_dict
    step(10**9)
    cuda.memory_stats_as_nested_dict = lambda device: {"reserved_bytes": {"all": {"current": 1}}}
    step(10**9)
    cuda.memory_stats_as_nested_dict = counters
    step(10**9)
    allocator.uninstall()
    step(10**9)
    """,
    )
    assert sorted({row["steps"] for row in rows}) == [3, 4]


def test_another_allocator_is_not_asked(tmp_path: Path) -> None:
    """``cudaMallocAsync`` would ask the driver, of devices that the program does not use, too."""
    rows = _rows(
        tmp_path,
        """
    backend = "cudaMallocAsync"
    step(10**9)
    assert not read
    """,
    )
    assert rows == []


def test_readings_that_fail_stay_as_far_apart(tmp_path: Path) -> None:
    rows = _rows(
        tmp_path,
        """
    def failing(device):
        counters(device)
        raise RuntimeError

    cuda.memory_stats_as_nested_dict = failing
    for _ in range(64):
        step(250_000)
    assert len(read) == 17, len(read)  # 10 µs each: at once, then one in 1 ms, of 16 ms
    """,
    )
    assert rows == []
