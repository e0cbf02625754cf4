"""In-process instrumentation: NVTX ranges and a sidecar. Imports torch only when it is used.

* `emitter` writes ranges and marks to NVTX (or torch.profiler), `sidecar` what NVTX cannot carry;
* `ranges`, `modules`, `phases` and `syncs` say what to write;
* `instrument` switches all of it on, `bootstrap` does so for a script that does not know nvprobe.

The room has the name of its most used function, so it can be called: ``nvprobe.annotate(model)`` is
`nvprobe.annotate.decorator.annotate`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["remove"]


class _CallableRoom(ModuleType):
    """The package, with ``annotate(...)`` as its call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `nvprobe.annotate.decorator.annotate`."""
        from nvprobe.annotate.decorator import annotate

        return annotate(*args, **kwargs)


def remove(model: Any) -> None:
    """Take the ranges of an annotated model away again."""
    from nvprobe.annotate.modules import remove

    remove(model)


sys.modules[__name__].__class__ = _CallableRoom
