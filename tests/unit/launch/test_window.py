"""The capture window: opened and closed by step, told to the launcher, measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvprobe.launch import groups as groups_module
from nvprobe.launch import window as window_module
from nvprobe.launch.groups import Group, groups_before
from nvprobe.launch.overhead import WindowStatus
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
    monkeypatch.setattr(groups_module, "time", made)
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


def test_steps_found_in_the_warm_up_are_forgotten_before_the_window(
    clock: Clock, tmp_path: Path
) -> None:
    watch = StepWatch([Log(clock)], 9, 11, status=tmp_path)
    for done in range(9):
        watch.boundary(done)
        clock.now += 1_000
    assert watch.restart(0)
    assert run(watch, clock, [10] * 12) == [9, 10]
    assert not watch.restart(0), "the window has opened"
    status = WindowStatus.read(tmp_path)
    assert status.durations_ns == [10] * 12
    bare = [group for group in status.groups if group.kind == "bare"]
    assert [(group.first, group.elapsed_ns) for group in bare] == [(2, 50)]


def test_a_window_that_opened_in_steps_found_before_is_said(clock: Clock, tmp_path: Path) -> None:
    watch = StepWatch([Log(clock)], 2, 5, status=tmp_path)
    for done in range(4):
        watch.boundary(done)
    assert not watch.restart(0)
    watch.finish()
    assert WindowStatus.read(tmp_path).notes(by_node=False)[-1] == (
        "the window opened at step 2, before the program's first own step: the 4 steps that were "
        "found before it are counted, too"
    )


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(2, 4, [2, 3]), (0, 2, [0, 1]), (3, None, [3, 4]), (0, None, [0, 1, 2, 3, 4]), (9, 12, [])],
)
def test_the_steps_inside(clock: Clock, first: int, last: int | None, expected: list[int]) -> None:
    log = Log(clock)
    assert run(StepWatch([log], first, last), clock, [10] * 5) == expected
    assert log.events == (["open", "close"] if expected else [])


def test_a_window_of_requests_holds_their_steps(clock: Clock, tmp_path: Path) -> None:
    newest = iter([-1, 0, 0, 1, 1, 3, 3, 4, 5])  # request 2 begins with request 3
    watch = StepWatch(
        [Log(clock)], 1, 4, status=tmp_path, traffic=lambda: (1, next(newest)), by_request=True
    )
    assert run(watch, clock, [10] * 8) == [3, 4, 5, 6]
    assert WindowStatus.read(tmp_path).opened == 3


def test_a_window_opens_at_so_many_requests_and_lasts_from_there(clock: Clock) -> None:
    inside = iter([1, 1, 4, 2, 4, 1, 1, 1])
    watch = StepWatch([Log(clock)], traffic=lambda: (next(inside), 0), at_least=3, duration_s=20e-9)
    assert run(watch, clock, [10] * 7) == [2, 3]


def test_recorders_close_in_reverse_order(clock: Clock) -> None:
    first, second = Log(clock), Log(clock)
    both: list[str] = []
    first.events = second.events = both
    watch = StepWatch([first, second], 0, 1)
    watch.begin()
    watch.boundary(1)
    watch.finish()
    assert both == ["open", "open", "close", "close"]


def test_replays_of_graphs_are_said_to_be_slower_outside_the_window(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for replayed, by_node, notes in ((True, True, 2), (True, False, 1), (False, True, 1)):
        monkeypatch.setattr("nvprobe.instrumentation.graphs.replayed", replayed)
        run(StepWatch([Log(clock)], 3, 6, status=tmp_path), clock, [10] * 8)
        assert len(WindowStatus.read(tmp_path).notes(by_node=by_node)) == notes


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
    assert [(group.first, group.end, group.elapsed_ns) for group in status.groups] == [(3, 6, 942)]


class Gpu:
    """Runs what the steps give it one after another, behind the host that gave it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.idle_at = 0

    def work(self, duration: int) -> None:
        self.idle_at = max(self.idle_at, self.clock.now) + duration

    def wait(self) -> None:
        self.clock.now = max(self.clock.now, self.idle_at)


def run_on_gpu(
    watch: StepWatch, clock: Clock, steps: int, host: Callable[[int], int], gpu_ns: int
) -> None:
    """Steps whose host time depends on their number and whose GPU work is behind it."""
    gpu = Gpu(clock)
    watch.timer.wait = gpu.wait
    watch.begin()
    watch.boundary(0)
    for done in range(1, steps + 1):
        gpu.work(gpu_ns)
        clock.now += host(done - 1)
        watch.boundary(done)
    watch.finish()


