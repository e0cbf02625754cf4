"""``nvprobe launch``: run a program under nsys or torch.profiler."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.settings import Settings, common_options

if TYPE_CHECKING:
    from nvprobe.launch.options import LaunchOptions, Outcome

_ONCE = frozenset({"--", "--dry-run", "--json"})
"""Words for the launch of a job, not for the launch of each rank."""


class _OptionsBeforeProgram(click.Command):
    """Options end at the program; the words before it are kept for the ranks of a job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words that are nvprobe's own."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        program = ctx.params.get("program", ())
        own = given[: len(given) - len(program)]
        ctx.meta["nvprobe.words"] = [word for word in own if word not in _ONCE]
        return rest


@click.command(
    name="launch",
    cls=_OptionsBeforeProgram,
    context_settings={"allow_interspersed_args": False},
    epilog="Example: nvprobe launch --steps 10:15 train.py --lr 1e-3",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENTS]...")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as after python -m.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder of the run.  [default: a new one in nvprobe-runs]",
)
@click.option("-f", "--force", is_flag=True, help="Replace an earlier run in FOLDER.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and run nothing.")
@click.option("--no-analyze", is_flag=True, help="Capture only.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "nsys", "torch"]),
    default="auto",
    show_default=True,
    help="Who records; auto takes nsys where it is installed.",
)
@click.option("--steps", metavar="FIRST:LAST", help="Record these steps only (LAST excluded).")
@click.option(
    "--requests", metavar="FIRST:LAST", help="The steps from one request to another (inference)."
)
@click.option(
    "--warmup", type=click.IntRange(0), default=0, help="Steps left out before anything counts."
)
@click.option("--delay", type=click.FloatRange(0), default=0.0, help="Seconds before recording.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Seconds to record.")
@click.option(
    "--trigger", is_flag=True, help="Record from one `nvprobe trigger RUN` to the next one."
)
@click.option(
    "--when",
    "at_least",
    type=click.IntRange(1),
    metavar="REQUESTS",
    help="Record from the first step with so many requests on (with --duration or --steps).",
)
@click.option(
    "--client",
    metavar="COMMAND",
    help="Run this when the server is ready, record it, then end the server.",
)
@click.option(
    "--annotate",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Write ranges for steps, modules, phases and graphs.",
)
@click.option("--depth", type=click.IntRange(0), help="Annotate modules down to this depth.")
@click.option("--modules", multiple=True, metavar="GLOB", help="Annotate modules with such names.")
@click.option(
    "--kernels-in-graphs/--graphs-whole",
    default=True,
    help="Record each kernel of a CUDA graph (slower), or the graph as one.",
)
@click.option(
    "--accurate",
    is_flag=True,
    help="Run the program twice: CUDA graphs whole for times, by node for what is in them.",
)
@click.option("--gpu-metrics", is_flag=True, help="Sample GPU counters at 20 kHz (large files).")
@click.option(
    "--sync-lines/--no-sync-lines",
    default=True,
    help="Find the source lines of implicit synchronizations (no measurable cost).",
)
@click.option("--call-chains", is_flag=True, help="Native stacks of synchronizing calls (slow).")
@click.option("--python-backtraces", is_flag=True, help="Python stacks of CUDA calls (slow).")
@click.option(
    "--python-samples",
    is_flag=True,
    help="Sample the line that Python runs, 1,000 times per second.",
)
@click.option("--memory-usage", is_flag=True, help="Record GPU allocations (slower).")
@click.option("--os-calls", is_flag=True, help="Record operating system calls (large files).")
@click.option(
    "--with-torch-trace",
    is_flag=True,
    help="Record operators with torch.profiler beside nsys (2 to 3 times slower steps).",
)
@click.option("--nsys-arg", multiple=True, metavar="ARG", help="Passed to nsys profile.")
@click.option(
    "--export",
    "export_kind",
    type=click.Choice(["auto", "sqlite", "parquet"]),
    default="auto",
    help="What nsys exports for the analysis.",
)
@click.option("--ranks", metavar="LIST", help="Profile these ranks of a job only, as in 0,8-11.")
@click.option(
    "--nsys-timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds without progress after the program's end before nsys is stopped.",
)
@click.option(
    "--nsys-start-timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds for nsys to start the program.",
)
@click.option("--in-job", is_flag=True, hidden=True, help="One rank of a job nvprobe started.")
@common_options
@click.pass_context
def command(ctx: click.Context, /, program: tuple[str, ...], **given: Any) -> None:
    """Run a program under nsys or torch.profiler, and analyze it.

    PROGRAM is a script, a command, or a launcher of ranks such as torchrun. Its arguments, input,
    output, signals and exit code pass through untouched; with --json its stdout goes to stderr.
    It runs instrumented: steps, phases, modules and graphs become ranges.
    """
    from nvprobe.launch.run import dry_run, launch

    settings = ctx.ensure_object(Settings)
    options = _options(settings, given)
    words, module = ctx.meta["nvprobe.words"], bool(given["module"])
    if given["dry_run"]:
        click.echo(dry_run(program, options, module=module, inner_words=words))
        return
    with _stdout_only_for_json(settings):
        outcome = launch(
            program, options, module=module, inner_words=words, in_job=bool(given["in_job"])
        )
    _report(settings, outcome)
    ctx.exit(outcome.code)


