"""Run a program instrumented, without a line of nvprobe in it.

``python -m nvprobe.instrumentation.bootstrap script.py args…`` (or ``-m module args…``) does what
``python script.py args…`` does: same ``__main__``, ``sys.argv`` and ``sys.path``, same exit code.
"""

from __future__ import annotations

import functools
import io
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from nvprobe.errors import UsageError
from nvprobe.instrumentation.inherit_child import start_recording
from nvprobe.instrumentation.instrument import instrument

__all__ = ["main", "prepare"]

_ARCHIVES = (".zip", ".pyz", ".whl", ".egg")


def prepare(words: list[str]) -> Callable[[], object]:
    """Set ``sys.argv`` and ``sys.path`` as the program expects them; gives what runs it.

    Raises:
        UsageError: No program is named, or there is no such file.

    """
    if words[:1] == ["-m"] and len(words) > 1:
        sys.argv = words[1:]
        return functools.partial(runpy._run_module_as_main, words[1])  # type: ignore[attr-defined]
    if not words or words[0].startswith("-"):
        raise UsageError(
            "usage: python -m nvprobe.instrumentation.bootstrap script.py|-m module [args…]"
        )
    path = Path(words[0])
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    sys.argv = words
    as_folder = path.is_dir() or path.suffix in _ARCHIVES
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path if as_folder else path.resolve().parent)
    if as_folder:
        return functools.partial(
            runpy._run_module_as_main,  # type: ignore[attr-defined]
            "__main__",
            alter_argv=False,
        )
    return functools.partial(_run_script, str(path))


def _run_script(path: str) -> None:
    """Run a file as ``__main__``; pickle and multiprocessing look for its names there."""
    module = ModuleType("__main__")
    module.__file__ = path
    module.__dict__.update(__builtins__=__builtins__, __annotations__={}, __cached__=None)
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - that is the point


def main(words: list[str]) -> None:
    """Instrument this process and run the program that ``words`` name."""
    try:
        run = prepare(words)
    except UsageError as error:
        print(f"nvprobe: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    instrument()
    start_recording()
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
