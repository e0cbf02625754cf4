"""A Python that has imported torch once, and runs every script in a fork of itself.

Importing torch and its compiler takes longer than most of what tests do with them. A script run
here is ``__main__`` in a process of its own, with its own folder, environment and output; it finds
torch imported before nvprobe. Not for what Python, torch or nvprobe do only at the start of a
process (variables that are read then, options of Python, programs of ``nvprobe launch``), for how
a process ends, nor for whole stacks, in which frames of this file are the outermost.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]


class TorchPython:
    """Starts the process that has imported torch, and asks it to run scripts one by one."""

    def __init__(self) -> None:
        self.server: subprocess.Popen[str] | None = None

    def run(
        self,
        script: Path,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``script`` in its own folder; what it prints goes into files there."""
        words = [str(script), *arguments]
        request = {"words": words, "environment": dict(environment)}
        server = self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            self.stop()
            raise subprocess.TimeoutExpired(words, timeout)
        code = int(server.stdout.readline())
        out, err = (_output(script, number).read_text() for number in (1, 2))
        return subprocess.CompletedProcess(words, code, out, err)

    def stop(self) -> None:
        """End the process, and what it runs."""
        if self.server is None:
            return
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.communicate()
        self.server = None

    def _started(self) -> subprocess.Popen[str]:
        if self.server is None or self.server.poll() is not None:
            self.server = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                text=True,
                start_new_session=True,
            )
        return self.server


def _output(script: Path, number: int) -> Path:
    return script.with_name(f"output.{number}")


def _serve() -> dict[str, Any]:
    """Answer requests with exit codes; returns in each fork, with the request that is its own."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            return dict(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, f"{code}\n".encode())
    sys.exit()


def _become(words: list[str], environment: dict[str, str]) -> types.ModuleType:
    """Be ``python <words>`` as far as a running process can; returns its ``__main__``."""
    script = Path(words[0])
    os.chdir(script.parent)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(_output(script, number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = words, str(script.parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(script)
    return main


def _run(main: types.ModuleType) -> object:
    """Run the script; returns what it gave to `sys.exit`, 1 after an error."""
    script = str(main.__file__)
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))
    except SystemExit as end:
        return end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _end(code: object) -> NoReturn:
    """As Python ends, without freeing all that torch is made of, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - for the scripts

    request = _serve()
    code = _run(_become(request["words"], request["environment"]))
    _end(code)
