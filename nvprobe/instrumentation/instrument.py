"""``nvprobe.instrument()``: everything, in one call, in any script."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvprobe.errors import check_path
from nvprobe.instrumentation import (
    awake,
    compiling,
    emitter,
    sidecar,
    startup,
    steps,
    torch_hooks,
    windows,
)
from nvprobe.instrumentation.hooks import after_import
from nvprobe.instrumentation.periods import periods

if TYPE_CHECKING:
    from nvprobe.instrumentation.modules import Select

log = logging.getLogger("nvprobe")

_PARTS = (
    "phases",
    "inference",
    "trainers",
    "syncs",
    "streams",
    "compiled",
    "graphs",
    "autograd",
    "collectives",
    "allocator",
)
"""Modules with an ``install``; discovery of models is started beside them."""
_COUNTING = ("phases", "inference", "trainers", "graphs")
"""Those that find steps."""


@dataclass(frozen=True)
class Options:
    """What to instrument; each has a variable, which child processes read.

    Attributes:
        depth: ``NVPROBE_DEPTH``: dotted parts down to which modules get a range.
        modules: ``NVPROBE_MODULES``: globs over paths or class names, separated by commas.
        sync_lines: ``NVPROBE_SYNC_LINES``: ``0`` leaves hidden synchronizations alone.

    """

    depth: int | None = None
    modules: Select = None
    sync_lines: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Read the variables; what cannot be read is as if absent."""
        depth = environment.get("NVPROBE_DEPTH", "")
        globs = [one for one in environment.get("NVPROBE_MODULES", "").split(",") if one]
        return cls(
            depth=int(depth) if depth.isascii() and depth.isdigit() else None,
            modules=globs or None,
            sync_lines=environment.get("NVPROBE_SYNC_LINES", "1") != "0",
        )


_done = False
_annotated: set[int] = set()
"""Models that had ranges before; by identity."""


def instrument(
    *,
    depth: int | None = None,
    modules: Select = None,
    sync_lines: bool | None = None,
    sidecar_folder: str | os.PathLike[str] | None = None,
    children: bool = True,
) -> None:
    """Give the whole program ranges: steps, phases, models, compiled and CUDA graphs, collectives.

    Models are found when they are first called, steps by the period of the optimizer; what the
    program marks itself (`nvprobe.steps`, `nvprobe.range`) comes on top. Call it once, early;
    a second call does nothing. torch need not be imported yet. With no tool attached and no sidecar
    steps are counted and nothing else is done; outside the windows of `nvprobe.window` and of
    ``torch.cuda.profiler.start`` too, from the first of them on.

    Args:
        depth: Dotted parts down to which modules get a range; all by default.
        modules: Which modules do: globs over paths, classes, a predicate, or several of these.
        sync_lines: Whether to report the lines of hidden synchronizations; they are by default.
        sidecar_folder: Where to write the sidecar; ``NVPROBE_SIDECAR`` by default, else nowhere.
        children: Whether Python programs that this one starts are instrumented too.

    """
    from nvprobe.instrumentation.modules import selection

    global _done
    if sidecar_folder is not None:
        check_path("sidecar_folder", sidecar_folder)
    modules = selection(depth, modules)
    if _done:
        return
    _done = True
    given = Options.from_environment()
    options = Options(
        given.depth if depth is None else depth,
        given.modules if modules is None else modules,
        given.sync_lines if sync_lines is None else sync_lines,
    )
    compiling.watch()
    after_import("torch", lambda torch: sidecar.write("torch", **torch_hooks.versions(torch)))
    sidecar.open(sidecar_folder)
    if children:
        os.environ.update(startup.variables(os.environ))
    off = emitter.backend() == "off"
    if off or (emitter.silent() and not sidecar.is_open()):
        awake.for_good()
    for part in _COUNTING if off else _PARTS:
        if part != "syncs" or options.sync_lines:
            _install(part)
    if not off:
        windows.install()
        after_import("torch", lambda _torch: _discover(options))


def is_on() -> bool:
    """Whether `instrument` was called and not undone."""
    return _done


def remove() -> None:
    """Undo `instrument`: the program's functions and models are as before, and no step is open.

    Compiled graphs and CUDA graphs that were made meanwhile keep their ranges.
    """
    global _done
    steps.forget()
    periods.forget()
    awake.forget()
    for part in _PARTS:
        module = sys.modules.get(f"nvprobe.instrumentation.{part}")
        if module is not None:
            module.uninstall()
    windows.uninstall()
    if "torch" in sys.modules:
        _forget_models()
    _done = False


def _forget_models() -> None:
    """Take the ranges from models that `instrument` has found, and not from those of `annotate`."""
    from nvprobe.instrumentation import discovery, forwards, modules

    discovery.stop()
    for identity, model in list(modules.annotated_roots.items()):
        if identity not in _annotated:
            modules.remove(model)
    if not modules.annotated_roots:
        forwards.unwrap_classes()


def _install(part: str) -> None:
    """Install one module; one that fails costs its own ranges and nothing else."""
    try:
        importlib.import_module(f"nvprobe.instrumentation.{part}").install()
    except Exception as error:
        log.debug("no instrumentation of %s: %r", part, error)
        sidecar.lacking(part, repr(error))
    else:
        sidecar.write("hook", name=part, state="on", reason=None)


def _discover(options: Options) -> None:
    """Look for models, unless nothing that is written of them can ever reach anybody."""
    if emitter.silent() and not sidecar.is_open():
        return
    try:
        from nvprobe.instrumentation import discovery, modules

        _annotated.update(modules.annotated_roots)
        discovery.start(depth=options.depth, modules=options.modules)
    except Exception as error:
        log.debug("no ranges for models: %r", error)
        sidecar.lacking("modules", repr(error))
    else:
        sidecar.write("hook", name="modules", state="on", reason=None)
