"""What a client measured of its requests, joined with the server's steps."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.inference.client import client_latencies
from nvprobe.attribution import attribute
from nvprobe.errors import InputError
from nvprobe.readers.client_results import ClientResults, load_client_results
from nvprobe.readers.sidecar import merge_sidecars
from nvprobe.readers.sidecar_kinds import read_sidecar
from nvprobe.report.document import to_dict
from nvprobe.trace.sidecar import Sidecar
from tests.unit.analysis.scenes import BF16_GEMM, Scene

US, SHIFT = 1_000, -5_000_000_000


def server() -> tuple[Scene, list[tuple[int, int, bool]]]:
    """A scene, and (begin, end, prefill) of its steps."""
    scene = Scene()
    for number in range(12):
        prefill = number in (0, 6)
        name = f"execute_context_{int(prefill)}({512 * prefill})_generation_3(3)"
        scene.inside(name, lambda: scene.launch(BF16_GEMM, 20 * US))
        scene.host(30 * US)
    return scene, [(r[0], r[1], "context_1" in r[2]) for r in scene.ranges]


def results(random: np.random.Generator, end: int) -> ClientResults:
    start = random.integers(0, end // 2, 40)
    lengths = random.integers(0, 5, 40)
    return ClientResults(
        "client.json",
        start - SHIFT,
        random.integers(1, end, 40),
        np.repeat(np.arange(40), lengths),
        random.integers(0, end // 5, int(lengths.sum())),
    )


def slow(begin: int, end: int, first: bool, steps: list[tuple[int, int, bool]]) -> list[int] | None:
    """The four parts, nanosecond by nanosecond of each step."""
    served = begin
    if first:
        done = [one for one in steps if one[2] and one[1] <= end]
        if not done or done[-1][0] < begin:
            return None
        served = done[-1][0]
    prefill, decode = (
        sum(max(min(end, e) - max(served, s), 0) for s, e, kind in steps if kind == wanted)
        for wanted in (True, False)
    )
    return [served - begin, prefill, decode, end - served - prefill - decode]


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_those_of_a_plain_loop_and_add_up(seed: int) -> None:
    scene, _ = server()
    trace = dataclasses.replace(scene.trace(), sidecar=Sidecar(monotonic=(SHIFT,)))
    analysis = analyze(attribute(trace))
    steps, served = analysis.steps, analysis.inference
    assert served is not None
    listed = [
        (s, e, p in (1, 3))
        for s, e, p in zip(steps.start.tolist(), steps.end.tolist(), _kinds(analysis), strict=True)
    ]
    client = results(np.random.default_rng(seed), trace.end_ns - trace.start_ns)
    first, between = client_latencies(trace, steps, served.rows, client)
    assert first.count
    assert between.count
    begins = (client.start + SHIFT).tolist()
    tokens = [begin + one for begin, one in zip(begins, client.first.tolist(), strict=True)]
    stretches = {
        "first": [(b, e, True) for b, e in zip(begins, tokens, strict=True)],
        "between": [],
    }
    for request, gap in zip(client.request.tolist(), client.gap.tolist(), strict=True):
        stretches["between"].append((tokens[request], tokens[request] + gap, False))
        tokens[request] += gap
    for found, name in ((first, "first"), (between, "between")):
        parts = [
            (e - b, split)
            for b, e, kind in stretches[name]
            if b >= trace.start_ns
            and e <= trace.end_ns
            and (split := slow(b, e, kind, listed)) is not None
        ]
        assert found.count == len(parts)
        assert found.total_ns == sum(length for length, _ in parts)
        assert [found.queue_ns, found.prefill_ns, found.decode_ns, found.gaps_ns] == [
            sum(split[at] for _, split in parts) for at in range(4)
        ]
        assert found.count + found.left_out == len(stretches[name])


def _kinds(analysis) -> list[int]:  # type: ignore[no-untyped-def]
    from nvprobe.attribution.engines import StepPhase

    known = {StepPhase.PREFILL: 1, StepPhase.MIXED: 3}
    return [known.get(StepPhase(one), 0) for one in analysis.steps.phase.tolist()]


def test_a_file_of_the_client_is_read_and_reported(tmp_path: Path) -> None:
    scene, _ = server()
    file = tmp_path / "client.json"
    file.write_text(
        json.dumps(
            {
                "start_times": [5.0, 5.0],
                "ttfts": [0.0001, 0.0],
                "itls": [[0.00005, 0.00006], []],
                "errors": ["", "refused"],
                "completed": 1,
            }
        )
    )
    trace = dataclasses.replace(scene.trace(), sidecar=Sidecar(monotonic=(SHIFT,)))
    analysis = analyze(attribute(trace), client=load_client_results(file))
    first, between = to_dict(analysis)["inference"]["client"]
    assert (first["kind"], first["count"], first["p50_ns"]) == ("first_token", 1, 100_000)
    assert (between["count"], between["total_ns"]) == (2, 110_000)


def test_the_clock_of_the_client_is_joined_by_the_sidecar(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.jsonl"
    lines = [
        {"kind": "header", "schema": "nvprobe.sidecar/1"},
        {"kind": "clock", "unix_ns": 990, "mark_ns": [990, 1_000], "perf_ns": 400},
        {"kind": "clock", "unix_ns": 995},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scene, _ = server()
    trace = dataclasses.replace(scene.trace(), origin_ns=700)
    assert merge_sidecars(trace, [read_sidecar(file)]).sidecar.monotonic == (1_000 - 700 - 400,)


@pytest.mark.parametrize(
    "text",
    [
        '{"completed": 3}',
        "[",
        '{"start_times": [1], "ttfts": [], "itls": []}',
        '{"start_times": [-1], "ttfts": [1], "itls": [[]]}',
    ],
)
def test_another_file_is_refused_with_what_to_give(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(InputError, match="--save-detailed"):
        load_client_results(file)
