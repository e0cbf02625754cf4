"""Instrument a Python process at its start, before Python runs the program.

`variables` puts a ``sitecustomize`` first on the path of the process and of those it starts. Python
then runs the program itself: ``__main__``, ``sys.argv``, ``sys.path`` and tracebacks are those of
plain ``python``. The working directory is not on the path yet when this module is imported, so no
module of the program can take the place of one that is imported here.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Collection, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from nvprobe.instrumentation.hooks import after_import

log = logging.getLogger("nvprobe")

INHERIT_VARIABLE = "NVPROBE_INSTRUMENT"
"""Set where the processes of a program are to be instrumented."""
PROGRAM_VARIABLE = "NVPROBE_PROGRAM"
"""Set by the launcher for the program itself, not for the processes that it starts."""
RECORDING_VARIABLE = "NVPROBE_INPROCESS"
"""Set by the launcher: it has something to start in each process."""

_HELPERS = ("compile_worker", "resource_tracker", "semaphore_tracker", "forkserver")
"""Python processes that run no model: Inductor's compile workers, multiprocessing's own."""
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


def variables(environ: Mapping[str, str], *, program: bool = False) -> dict[str, str]:
    """What to add to the environment of a process so that it starts instrumented.

    ``program``: it is the launched program, which is instrumented at once; other processes are
    when they import torch.
    """
    folder = str(Path(__file__).resolve().with_name("inherit"))
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    added = {
        "PYTHONPATH": os.pathsep.join([folder, *(path for path in paths if path != folder)]),
        INHERIT_VARIABLE: "1",
    }
    return added | ({PROGRAM_VARIABLE: "1"} if program else {})


def start(loaded: Collection[str]) -> None:
    """Instrument this process; ``loaded``: the modules that Python had imported by itself."""
    is_program = os.environ.pop(PROGRAM_VARIABLE, None) is not None
    words = " ".join(sys.orig_argv)
    if not any(helper in words for helper in _HELPERS):
        if is_program:
            _begin(None)
        else:
            after_import("torch", _begin)
    _forget_shadowed(loaded)


def _begin(_torch: Any) -> None:
    try:
        from nvprobe.instrumentation.instrument import instrument
        from nvprobe.instrumentation.tracebacks import hide_own_frames

        _log_as_nvprobe()
        instrument()
        hide_own_frames()
        _start_recording()
    except Exception as error:
        log.debug("this process is not instrumented: %r", error)


def _log_as_nvprobe() -> None:
    """Keep nvprobe's warnings out of what the program logs; each line says whose it is."""
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("nvprobe: %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def _start_recording() -> None:
    """Let the launcher begin its part: windows of steps, the torch profiler.

    By name, because the instrumentation must not depend on the launcher's packages.
    """
    if RECORDING_VARIABLE not in os.environ:
        return
    try:
        importlib.import_module("nvprobe.launch.inprocess").start()
    except Exception as error:
        log.warning("nothing watches the steps of this process: %s", error)


def _forget_shadowed(loaded: Collection[str]) -> None:
    """Let the program import its own ``json.py`` although the standard library's is loaded here.

    nvprobe keeps what it has imported; a name that the program's folder has is looked up anew.
    """
    folder = [_program_folder()]
    names = {name.partition(".")[0] for name in set(sys.modules) - set(loaded)} - {"nvprobe"}
    shadowed = {name for name in names if PathFinder.find_spec(name, folder) is not None}
    for name in list(sys.modules):
        if name.partition(".")[0] in shadowed and name not in loaded:
            del sys.modules[name]


def _program_folder() -> str:
    """The folder that Python puts first on the path for the program (``sys.path[0]``)."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif re.fullmatch(r"-[A-Za-z]*[mc]", word):
            break
        elif not word.startswith("-"):
            path = Path(word).resolve()
            return str(path if path.is_dir() else path.parent)
    return str(Path.cwd())
