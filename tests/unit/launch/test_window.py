"""The capture window: opened and closed by step, told to the launcher, measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvprobe.launch import window as window_module
from nvprobe.launch.overhead import Overhead, WindowStatus
from nvprobe.launch.settings import Settings
from nvprobe.launch.window import StepWatch


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def perf_counter_ns(self) -> int:
        return self.now


class Log:
    """A recorder that notes when it was opened and closed."""

    def __init__(self, clock: Clock, cost_ns: int = 0) -> None:
        self.clock = clock
        self.cost_ns = cost_ns
        self.events: list[str] = []

    def open(self) -> None:
        self.events.append("open")
        self.clock.now += self.cost_ns

    def close(self) -> None:
        self.events.append("close")
        self.clock.now += self.cost_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(window_module, "time", made)
    return made


def run(watch: StepWatch, clock: Clock, durations: list[int]) -> list[int]:
    """Steps of given durations; which of them ran with the window open."""
    inside = []
    watch.begin()
    watch.boundary(0)
    for done, duration in enumerate(durations, 1):
        if watch.opened is not None and watch.closed is None:
            inside.append(done - 1)
        clock.now += duration
        watch.boundary(done)
    watch.finish()
    return inside


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(2, 4, [2, 3]), (0, 2, [0, 1]), (3, None, [3, 4]), (0, None, [0, 1, 2, 3, 4]), (9, 12, [])],
)
def test_the_steps_inside(clock: Clock, first: int, last: int | None, expected: list[int]) -> None:
    log = Log(clock)
    assert run(StepWatch([log], first, last), clock, [10] * 5) == expected
    assert log.events == (["open", "close"] if expected else [])


def test_recorders_close_in_reverse_order(clock: Clock) -> None:
    first, second = Log(clock), Log(clock)
    both: list[str] = []
    first.events = second.events = both
    watch = StepWatch([first, second], 0, 1)
    watch.begin()
    watch.boundary(1)
    watch.finish()
    assert both == ["open", "open", "close", "close"]


def test_a_window_of_time_opens_and_closes_between_steps(clock: Clock) -> None:
    log = Log(clock)
    watch = StepWatch([log], delay_s=25e-9, duration_s=20e-9)
    assert run(watch, clock, [10] * 8) == [3, 4]


def test_the_time_of_the_profiler_is_not_the_steps(clock: Clock, tmp_path: Path) -> None:
    watch = StepWatch([Log(clock, cost_ns=10_000)], 3, 6, status=tmp_path)
    run(watch, clock, [50, 10, 12, 900, 20, 22, 10])
    status = WindowStatus.read(tmp_path)
    assert status.durations_ns == [50, 10, 12, 900, 20, 22, 10]
    assert (status.steps, status.opened, status.closed) == (8, 3, 6)
    overhead = status.overhead(warmup=1)
    assert overhead == Overhead(11, 21, 2, 2)
    assert "+90.9 %" in str(overhead)


def test_no_overhead_without_steps_on_both_sides(clock: Clock, tmp_path: Path) -> None:
    run(StepWatch([], 0, 2, status=tmp_path), clock, [1, 1, 1])
    assert WindowStatus.read(tmp_path).overhead() is None
    assert WindowStatus.read(tmp_path / "nowhere") == WindowStatus()


def test_the_process_that_opened_its_window_speaks(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "window.1.json").write_text(
        '{"steps": 99, "opened": null, "closed": null, "durations_ns": []}'
    )
    (tmp_path / "window.2.json").write_text("{")
    run(StepWatch([], 1, 2, status=tmp_path), clock, [1, 1])
    assert WindowStatus.read(tmp_path).opened == 1


def test_a_forked_child_leaves_the_window_alone(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = Log(clock)
    watch = StepWatch([log], 1, 2, status=tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: watch.pid + 1)
    watch.boundary(1)
    watch.finish()
    assert log.events == []
    assert list(tmp_path.iterdir()) == []


def test_a_failing_recorder_or_folder_does_not_stop_the_program(clock: Clock) -> None:
    class Broken(Log):
        def open(self) -> None:
            raise RuntimeError("CUPTI")

    later = Log(clock)
    watch = StepWatch([Broken(clock), later], 0, 1, status=Path("/proc/nowhere"))
    run(watch, clock, [1, 1])
    assert later.events == ["open", "close"]


def test_settings_travel_through_the_environment() -> None:
    settings = Settings(status="/tmp/x", first=3, last=None, trigger="nvtx", torch="cpu")
    assert Settings.from_environ(settings.to_environ()) == settings
    assert Settings.from_environ({}) is None
    assert Settings.from_environ({"NVPROBE_INPROCESS": '{"later": 1}'}) is None
