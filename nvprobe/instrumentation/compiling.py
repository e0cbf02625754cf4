"""Whether this code is being traced by torch.compile, asked without importing torch.

Instrumentation must be invisible to a compiler: every hook, decorator and context manager asks
`compiling` first and does nothing while it is true. Dynamo replaces the call by a constant, so the
question leaves no trace in the graph and cannot cause a graph break.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def _search() -> bool:
    """Ask where torch was not there yet when `bind` was called last (`torch.compiler`: 2.1+)."""
    torch = sys.modules.get("torch")
    # A torch that another thread imports at this moment has no compiler yet.
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()


compiling: Callable[[], bool] = _search
"""Whether torch.compile or torch.export traces the caller."""


def bind() -> None:
    """Let `compiling` be torch's own function, if torch is there: a third of the time.

    Only to be called before the program compiles anything: code that has been traced with a range
    in it is guarded on the function it found.
    """
    global compiling
    torch = sys.modules.get("torch")
    known = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if known is not None:
        compiling = known


bind()
