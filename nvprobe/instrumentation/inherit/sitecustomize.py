"""Run by Python at the start of a process of an instrumented program: instrument it.

Put first on its path by `nvprobe.instrumentation.startup.variables`. It hides another
``sitecustomize``, so it runs that one first, and takes itself off ``sys.path``. In a child process
it costs a few milliseconds; the instrumentation waits until the child imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - start-up time
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120


def _run_hidden() -> None:
    """Import the ``sitecustomize`` that this one stands in front of."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Find nvprobe where it is not installed: this file is in it."""
    added = _ROOT not in sys.path
    if added:
        sys.path.append(_ROOT)
    try:
        yield
    finally:
        if added:
            sys.path.remove(_ROOT)


_loaded = set(sys.modules)
sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != _HERE]  # noqa: PTH100
_run_hidden()
if os.environ.get("NVPROBE_INSTRUMENT") == "1":
    with contextlib.suppress(Exception), _importable():
        from nvprobe.instrumentation.startup import start

        start(_loaded)
