"""From options and a command to what will be run: backend, words, environment. Starts no program.

``--dry-run`` prints a plan; :mod:`nvprobe.launch.run` carries it out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from nvprobe.errors import ToolError, UsageError
from nvprobe.instrumentation import startup
from nvprobe.launch.engines import Engine, engine_of, notes_for, variables_for
from nvprobe.launch.nsys import profile_argv, session_argv, trigger_for
from nvprobe.launch.options import LaunchOptions, Window
from nvprobe.launch.redaction import redacted_words
from nvprobe.launch.rundir import REPORT
from nvprobe.launch.settings import Settings, TorchActivities
from nvprobe.launch.target import Target
from nvprobe.nsys import Nsys, find_nsys

_KINETO_SILENT = "6"
"""Above all of Kineto's messages (torch 2.13). On a CPU they say when it starts, beside nsys that
CUPTI is taken, which is as it should be; where it is to record the GPU they matter, and stay."""

TORCH_STEPS = 10
"""Steps that the torch backend records where no window is given: its traces grow fast."""


@dataclass(frozen=True)
class Plan:
    """What will be run, and what to report to the user before."""

    backend: Literal["nsys", "torch"]
    target: Target
    """The program, started just as the user would start it."""
    instrumented: bool
    """Whether its Python is instrumented, by its environment."""
    options: LaunchOptions
    nsys: Nsys | None = None
    cuda: bool = False
    notes: list[str] = field(default_factory=list)
    engine: Engine | None = None
    """The inference engine that the command starts."""

    @property
    def samples_cpus(self) -> bool:
        """Whether nsys samples CPUs."""
        return self.nsys is not None and "--sample=none" not in self.nsys_argv(Path(), [])

    def nsys_argv(self, folder: Path, command: list[str]) -> list[str]:
        """The command that profiles ``command`` into ``folder``."""
        if self.options.window.outside:
            return [*self.session_argv(folder)[0], *command]
        return [*self._profile(folder), *command]

    def _profile(self, folder: Path) -> list[str]:
        assert self.nsys is not None
        report = folder.absolute() / REPORT
        return profile_argv(self.nsys, self.options, report, (), cuda=self.cuda)[0]

    def session_argv(self, folder: Path) -> tuple[list[str], list[str], list[str]]:
        """The commands that launch, start and stop where the launcher opens the window."""
        assert self.nsys is not None
        session = f"nvprobe-{os.getpid()}"
        return session_argv(self.nsys, self._profile(folder), session)

    def environ(
        self, folder: Path, status: Path, environ: Mapping[str, str] = os.environ
    ) -> dict[str, str]:
        """Variables for the program, besides those it would have anyway."""
        emitter = "nvtx" if self.backend == "nsys" else "record_function"
        started = {}
        if self.instrumented or (self.options.annotate and not self.target.is_python):
            started = startup.variables(environ, program=self.instrumented)
        added = (
            started
            | variables_for(self.engine, environ)
            | {
                "NVPROBE_SIDECAR": os.fspath(folder.absolute()),
                "NVPROBE_EMITTER": emitter if self.options.annotate else "off",
                "NVPROBE_SYNC_LINES": "1" if self.options.sync_lines else "0",
            }
        )
        if self.options.depth is not None:
            added["NVPROBE_DEPTH"] = str(self.options.depth)
        if self.options.modules:
            added["NVPROBE_MODULES"] = ",".join(self.options.modules)
        if self.backend == "nsys" and self.options.window.by_steps and not self.cuda:
            added["NSYS_NVTX_PROFILER_REGISTER_ONLY"] = "0"  # the window's name is not a handle
        settings = self.settings(folder, status)
        if settings.torch == "cpu" and "KINETO_LOG_LEVEL" not in os.environ:
            added["KINETO_LOG_LEVEL"] = _KINETO_SILENT
        return added | settings.to_environ()

    def settings(self, folder: Path, status: Path) -> Settings:
        """What the processes of the program need to know."""
        window = self.options.window
        torch: TorchActivities = "none"
        if self.backend == "torch":
            torch = "cuda" if self.cuda else "cpu"
        elif self.options.with_torch_trace:
            torch = "cpu"
        return Settings(
            status=os.fspath(status),
            output=os.fspath(folder.absolute()),
            first=None if window.outside else window.first,
            last=None
            if window.outside
            else TORCH_STEPS
            if torch == "cpu" and window == Window()
            else window.last,
            by_request=not window.outside and window.unit == "requests",
            at_least=None if window.outside else window.at_least,
            delay_s=0.0 if window.outside else window.delay_s,
            duration_s=None if window.outside else window.duration_s,
            warmup=self.options.warmup,
            trigger=trigger_for(self.options, cuda=self.cuda) if self.backend == "nsys" else "none",
            torch=torch,
            stacks=self.options.python_backtraces and self.backend == "torch",
            memory=self.options.memory_usage and self.backend == "torch",
            progress=window.outside,
        )

    def without_extras(self, note: str) -> Plan:
        """The same recording without what costs more and was asked for besides."""
        return replace(self, options=self.options.without_extras(), notes=[*self.notes, note])

    def with_torch(self, note: str) -> Plan:
        """The same program recorded by torch.profiler, or by nothing where it is not Python."""
        options = replace(self.options, window=_torch_window(self.options.window))
        return replace(self, backend="torch", nsys=None, options=options, notes=[*self.notes, note])

    def text(self, folder: Path) -> str:
        """The commands, for ``--dry-run``; what looks like a secret is starred out."""
        words = list(self.target.argv)
        if self.backend == "nsys":
            words = self.nsys_argv(folder, words)
        after = self.session_argv(folder)[1:] if self.options.window.outside else ()
        shown = self.environ(folder, folder.absolute())
        variables = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        text = " \\\n".join([*variables, shlex.join(redacted_words(words))])
        return "\n".join([text, *(f"# then: {shlex.join(redacted_words(one))}" for one in after)])


def make_plan(
    target: Target, options: LaunchOptions, environ: Mapping[str, str] = os.environ
) -> Plan:
    """Choose the backend and make the program ready.

    Raises:
        ToolError: nsys was asked for by name and does not work.
        UsageError: options that do not go together.

    """
    notes: list[str] = []
    nsys = _choose_nsys(options, notes)
    cuda = cuda_present(environ)
    engine = engine_of(target.argv)
    options = _settle_window(options, nsys, notes, engine)
    notes += notes_for(engine, environ)
    instrumented = _is_needed(options, nsys) and _can_instrument(target, notes)
    if nsys is None:
        if options.accurate:
            raise UsageError("--accurate needs nsys: torch.profiler traces CUDA graphs by node")
        if not instrumented:
            raise UsageError(_needs_python(target, options))
        return Plan("torch", target, instrumented, options, None, cuda, notes, engine)
    notes += profile_argv(nsys, options, Path(REPORT), (), cuda=cuda)[1]
    notes += _left_out(options, nsys)
    notes += _costs(options, cuda=cuda)
    if options.window.by_steps and not instrumented:
        raise UsageError(
            "--steps needs a Python program that nvprobe can instrument: use --duration"
        )
    return Plan("nsys", target, instrumented, options, nsys, cuda, notes, engine)


def cuda_present(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a program here could use an NVIDIA GPU: a device node, and none hidden from it."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1"}:
        return False
    nodes = Path("/dev")
    return (nodes / "dxg").exists() or any(
        node.name[6:].isdigit() for node in nodes.glob("nvidia[0-9]*")
    )


def _choose_nsys(options: LaunchOptions, notes: list[str]) -> Nsys | None:
    """The nsys to use; None for the torch backend."""
    if options.backend == "torch":
        return None
    try:
        return find_nsys()
    except ToolError as error:
        if options.backend == "nsys":
            raise
        notes.append(f"{error}. Recording with torch.profiler instead")
        return None


def _torch_window(window: Window) -> Window:
    """Torch traces grow fast: without a window of the user's they end after some steps."""
    return Window(0, TORCH_STEPS) if window == Window() else window


