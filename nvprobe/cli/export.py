"""``nvprobe export``."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.files import in_words, not_written, spare_inputs
from nvprobe.cli.filters import filter_options, selection_of, stacks_option
from nvprobe.cli.progress import stages
from nvprobe.cli.settings import INPUT, Settings, common_options
from nvprobe.errors import UsageError

if TYPE_CHECKING:
    from nvprobe.analysis.result import Analysis


@click.command("export")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=INPUT)
@click.option(
    "--to",
    "kind",
    required=True,
    type=click.Choice(("sqlite", "parquet", "csv", "json", "perfetto")),
    help="What to write: a database, a folder of tables, the analysis document, or a trace.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Where to write (default: by INPUT)."
)
@click.option("-f", "--force", is_flag=True, help="Replace what is there.")
@filter_options
@stacks_option
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    inputs: tuple[str, ...],
    kind: str,
    output: Path | None,
    force: bool,
    python_stacks: bool | None,
    **options: Any,
) -> None:
    """Write every event with its owner, and every result, as tables.

    For SQL, Datasette, pandas or DuckDB; docs/tables.md says what each column is. "--to perfetto"
    writes ranges, calls, streams, launches, idle causes and counters as a trace for
    ui.perfetto.dev. Filters choose what is written.
    """
    from nvprobe.cli.pipeline import analysis_of

    selection = selection_of(options)
    target = output or Path(_default(inputs[0], kind))
    spare_inputs(target, inputs)
    _check(target, force)
    analysis = analysis_of(settings, inputs, selection=selection, python_stacks=python_stacks)
    with stages(settings, 1) as stage:
        stage(f"writing {in_words(target.name)}")
        _put(target, lambda partial: _write(analysis, kind, partial))
    settings.note(f"Wrote {in_words(target)}")
    settings.note(f"next: {_next(kind, target)}")
    if settings.as_json:
        import json

        click.echo(json.dumps({"schema": "nvprobe.export/1", "to": kind, "output": str(target)}))


def _default(first: str, kind: str) -> str:
    """A name in the working directory, never that of an input."""
    stem = "stdin" if first == "-" else Path(first).resolve().name
    for suffix in (".gz", ".json", ".sqlite", ".nsys-rep", "_pqtdir", "_arwdir"):
        stem = stem.removesuffix(suffix)
    if kind == "perfetto":
        return f"{stem}.perfetto.json.gz"
    return f"{stem}.tables" if kind in ("parquet", "csv") else f"{stem}.tables.{kind}"


def _check(target: Path, force: bool) -> None:
    """Nothing is replaced silently, and no folder that holds anything but our tables at all."""
    name = in_words(target.name)
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise UsageError(f"{in_words(target)} is a pipe or a device; name a file")
    if target.exists() and not force:
        raise UsageError(f"{name} exists already; --force replaces it")
    if target.is_dir() and not all(_is_ours(file) for file in target.iterdir()):
        raise UsageError(f"{name} is a folder that holds more than tables; name another")


def _is_ours(file: Path) -> bool:
    """Whether a file is a table as ``export`` names them."""
    from nvprobe.report.files import table_names

    return file.suffix in (".parquet", ".csv") and file.stem in table_names()


def _write(analysis: Analysis, kind: str, path: Path) -> None:
    if kind == "sqlite":
        from nvprobe.report.database import write_database

        path.touch()  # where it cannot be made this says why, and SQLite does not
        write_database(analysis, path)
    elif kind == "perfetto":
        from nvprobe.report.perfetto import write_perfetto

        write_perfetto(analysis, path)
    elif kind == "json":
        from nvprobe.report.document import to_json

        path.write_text(to_json(analysis) + "\n", "utf-8")
    else:
        from nvprobe.report import files

        path.mkdir()
        write = files.write_parquet if kind == "parquet" else files.write_csv
        write(analysis, path)


def _put(target: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make the result beside ``target``, then put it in place; never half."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        write(partial)
        if target.is_dir():
            shutil.rmtree(target)
        partial.replace(target)
    except (OSError, sqlite3.OperationalError) as error:
        fault = error.strerror if isinstance(error, OSError) else error
        raise not_written(target, fault) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _next(kind: str, target: Path) -> str:
    """A command that looks at the result, as a shell takes it."""
    if kind == "perfetto":
        return f"open {in_words(target.name)} in ui.perfetto.dev"
    words = {
        "sqlite": ["datasette", str(target)],
        "parquet": ["duckdb", "-c", _select(target / "paths.parquet")],
        "csv": ["head", str(target / "paths.csv")],
        "json": ["python", "-m", "json.tool", str(target)],
    }[kind]
    return in_words(" ".join(map(_word, words)))


def _select(path: Path) -> str:
    """SQL that reads a file."""
    name = str(path).replace("'", "''")
    return f"FROM '{name}'"


def _word(text: str) -> str:
    """A word as a shell takes it, in double quotes where single ones stand in it."""
    plain = "'" in text and not set('"$`!\\') & set(text)
    return f'"{text}"' if plain else shlex.quote(text)
