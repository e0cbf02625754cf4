"""torch.profiler traces: exact times, kinds by category, and what is kept of broken files."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.errors import InputError
from nvprobe.merging.load import load
from nvprobe.readers.kineto import MergedRanks, load_kineto
from nvprobe.readers.kineto.events import (
    InexactTimes,
    copy_of,
    nanoseconds,
    nanoseconds_of_text,
    short_kernel,
)
from nvprobe.readers.kineto.metadata import rank_of
from nvprobe.readers.kineto.stream import PIECE
from nvprobe.trace import NO_NAME, OpKind, RangeSource
from tests.conftest import examples

BASE = 1_790_857_026_000_000_000


def event(cat: str, name: str, ts: str, dur: str = "1.000", tid: int = 7, **args: Any) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": 7, "tid": {tid}, '
        f'"ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'
    )


def document(*events: str, **keys: Any) -> str:
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, **keys}
    return json.dumps(head)[:-1] + ', "traceEvents": [' + ",\n".join(events) + "]}"


EVENTS = (
    event("user_annotation", "step 3", "1000000.001", "500.250"),
    event(
        "cpu_op",
        "aten::mm",
        "1000001.002",
        "20.000",
        **{
            "External id": 5,
            "Sequence number": 9,
            "Fwd thread id": 0,
            "Input Dims": [[2, 3], [3, 4]],
            "Input type": ["float", "float"],
        },
    ),
    event("python_function", "nn.Module: Linear_0", "1000000.500", "30.000"),
    event("python_function", "train.py(12): forward", "1000000.400", "31.000"),
    event("cuda_runtime", "cudaLaunchKernel_v7000", "1000002.100", "3.003", correlation=4),
    event(
        "kernel",
        "void a::gemm<int>(float*)",
        "1000010.750",
        "0.768",
        tid=9,
        device=0,
        context=1,
        stream=9,
        correlation=4,
        grid=[2, 3, 4],
        block=[128, 1, 1],
    ),
    event(
        "gpu_memcpy",
        "Memcpy HtoD (Pinned -> Device)",
        "1000020.000",
        "2.000",
        tid=9,
        device=0,
        context=1,
        stream=9,
        correlation=5,
        bytes=4096,
    ),
    event("gpu_user_annotation", "step 3", "1000010.750", "11.000", tid=9, device=0, stream=9),
)


def write(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_each_category_becomes_what_it_is(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*EVENTS)))
    assert trace.ops.kind.tolist() == [OpKind.KERNEL, OpKind.MEMCPY]
    assert trace.texts(trace.ops.name) == ["void a::gemm<int>(float*)", "Memcpy HtoD"]
    assert trace.texts(trace.ops.short_name) == ["gemm", "Memcpy HtoD"]
    assert trace.ops.source_memory.tolist() == [-1, 2]
    sources = [RangeSource.ANNOTATION, RangeSource.MODULE, RangeSource.OPERATOR]
    assert trace.ranges.source.tolist() == sources
    assert trace.texts(trace.ranges.name) == ["step 3", "Linear_0", "aten::mm"]
    assert trace.operators.range.tolist() == [2]
    assert trace.text(trace.operators.shapes[0]) == "[[2, 3], [3, 4]]"
    assert trace.texts(trace.calls.name) == ["cudaLaunchKernel"]
    assert not trace.frames.recorded


def test_times_are_exact_and_small(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*EVENTS)))
    assert trace.ranges.start[0] == 1_000_000_001 - 1_000_000_000
    assert (trace.ops.start[0], trace.ops.end[0]) == (10_750, 11_518)
    assert trace.origin_ns == BASE + 1_000_000_000
    assert (trace.start_ns, trace.end_ns) == (1, 500_251)


def test_python_frames_come_on_demand(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*EVENTS)), python_stacks=True)
    assert trace.texts(trace.frames.name) == ["train.py(12): forward"]
    assert len(trace.ranges) == 3


def test_absolute_times_keep_their_digits(tmp_path: Path) -> None:
    late = event("kernel", "k", "1712195495505543.168", "1.001", device=0, stream=7, correlation=1)
    trace = load_kineto(write(tmp_path, "[" + late + "]"))
    assert trace.ops.start[0] + trace.origin_ns == 1_712_195_495_505_543_168
    assert trace.ops.end[0] - trace.ops.start[0] == 1001


@given(st.lists(st.integers(0, (1 << 43) * 1000 - 1), min_size=1))
def test_floats_hold_nanoseconds_below_their_limit(values: list[int]) -> None:
    texts = [f"{v // 1000}.{v % 1000:03}" for v in values]
    assert nanoseconds([float(text) for text in texts]).tolist() == values


@given(st.lists(st.integers(0, 9 * 10**18), min_size=1))
def test_texts_hold_nanoseconds_always(values: list[int]) -> None:
    texts = [f"{v // 1000}.{v % 1000:03}".encode() for v in values]
    assert nanoseconds_of_text(texts).tolist() == values


def test_a_float_too_large_is_refused_an_integer_is_not() -> None:
    with pytest.raises(InexactTimes):
        nanoseconds([1712195495505543.2])
    assert nanoseconds([1712195495505543]).tolist() == [1712195495505543000]


def test_texts_beyond_nanoseconds_and_in_other_notation() -> None:
    assert nanoseconds_of_text([b"1.5e3", b'"2.0004"', b"7"]).tolist() == [1_500_000, 2000, 7000]


def small_trace(count: int) -> tuple[str, list[int]]:
    events, starts = [], []
    for row in range(count):
        starts.append(5_000_000_000 + row * 1234)
        ts = f"{starts[-1] // 1000}.{starts[-1] % 1000:03}"
        events.append(
            event("kernel", f"k{row % 5}", ts, "0.500", device=0, stream=7, correlation=row + 1)
        )
    return document(*events), starts


@examples(60)
@given(cut=st.integers(1, 4000), packed=st.booleans())
def test_truncation_anywhere_keeps_every_event_before_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int, packed: bool
) -> None:
    text, starts = small_trace(24)
    whole = gzip.compress(text.encode(), 0, mtime=0) if packed else text.encode()
    path = write(tmp_path_factory.mktemp("cut"), whole[: min(cut, len(whole) - 20)])
    plain = text.encode()[: max(min(cut, len(whole) - 20) - 15 * packed, 0)]
    complete = plain.count(b'"block_end"') or plain.count(b"}},") + plain.endswith(b"}}")
    if complete == 0:
        with pytest.raises(InputError, match=r"trace\.json: "):
            load_kineto(path)
        return
    trace = load_kineto(path)
    kept = (trace.ops.start + trace.origin_ns - BASE).tolist()
    assert kept == starts[: len(kept)]
    assert abs(len(kept) - complete) <= 1  # gzip's stored blocks shift the cut by their headers
    assert any("truncated" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (lambda t: t.replace("step 3", "step\x01 3", 1), "step\x01 3"),
        (lambda t: t.replace("step 3", 'step "x" 3', 1), 'step "x" 3'),
        (lambda t: t.replace("step 3", r"C:\dir \step", 1), "C:\\dir \\step"),
    ],
)
def test_a_broken_name_is_repaired(tmp_path: Path, fault: Any, name: str) -> None:
    trace = load_kineto(write(tmp_path, fault(document(*EVENTS))))
    assert trace.text(trace.ranges.name[0]) == name
    assert len(trace.ops) == 2
    assert any("repaired 1 event of" in warning for warning in trace.warnings)


def test_invalid_utf8_is_repaired(tmp_path: Path) -> None:
    text = document(*EVENTS).encode().replace(b"step 3", b"step\xff 3", 1)
    trace = load_kineto(write(tmp_path, text))
    assert trace.text(trace.ranges.name[0]) == "step\ufffd 3"
    assert any("repaired 1 event of" in warning for warning in trace.warnings)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "inf", "-nan"])
def test_a_number_that_is_none_costs_no_event(tmp_path: Path, number: str) -> None:
    """As Python and C++ write them; the name of such a kernel stays what it is."""
    text = document(*EVENTS).replace('"stream": 9', f'"occupancy": {number}, "stream": 9', 1)
    text = text.replace("gemm<int>", "gemm NaN <int>")
    trace = load_kineto(write(tmp_path, text))
    assert trace.texts(trace.ops.name) == ["void a::gemm NaN <int>(float*)", "Memcpy HtoD"]
    assert trace.ops.stream.tolist() == [9, 9]
    assert trace.ops.correlation.tolist() == [4, 5]
    assert any("repaired 1 event of invalid JSON" in warning for warning in trace.warnings)
    assert not any("lost" in warning for warning in trace.warnings)


def test_half_a_surrogate_pair_costs_a_character(tmp_path: Path) -> None:
    text = document(*EVENTS).replace("step 3", r"\ud800 \ud83d\ude00 \\ud800 \udc00", 1)
    trace = load_kineto(write(tmp_path, text))
    assert trace.text(trace.ranges.name[0]) == "\ufffd \U0001f600 \\ud800 \ufffd"
    assert any("repaired 1 event of" in warning for warning in trace.warnings)


@pytest.mark.parametrize("close", ["]", ""])
def test_what_is_nested_too_deeply_is_lost_and_counted(tmp_path: Path, close: str) -> None:
    deep = "[" * 50_000 + close * 50_000
    text = document(*EVENTS).replace('"grid": [2, 3, 4]', f'"odd": {deep}', 1)
    trace = load_kineto(write(tmp_path, text))
    assert trace.ops.kind.tolist() == [OpKind.MEMCPY]
    assert trace.sources[0].lost_events == 1


def test_a_comma_after_the_last_event_loses_nothing(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*EVENTS)[:-2] + ",\n]}"))
    assert len(trace.ops) == 2
    assert trace.warnings == ()


def test_an_unreadable_event_is_lost_and_counted(tmp_path: Path) -> None:
    text = document(*EVENTS).replace('"ts": 1000010.750', '"ts": 10000,10.', 1)
    trace = load_kineto(write(tmp_path, text))
    assert trace.ops.kind.tolist() == [OpKind.MEMCPY]
    assert "trace.json: lost 1 broken event that could not be read" in trace.warnings
    assert trace.sources[0].lost_events == 1


@pytest.mark.parametrize("damaged", ['#"ph": "X", ', '{"ph#: "X", ', '{####: "X", ', "####" * 8])
def test_an_event_without_its_beginning_is_lost_and_counted(tmp_path: Path, damaged: str) -> None:
    text = document(*EVENTS)
    at = text.index('{"ph": "X", "cat": "kernel"')
    text = text[:at] + damaged + text[at + len(damaged) :]
    trace = load_kineto(write(tmp_path, text))
    assert trace.ops.kind.tolist() == [OpKind.MEMCPY]
    assert trace.sources[0].lost_events == 1
    assert trace.warnings == ("trace.json: lost 1 broken event that could not be read",)


def test_several_documents_in_one_file_lose_nothing(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*EVENTS[:4]) + document(*EVENTS[4:])))
    assert (len(trace.ops), len(trace.calls), len(trace.operators)) == (2, 1, 1)
    assert trace.sources[0].lost_events == 0
    assert any("several writers" in warning for warning in trace.warnings)


def test_unexpected_argument_types_do_not_lose_the_event(tmp_path: Path) -> None:
    odd = event("cpu_op", "odd", "1000001.002", stream="0x7f", **{"External id": 3})
    trace = load_kineto(write(tmp_path, document(odd, *EVENTS)))
    assert trace.text(trace.ranges.name[-2]) == "odd"
    assert trace.operators.external.tolist() == [3, 5]
    assert trace.warnings == ()


def test_objects_in_arguments_are_no_events(tmp_path: Path) -> None:
    nested = event("cpu_op", "outer", "1000001.002", list=[{"name": "in"}, {"name": "ner"}])
    broken = document(nested, *EVENTS).replace("aten::mm", "aten\x02::mm")
    trace = load_kineto(write(tmp_path, broken))
    assert len(trace.operators) == 2
    assert not any("lost" in warning for warning in trace.warnings)


def test_repeated_events_count_once(tmp_path: Path) -> None:
    twice = write(tmp_path, document(*EVENTS, *EVENTS[:7]))
    trace = load_kineto(twice, python_stacks=True)
    assert (len(trace.ops), len(trace.calls), len(trace.operators)) == (2, 1, 1)
    assert trace.texts(trace.ranges.name) == ["step 3", "Linear_0", "aten::mm"]
    assert len(trace.frames) == 1
    assert any("7 repeated events counted once" in warning for warning in trace.warnings)


def test_equal_ranges_are_no_repetition_by_themselves(tmp_path: Path) -> None:
    nested = [event("user_annotation", "short", "1000001.000", "1.000")] * 2
    trace = load_kineto(write(tmp_path, document(*EVENTS, *nested)))
    assert trace.texts(trace.ranges.name).count("short") == 2
    assert trace.warnings == ()
    again = [event("user_annotation", "one", "1000001.000", "1.000", **{"External id": 3})] * 2
    trace = load_kineto(write(tmp_path, document(*EVENTS, *again)))
    assert trace.texts(trace.ranges.name).count("one") == 1
    assert any("1 repeated event counted once" in warning for warning in trace.warnings)


def test_events_of_unknown_categories_are_told(tmp_path: Path) -> None:
    odd = [event("new_kind", "a", "1000001.000"), event("", "b", "1000002.000")]
    pointing = event("cuda_event", "c", "1000001.000")
    trace = load_kineto(write(tmp_path, document(*EVENTS, *odd, pointing)))
    (told,) = trace.warnings
    assert told.startswith("trace.json: left out 2 events of categories that nvprobe does not know")
    assert told.endswith("know ((none), new_kind)")


def test_calls_of_other_accelerators_launch_kernels(tmp_path: Path) -> None:
    text = document(*EVENTS).replace('"cuda_runtime"', '"xpu_runtime"')
    assert len(load_kineto(write(tmp_path, text)).calls) == 1


def test_impossible_times_stay_out_of_the_window(tmp_path: Path) -> None:
    bad = event("kernel", "k", "0", "0", device=0, stream=7, correlation=8)
    trace = load_kineto(write(tmp_path, document(*EVENTS, bad)))
    assert (trace.ops.start.min(), trace.ops.end.min()) == (0, 0)
    assert trace.start_ns == 1


@pytest.mark.parametrize("text", ["", "{}", '{"traceEvents": []}', "[]", '{"traceEvents": ['])
def test_nothing_is_one_clear_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"^trace\.json: no events of torch\.profiler"):
        load_kineto(write(tmp_path, text))


def test_gzip_under_any_name_and_in_members(tmp_path: Path) -> None:
    text = document(*EVENTS).encode()
    two = gzip.compress(text[:300]) + gzip.compress(text[300:])
    assert len(load_kineto(write(tmp_path, two)).ops) == 2


def test_a_damaged_key_of_the_event_list(tmp_path: Path) -> None:
    text = document(*EVENTS).replace('"traceEvents"', '"traceEv', 1)
    trace = load_kineto(write(tmp_path, text))
    assert len(trace.ops) == 2
    assert trace.origin_ns == BASE + 1_000_000_000


def test_times_beyond_int64_are_no_times(tmp_path: Path) -> None:
    for bad in ("1e300", "99999999999999999999999"):
        odd = event("kernel", "k", bad, device=0, stream=7, correlation=9)
        trace = load_kineto(write(tmp_path, document(*EVENTS, odd)))
        assert sorted(trace.ops.start.tolist())[0] == 0


def test_damaged_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    text, starts = small_trace(4000)
    packed = bytearray(gzip.compress(text.encode(), 6))
    packed[len(packed) // 2] ^= 0xFF
    trace = load_kineto(write(tmp_path, bytes(packed)))
    assert len(starts) // 4 < len(trace.ops) < len(starts)
    assert any("corrupt" in warning for warning in trace.warnings)


def test_a_wrong_checksum_is_told_where_all_was_read(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(document(*EVENTS).encode()))
    packed[-6] ^= 1  # the checksum itself: the last eight bytes are that and the length
    trace = load_kineto(write(tmp_path, bytes(packed)))
    assert len(trace.ops) == 2
    (told,) = trace.warnings
    assert "checksum does not fit" in told
    assert "lost" not in told


def test_pieces_do_not_show(tmp_path: Path) -> None:
    text, starts = small_trace(30_000)
    assert len(text) > 2 * PIECE
    trace = load_kineto(write(tmp_path, text))
    assert (trace.ops.start + trace.origin_ns - BASE).tolist() == starts
    assert trace.warnings == ()


def test_graph_launches_number_their_nodes(tmp_path: Path) -> None:
    launch = event("cuda_runtime", "cudaGraphLaunch", "1.0", correlation=1)
    kernels = [
        event("kernel", "k", f"{2 + n}.0", device=0, stream=7, correlation=1) for n in range(3)
    ]
    trace = load_kineto(write(tmp_path, document(launch, *kernels)))
    assert trace.ops.graph_node.tolist() == [1, 2, 3]


def graph_events(*replayed: str) -> list[str]:
    """A capture of a kernel and a copy, then a replay of ``replayed`` kinds."""
    calls = [
        event("cuda_runtime", "cudaStreamBeginCapture", "1.0", "0.100", correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", "2.0", "0.100", correlation=2),
        event("cuda_runtime", "cudaMemcpyAsync", "3.0", "0.100", correlation=3),
        event("cuda_runtime", "cudaStreamEndCapture", "4.0", "0.100", correlation=4),
        event("cuda_runtime", "cudaGraphLaunch", "5.0", "0.100", correlation=5),
    ]
    ops = [
        event(kind, "k", f"{6 + n}.0", "0.500", device=0, stream=7, correlation=5)
        for n, kind in enumerate(replayed)
    ]
    return calls + ops


def test_replays_lead_to_the_launches_of_their_capture(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(*graph_events("kernel", "gpu_memcpy"))))
    nodes = trace.graph_nodes
    assert nodes.time.tolist() == [2000, 3000]
    kernel, copy = trace.ops.graph_node.tolist()
    assert [kernel, copy] == nodes.node.tolist()


@pytest.mark.parametrize("replayed", [("kernel",), ("gpu_memcpy", "kernel"), ("kernel",) * 3])
def test_other_replays_are_not_guessed(tmp_path: Path, replayed: tuple[str, ...]) -> None:
    trace = load_kineto(write(tmp_path, document(*graph_events(*replayed))))
    assert not trace.graph_nodes.recorded
    assert (trace.ops.graph_node > 0).all()


def test_flows_lead_from_forward_to_backward(tmp_path: Path) -> None:
    begin = (
        '{"ph": "s", "id": 3, "pid": 7, "tid": 7, "ts": 1000001.002, "cat": "fwdbwd", "name": ""}'
    )
    end = '{"ph": "f", "id": 3, "pid": 7, "tid": 8, "ts": 1000300.5, "cat": "fwdbwd", "name": ""}'
    trace = load_kineto(write(tmp_path, document(*EVENTS, end, begin)))
    flows = trace.flows
    assert (flows.time.tolist(), flows.end_time.tolist()) == ([1002], [300_500])
    assert trace.threads.tid[[flows.thread[0], flows.end_thread[0]]].tolist() == [7, 8]


def test_rank_from_the_file_then_from_its_name() -> None:
    assert rank_of({"distributedInfo": {"rank": 3}}, Path("rank_9.json")) == 3
    assert rank_of({}, Path("job.rank_12.json.gz")) == 12
    assert rank_of({}, Path("worker7.1701.pt.trace.json")) == 7
    assert rank_of({}, Path("myrank.json")) == -1


def test_names_of_copies_and_kernels() -> None:
    assert copy_of("Memcpy PtoP (Device -> Device)") == ("Memcpy PtoP", 10, 3, 3)
    assert copy_of("CopyHostToDevice") == ("Memcpy HtoD", 1, -1, -1)
    assert copy_of("MEMORY_COPY_DEVICE_TO_HOST") == ("Memcpy DtoH", 2, -1, -1)
    assert copy_of("CopyDeviceToDevice2D").kind == 8
    assert copy_of("FillBuffer").name == "Memset"
    assert copy_of("CopyNowhere").kind == -1
    lambdas = "void at::native::f<4, g()::{lambda(int)#1}>(int, g()::{lambda(int)#1})"
    assert short_kernel(lambdas) == "f"
    assert short_kernel("void (anonymous namespace)::softmax<float>(float*)") == "softmax"


def test_no_string_is_stored_for_absent_shapes(tmp_path: Path) -> None:
    trace = load_kineto(write(tmp_path, document(event("cpu_op", "a", "1.0"))))
    assert trace.operators.shapes.tolist() == [NO_NAME]
    assert {missing.what for missing in trace.missing} >= {"operator shapes", "GPU work"}


def test_decimal_and_loader_agree_on_the_sum(tmp_path: Path) -> None:
    text, _ = small_trace(50)
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    total = sum(int(e["dur"] * 1000) for e in events)
    ops = load_kineto(write(tmp_path, text)).ops
    assert int(np.sum(ops.end - ops.start)) == total


def merged(label: str, pid: int, device: int, ns: int) -> tuple[str, ...]:
    """A rank as servers merge it: its label before every process id, ids as in the other ranks."""
    call = event("cuda_runtime", "cudaLaunchKernel", "1000002.100", "3.000", correlation=4)
    kernel = event("kernel", "gemm", "1000010.000", f"{ns / 1000:.3f}", device=device,
                   correlation=4, stream=7)  # fmt: skip
    name = {"ph": "M", "name": "process_name", "pid": f"{label} {pid}", "args": {"name": "py"}}
    own = (json.dumps(name), call, kernel.replace('"pid": 7', f'"pid": {device}'))
    return tuple(re.sub(r'"pid": (\d+)', rf'"pid": "{label} \1"', one) for one in own)


@pytest.mark.parametrize("labels", [("[TP00]", "[TP01]"), ("[PP0-TP1]", "[PP1-TP1]", "[DP2]")])
def test_ranks_merged_into_one_file_stay_apart(tmp_path: Path, labels: tuple[str, ...]) -> None:
    """Equal process and correlation ids under different labels are of different processes."""
    events = [
        text for row, one in enumerate(labels) for text in merged(one, 7, row, 1000 * (row + 1))
    ]
    path = write(tmp_path, document(*events))
    with pytest.raises(MergedRanks, match=f"merged traces of {len(labels)} ranks"):
        load_kineto(path)
    whole = load(path)
    assert whole.processes.pid.tolist() == [7] * len(labels)
    assert sorted(whole.texts(whole.processes.name)) == sorted(f"{one} py" for one in labels)
    spent = dict(
        zip(whole.ops.process.tolist(), (whole.ops.end - whole.ops.start).tolist(), strict=True)
    )
    assert sorted(spent.values()) == [1000 * (row + 1) for row in range(len(labels))]
    assert len(whole.ops) == len(whole.calls) == len(labels)
    assert not whole.warnings