def _settle_window(
    options: LaunchOptions, nsys: Nsys | None, notes: list[str], engine: Engine | None = None
) -> LaunchOptions:
    """Windows that options imply: from ``--warmup`` on, an end for torch traces, engines."""
    window = options.window
    from_outside = window.on_trigger or window.at_least is not None or options.client
    if nsys is None and (window.on_trigger or options.client):
        raise UsageError("--trigger and --client need nsys, which opens such a window")
    if engine is not None and not engine.counted and (window.by_steps or window.at_least):
        raise UsageError(
            f"{engine.name}: nvprobe cannot count its iterations and requests while it runs: "
            "use --delay and --duration, --client or --trigger"
        )
    if nsys is not None and (from_outside or (engine is not None and window != Window())):
        window = replace(window, outside=True)  # several processes have one window
        return replace(options, window=window)
    if engine is not None and window == Window():
        notes.append(
            f"{engine.name}: the whole run is recorded, its start too; --trigger, --steps, "
            "--duration or --client COMMAND record less"
        )
    if nsys is None and window == Window():
        window = _torch_window(window)
        notes.append(f"torch.profiler records steps 0 to {TORCH_STEPS - 1} (--steps changes that)")
    elif options.warmup and not window.by_steps:
        window = Window(options.warmup, None)
    return replace(options, window=window)