@pytest.mark.parametrize(
    ("bare", "profiled", "gpu", "expected"),
    [
        pytest.param(3_000, 4_600, 8_600, (8_600, 8_600), id="bound by the GPU"),
        pytest.param(9_400, 12_000, 2_600, (9_400, 12_000), id="bound by the host"),
        pytest.param(8_000, 10_000, 9_000, (9_000, 10_000), id="by one, then by the other"),
    ],
)
def test_the_overhead_of_loops_that_wait_for_different_things(
    clock: Clock, tmp_path: Path, bare: int, profiled: int, gpu: int, expected: tuple[int, int]
) -> None:
    watch = StepWatch([Log(clock, cost_ns=50_000)], 20, 25, status=tmp_path)

    def host(step: int) -> int:
        return profiled if 20 <= step < 25 else bare

    run_on_gpu(watch, clock, 30, host, gpu)
    overhead = WindowStatus.read(tmp_path).overhead
    assert overhead.bare is not None
    assert overhead.window is not None
    assert (overhead.bare.groups, overhead.bare.steps, overhead.window.steps) == (3, 15, 5)
    assert overhead.bare.step_ns == pytest.approx(expected[0], rel=0.01)
    assert overhead.window.step_ns == pytest.approx(expected[1], rel=0.01)
    change = 100 * (expected[1] / expected[0] - 1)
    assert f"{change:+.1f}%" in str(overhead) or "cannot tell" in str(overhead)
    assert overhead.is_unknown == (expected[0] == expected[1])


@pytest.mark.parametrize(
    ("first", "warmup", "expected"),
    [
        (10, 0, [(3, 8)]),
        (8, 0, [(1, 6)]),
        (7, 0, []),
        (2, 0, []),
        (20, 0, [(3, 8), (8, 13), (13, 18)]),
        (20, 6, [(8, 13), (13, 18)]),
        (500, 0, [(478, 483), (483, 488), (488, 493), (493, 498)]),
    ],
)
def test_groups_before_the_window(first: int, warmup: int, expected: list[tuple[int, int]]) -> None:
    assert [(group.first, group.end) for group in groups_before(first, warmup)] == expected


def test_an_early_window_is_compared_with_the_steps_after_it(clock: Clock, tmp_path: Path) -> None:
    run(StepWatch([Log(clock)], 2, 5, status=tmp_path), clock, [900, 90, 80, 20, 20, *[10] * 12])
    status = WindowStatus.read(tmp_path)
    groups = [(group.kind, group.first, group.end) for group in status.groups]
    assert groups == [("window", 3, 5), ("bare", 6, 11), ("bare", 11, 16)]
    assert status.overhead.slowdown == 2.0


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        (10, [("bare", 3, 8), ("window", 10, 12), ("bare", 13, 18), ("bare", 18, 23)]),
        (15, [("bare", 3, 8), ("bare", 8, 13), ("window", 15, 17)]),
    ],
)
def test_steps_after_the_window_are_not_timed_where_two_groups_before_it_were(
    clock: Clock, tmp_path: Path, opened: int, expected: list[tuple[str, int, int]]
) -> None:
    run(StepWatch([Log(clock)], opened, opened + 2, status=tmp_path), clock, [10] * 30)
    groups = WindowStatus.read(tmp_path).groups
    assert [(one.kind, one.first, one.end) for one in groups] == expected


def test_groups_after_the_window_say_how_a_gpu_varies_and_nothing_of_a_slower_host(
    clock: Clock, tmp_path: Path
) -> None:
    """nsys works after the window: a host that decides takes longer, and its single steps say how
    much it varies before."""
    ahead, host = tmp_path / "ahead", tmp_path / "host"
    ahead.mkdir()
    host.mkdir()
    watch = StepWatch([Log(clock)], 10, 15, status=ahead)
    run_on_gpu(watch, clock, 30, lambda step: 100 if step == 4 else 20, 1_000)
    found = WindowStatus.read(ahead).overhead.bare
    assert found is not None
    assert (found.groups, found.steps) == (1, 5)
    assert found.spread_ns is not None
    assert found.spread_ns < 50
    run_on_gpu(
        StepWatch([Log(clock)], 10, 15, status=host),
        clock,
        30,
        lambda step: (1_500 if step > 14 else 1_000) + step % 2,
        100,
    )
    found = WindowStatus.read(host).overhead.bare
    assert found is not None
    assert found.step_ns == pytest.approx(1_000, rel=0.03)
    assert found.spread_ns == 1


