"""Steps and phases of inference: transformers, diffusers, vLLM and SGLang, without edits.

Each hook is one name in another package (docs/inference.md lists them with the versions read). A
name that moved costs the ranges of its hook and a line in the sidecar, never the program. Steps are
token by token (`generate`), iteration by iteration (vLLM, SGLang, continuous batching) or one for
each denoising step. Their phase is a range named as engines name theirs, ``decode[bs=4 tok=4]``:
numbers of requests and tokens that are known without asking the GPU.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

from nvprobe.instrumentation import awake, emitter, sidecar, steps
from nvprobe.instrumentation import compiling as compiling_module
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.frames import uncounted
from nvprobe.instrumentation.hooks import Hooks
from nvprobe.instrumentation.periods import periods

KNOWN = {
    "transformers": "4.45 to 5.24",
    "diffusers": "0.42",
    "vllm": "0.33",
    "sglang": "0.5.23",
}
"""Versions whose sources were read; vLLM and SGLang were never run under these hooks."""

HOOKS: tuple[tuple[str, str], ...] = (
    ("transformers.generation.utils", "GenerationMixin.generate"),
    ("transformers.generation.utils", "GenerationMixin._has_unfinished_sequences"),
    (
        "transformers.generation.continuous_batching.continuous_api",
        "ContinuousBatchingManager._generation_step",
    ),
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline.progress_bar"),
    ("diffusers.models.autoencoders.autoencoder_kl", "AutoencoderKL.decode"),
    ("vllm.v1.worker.gpu_worker", "Worker.execute_model"),
    ("vllm.v1.worker.gpu_worker", "Worker.sample_tokens"),
    ("vllm.v1.engine.core", "EngineCore.step"),
    ("vllm.v1.core.sched.scheduler", "Scheduler.schedule"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.forward"),
    ("sglang.srt.managers.scheduler", "Scheduler.run_batch"),
    ("sglang.srt.managers.scheduler", "Scheduler.get_next_batch_to_run"),
    ("sglang.srt.managers.scheduler", "Scheduler.process_batch_result"),
)
"""Module and name of each function that is replaced."""
OPTIONAL = (
    ("transformers.generation.utils", "GenerationMixin._prefill"),
    (
        "transformers.generation.continuous_batching.continuous_api",
        "ContinuousBatchProcessor.prepare_next_batch",
    ),
)
"""Absent in versions of `KNOWN`: without the first the first forward is the prefill, without the
second a step of continuous batching lasts until the next."""

requests = 0
"""Requests in the step that begins, where known: read by the launcher's windows."""
begun = 0
"""Requests so far, with this step's: calls of `generate` and of pipelines, else prompts that are
new (vLLM), are read (SGLang, where pieces of one count each), or are read to their end."""
_hooks = Hooks("steps of inference")
_COUNTS = re.compile(r"\[\w*\s?bs=(\d+)|_generation_(\d+)\(|decode=(\d+)/|bs=(\d+)")
_RANGES = {
    "Worker.sample_tokens": "sample",
    "EngineCore.step": "engine step: core",
    "Scheduler.schedule": "schedule",
    "Scheduler.run_batch": "scheduler.run_batch",
    "Scheduler.get_next_batch_to_run": "scheduler.get_next_batch_to_run",
    "Scheduler.process_batch_result": "scheduler.process_batch_result",
    "AutoencoderKL.decode": "vae decode",
}
"""Functions that are a phase of their own."""


class _Here(threading.local):
    """What of a generation the thread is in."""

    depth = 0
    """Calls of `generate` around this one: an assistant model generates inside another."""
    phase_open = False
    batch = 0
    prompt_read = False
    """The prefill has run, and its token is being chosen."""
    denoising = 0
    """Denoising steps that are still to come."""


_here = _Here()


def install() -> None:
    """Hook what is imported, now or later."""
    if not _hooks.begin():
        return
    for module, name in HOOKS:
        _hooks.replace(module, name, _WRAPPERS.get(name) or _ranged(_RANGES[name]))
    for module, name in OPTIONAL:
        _hooks.replace(module, name, _WRAPPERS[name], optional=True)


def uninstall() -> None:
    """Give the packages their functions back."""
    _hooks.undo()


def _marks_steps() -> bool:
    """Whether steps are these hooks' to mark: not in a program that trains, or marks its own."""
    if steps.explicit or periods.leader is not None:
        return False
    periods.claimed = True
    return True