def _is_needed(options: LaunchOptions, nsys: Nsys | None) -> bool:
    """Whether anything has to run inside the program: annotations, a window, a torch trace."""
    records_alone = nsys is not None and not (options.with_torch_trace or options.window.by_steps)
    return options.annotate or not records_alone


def _can_instrument(target: Target, notes: list[str]) -> bool:
    """Whether the program is Python that has nvprobe and reads its environment."""
    if not target.is_python:
        return False
    reason = (
        "is started with -I, -E or -S and ignores its environment"
        if target.isolated
        else _has_no_nvprobe(target.interpreter[0])
    )
    if reason is not None:
        name = Path(target.interpreter[0]).name
        notes.append(f"{name} {reason}: the program runs without annotations")
    return reason is None


_PROBE = """
import sys
if sys.path[:1] == ['']: del sys.path[0]
import importlib.util
sys.exit(importlib.util.find_spec('nvprobe') is None)
"""
"""Without the working directory on the path: a module there could take the place of any."""


def _has_no_nvprobe(interpreter: str) -> str | None:
    """Why an interpreter cannot be instrumented; None where it can."""
    path = Path(shutil.which(interpreter) or interpreter)
    if path.exists() and path.absolute() == Path(sys.executable).absolute():
        return None  # by name: two virtual environments may link to one and the same Python
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROBE], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"could not be asked for nvprobe ({type(error).__name__})"
    return None if done.returncode == 0 else "has no nvprobe; install it in that environment"


def _left_out(options: LaunchOptions, nsys: Nsys) -> list[str]:
    """What is recorded or exported otherwise than one may think."""
    notes = []
    if options.export_kind == "parquet" and not nsys.supports("--export", "parquetdir"):
        notes.append(
            f"nsys {nsys.version_text} exports no parquet: the report is exported to SQLite"
        )
    if options.with_torch_trace and options.window == Window():
        last = TORCH_STEPS - 1
        notes.append(f"the torch trace beside nsys ends with step {last} (--steps changes that)")
    return notes


def _costs(options: LaunchOptions, *, cuda: bool) -> list[str]:
    """What options cost, and what a machine without a GPU leaves out."""
    if not cuda:
        return ["no GPU here: ranges and host time are recorded, no GPU work"]
    notes = []
    if options.call_chains:
        notes.append("call chains cost microseconds a synchronizing call, and CPU sampling runs")
    return notes


def _needs_python(target: Target, options: LaunchOptions) -> str:
    name = Path(target.argv[0]).name
    return (
        f"torch.profiler records Python programs that nvprobe can instrument, and {name} is not "
        "one here: install nsys, or launch the Python script itself"
    )
