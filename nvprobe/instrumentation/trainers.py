"""What trainers do beside their steps: evaluation, checkpoints and epochs.

Lightning, the Trainer of transformers and Accelerate own the program's loop or its saving. Their
evaluation inside a training is a phase in no step; on its own, each of its batches is a step, as in
any program that only evaluates. A checkpoint is a phase, `torch.save` of any program included. An
epoch is an NVTX span: a range around steps would give the steps of a window that begins inside an
epoch another path than the later ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from nvprobe.instrumentation import awake, emitter, steps
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.hooks import Hooks, around
from nvprobe.instrumentation.periods import periods

log = logging.getLogger("nvprobe")
_hooks = Hooks("phases of trainers")
EVALUATION = emitter.label("evaluation", Category.PHASE)
CHECKPOINT = emitter.label("checkpoint", Category.PHASE)


HOOKS = (
    ("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop.run"),
    ("lightning.pytorch.loops.fit_loop", "_FitLoop.advance"),
    ("lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint"),
    ("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop.run"),
    ("pytorch_lightning.loops.fit_loop", "_FitLoop.advance"),
    ("pytorch_lightning.trainer.trainer", "Trainer.save_checkpoint"),
    ("transformers.trainer", "Trainer.evaluate"),
    ("transformers.trainer", "Trainer._save_checkpoint"),
    ("transformers.trainer_callback", "CallbackHandler.on_epoch_begin"),
    ("transformers.trainer_callback", "CallbackHandler.on_epoch_end"),
    ("accelerate.accelerator", "Accelerator.save_state"),
)
"""Functions of the packages that are replaced; `torch.save` besides."""


class _Here(threading.local):
    """Whether the thread writes a checkpoint: those of trainers call `torch.save`."""

    saving = False


_here = _Here()
_epoch: Any = None
"""The open span of an epoch, of the trainer that has begun one."""


def install() -> None:
    """Give these functions their phases, now or when they are imported."""
    if not _hooks.begin():
        return
    for module, name in HOOKS:
        _hooks.replace(module, name, _WRAPPERS[name])
    _hooks.replace("torch", "save", _checkpoint)
    _hooks.replace("torch.distributed.checkpoint", "save", _checkpoint, optional=True)


def uninstall() -> None:
    """Give the packages their functions back."""
    _hooks.undo()


@around
def _checkpoint(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The same, as one phase."""
    if _here.saving or not awake.now:
        return original(*args, **kwargs)
    _here.saving = True
    emitter.push(CHECKPOINT)
    try:
        return original(*args, **kwargs)
    finally:
        emitter.pop()
        _here.saving = False


@around
def _lightning_evaluation(
    original: Callable[..., Any], loop: Any, *args: Any, **kwargs: Any
) -> Any:
    """``_EvaluationLoop.run``: of a fit, its check at the start included, or on its own."""
    state = getattr(getattr(loop, "trainer", None), "state", None)
    trains = getattr(state, "fn", None) == "fit"
    return _evaluate(original, trains, loop, *args, **kwargs)


@around
def _trainer_evaluation(
    original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any
) -> Any:
    """``Trainer.evaluate``, of a training or on its own."""
    return _evaluate(original, getattr(trainer, "is_in_train", False), trainer, *args, **kwargs)


def _evaluate(original: Callable[..., Any], trains: bool, *args: Any, **kwargs: Any) -> Any:
    """Call it; within a training as a phase in no step."""
    if not trains or periods.evaluating:
        return original(*args, **kwargs)
    if not steps.explicit:
        steps.end()
    ranged = awake.now
    periods.evaluating = True
    if ranged:
        emitter.push(EVALUATION)
    try:
        return original(*args, **kwargs)
    finally:
        if ranged:
            emitter.pop()
        periods.evaluating = False


@around
def _lightning_epoch(original: Callable[..., Any], loop: Any, *args: Any, **kwargs: Any) -> Any:
    """``_FitLoop.advance``: a whole epoch."""
    _begin_epoch(getattr(getattr(loop, "trainer", None), "current_epoch", None))
    try:
        return original(loop, *args, **kwargs)
    finally:
        _end_epoch()


@around
def _trainer_epoch_begin(
    original: Callable[..., Any], handler: Any, args: Any, state: Any, *more: Any, **kwargs: Any
) -> Any:
    """``CallbackHandler.on_epoch_begin``."""
    _begin_epoch(getattr(state, "epoch", None))
    return original(handler, args, state, *more, **kwargs)


@around
def _trainer_epoch_end(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``CallbackHandler.on_epoch_end``."""
    _end_epoch()
    return original(*args, **kwargs)


def _begin_epoch(number: float | None) -> None:
    """Open the span of an epoch, where an NVTX tool listens."""
    global _epoch
    domain = emitter.domain()
    if not awake.now or domain is None or emitter.backend() != "nvtx":
        return
    _end_epoch()
    try:
        payload = None if number is None else int(number)
        label: Any = emitter.label("epoch", Category.PHASE, payload)
        _epoch = domain.start_range(label)
    except Exception as error:  # a trainer's own idea of an epoch
        log.debug("no span of an epoch: %r", error)


def _end_epoch() -> None:
    global _epoch
    if _epoch is not None:
        span, _epoch = _epoch, None
        emitter.domain().end_range(span)


_WRAPPERS = {
    "_EvaluationLoop.run": _lightning_evaluation,
    "_FitLoop.advance": _lightning_epoch,
    "Trainer.save_checkpoint": _checkpoint,
    "Trainer.evaluate": _trainer_evaluation,
    "Trainer._save_checkpoint": _checkpoint,
    "CallbackHandler.on_epoch_begin": _trainer_epoch_begin,
    "CallbackHandler.on_epoch_end": _trainer_epoch_end,
    "Accelerator.save_state": _checkpoint,
}