@uncounted
def _open(phase: str) -> None:
    """Begin a step with its phase, ending the one before."""
    global requests
    _close()
    found = _COUNTS.search(phase)
    requests = int(next(filter(None, found.groups()))) if found else 0
    if not _marks_steps() or not steps.begin("inference"):
        return
    if awake.now:
        emitter.push(emitter.label(phase, Category.PHASE))
        _here.phase_open = True


def _request_begins(count: int = 1) -> None:
    global begun
    begun += count


@uncounted
def _close() -> None:
    """End the phase and the step, where one is open."""
    if _here.phase_open:
        _here.phase_open = False
        emitter.pop()
    if steps.is_open():
        steps.end()


def _ranged(text: str) -> Callable[[Any], Any]:
    """Make a replacement that is the same, in a range."""

    def wrap(original: Any) -> Any:
        label = emitter.label(text, Category.PHASE)

        @functools.wraps(original)
        def ranged(*args: Any, **kwargs: Any) -> Any:
            """The same, as a phase."""
            if compiling_module.compiling() or not awake.now:
                return original(*args, **kwargs)
            emitter.push(label)
            try:
                return original(*args, **kwargs)
            finally:
                emitter.pop()

        return ranged

    return wrap


def _generate(original: Any) -> Any:
    """``GenerationMixin.generate``: a request, whose tokens are steps."""
    label = emitter.label("generate", Category.PHASE)

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        """The same; its steps end with it."""
        if compiling_module.compiling() or _here.depth:
            return original(*args, **kwargs)
        _here.depth, _here.prompt_read, _here.batch = 1, False, 0
        _request_begins()
        ranged = awake.now
        if ranged:
            emitter.push(label)
        try:
            return original(*args, **kwargs)
        finally:
            _close()
            _here.depth = 0
            if ranged:
                emitter.pop()

    return generate


