"""Whether this code is being traced by torch.compile, asked without importing torch.

Instrumentation must be invisible to a compiler: every hook, decorator and context manager asks
`compiling` first and does nothing while it is true. Dynamo replaces the call by a constant, so the
question leaves no trace in the graph and cannot cause a graph break.
"""

from __future__ import annotations

import sys

__all__ = ["compiling"]


def compiling() -> bool:
    """Whether torch.compile or torch.export traces the caller (`torch.compiler`: torch 2.1+)."""
    torch = sys.modules.get("torch")
    # A torch that another thread imports at this moment has no compiler yet.
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()