@contextmanager
def _stdout_only_for_json(settings: Settings) -> Iterator[None]:
    """With ``--json`` what the program prints goes to stderr, so that stdout is one document."""
    if not settings.as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _options(settings: Settings, given: dict[str, Any]) -> LaunchOptions:
    """The command line as plain values."""
    from nvprobe.errors import UsageError
    from nvprobe.launch.options import (
        LaunchOptions,
        Timeouts,
        Window,
        parse_ranks,
        parse_steps,
    )

    steps, requests = given["steps"], given["requests"]
    timed = given["delay"] or given["duration"] is not None
    if bool(steps) + bool(requests) + bool(timed) > 1:
        raise UsageError("--steps, --requests and --delay/--duration are windows: give one of them")
    if requests:
        window = Window(*parse_steps(requests, "--requests"), "requests")
    elif steps:
        window = Window(*parse_steps(steps))
    else:
        window = Window(delay_s=given["delay"], duration_s=given["duration"])
    if given["trigger"] and (given["client"] or given["at_least"]):
        raise UsageError("--trigger opens the window itself: give no --client and no --when")
    window = replace(window, on_trigger=given["trigger"], at_least=given["at_least"])
    same = (
        "output force backend warmup depth modules kernels_in_graphs accurate gpu_metrics "
        "sync_lines call_chains python_backtraces python_samples memory_usage os_calls "
        "with_torch_trace export_kind"
    )
    return LaunchOptions(
        **{name: given[name] for name in same.split()},
        window=window,
        annotate=given["annotate"] == "auto",
        nsys_args=given["nsys_arg"],
        client=tuple(shlex.split(given["client"] or "")),
        ranks=parse_ranks(given["ranks"]) if given["ranks"] else None,
        analyze=not given["no_analyze"],
        quiet=settings.quiet or settings.as_json,
        verbose=max(settings.verbosity, 0),
        timeouts=Timeouts(given["nsys_start_timeout"], given["nsys_timeout"]),
    )


def _report(settings: Settings, outcome: Outcome) -> None:
    """Notes, then what was written and what to do with it; stdout stays the program's."""
    from nvprobe.launch.finish import is_job
    from nvprobe.launch.redaction import redacted

    who = "nvprobe" if outcome.rank is None else f"nvprobe: rank {outcome.rank}"
    for note in outcome.notes:
        settings.note(f"{who}: {redacted(note)}")
    if outcome.problem:
        click.echo(f"{who}: {redacted(outcome.problem)}", err=True)
    if settings.as_json:
        run = outcome.folder / "run.json"
        click.echo(
            run.read_text("utf-8") if run.exists() else json.dumps({"exit_code": outcome.code})
        )
        return
    if outcome.rank is not None or not outcome.folder.exists():
        return  # the launch of the whole job says what was written
    names = ", ".join(file.name for file in outcome.files if not file.name.startswith("sidecar"))
    settings.note(f"nvprobe: wrote {outcome.folder}" + (f" ({names})" if names else ""))
    if outcome.captured and is_job(outcome.files):
        settings.note(f"nvprobe: next: nvprobe ranks {outcome.folder}")
    elif outcome.captured:
        many = outcome.files[0].is_dir() and outcome.files[0].name.startswith(("rank", "process"))
        shown = outcome.files[0] if many else outcome.folder
        settings.note(f"nvprobe: next: nvprobe analyze {shown}")
