"""Lines from Python samples: shares add up, and samples without gaps give the exact answer."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nvprobe.analysis import analyze
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.code_lines import lines_behind, shared_out
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.idle import SAMPLED_CAUSES
from nvprobe.analysis.waiting.waits import Waits, waits
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.report.console.terminal import console_for, print_report
from nvprobe.report.console.view import View
from nvprobe.report.document import to_json
from nvprobe.trace import CallChains, Frames, Samples, Trace
from tests.conftest import examples
from tests.random_waits import FRAME_NAMES, STRINGS, wait_traces
from tests.unit.readers.exports import THREAD, kernel, launch, pushed
from tests.unit.readers.test_python_samples import (
    DOMAIN,
    LINEAR,
    LOAD,
    STEP,
    domain,
    export,
    sample,
    stack,
)

LAST = 60
"""Every event of a random trace ends before this instant."""
amounts = st.lists(st.integers(0, 2**55), min_size=1, max_size=5)


@settings(deadline=None)
@given(amounts, st.data())
def test_shares_add_up_and_follow_the_samples(ns: list[int], data: st.DataObject) -> None:
    one = st.tuples(st.integers(0, len(ns) - 1), st.integers(0, 3))
    seen = data.draw(st.lists(one, max_size=30))
    group, line = np.array(seen, np.int64).reshape(-1, 2).T
    shared = shared_out(np.array(ns), group, line)
    total, samples = Counter(), Counter(seen)
    for at, where, time, count in zip(
        *(c.tolist() for c in (shared.group, shared.line, shared.ns, shared.samples)), strict=True
    ):
        total[at] += time
        assert count == samples[at, where]
        if where >= 0:
            members = sum(n for (g, _), n in samples.items() if g == at)
            assert abs(time - ns[at] * count / members) <= max(1, ns[at] / 2**40)
        else:
            assert at not in group
    assert [total[at] for at in range(len(ns))] == ns


def sampled_always(trace: Trace) -> Trace:
    """The trace with a sample of every thread at every nanosecond instead of its frames."""
    lines = lines_behind(attribute(trace))
    assert lines is not None
    threads = len(trace.threads)
    thread = np.repeat(np.arange(threads), LAST)
    time = np.tile(np.arange(LAST), threads)
    line = lines.at(thread, time)
    row = {f"{name.split('(')[0]}": STRINGS.index(name) for name in FRAME_NAMES[:2]}
    labels = lines.labels.to_pylist()
    symbol = np.array([row.get(label.split(":")[0], -1) for label in labels], np.int64)
    known = line >= 0
    return dataclasses.replace(
        trace,
        frames=Frames.absent(),
        python_samples=Samples(
            process=trace.threads.process[thread[known]],
            thread=thread[known],
            time=time[known],
            cpu=np.full(int(known.sum()), -1),
            stack=symbol[line[known]],
        ),
        python_stacks=CallChains(
            chain=np.arange(len(STRINGS)),
            depth=np.zeros(len(STRINGS)),
            symbol=np.arange(len(STRINGS)),
        ),
    )


def found(trace: Trace) -> Waits:
    """The waits of a trace."""
    attribution = attribute(trace)
    return waits(attribution, steps(attribution, np.empty(0, np.int64)))


def by_line(one: Waits) -> Counter[tuple[str | None, Cause]]:
    """Idle time of launch calls and host by line."""
    total: Counter[tuple[str | None, Cause]] = Counter()
    for row in one.idle_by_line():
        if row.cause in SAMPLED_CAUSES:
            total[row.line and row.line.source, row.cause] += row.ns
    return total


@examples(30, suppress_health_check=list(HealthCheck))
@given(wait_traces())
def test_samples_without_gaps_tell_what_frames_tell(trace: Trace) -> None:
    assume(trace.frames.recorded)
    exact, estimated = found(trace), found(sampled_always(trace))
    if estimated.sampled is None:  # no frame of the user's
        return
    seen = {line for line, _ in by_line(estimated)}
    wanted = by_line(exact)
    # What no frame covers has no sample: a path's lines then share it out among themselves.
    uncovered = sum(ns for (line, _), ns in wanted.items() if line is None)
    got = by_line(estimated)
    assert sum(got.values()) == sum(wanted.values())
    assert seen - {None} <= {line for line, _ in wanted}
    for key, ns in wanted.items():
        if key[0] is not None:
            assert ns <= got[key] <= ns + uncovered
    host = estimated.host
    assert host.samples is not None or not len(host)
    assert host.host_ns.sum() == exact.host.host_ns.sum()
    assert host.launches.sum() == exact.host.launches.sum()
    assert host.idle_ns.sum() == exact.host.idle_ns.sum()


def test_the_line_that_was_seen_while_the_gpu_waited(tmp_path: Path) -> None:
    path = capture(tmp_path)
    analysis = analyze(attribute(load(path)))
    shown = json.loads(to_json(analysis))
    # Idle 1040 … 9000: 7,000 ns of Python, 960 in the launch call; three samples fall into it.
    (total,) = (row["idle_ns"] for row in shown["devices"])
    assert total == 7960
    lines = {(row["line"], row["cause"]): row for row in shown["idle"]["by_line"]}
    assert lines["train.py:12 (step)", "host"]["ns"] == 4666
    assert lines["train.py:12 (step)", "host"]["samples"] == 2
    assert lines["data/loader.py:40 (load)", "host"]["ns"] == 2334
    assert lines[None, "launch_call"]["ns"] == 960
    assert lines[None, "launch_call"]["samples"] is None
    assert sum(row["ns"] for row in lines.values()) == total
    host = {row["line"]: row for row in shown["host"]}
    assert host["train.py:12 (step)"]["samples"] == 2
    assert sum(row["idle_ns"] for row in shown["host"]) == shown["idle"]["causes"]["host"]
    text = io.StringIO()
    print_report(console_for(text, width=100), analysis, View(by="line", show=("idle",)))
    assert "an estimate from 3 Python samples in idle time" in text.getvalue()


def capture(tmp_path: Path) -> Path:
    """Two kernels, and between them 7 µs of Python in which nsys looked three times."""
    return export(
        tmp_path,
        [domain(DOMAIN, text="Python Periodic Sampling")]
        + [sample(time, stack((LINEAR, 2125), (STEP, 12))) for time in (1030, 2000, 4000)]
        + [sample(6000, stack((LOAD, 40), (STEP, 12)))],
        calls=[launch(7, 1000, 1040), launch(8, 8040, 9000)],
        kernels=[kernel(7, 1020, 1040), kernel(8, 9000, 9050)],
    )


def test_a_finding_about_the_hosts_work_names_the_sampled_lines(tmp_path: Path) -> None:
    step = 1_000_000
    begins = [1000 + step * number for number in range(8)]
    path = export(
        tmp_path,
        [domain(DOMAIN, text="Python Periodic Sampling")]
        + [pushed(f"train_step {n}", at, at + step - 10) for n, at in enumerate(begins)]
        + [sample(at + 300_000, stack((LINEAR, 2125), (LOAD, 40), (STEP, 12))) for at in begins],
        calls=[launch(n + 7, at + 600_000, at + 600_500) for n, at in enumerate(begins)],
        kernels=[kernel(n + 7, at + 600_600, at + 610_600) for n, at in enumerate(begins)],
    )
    (finding,) = [one for one in analyze(attribute(load(path))).findings if one.id == "host_work"]
    assert (finding.sources, finding.roles) == (("data/loader.py:40 (load)",), ("line",))
    assert not any("--python-samples" in advice for advice in finding.advice)


def test_a_sample_inside_a_wait_tells_its_line(tmp_path: Path) -> None:
    path = export(
        tmp_path,
        [
            domain(DOMAIN, text="Python Periodic Sampling"),
            sample(3000, stack((STEP, 21))),
            sample(3500, stack((STEP, 21))),
            sample(9000, stack((STEP, 30))),
        ],
        calls=[launch(7, 1000, 1040)]
        + [launch(8 + at // 1000, at, at + 800, name=12) for at in (2900, 4900, 6900)],
        kernels=[kernel(7, 1020, 8000)],
    )
    (site,) = json.loads(to_json(analyze(attribute(load(path)))))["syncs"]
    assert (site["source"], site["count"]) == ("train.py:21 (step)", 3)
    assert site["call"] == "cudaStreamSynchronize"


def test_samples_that_saw_no_line_of_the_users_tell_nothing(tmp_path: Path) -> None:
    """Not even of an autograd thread, which has no samples of its own and follows another."""
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    path = export(
        tmp_path,
        [
            domain(DOMAIN, text="Python Periodic Sampling"),
            sample(3000, stack((LINEAR, 2125))),
            pushed(node, 2000, 9000, globalTid=THREAD + 9),
        ],
        calls=[launch(7, 1000, 1040), launch(8, 2900, 8800, name=12, globalTid=THREAD + 9)],
        kernels=[kernel(7, 1020, 8000)],
    )
    attribution = attribute(load(path))
    assert attribution.autograd.any()
    found = json.loads(to_json(analyze(attribution)))
    assert [(site["source"], site["wait_ns"]) for site in found["syncs"]] == [(None, 5900)]
