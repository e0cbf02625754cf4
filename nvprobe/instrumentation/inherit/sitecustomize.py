"""Run by Python at the start of a child process of an instrumented program: instrument it too.

Put first on the child's path (``nvprobe.instrumentation.instrument.pass_on``). It hides another
``sitecustomize``, so it runs that one first. It costs a few milliseconds and imports nothing big;
the instrumentation itself waits until the child imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys


def _run_hidden() -> None:
    """Import the ``sitecustomize`` that this one stands in front of."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - start-up time
    ours = sys.modules.pop("sitecustomize", None)
    path = sys.path[:]
    sys.path[:] = [one for one in path if os.path.abspath(one or ".") != here]  # noqa: PTH100
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        sys.path[:] = path


_run_hidden()
if os.environ.get("NVPROBE_INSTRUMENT") == "1":
    with contextlib.suppress(Exception):
        from nvprobe.instrumentation.inherit_child import start

        start()