def _prefill(original: Any) -> Any:
    """``GenerationMixin._prefill``: the first step of a request, until its token is chosen."""

    @functools.wraps(original)
    def prefill(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """The same, in the step of the prompt."""
        if compiling_module.compiling() or _here.depth != 1:
            return original(self, input_ids, *args, **kwargs)
        rows, length = _shape(input_ids)
        _here.batch = rows
        _open(f"prefill[bs={rows} tok={rows * length}]" if rows else "prefill")
        result = original(self, input_ids, *args, **kwargs)
        _here.prompt_read = True
        return result

    return prefill


def _unfinished(original: Any) -> Any:
    """``GenerationMixin._has_unfinished_sequences``: asked at the begin of each turn."""

    @functools.wraps(original)
    def unfinished(*args: Any, **kwargs: Any) -> Any:
        """The same; a turn that follows begins a step."""
        goes_on = original(*args, **kwargs)
        if compiling_module.compiling() or _here.depth != 1:
            return goes_on
        if _here.prompt_read:  # the first turn chooses the token of the prefill
            _here.prompt_read = False
        elif not goes_on:
            _close()
        elif steps.is_open() or _here.batch:
            _open(f"decode[bs={_here.batch} tok={_here.batch}]" if _here.batch else "decode")
        else:
            _open("prefill")
        return goes_on

    return unfinished


def _shape(input_ids: Any) -> tuple[int, int]:
    """(rows, columns) of a tensor of tokens; (0, 0) for anything else."""
    try:
        rows, length = input_ids.shape[:2]
        return int(rows), int(length)
    except (AttributeError, TypeError, ValueError):
        return 0, 0


def _stepping(phase_of: Callable[..., str]) -> Callable[[Any], Any]:
    """Make a replacement that begins a step; ``phase_of`` names its phase by the arguments."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            """The same, at the begin of a step."""
            if compiling_module.compiling():
                return original(*args, **kwargs)
            _open(_named(phase_of, args, kwargs))
            try:
                return original(*args, **kwargs)
            finally:
                if _here.phase_open:
                    _here.phase_open = False
                    emitter.pop()

        return step

    return wrap


def _named(phase_of: Callable[..., str], args: Any, kwargs: Any) -> str:
    """The phase of an iteration; plain where the engine's objects are not as they were read."""
    try:
        return phase_of(*args, **kwargs)
    except Exception as error:
        sidecar.lacking("numbers of an iteration", repr(error))
        return "iteration"


def _vllm_phase(_worker: Any, scheduler_output: Any, *_: Any, **__: Any) -> str:
    """What vLLM itself calls an iteration, from what its scheduler decided."""
    from vllm.v1.utils import compute_iteration_details  # type: ignore[import-not-found]

    found = compute_iteration_details(scheduler_output)
    _request_begins(len(getattr(scheduler_output, "scheduled_new_reqs", ())))
    return (
        f"execute_context_{found.num_ctx_requests}({found.num_ctx_tokens})"
        f"_generation_{found.num_generation_requests}({found.num_generation_tokens})"
    )


def _sglang_phase(_runner: Any, batch: Any, *_: Any, **__: Any) -> str:
    """What SGLang itself calls an iteration."""
    mode = batch.forward_mode.name
    _request_begins(int(batch.batch_size) if mode == "EXTEND" else 0)
    tokens = getattr(batch, "extend_num_tokens", None)
    read = f" toks={int(tokens)}" if tokens is not None and mode in ("EXTEND", "MIXED") else ""
    return f"step[{mode} bs={int(batch.batch_size)}{read}]"


def _batching_phase(manager: Any, *_: Any, **__: Any) -> str:
    """An iteration of continuous batching: (requests, tokens) of prompts and of others.

    Positions are those after the batch. A prompt that is computed again, when its cache was given
    away, is a prefill again.
    """
    prefill, decode = [0, 0], [0, 0]
    batch = manager.batch_processor.inputs_and_outputs
    if hasattr(batch, "io_pairs"):  # one batch is prepared while the other runs
        batch = batch.io_pairs[batch.current_pair].host_io
    for one in batch.requests_in_batch:
        before = one.state.position_offset - one.query_length
        side = prefill if before < len(one.state.initial_tokens) else decode
        side[0] += 1
        side[1] += one.query_length
        _request_begins(int(side is prefill and one.has_new_token))
    return "iteration[prefill={}/{} decode={}/{}]".format(*prefill, *decode)


def _next_batch(original: Any) -> Any:
    """``ContinuousBatchProcessor.prepare_next_batch``: false where there are no requests."""

    @functools.wraps(original)
    def prepare_next_batch(*args: Any, **kwargs: Any) -> Any:
        """The same; without requests the step before has ended."""
        found = original(*args, **kwargs)
        if found is False:
            _close()
        return found

    return prepare_next_batch


def _progress(original: Any) -> Any:
    """``DiffusionPipeline.progress_bar``: called right before the denoising loop of a pipeline."""

    @functools.wraps(original)
    def progress_bar(self: Any, iterable: Any = None, total: Any = None) -> Any:
        """The same; the first denoising step begins."""
        if not compiling_module.compiling():
            count = total if total is not None else _length(iterable)
            scheduler = getattr(self, "scheduler", None)
            if scheduler is not None and _wrap_scheduler(type(scheduler)):
                _here.denoising = count or 0
                _request_begins()
                _open("denoise")
        return original(self, iterable, total)

    return progress_bar


def _length(iterable: Any) -> int:
    try:
        return len(iterable)
    except TypeError:
        return 0


_schedulers: set[type] = set()


def _wrap_scheduler(cls: type) -> bool:
    """Let the ``step`` of a scheduler's class end a denoising step, once."""
    owner: Any = next((one for one in cls.__mro__ if "step" in one.__dict__), None)
    if owner is None:
        return False
    if owner in _schedulers:
        return True
    original = owner.__dict__["step"]

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        """The same; what follows is the next denoising step, or none."""
        result = original(*args, **kwargs)
        if not compiling_module.compiling():
            _here.denoising -= 1
            if _here.denoising > 0:
                _open("denoise")
            else:
                _close()
        return result

    owner.step = step
    _schedulers.add(owner)
    return True


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "GenerationMixin.generate": _generate,
    "GenerationMixin._prefill": _prefill,
    "GenerationMixin._has_unfinished_sequences": _unfinished,
    "ContinuousBatchingManager._generation_step": _stepping(_batching_phase),
    "ContinuousBatchProcessor.prepare_next_batch": _next_batch,
    "DiffusionPipeline.progress_bar": _progress,
    "Worker.execute_model": _stepping(_vllm_phase),
    "ModelRunner.forward": _stepping(_sglang_phase),
}
