"""The emitter: what a tool sees, and what happens where none listens."""

from __future__ import annotations

import pytest

from nvprobe.errors import UsageError
from nvprobe.instrumentation import emitter
from tests.nvtx_recorder import Recorder

EVERY_CATEGORY = """
    from nvprobe.instrumentation import emitter
    from nvprobe.instrumentation.emitter import Category
    assert emitter.listening()
    for category in Category:
        emitter.push(emitter.label(category.value + " range", category, 7))
        emitter.mark(emitter.label(category.value + " mark", category))
        emitter.pop()
    assert emitter.label("a", Category.USER) is emitter.label("a", Category.USER)
    assert emitter.name_of(emitter.label("a", Category.USER)) == "a"
"""


def test_every_category_reaches_the_tool(recorder: Recorder):
    recording = recorder.run(EVERY_CATEGORY)
    ranges = recording.ranges()
    assert [(one.name, one.category, one.payload) for one in ranges] == [
        (f"{category.value} range", category.value, 7) for category in emitter.Category
    ]
    assert [(one.text, one.category) for one in recording.marks()] == [
        (f"{category.value} mark", category.value) for category in emitter.Category
    ]
    assert {event.domain for event in recording.events} == {"nvprobe"}


def test_off_writes_nothing_even_with_a_tool(recorder: Recorder):
    code = """
        from nvprobe.instrumentation import emitter
        assert not emitter.listening()
        emitter.push(emitter.label("x", emitter.Category.USER))
        emitter.pop()
    """
    assert recorder.run(code, NVPROBE_EMITTER="off").ranges() == []


def test_unknown_backend_in_the_environment_is_said_and_nvtx_used(recorder: Recorder):
    code = """
        from nvprobe.instrumentation import emitter
        assert emitter.listening()
    """
    recording = recorder.run(code, NVPROBE_EMITTER="nvtxx")
    assert "NVPROBE_EMITTER=nvtxx is unknown" in recording.completed.stderr


def test_missing_nvtx_is_a_no_op(recorder: Recorder):
    code = """
        import sys
        sys.modules["nvtx"] = None
        from nvprobe.instrumentation import emitter
        assert not emitter.listening()
        emitter.push(emitter.label("x", emitter.Category.USER, 3))
        emitter.mark(emitter.label("x", emitter.Category.SYNC))
        emitter.pop()
        assert emitter.name_of(emitter.label("x", emitter.Category.USER)) == "x"
    """
    assert recorder.run(code).events == []


def test_neither_torch_nor_tables_are_imported(recorder: Recorder):
    code = """
        import sys
        sys.modules.update(dict.fromkeys(("torch", "pandas", "pyarrow", "adbc_driver_sqlite")))
        import nvprobe.instrumentation.emitter, nvprobe.instrumentation.sidecar, nvprobe.placement
    """
    recorder.run(code)


def test_use_refuses_an_unknown_backend():
    with pytest.raises(UsageError, match="use nvtx, record_function or off"):
        emitter.use("cupti")  # type: ignore[arg-type]


def test_record_function_scopes_appear_in_a_torch_profile(torch_recorder: Recorder):
    pytest.importorskip("torch")
    code = """
        import torch
        from torch.profiler import ProfilerActivity, profile
        from nvprobe.instrumentation import emitter
        outer = emitter.label("outer", emitter.Category.USER)
        inner = emitter.label("inner", emitter.Category.MODULE, 3)
        emitter.push(outer)            # before the profiler runs: balanced, not recorded
        assert not emitter.listening()
        with profile(activities=[ProfilerActivity.CPU]) as run:
            assert emitter.listening()
            emitter.push(inner)
            torch.ones(3).sum()
            emitter.mark(outer)
            emitter.pop()
        emitter.pop()
        names = [event.name for event in run.events()]
        assert names.count("inner") == 1 and names.count("outer") == 1, names
        inner_event = next(event for event in run.events() if event.name == "inner")
        assert "aten::sum" in [child.name for child in inner_event.cpu_children]
    """
    torch_recorder.run(code, NVPROBE_EMITTER="record_function")


def test_a_phase_in_a_range_of_its_name_is_one_scope(torch_recorder: Recorder):
    pytest.importorskip("torch")
    code = """
        import json
        from pathlib import Path
        from torch.profiler import ProfilerActivity, profile
        from nvprobe.instrumentation import emitter
        user = emitter.label("forward", emitter.Category.USER)
        phase = emitter.label("forward", emitter.Category.PHASE)
        other = emitter.label("loss", emitter.Category.PHASE)
        with profile(activities=[ProfilerActivity.CPU]) as run:
            for label in (user, phase, other, phase, user, user):
                emitter.push(label)    # recursion is the program's own: both stay
            for _ in range(6):
                emitter.pop()
            emitter.push(phase)
            emitter.pop()
        run.export_chrome_trace("trace.json")  # run.events() drops doubled names itself
        events = json.loads(Path("trace.json").read_text())["traceEvents"]
        names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
        assert names.count("forward") == 5 and names.count("loss") == 1, names
    """
    torch_recorder.run(code, NVPROBE_EMITTER="record_function")


def test_scopes_are_in_no_graph_and_no_mode_of_the_program(torch_recorder: Recorder):
    code = """
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode
        from nvprobe.instrumentation import emitter
        label = emitter.label("scope", emitter.Category.USER)
        def ranged(x):
            emitter.push(label)
            x = x + 1
            emitter.pop()
            return x
        seen = []
        class Dispatched(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))
        class Called(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function.__name__)
                return function(*args, **(kwargs or {}))
        x = torch.ones(1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for mode in (Dispatched(), Called()):
                with mode:
                    ranged(x)
            graphs = torch.jit.trace(ranged, x, check_trace=False).code, make_fx(ranged)(x).code
        assert seen == ["aten.add.Tensor", "add"], seen
        assert not any("record" in graph for graph in graphs), graphs
        print(sum(event.count for event in profile.key_averages() if event.key == "scope"))
    """
    scopes = torch_recorder.run(code, NVPROBE_EMITTER="record_function").stdout
    assert int(scopes) >= 3, "those of the modes and of make_fx"
