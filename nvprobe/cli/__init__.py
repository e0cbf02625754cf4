"""One file per command: option parsing and nothing else.

Commands are found by name and imported when they run, so that ``nvprobe --help`` answers at once;
inside a command the stages (load, attribute, analyze, report) are imported in the function.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from errno import ENOSPC
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from nvprobe.cli.defaults import check_variables, default_map, name_variables
from nvprobe.cli.settings import Settings
from nvprobe.errors import NvprobeError
from nvprobe.version import __version__

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "launch": ("nvprobe.cli.launch", "Run a program under nsys or torch.profiler, and analyze it."),
    "trigger": ("nvprobe.cli.trigger", "Open or close the window of a running launch."),
    "analyze": ("nvprobe.cli.analyze", "Say where the GPU time of a capture goes, and why."),
    "simulate": (
        "nvprobe.cli.simulate",
        "Predict the step with changes, from a replay of the captured steps (docs/replay.md).",
    ),
    "compare": (
        "nvprobe.cli.compare",
        "Say what differs between runs, why, and whether it is more than noise.",
    ),
    "baseline": (
        "nvprobe.cli.baseline",
        "Keep runs to compare with, and show how much they differ among themselves.",
    ),
    "verify": (
        "nvprobe.cli.verify",
        "Say what was predicted for a finding, and what came of it in a run with the change.",
    ),
    "ranks": (
        "nvprobe.cli.ranks",
        "Compare all ranks of a job: who is late, and whether waiting or the network costs time.",
    ),
    "facts": ("nvprobe.cli.facts", "Print what an analysis says as JSON of bounded size."),
    "mcp": ("nvprobe.cli.mcp", "Serve runs to a model over stdin and stdout, read-only."),
    "redact": (
        "nvprobe.cli.redact",
        "Write a copy that is safe to share, and list what is not in it.",
    ),
    "demo": (
        "nvprobe.cli.demo",
        "Show the report of a small H200 capture that ships with nvprobe.",
    ),
    "export": (
        "nvprobe.cli.export",
        "Write every event with its owner, and every result, as tables.",
    ),
    "cache": (
        "nvprobe.cli.cache",
        "Show, or clear, what is kept so that a second command on the same input starts at once.",
    ),
    "doctor": ("nvprobe.cli.doctor", "Check nsys, nvtx, torch, driver and permissions."),
}
"""Name of each command: the module with its ``command``, and its one line in ``--help``."""

INTERRUPTED = 130


class _ReaderLeft(Exception):
    """Nobody reads any more what is printed (``| head``), which click would call a failure."""


@contextlib.contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderLeft from error


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; ``None`` where there is no such."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        name_variables(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that is misspelled, or a file where a command is due, is named."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, 1)
            if near:
                ctx.fail(f"{name!r} is not a command; did you mean {near[0]!r}?")
            if Path(name).exists():
                ctx.fail(f'{name!r} is not a command; did you mean "nvprobe analyze {name}"?')
            ctx.fail(f"{name!r} is not a command; there are {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the options; ``--help`` prints already here."""
        with _until_the_reader_leaves():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _until_the_reader_leaves():
            return super().invoke(ctx)

    def all_commands(self) -> list[click.Command]:
        """Every command, imported."""
        context = click.Context(self)
        found = (self.get_command(context, name) for name in COMMANDS)
        return [command for command in found if command is not None]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="nvprobe")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Where the GPU time of a model goes, what the GPU waits for, and why.

    Start with "nvprobe demo", or with "nvprobe analyze report.sqlite". Options that choose what is
    measured or shown can also stand in [tool.nvprobe] of pyproject.toml (as "depth = 3", or in a
    table named after the command) and in the environment (NVPROBE_ANALYZE_DEPTH=3).
    """
    assert isinstance(cli, LazyGroup)
    check_variables(COMMANDS)
    command = cli.get_command(ctx, str(ctx.invoked_subcommand))
    if command is not None:
        notes: list[str] = []
        defaults = default_map(command, cli.all_commands, notes.append)
        ctx.default_map = {str(command.name): defaults}
        # --quiet is known only when the command has run
        ctx.call_on_close(lambda: ctx.ensure_object(Settings).note_all(notes))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 error, 2 usage, 3 or 4 a gate, 130 interrupted."""
    settings = Settings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # of an old locale: rather a ? than no report
            stream.reconfigure(errors="replace")
    with _remembered_interrupt(settings):
        code = _run(settings, arguments)
    sys.exit(code)


@contextlib.contextmanager
def _remembered_interrupt(settings: Settings) -> Iterator[None]:
    """Note Ctrl-C, too: libraries that are just being imported can make other errors of it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        settings.interrupted = True
        signal.default_int_handler(number, frame)

    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _run(settings: Settings, arguments: Sequence[str] | None) -> int:
    """The one place where errors become exit codes; no traceback without ``-vv``."""
    try:
        code = cli.main(arguments, "nvprobe", standalone_mode=False, obj=settings)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("nvprobe: interrupted", err=True)
        return INTERRUPTED
    except _ReaderLeft:
        _close_stdout()
        return 0
    except Exception as error:
        if settings.verbosity >= 2:
            raise
        if settings.interrupted:
            click.echo("nvprobe: interrupted", err=True)
            return INTERRUPTED
        click.echo(f"nvprobe: {_one_line(error)}", err=True)
        return error.exit_code if isinstance(error, NvprobeError) else 1
    return code if isinstance(code, int) else 0


def _one_line(error: Exception) -> str:
    """What went wrong and what to do about it."""
    if isinstance(error, NvprobeError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; analyze a shorter capture, or on a machine with more"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("nvprobe"):
        library = error.name.partition(".")[0]
        return (
            f"{library} is missing here or does not work: install nvprobe and what it needs "
            "anew; or do this where it is complete (run folders can be copied)"
        )
    if isinstance(error, OSError) and error.strerror:
        file = f": {str(error.filename)!r}" if error.filename else ""
        more = "; free some, or set TMPDIR to a folder elsewhere" if error.errno == ENOSPC else ""
        return f"{error.strerror}{file}{more}"
    return (
        f"internal error ({type(error).__name__}: {str(error)[:200]!r}); this is a defect of "
        "nvprobe, run with -vv for the traceback"
    )


def _close_stdout() -> None:
    """The reader (head, less) has gone: leave quietly, also at interpreter exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
