"""Reading torch's explanations of graph breaks and recompiles; the texts are torch's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.instrumentation import breaks, sidecar
from nvprobe.instrumentation.provenance import _apart, _relative, _source

NEW = """Graph break in user code at /home/ann/proj/train.py:25
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Failed to trace builtin operator
  Explanation: Dynamo does not know how to trace builtin operator `print`.

User code traceback:
  File "/home/ann/proj/train.py", line 30, in <module>
    f(torch.ones(3),1)
  File "/home/ann/proj/train.py", line 25, in f
    print("hi")

Traceback (most recent call last):
  File "/usr/lib/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
"""  # noqa: E501 - torch's own line
OLD = """Graph break in user code at /home/ann/proj/train.py:25
Reason: Unsupported: builtin: print [<class 'ConstantVariable'>] False
User code traceback:
  File "/home/ann/proj/train.py", line 25, in f
    print("hi")

Traceback (most recent call last):
  File "/usr/lib/torch/_dynamo/symbolic_convert.py", line 516, in wrapper
"""
SKIP = """Graph break: torch.compile cannot properly resume from this graph break, which results in a skip.
torch.compile will skip tracing the frame f (/home/ann/proj/train.py line 22) and fall back to eager.
The graph break occurred in the following user code:
  File "/home/ann/proj/train.py", line 23, in f
    with open(path):

Traceback (most recent call last):
  File "/usr/lib/torch/_dynamo/symbolic_convert.py", line 516, in wrapper
"""  # noqa: E501


WITHIN = """Graph break in user code at /venv/lib/site-packages/torch/optim/optimizer.py:79
Graph Break Reason: Call to `torch._dynamo.graph_break()`

User code traceback:
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "{nvprobe}/instrumentation/bootstrap.py", line 62, in _run_script
    exec(code, module.__dict__)
  File "/home/ann/proj/train.py", line 30, in <module>
    model(x)
  File "/home/ann/proj/train.py (as importlib._bootstrap)", line 20, in forward
  File "{nvprobe}/instrumentation/phases.py", line 289, in _run_root
    return forwards.call(original, record, module, args, kwargs)
  File "/home/ann/proj/train.py", line 25, in forward
    self.optimizer.step()
  File "/venv/lib/site-packages/torch/optim/optimizer.py", line 79, in _use_grad
    torch._dynamo.graph_break()
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = []
    monkeypatch.setattr(sidecar, "write", lambda kind, **fields: lines.append((kind, fields)))
    monkeypatch.setattr(breaks.torch_hooks, "compile_id", lambda: "3/1")
    monkeypatch.chdir("/")
    return lines


@pytest.mark.parametrize(
    ("text", "line", "reason", "depth"),
    [(NEW, 25, "Encountered graph break", 2), (OLD, 25, "Unsupported: builtin: print", 1)],
)
def test_graph_break(written, text, line, reason, depth):
    breaks._graph_break(text)
    ((kind, fields),) = written
    assert kind == "graph_break"
    assert fields["compile_id"] == "3/1"
    assert fields["source"] == f"ann/proj/train.py:{line}"
    assert fields["function"] == "f"
    assert fields["reason"].startswith(reason)
    assert "traceback" not in fields["reason"].lower()
    assert len(fields["stack"]) == depth
    assert fields["stack"][0] == "ann/proj/train.py:25 f"
    assert "/home" not in json.dumps(fields)


def test_graph_break_that_skips_the_frame(written):
    breaks._graph_break(SKIP)
    ((_, fields),) = written
    assert fields["source"] == "ann/proj/train.py:23"
    assert "results in a skip" in fields["reason"]
    assert "/home" not in json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4",
            ("0/1", "tensor 'x' size mismatch at index 0. expected 3, actual 4", None),
        ),
        (
            "0/0: k == 1                      # x=x+k  # mp/brk.py:24 in f\nUser stack trace:\n"
            '  File "/tmp/brk.py", line 24, in f\n    x=x+k',
            ("0/0", "k == 1", "tmp/brk.py:24 f"),
        ),
        (
            "1/0: G['SCALE'] == 1   # x=x*SCALE  # proj/brk.py:26 in f",
            ("1/0", "G['SCALE'] == 1", "proj/brk.py:26 f"),
        ),
        ("unknown", (None, "unknown", None)),
    ],
)
def test_recompile_reason(text, expected, monkeypatch):
    monkeypatch.chdir("/")
    reason = breaks._reason(text)
    assert (reason["failed"], reason["guard"], reason["source"]) == expected


def test_long_reasons_are_cut():
    assert len(breaks._clean("x" * 10_000)) == breaks.REASON_LIMIT + 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("L['self'].blocks.0.fc1", ("self", "blocks.0.fc1")),
        ("L['self']._modules['blocks']._modules['0'].fc1", ("self", "blocks.0.fc1")),
        ("L['self'].blocks[0].fc1", ("self", "blocks.0.fc1")),
        ('G["net"]._orig_mod.fc1', ("net", "fc1")),
        ("L['fn'].__closure__[0].cell_contents.fc1", ("fn", "fc1")),
        ("L['self']", ("self", "")),
        ("blocks.0", ("", "blocks.0")),
    ],
)
def test_module_paths(path, expected):
    assert _apart(path) == expected


def kernels(*paths):
    return [{"nodes": [{"module": [path, "Linear"]} for path in paths] + [{"module": None}]}]


def test_one_root_is_left_out_and_several_stay():
    (one,) = _relative(kernels("L['self'].a", "L['self']"))
    assert [node["module"] for node in one["nodes"]] == [["a", "Linear"], ["", "Linear"], None]
    (two,) = _relative(kernels("G['actor'].fc", "G['critic'].fc"))
    assert [node["module"][0] for node in two["nodes"][:2]] == ["actor.fc", "critic.fc"]


def test_innermost_frame_of_a_stack_trace(monkeypatch):
    monkeypatch.chdir("/")
    trace = (
        ' File "/home/ann/proj/a.py", line 3, in forward\n    return self.head(x)\n'
        ' File "/home/ann/proj/b.py", line 7, in block\n    y = f(x)\n'
    )
    assert _source(trace) == "ann/proj/b.py:7 block"
    assert _source(None) is None


def test_a_break_within_torch_has_the_programs_line_and_no_frames_of_ours(written):
    breaks._graph_break(WITHIN.replace("{nvprobe}", str(Path(breaks.__file__).parents[1])))
    ((_, fields),) = written
    assert fields["source"] == "ann/proj/train.py:25"
    assert fields["function"] == "forward"
    assert fields["stack"] == ["ann/proj/train.py:25 forward", "ann/proj/train.py:30 <module>"]


def test_a_break_without_a_line_of_the_program_keeps_torchs(written):
    text = WITHIN.replace("/home/ann/proj/train.py", "/venv/lib/site-packages/torch/a.py")
    breaks._graph_break(text.replace("{nvprobe}", str(Path(breaks.__file__).parents[1])))
    ((_, fields),) = written
    assert fields["source"] == "torch/optim/optimizer.py:79"
    assert fields["stack"][0] == "torch/optim/optimizer.py:79 _use_grad"
