"""Small programs run by ``python`` and by ``nvprobe launch``: all that can be observed is equal.

Output bytes, exit code, what a signal does, tracebacks. What differs on purpose is taken out:
lines that begin with ``nvprobe``, and the variables and the path that instrument processes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import zipapp
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

TIMEOUT_S = 300


@dataclass(frozen=True)
class Program:
    """Files, the words after ``python``, and what is done to it once it prints ``ready``."""

    code: str = ""
    words: Sequence[str] = ("prog.py",)
    files: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    signal: int | None = None
    to_group: bool = False
    """The signal goes to the process group, as a scheduler may send it."""


FACTS = """
import os, sys
main = sys.modules["__main__"]
print(__name__, __file__, main.__file__, __package__, __doc__, type(__loader__).__name__)
print(__spec__ and __spec__.name, sys.argv, sys.path, sys.orig_argv[1:], os.getcwd())
print(sys.flags, sys.warnoptions, sorted(vars(main)), main.__dict__ is globals())
"""
SPAWN = """
import multiprocessing, os, sys
def work(x):
    main = sys.modules["__main__"]
    return x * x, __name__, os.path.basename(main.__file__), sys.argv
class Local:
    def __init__(self, x): self.x = x
if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    with context.Pool(2) as pool:
        print(sorted(pool.map(work, range(3))))
        print(pool.apply(Local, (4,)).x)
    process = context.Process(target=print, args=("from the child",))
    process.start(); process.join()
    print(process.exitcode)
"""
RAISE = """
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("second") from error
def inner():
    {}["first"]
outer()
"""
WAIT = """
import signal, sys, time
count = 0
def handler(number, frame):
    global count
    count += 1
    print("got", number, flush=True)
if SET:
    signal.signal(NUMBER, handler)
try:
    print("ready", flush=True); time.sleep(0 if SET else 300)
    while not count:
        time.sleep(0.05)
    for _ in range(10):  # a signal that is delivered twice counts twice
        time.sleep(0.05)
finally:
    print("finally", count, flush=True)
"""
"""Ready and asleep in one line, which a traceback names wherever between them the signal comes."""
TORCH = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.layer = nn.Linear(4, 4)
    def forward(self, x):
        if x.sum() > 1e9: raise RuntimeError("too large")
        return self.layer(x)
net = Net(); optimizer = torch.optim.SGD(net.parameters(), 0.1)
torch.manual_seed(0)
for step in range(4):
    loss = net(torch.ones(2, 4)).sum(); loss.backward(); optimizer.step(); optimizer.zero_grad()
print("trained", torch.isfinite(loss).item())
"""


def waiting(number: int, *, handled: bool = False, to_group: bool = False) -> Program:
    """A program that gets a signal; its tracebacks mark no columns, which are a race within a line."""
    code = WAIT.replace("NUMBER", str(int(number))).replace("SET", str(handled))
    words = ("-X", "no_debug_ranges", "prog.py")
    return Program(code, words, signal=number, to_group=to_group)


