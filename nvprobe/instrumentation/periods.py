"""Where a program marks no steps: its periods, found from the calls that make up a step."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import graphs, modules, steps

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("nvprobe")


class Periods:
    """Finds steps: a step is a period of the first optimizer that steps, the leader.

    A step begins with the first of these after the leader's step: a batch is asked for; or, where
    batches do not come once a step, a training forward or a backward. Several backwards (gradient
    accumulation) and several optimizers (a GAN) therefore make one step. Batches asked for while
    the trained model is in evaluation mode are in no step. Where no optimizer has stepped yet, each
    batch that is only evaluated is a step: inference. Without batches each call of the leading
    root module is one, or of the leading compiled graph that is called outside of modules.

    A training step in a CUDA graph runs no optimizer from Python but the first time, in the
    capture: a replay of a graph in whose capture the leader stepped counts as the leader's step.
    In inference a replay of the leading graph does: the first one that is replayed, until another
    is replayed twice without it (one for prefill, then one for each token).

    Only one thread has steps: the main one, or the first other one that trains.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.leader: weakref.ref[Any] | None = None
        self.trained: weakref.ref[Any] | None = None
        self.leader_steps = 0
        self.loads = False
        self.evaluated = False
        self.training_graphs: set[int] = set()
        """Captures in which the leader stepped."""
        self.graph: int | None = None
        """The leading graph of inference."""
        self.others: set[int] = set()
        """Graphs replayed since the leading one."""
        self.evaluating = False
        """A trainer evaluates between the steps of its training (`trainers`)."""
        self.claimed = False
        """Steps of inference are marked by hooks that know them (`inference`)."""
        self.root: int | str | None = None
        """What is called once a step of inference: a root module, by identity, or a compiled graph
        outside of all modules, by its id."""
        self.other_roots: set[int | str] = set()

    def forget(self) -> None:
        """Know nothing of the program, as at the start."""
        self.__init__()  # type: ignore[misc]  # the hooks hold this very object

    def _mine(self, *, trains: bool = False) -> bool:
        if steps.explicit or self.claimed or self.evaluating:
            return False
        here = threading.get_ident()
        if self.thread is None and (trains or here == threading.main_thread().ident):
            self.thread = here
        return self.thread == here

    def _begin(self, *, loads: bool) -> bool:
        begun = steps.begin("optimizer")
        if begun:
            self.leader_steps, self.loads, self.evaluated = 0, loads, False
        return begun

    def data(self) -> bool:
        """A batch is about to be asked for; returns whether a step begins with it."""
        if not self._mine():
            return False
        if self._evaluates():
            steps.end()
            return False
        inference = self.evaluated and self.leader is None
        due = bool(inference or self.leader_steps or not steps.is_open())
        begun = due and self._begin(loads=True)
        self.loads = True
        return begun

    def exhausted(self) -> None:
        """A loader that has no batch left is asked: those that it gave ahead are steps yet."""
        if self._mine():
            self.loads = False

    def _evaluates(self) -> bool:
        """Whether the model that was trained last has been put into evaluation mode."""
        trained = self.trained() if self.trained is not None else None
        return trained is not None and self.leader is not None and not trained.training

    def forward(self, module: nn.Module, training: bool) -> None:
        """A root module is about to be called."""
        if not self._mine(trains=training):
            return
        self.evaluated = not training
        if training:
            self.trained = weakref.ref(module)
        if training or self.graph is not None:
            self._begin_if_due()
        elif _inference_mode() and self._infers(id(module)):
            self._begin(loads=False)

    def compiled(self, graph: str) -> None:
        """A compiled graph is about to be called outside of root modules (gpt-fast's functions).

        Without gradients it infers, as such functions run under ``no_grad`` as often as not.
        """
        if self._mine() and self.graph is None and not _gradients() and self._infers(graph):
            self._begin(loads=False)

    def _infers(self, key: int | str) -> bool:
        """Whether a call without gradients is a step of its own.

        It is where no loader gives batches, for the first that is called, until another is called
        twice without it.
        """
        if self.leader is not None or self.loads:
            return False
        if self.root not in (None, key) and key not in self.other_roots:
            self.other_roots.add(key)
            return False
        self.root = key
        self.other_roots.clear()
        return True

    def backward(self) -> None:
        """A backward is about to run."""
        if self._mine(trains=True):
            self._begin_if_due()

    def _begin_if_due(self) -> None:
        """Begin a step for which no batch was asked for."""
        if not steps.is_open() or self._lapsed():
            self._begin(loads=False)

    def _lapsed(self) -> bool:
        """Whether a new step is due though no batch was asked for.

        A loader that gave this step its batch is waited for once; when the leader steps a second
        time, batches evidently come from elsewhere.
        """
        return self.leader_steps > (1 if self.loads else 0)

    def optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        if not self._mine(trains=True):
            return
        leader = self.leader() if self.leader is not None else None
        if leader is None:
            leader = optimizer
            self.leader = weakref.ref(optimizer)
            self.trained = self.trained or _model_of(optimizer)
            self.graph = None
        if leader is optimizer:
            self.leader_steps += 1
            if capture := graphs.capturing():
                self.training_graphs.add(capture)

    def replay(self, graph: int) -> None:
        """The program is about to replay a CUDA graph."""
        if self._mine() and self._leads(graph):
            self._begin_if_due()
            self.leader_steps += 1

    def _leads(self, graph: int) -> bool:
        """Whether a replay of this graph counts as the leader's step."""
        if graph in self.training_graphs or self.leader is not None:
            return graph in self.training_graphs
        if self.graph not in (None, graph) and graph not in self.others:
            self.others.add(graph)
            return False
        self.graph = graph
        self.others.clear()
        return True


def _inference_mode() -> bool:
    """Whether the thread computes under ``torch.inference_mode``."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.is_inference_mode_enabled())


def _gradients() -> bool:
    """Whether the thread records gradients."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def _model_of(optimizer: Any) -> weakref.ref[Any] | None:
    """The model whose parameters an optimizer has, among those that were called.

    For programs that train by calling a part of it and evaluate by calling the whole.
    """
    try:
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for root in list(modules.annotated_roots.values()):
            if any(id(one) in held for one in root.parameters()):
                return weakref.ref(root)
    except Exception as error:  # the program's own optimizer, its own way to list parameters
        log.debug("the model of an optimizer is not known: %r", error)
    return None


periods = Periods()
"""Those of this process."""
