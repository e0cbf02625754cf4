"""Which runs of the autograd engine have their nodes named, and the marks that say so."""

from __future__ import annotations

from typing import Any

import pytest

from nvprobe.instrumentation import (
    autograd,
    awake,
    collectives,
    compiled,
    copies,
    emitter,
    engine_runs,
    forwards,
    steps,
)
from nvprobe.instrumentation.forwards import make_record
from tests.unit.test_awake import state

torch = pytest.importorskip("torch")

__all__ = ["state"]  # awake, and no followers


@pytest.fixture
def marks(state: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The marks written, while every run of the engine goes through the hook."""
    written: list[str] = []
    monkeypatch.setattr(emitter, "mark", lambda label: written.append(emitter.name_of(label)))
    monkeypatch.setattr(autograd._hooks, "active", True)
    monkeypatch.setattr(autograd, "_begin", lambda _torch: lambda: None)
    monkeypatch.setattr(engine_runs, "_signatures", None)
    monkeypatch.setattr(forwards, "root_called", emitter.nobody)
    for module in (torch.autograd, torch.autograd.graph):
        wrapped = autograd._run_backward(module._engine_run_backward)
        monkeypatch.setattr(module, "_engine_run_backward", wrapped)
    return written


class Net(torch.nn.Linear):
    """A root module."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def __call__(self, *args: Any) -> Any:
        record = make_record("Net", None, emitter.label("Net", emitter.Category.MODULE))
        return forwards.call(torch.nn.Linear.forward, record, self, args, {})


def run(net: Net, rows: int = 2, **arguments: Any) -> None:
    net(torch.ones(rows, 4)).sum().backward(**arguments)
    net.weight.grad = None


def begun(marks: list[str]) -> list[str]:
    """The marks of begins, without their common words; each has its end."""
    assert marks[1::2] == ["nvprobe engine run ends"] * (len(marks) // 2)
    return [mark.removeprefix("nvprobe engine run ") for mark in marks[::2]]


def test_nobody_marks_runs_before_a_recorder_records(marks):
    run(Net())
    assert marks == []


def test_a_name_imported_from_another_module_is_not_replaced_twice():
    wrapped = autograd._run_backward(torch.autograd.graph._engine_run_backward)
    assert autograd._run_backward(wrapped) is wrapped


def test_two_runs_of_a_signature_are_named_and_a_few_later_ones(marks):
    engine_runs.recording()
    net = Net()
    for _ in range(65):
        run(net)
    named = [at for at, mark in enumerate(begun(marks), 1) if mark.endswith("named")]
    assert named == [1, 2, 64]


def test_what_differs_has_a_signature_of_its_own(marks):
    engine_runs.recording()
    net = Net()
    run(net)
    run(net, rows=3)
    run(net.eval())
    run(net.train(), retain_graph=True)
    net(torch.ones(2, 4)).sum().backward()
    net(torch.ones(2, 4)).sum().backward()  # adds to gradients
    run(Net())
    assert begun(marks) == [f"{n} named" for n in (0, 1, 2, 3, 0, 4, 5)]


def test_a_run_without_a_root_module_is_always_named(marks):
    engine_runs.recording()
    for _ in range(4):
        torch.ones(2, requires_grad=True).sum().backward()
    assert marks == []


def test_a_second_run_of_one_forward_pass_is_known_by_the_first(marks):
    engine_runs.recording()
    net = Net()
    for _ in range(3):
        loss = net(torch.ones(2, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        net.weight.grad = None
    assert begun(marks) == ["0 named", "1 named", "0 named", "1 named", "0", "1"]


def test_modules_have_rows_only_where_nodes_are_named(marks):
    """A row leads from the name of a node to its module."""
    net, engine_rows = Net(), []

    def train(rows: int, **arguments: Any) -> None:
        made = net(torch.ones(rows, 4)).sum()
        engine_rows.append(steps.threads.here.rows)
        made.backward(**arguments)
        net.weight.grad = None
        assert steps.threads.here.rows, "modules that are called again in the pass have theirs"

    engine_runs.recording()
    for _ in range(65):
        train(2)
    named = [one.endswith(" named") for one in begun(marks)]
    assert engine_rows == named == [run in engine_runs.NAMED for run in range(1, 66)]

    # Nobody could know that this pass differs from the 65 after the same call: its first run has
    # no rows and so no names, the next two have both.
    del marks[:], engine_rows[:]
    for _ in range(4):
        train(2, retain_graph=True)
    assert begun(marks) == ["1", "1 named", "1 named", "1"]
    assert engine_rows == [False, True, True, False]

    del marks[:], engine_rows[:]
    train(3)
    assert begun(marks) == ["2 named"]
    assert engine_rows == [True]


def test_beside_compiled_graphs_modules_have_all_rows(marks):
    """The range of a graph's backward pass has the number of a node, in runs without names, too."""
    net = Net()
    engine_runs.recording()
    for _ in range(5):
        made = net(torch.ones(2, 4)).sum()
        compiled.graph_called("graph", [])
        assert steps.threads.here.rows
        made.backward()
        net.weight.grad = None


def test_modules_have_rows_again_after_a_window(marks):
    net = Net()
    engine_runs.recording()
    for _ in range(3):
        run(net)
    net(torch.ones(2, 4))
    assert not steps.threads.here.rows
    awake.sleep()
    assert steps.threads.here.rows


def test_a_run_inside_a_node_is_part_of_that_nodes_run(marks):
    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                torch.ones(2, requires_grad=True).sum().backward()
            return gradient

    engine_runs.recording()
    Reentrant.apply(Net()(torch.ones(2, 4))).sum().backward()
    assert begun(marks) == ["0 named"]


def test_asleep_everything_is_forgotten(marks):
    engine_runs.recording()
    net = Net()
    for _ in range(3):
        run(net)
    awake.sleep()
    run(net)
    awake.wake()
    run(net)
    assert begun(marks) == ["0 named", "0 named", "0"]
    assert forwards.root_called is emitter.nobody


def test_another_profiler_has_the_nodes_for_itself(marks):
    engine_runs.recording()
    with torch.autograd.profiler.profile():
        run(Net())
    assert marks == []


def test_a_torch_without_the_run_under_way_runs_all_the_same(marks, monkeypatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    engine_runs.recording()
    run(Net())
    assert marks == []
    assert not autograd._hooks.active


def test_what_cannot_be_compared_is_always_named(marks):
    class Shapeless(torch.Tensor):
        @property
        def shape(self) -> Any:
            raise RuntimeError("no shape")

    engine_runs.recording()
    net = Net()
    for _ in range(4):
        net(torch.ones(2, 4).as_subclass(Shapeless)).sum().as_subclass(torch.Tensor).backward()
        net.weight.grad = None
    assert all(mark.endswith("named") for mark in begun(marks))


def test_weights_that_were_computed_are_not_asked_for_their_gradient(recwarn, marks):
    """functional_call runs a module with such weights; torch warns who asks for their gradient."""
    engine_runs.recording()
    net = Net()
    weights = {name: one * 2 for name, one in net.named_parameters()}
    torch.func.functional_call(net, weights, (torch.ones(2, 4),)).sum().backward()
    assert begun(marks) == ["0 named"]
    assert [str(one.message) for one in recwarn] == []


def test_a_program_that_ends_the_profiler_itself_goes_on(marks, monkeypatch):
    def ended() -> None:
        raise RuntimeError("can't disable Kineto profiler when it's not running")

    monkeypatch.setattr(autograd, "_begin", lambda _torch: ended)
    engine_runs.recording()
    net = Net()
    net(torch.ones(2, 4)).sum().backward()
    assert net.weight.grad is not None
    assert begun(marks)


def test_subclasses_of_tensors_are_not_asked(marks: list[str]):
    asked: list[str] = []

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, *given: Any, **kwargs: Any) -> Any:
            asked.append(function.__name__)
            return super().__torch_function__(function, *given, **kwargs)

    copy = copies._copying(torch.Tensor.to)
    engine_runs.recording()
    net, given = Net(), torch.ones(2, 4).as_subclass(Own)
    loss = net(copy(given, torch.float32)).sum()
    torch.autograd.backward(loss)
    assert not {"__get__", "numel", "element_size"} & set(asked)
    assert collectives._size((given,), {}) == 32
    assert "numel" not in asked
