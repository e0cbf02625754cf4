"""``nvprobe launch``: run a program under nsys or torch.profiler, and keep what it leaves."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvprobe.errors import NvprobeError, ToolError, UsageError, without_folders
from nvprobe.launch import rundir
from nvprobe.launch.accurate import run_twice, two_plans
from nvprobe.launch.calibration import for_run
from nvprobe.launch.control import Control
from nvprobe.launch.engines import health_url
from nvprobe.launch.finish import (
    ANALYSIS,
    PAGE,
    analyse_job,
    analyse_runs,
    check_capture,
    own_command,
    recorded_pids,
    why_no_window,
)
from nvprobe.launch.gpu_processes import GpuProcesses
from nvprobe.launch.launchers import Job, find_job
from nvprobe.launch.options import LaunchOptions, Outcome
from nvprobe.launch.overhead import WindowStatus
from nvprobe.launch.plan import Plan, make_plan
from nvprobe.launch.proc import clear_stale_locks
from nvprobe.launch.process import LOG, Ending, run_alone, run_under_nsys
from nvprobe.launch.redaction import redacted, redacted_words
from nvprobe.launch.target import Target, resolve
from nvprobe.launch.verify import (
    DISK_FULL,
    REFUSED,
    TRANSIENT,
    collect,
    export_report,
    last_words,
    log_tail,
    no_step_inside,
    why_no_trace,
)
from nvprobe.nsys import Nsys
from nvprobe.placement import Placement, placement
from nvprobe.version import __version__

_ATTEMPTS = 3
_LONG_EXPORT = 20 * 2**20
"""Bytes of a report whose export takes more than a few seconds."""

_ENVIRONMENT_IN_REPORT = (
    "{} holds the environment of this machine's processes, as nsys writes it; {} does not: "
    "share that one"
)


def launch(
    command: Sequence[str],
    options: LaunchOptions,
    *,
    module: bool = False,
    inner_words: Sequence[str] = (),
    in_job: bool = False,
) -> Outcome:
    """Run ``command`` as ``options`` say, to its end and through the analysis.

    ``inner_words`` are these options as words of the command line, for a job (torchrun, srun, …)
    to start one launch a rank; ``in_job`` marks such a launch.

    Raises:
        UsageError: the command or the options cannot be carried out.
        ProgramNotFound: there is no such command.
        ToolError: nsys was asked for by name and does not work.

    """
    job = None if module else find_job(command)
    place = placement()
    if options.accurate and (job is not None or place.rank is not None):
        raise UsageError(
            "--accurate runs the program twice, which ranks of a job cannot: launch one process"
        )
    if job is not None:
        return _launch_job(job, options, inner_words)
    target = resolve(command, module=module)
    target.check()
    if options.ranks is not None and place.rank is not None and place.rank not in options.ranks:
        os.execvp(target.argv[0], list(target.argv))  # noqa: S606 - unprofiled ranks run as they are
    plan = make_plan(target, options)
    folder = _folder(target, options, place, in_job=in_job)
    if not in_job or _speaks_for_the_job(place, options):
        _report(options, plan.notes)

    def run(plan: Plan, folder: Path) -> Outcome:
        return _Run(plan, folder, place, in_job=in_job).carry_out()

    return run_twice(plan, folder, run) if options.accurate else run(plan, folder)


def dry_run(
    command: Sequence[str], options: LaunchOptions, *, module: bool, inner_words: Sequence[str]
) -> str:
    """The exact commands that `launch` would run; makes no folder and starts nothing."""
    job = None if module else find_job(command)
    folder = options.output or Path(rundir.PARENT) / "RUN"
    if job is None:
        plan = make_plan(resolve(command, module=module), options)
        texts = [plan.text(folder)]
        if options.accurate:
            whole, nodes = two_plans(plan)
            texts = [whole.text(folder), nodes.text(folder / rundir.GRAPH_NODES)]
        return "\n".join([*(f"# {note}" for note in plan.notes), *texts])
    each = make_plan(job.program, options).text(folder / "rankN")
    words = job.with_inner(_inner_command(job, folder, inner_words))
    outer = shlex.join(redacted_words(words))
    return f"{outer}\n# and on each rank:\n{each}"


def _folder(target: Target, options: LaunchOptions, place: Placement, *, in_job: bool) -> Path:
    if in_job or place.rank is not None:
        return rundir.create_for_rank(
            options.output, target.name, place, os.environ, force=options.force and not in_job
        )
    return rundir.create(options.output, target.name, force=options.force)


def _inner_command(job: Job, folder: Path, inner_words: Sequence[str]) -> list[str]:
    """One rank's launch; ``--`` ends its options where the program's words begin."""
    own = ["--in-job", "--output", os.fspath(folder.absolute()), "--"]
    return own_command("launch", *inner_words, *own, *job.program.argv)


def _launch_job(job: Job, options: LaunchOptions, inner_words: Sequence[str]) -> Outcome:
    """Start the job with one launch a rank, then look at what the ranks left."""
    folder = rundir.create(options.output, job.program.name, force=options.force)
    environ = {**os.environ, "NVPROBE_JOB": folder.name}
    ending = run_alone(job.with_inner(_inner_command(job, folder, inner_words)), environ)
    outcome = Outcome(ending.code or 0, folder)
    outcome.files = rundir.of_ranks(folder)
    if not outcome.files:
        with suppress(OSError):
            folder.rmdir()  # nothing came into it
        outcome.problem = (
            f"{job.launcher} ended with code {outcome.code} before any rank was recorded"
        )
    elif options.analyze and not ending.interrupted:
        outcome.notes += analyse_job(folder, outcome.files, options)
    return outcome


class _Run:
    """One program, one folder: run it, collect, export, analyze."""

    def __init__(self, plan: Plan, folder: Path, place: Placement, *, in_job: bool) -> None:
        self.plan = plan
        self.folder = folder
        self.place = place
        self.in_job = in_job
        self.started = time.time()
        self.control: Control | None = None
        self.gpu = GpuProcesses(os.getpid())

    @property
    def options(self) -> LaunchOptions:
        """The options of the plan in force."""
        return self.plan.options

    def carry_out(self) -> Outcome:
        """All of it. Whatever fails after the program ran, its exit code is kept."""
        self._write_run_json(None, None, WindowStatus())
        with rundir.temporary() as temporary:
            ending = self._run(temporary)
            rundir.keep_private(self.folder)
            status = WindowStatus.read(temporary)
            outcome = Outcome(1 if ending.code is None else ending.code, self.folder)
            outcome.rank = self.place.rank if self.in_job else None
            try:
                self._collect(temporary, ending, status, outcome)
            except (NvprobeError, OSError) as error:
                outcome.problem = str(error)
            except Exception as error:  # ours, and no reason to lose the program's result
                outcome.problem = f"the capture was not collected ({type(error).__name__}: {error})"
        with suppress(OSError):
            self._write_run_json(outcome, ending, status)
        if self.options.analyze and not self.in_job and outcome.captured:
            alone = _speaks_for_the_job(self.place, self.options)
            shown = self.folder if alone else Path()
            outcome.notes += analyse_runs([self.folder], shown, self.options)
            outcome.files += [*self.folder.glob(ANALYSIS), *self.folder.glob(PAGE)]
        rundir.keep_private(self.folder)
        return outcome

    def _run(self, temporary: Path) -> Ending:
        """Run the program; without nsys where nsys does not get to start it."""
        target = self.plan.target
        environ = {**os.environ, **self.plan.environ(self.folder, temporary)}
        if self.plan.nsys is None:
            return run_alone(target.argv, environ)
        for _attempt in range(_ATTEMPTS):
            self.control = self._control(temporary)
            ending = run_under_nsys(
                lambda command: self.plan.nsys_argv(self.folder, command),
                target.argv,
                environ,
                temporary,
                self.options.timeouts,
                lambda line: _report(self.options, [line]),
                self.control,
                self.gpu,
            )
            if self.control is not None and self.control.stopped_program:
                ending = replace(ending, code=0, signal=None)  # the end that was asked for
            if ending.code is not None or ending.interrupted:
                return ending
            said = log_tail(temporary / LOG)
            if REFUSED.search(said) and self.plan.options.extras:
                self.plan = self._without_extras(temporary)
            elif TRANSIENT.search(said):
                clear_stale_locks()
            else:
                break
        self.plan = self._without_nsys(ending, temporary)
        environ = {**os.environ, **self.plan.environ(self.folder, temporary)}
        return run_alone(self.plan.target.argv, environ)

    def _control(self, temporary: Path) -> Control | None:
        """Who opens and closes the window where the program does not."""
        plan = self.plan
        if not self.options.window.outside:
            return None
        _, start, stop = plan.session_argv(self.folder)
        engine = plan.engine
        return Control(
            start,
            stop,
            self.options.window,
            self.folder,
            temporary,
            os.environ,
            lambda line: _report(self.options, [line]),
            client=self.options.client,
            health=None if engine is None else health_url(engine, plan.target.argv),
            ends_program=engine is not None and not self.options.window.on_trigger,
        )

    def _without_extras(self, temporary: Path) -> Plan:
        """What to do where nsys refuses an option: the ranges are worth more than what it adds."""
        extras = ", ".join(self.options.extras)
        note = f"nsys refuses an option (it said: {last_words(temporary / LOG)}): without {extras}"
        _report(self.options, [note])
        return self.plan.without_extras(note)

    def _without_nsys(self, ending: Ending, temporary: Path) -> Plan:
        """What to do where nsys did not start the program, reported before it is done."""
        late = ending.trouble == "start-timeout"
        said = "it said: " + ("nothing" if late else last_words(temporary / LOG))
        if rundir.disk_full(temporary):
            said = DISK_FULL
        within = f" within {self.options.timeouts.start_s:g} s" if late else ""
        how = "with torch.profiler" if self.plan.instrumented else "without a profiler"
        note = f"nsys did not start the program{within} ({said}): running it {how} instead"
        _report(self.options, [note])
        return self.plan.with_torch(note)

    def _collect(
        self,
        temporary: Path,
        ending: Ending,
        status: WindowStatus,
        outcome: Outcome,
    ) -> None:
        """Bring reports, traces and notes together; say why where there are none."""
        plan = self.plan
        if plan.nsys is not None:
            self._collect_nsys(plan.nsys, temporary, ending, status, outcome)
        window = self.options.window
        if window.by_steps and status.steps and status.steps == status.opened:
            outcome.notes.append(no_step_inside(window, status.steps))
        traces = sorted(self.folder.glob("trace.*.json*"))
        outcome.files += traces
        outcome.files += sorted(self.folder.glob("sidecar.*.jsonl"))
        if plan.nsys is None and not traces and plan.instrumented:
            outcome.problem = why_no_trace(self.options.window, status, ending)
        if status.steps and window.by_steps:
            by_node = plan.nsys is not None and self.options.kernels_in_graphs
            outcome.notes += status.notes(by_node=by_node)

    def _collect_nsys(
        self,
        nsys: Nsys,
        temporary: Path,
        ending: Ending,
        status: WindowStatus,
        outcome: Outcome,
    ) -> None:
        options = self.options
        capture = collect(
            nsys, self.folder, temporary, ending, options.window, status, options.timeouts
        )
        outcome.notes += capture.notes
        if ending.trouble == "finish-timeout" and self.plan.samples_cpus:
            outcome.notes.append(
                "CPU sampling may be why: try without --call-chains and --python-backtraces"
            )
        outcome.problem = capture.problem
        if capture.report is None:
            outcome.problem = why_no_window(self.plan, self.folder) or capture.problem
            with suppress(OSError):
                shutil.copy(temporary / LOG, self.folder / LOG)
            return
        outcome.files.append(capture.report)
        size = capture.report.stat().st_size
        if size > _LONG_EXPORT:
            _report(options, [f"nsys exports {capture.report.name} ({size / 1e6:.0f} MB)"])
        try:
            exported = export_report(
                nsys,
                capture.report,
                options.export_kind,
                wide=options.gpu_metrics,
                timeouts=options.timeouts,
            )
        except ToolError as error:
            why = DISK_FULL if rundir.disk_full(self.folder) else error
            outcome.problem = f"the report was written but not exported: {why}"
            return
        outcome.files.append(exported)
        outcome.notes.append(_ENVIRONMENT_IN_REPORT.format(capture.report.name, exported.name))
        outcome.notes += check_capture(exported, self.folder, self.plan)
        outcome.notes += self._gpu_lines(exported)

    def _gpu_lines(self, exported: Path) -> list[str]:
        """Which processes that used the GPU were recorded; nothing of a single one that was."""
        if not self.gpu.seen or not self.plan.cuda:
            return []
        recorded = recorded_pids(exported)
        if recorded is None:
            return []
        if len(self.gpu.seen) == 1 and set(self.gpu.seen) <= recorded:
            return []
        return self.gpu.lines(recorded)

    def _write_run_json(
        self, outcome: Outcome | None, ending: Ending | None, status: WindowStatus
    ) -> None:
        plan = self.plan
        flags = plan.nsys_argv(self.folder, [])[2:] if plan.nsys else []
        document: dict[str, Any] = {
            "schema": "nvprobe.run/1",
            "nvprobe": __version__,
            "python": platform.python_version(),
            "started_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "command": rundir.plain_words(plan.target.argv),
            "backend": plan.backend,
            "nsys": plan.nsys.version_text if plan.nsys else None,
            "nsys_flags": rundir.plain_words(flags),
            "window": str(self.options.window),
            "annotated": plan.instrumented and self.options.annotate,
            "rank": self.place.rank,
            "world_size": self.place.world_size,
            "exit_code": outcome.code if outcome else None,
            "signal": ending.signal if ending else None,
            "duration_s": round(time.time() - self.started, 3) if outcome else None,
            "files": [file.name for file in outcome.files] if outcome else [],
            "notes": [_fit_to_keep(n) for n in plan.notes + (outcome.notes if outcome else [])],
            "problem": _fit_to_keep(outcome.problem) if outcome and outcome.problem else None,
            "steps": status.steps,
            "overhead": status.overhead.document(),
            "calibration": for_run(plan.nsys, plan.backend),
            "step_groups": [asdict(group) for group in status.groups],
            "step_periods": {"first": status.first_timed, "host_ns": status.durations_ns},
        }
        rundir.write_json(self.folder / "run.json", document)


def _fit_to_keep(line: str) -> str:
    return redacted(without_folders(line))


def _speaks_for_the_job(place: Placement, options: LaunchOptions) -> bool:
    """Whether this is the one rank that says what holds for all, and whose summary is printed."""
    return place.rank in (None, min(options.ranks or [0]))


def _report(options: LaunchOptions, notes: Sequence[str]) -> None:
    """Notes for the user go to stderr: stdout is the program's."""
    if not options.quiet:
        for note in notes:
            print(f"nvprobe: {redacted(note)}", file=sys.stderr, flush=True)