def test_the_wait_for_the_gpu_at_the_end_of_a_group_is_no_period_of_the_host() -> None:
    """A student beside its teacher on an H200: its host is five times faster than the GPU."""
    periods = [3_346_577, 2_366_394, 1_943_926, 2_226_256, 69_148_187]
    status = WindowStatus(20, 14, 20, 7, periods, [Group("bare", 7, 12, 78_936_762)])
    bare = status.overhead.bare
    assert bare is not None
    assert (bare.step_ns, bare.spread_ns) == (15_787_352, None)


def test_after_a_window_of_nsyss_own_clock_bare_steps_are_timed(
    clock: Clock, tmp_path: Path
) -> None:
    watch = StepWatch([], delay_s=25e-9, duration_s=20e-9, status=tmp_path)
    run(watch, clock, [10] * 18)
    status = WindowStatus.read(tmp_path)
    assert [(one.kind, one.first, one.end) for one in status.groups] == [
        ("bare", status.closed + 1, status.closed + 6),
        ("bare", status.closed + 6, status.closed + 11),
    ]


def test_steps_that_vary_by_more_than_the_profiler_costs(clock: Clock, tmp_path: Path) -> None:
    uneven = [50, 150, 30, 170, 100]
    durations = [100, 100, 100, *uneven, 100, 100, *(110 for _ in range(5)), 100]
    run(StepWatch([Log(clock)], 10, 15, status=tmp_path), clock, durations)
    overhead = WindowStatus.read(tmp_path).overhead
    assert overhead.slowdown == 1.1
    assert overhead.is_unknown
    assert "cannot tell, steps vary by" in str(overhead)


def test_one_group_of_a_gpu_bound_loop_cannot_say_how_steps_vary(
    clock: Clock, tmp_path: Path
) -> None:
    watch = StepWatch([Log(clock)], 10, 15, status=tmp_path)
    run_on_gpu(watch, clock, 16, lambda step: 10 + 5 * (step % 2), 100)
    overhead = WindowStatus.read(tmp_path).overhead
    assert (overhead.slowdown, overhead.doubt) == (1.0, None)
    assert str(overhead).endswith("+0.0%")


def test_a_group_whose_begin_was_missed_is_left_out(clock: Clock) -> None:
    watch = StepWatch([Log(clock)], 20)
    for done in (0, 1, 2, 5, 8, 13):  # steps 3, 18 were begun while a graph was captured
        clock.now += 10
        watch.boundary(done)
    assert [(group.first, group.end) for group in watch.timer.done] == [(8, 13)]


def test_what_follows_the_last_step_is_not_part_of_it(clock: Clock) -> None:
    watch = StepWatch([Log(clock)], 0, 4)
    run(watch, clock, [10, 10, 10])
    clock.now += 10
    watch.finish()
    assert watch.timer.done == []
    other = StepWatch([Log(clock)], 0, 4)
    for done in range(4):
        other.boundary(done)
        clock.now += 10
        other.step_ended(done + 1)
        clock.now += 1_000 * (done == 3)
    other.finish()
    assert [group.elapsed_ns for group in other.timer.done] == [20]


def test_no_overhead_without_steps_on_both_sides(clock: Clock, tmp_path: Path) -> None:
    run(StepWatch([Log(clock)], 0, 2, status=tmp_path), clock, [1, 1, 1])
    overhead = WindowStatus.read(tmp_path).overhead
    assert (overhead.bare, overhead.slowdown) == (None, None)
    assert "not measured" in str(overhead)
    assert WindowStatus.read(tmp_path / "nowhere") == WindowStatus()


def test_the_process_that_opened_its_window_speaks(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "window.1.json").write_text(
        '{"steps": 99, "opened": null, "closed": null, "first_timed": 0, "durations_ns": [],'
        ' "groups": []}'
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


def test_one_window_group_is_as_uncertain_as_the_bare_groups_are() -> None:
    """Steps of a GPU-bound loop vary on the host by their own length; groups do not."""
    bare = [Group("bare", 3, 8, 50_000_000), Group("bare", 8, 13, 51_000_000)]
    window = Group("window", 15, 20, 52_000_000)
    periods = [1_000_000, 1_000_000, 1_000_000, 25_000_000, 24_000_000]
    status = WindowStatus(20, 15, 20, 15, periods, [*bare, window])
    found = status.overhead
    assert found.window is not None
    assert found.window.spread_ns == round(0.1 / 10.1 * 10_400_000)
    assert not found.is_unknown