PROGRAMS = {
    "script": Program(FACTS),
    "script with arguments": Program(FACTS, ("prog.py", "-m", "--x=1", "", "a b")),
    "script in a folder": Program(words=("sub/prog.py",), files={"sub/prog.py": FACTS}),
    "script by a symlink": Program(words=("link.py",), files={"sub/prog.py": FACTS}),
    "module": Program(words=("-m", "prog"), files={"prog.py": FACTS}),
    "package": Program(
        words=("-m", "pack", "x"), files={"pack/__init__.py": "", "pack/__main__.py": FACTS}
    ),
    "module of a package": Program(
        words=("-m", "pack.part"),
        files={
            "pack/__init__.py": "print('init')",
            "pack/part.py": FACTS + "from . import other",
            "pack/other.py": "print('other')",
        },
    ),
    "folder": Program(
        words=("app",),
        files={"app/__main__.py": FACTS + "import helper", "app/helper.py": "print('helper')"},
    ),
    "archive": Program(words=("app.pyz",), files={"app/__main__.py": FACTS}),
    "code": Program(
        words=("-c", "import sys; print(sys.argv, __name__, sys.path[0], __builtins__)", "x")
    ),
    "unbuffered": Program(FACTS, ("-u", "prog.py")),
    "optimized": Program("assert False\nprint(__debug__)", ("-O", "prog.py")),
    "development mode": Program(
        "import warnings; warnings.warn('w', DeprecationWarning)\nopen('prog.py')",
        ("-X", "dev", "prog.py"),
    ),
    "warnings are errors": Program(
        "import warnings; warnings.warn('w')", ("-W", "error", "prog.py")
    ),
    "isolated": Program(FACTS, ("-I", "prog.py")),
    "no site": Program(FACTS, ("-S", "prog.py")),
    "own modules": Program(
        "import json, logging, click, numpy, nvtx; print(json.X)",
        files={
            "json.py": "X = 'own'\nprint('own json')",
            **{
                f"{name}.py": f"print('own {name}')"
                for name in ("logging", "click", "numpy", "nvtx", "sitecustomize", "runpy")
            },
        },
    ),
    "spawn": Program(SPAWN.replace("METHOD", "'spawn'")),
    "forkserver": Program(SPAWN.replace("METHOD", "'forkserver'")),
    "fork": Program(SPAWN.replace("METHOD", "'fork'")),
    "spawn of a module": Program(
        words=("-m", "prog"), files={"prog.py": SPAWN.replace("METHOD", "'spawn'")}
    ),
    "process pool": Program(
        "from concurrent.futures import ProcessPoolExecutor\ndef f(x): return x + 1\n"
        "if __name__ == '__main__':\n    with ProcessPoolExecutor(2) as pool: print(list(pool.map(f, range(4))))"
    ),
    "pickle of main": Program(
        "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)) is A, pickle.dumps(A()))"
    ),
    "source of main": Program(
        "import inspect\ndef f(): return 1\nprint(inspect.getsource(f), inspect.getfile(f))"
    ),
    "run_path": Program(
        "import runpy; print(sorted(runpy.run_path('x.py')))",
        files={"x.py": "a = 1\nprint(__name__, __file__)"},
    ),
    "unittest": Program(
        "import io, unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(1, 2)\nrunner = unittest.TextTestRunner(io.StringIO())\ntry: unittest.main(testRunner=runner)\nexcept SystemExit as e: print(e.code)",
        ("-W", "ignore", "prog.py"),
    ),
    "argparse": Program(
        "import argparse; argparse.ArgumentParser().parse_args()", ("prog.py", "--wrong")
    ),
    "traceback": Program(RAISE),
    "traceback of a module": Program(words=("-m", "prog"), files={"prog.py": RAISE}),
    "traceback in an import": Program("import broken", files={"broken.py": "x = 1 /\n"}),
    "traceback of a group": Program(
        "raise ExceptionGroup('all', [ValueError(1), KeyError(2)])"
        if sys.version_info >= (3, 11)
        else RAISE
    ),
    "syntax error": Program("print('x'\n"),
    "recursion": Program("def f(): f()\nf()"),
    "traceback in a thread": Program(
        "import threading\ndef fail(): raise OSError('in a thread')\nt = threading.Thread(target=fail, name='T'); t.start(); t.join(); print('after')"
    ),
    "printed traceback": Program(
        "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()"
    ),
    "own excepthook": Program(
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0"
    ),
    "error while deleting": Program("class A:\n    __del__ = None\na = A(); del a; print('on')"),
    "missing module": Program(words=("-m", "nowhere")),
    "exit code": Program("import sys; sys.exit(3)"),
    "exit message": Program("import sys; sys.exit('a message')"),
    "exit without code": Program("raise SystemExit"),
    "exit at once": Program("import os; print('x', flush=True); os._exit(4)"),
    "exit handlers": Program(
        "import atexit\nfor i in range(3): atexit.register(print, i)\nprint('main')"
    ),
    "abort": Program("import os; os.abort()"),
    "killed": Program("import os; os.kill(os.getpid(), 9)"),
    "terminated by itself": Program("import os, time; os.kill(os.getpid(), 15); time.sleep(9)"),
    "interrupted by itself": Program("raise KeyboardInterrupt"),
    "SIGINT": waiting(signal.SIGINT),
    "SIGINT handled": waiting(signal.SIGINT, handled=True),
    "SIGTERM": waiting(signal.SIGTERM),
    "SIGTERM handled": waiting(signal.SIGTERM, handled=True),
    "SIGHUP": waiting(signal.SIGHUP),
    "SIGUSR1 handled": waiting(signal.SIGUSR1, handled=True),
    "SIGINT to the group": waiting(signal.SIGINT, handled=True, to_group=True),
    "SIGTERM to the group": waiting(signal.SIGTERM, handled=True, to_group=True),
    "handlers of signals": Program(
        "import signal\nfor n in sorted(signal.valid_signals()): print(n, signal.getsignal(n))\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    ),
    "ignores SIGPIPE": Program(
        "import signal; print(signal.getsignal(signal.SIGPIPE), signal.getsignal(signal.SIGINT))"
    ),
    "input": Program(
        "import sys; print(sys.stdin.read()[::-1], sys.stdin.isatty())", stdin=b"some input"
    ),
    "bytes": Program(
        "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff\\x00')"
    ),
    "warning": Program("import warnings; warnings.warn('here'); warnings.warn('here')"),
    "logging": Program(
        "import logging; logging.basicConfig(); logging.warning('w'); logging.getLogger('x').info('i')"
    ),
    "environment": Program(
        "import os\nown = ('NVPROBE_', 'NSYS', 'NVTX', 'CUDA', 'QUADD', 'CUPTI', 'TRACE_START', 'USE_AGENT', 'LD_', 'KINETO', 'PYTHONPATH', 'OMP', 'OPENACC', 'VULKAN', 'LINES', 'COLUMNS', '_')\n"
        "print(sorted((k, v) for k, v in os.environ.items() if not k.startswith(own)), os.umask(0))"
    ),
    "training": Program(TORCH),
    "error in a model": Program(TORCH.replace("1e9", "-1e9")),
    "error in a model, printed": Program(
        TORCH.partition("for step")[0].replace("1e9", "-1e9")
        + "import traceback, logging\ntry: net(torch.ones(2, 4))\nexcept RuntimeError:\n"
        "    traceback.print_exc()\n    logging.exception('logged')"
    ),
    "error in a model, in a thread": Program(
        TORCH.partition("for step")[0].replace("1e9", "-1e9")
        + "import threading\nt = threading.Thread(target=net, args=(torch.ones(2, 4),)); t.start(); t.join()"
    ),
    "trained, then ended at once": Program(
        TORCH + "import os; import sys; sys.stdout.flush(); os._exit(5)"
    ),
}


def write(program: Program, folder: Path) -> None:
    for name, text in {"prog.py": program.code, **program.files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    if "link.py" in program.words:
        (folder / "link.py").symlink_to("sub/prog.py")
    if "app.pyz" in program.words:
        zipapp.create_archive(folder / "app", folder / "app.pyz")


def observed(command: list[str], program: Program, folder: Path) -> tuple[int, bytes, bytes]:
    """Exit code as a shell has it, stdout, and stderr without nvprobe's lines."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    before = b""
    if program.signal is not None:
        assert process.stdout is not None
        before = process.stdout.readline()
        send = os.killpg if program.to_group else os.kill
        send(process.pid, program.signal)
    out, err = process.communicate(program.stdin, timeout=TIMEOUT_S)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return code, before + out, re.sub(rb"nvprobe: [^\n]*\n", b"", err)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["torch", pytest.param("nsys", marks=pytest.mark.nsys)])
def test_a_launched_program_is_the_program(name: str, backend: str, tmp_path: Path) -> None:
    if backend == "nsys" and shutil.which("nsys") is None:
        pytest.skip("no nsys")
    program = PROGRAMS[name]
    if "import torch" in program.code:
        pytest.importorskip("torch")
    folder = tmp_path / "here"
    folder.mkdir()
    write(program, folder)
    python = [sys.executable, *program.words]
    own = [sys.executable, str(ROOT / "nvprobe" / "__main__.py"), "launch", "--no-analyze"]
    launch = [*own, "--quiet", "--backend", backend, "-o", str(tmp_path / "run"), *python]
    if backend == "torch" and program.words[0] in ("-I", "-S"):
        pytest.skip("torch.profiler records nothing there, and nvprobe says so")
    assert observed(launch, program, folder) == observed(python, program, folder)
