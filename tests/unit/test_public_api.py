"""The public names of Python and their signatures, as public_api.txt beside this file lists them.

A line that goes or changes breaks programs of users: docs/stability.md says what comes before that.
``NVPROBE_WRITE_SNAPSHOTS=1`` writes the list anew.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nvprobe

LIST = Path(__file__).with_name("public_api.txt")
ELSEWHERE = ("nvprobe.integrations.loops.record_steps", "nvprobe.limits.raised")
"""Public names that are not in the package itself."""
OPAQUE = ("nvprobe.Analysis", "nvprobe.Trace")
"""Classes whose columns are no promise: `Results` shows them in a lasting form."""


def described(name: str, value: Any) -> Iterator[str]:
    """A line for a public name, and one for each public attribute of a class."""
    if not inspect.isclass(value):
        yield f"{name}{signature(value)}"
        return
    yield f"class {name}({value.__mro__[1].__name__})"
    if name in OPAQUE:
        return
    for attribute in sorted(key for key in vars(value) if not key.startswith("_")):
        yield f"    {name}.{attribute}{signature(vars(value)[attribute])}"


def signature(value: Any) -> str:
    """Parameters and result as they are written; empty for what cannot be called."""
    getter = getattr(value, "fget", None) or getattr(value, "func", None)  # a property, or cached
    if getter:
        return f": {getter.__annotations__['return']}"
    return str(inspect.signature(value)).replace("'", "") if callable(value) else ""


def public() -> dict[str, Any]:
    """Every public name with its value."""
    names = {f"nvprobe.{name}": getattr(nvprobe, name) for name in nvprobe.__all__}
    for path in ELSEWHERE:
        module, _, name = path.rpartition(".")
        names[path] = getattr(importlib.import_module(module), name)
    return names


def test_public_names_and_signatures_are_as_listed() -> None:
    lines = [line for name, value in public().items() for line in described(name, value)]
    if os.environ.get("NVPROBE_WRITE_SNAPSHOTS"):
        LIST.write_text("\n".join(lines) + "\n", "utf-8")
    listed = LIST.read_text("utf-8").splitlines()
    changes = "\n".join(difflib.unified_diff(listed, lines, "listed", "now", n=0, lineterm=""))
    assert not changes, f"the public API changed (docs/stability.md):\n{changes}"


def test_a_removed_parameter_is_seen() -> None:
    def before(steps: int, *, time: int = 0) -> str: ...
    def after(steps: int) -> str: ...

    assert list(described("f", before)) == ["f(steps: int, *, time: int = 0) -> str"]
    assert list(described("f", after)) == ["f(steps: int) -> str"]
