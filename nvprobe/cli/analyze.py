"""``nvprobe analyze``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nvprobe.cli.files import spare_inputs
from nvprobe.cli.filters import filter_options, selection_of, stacks_option
from nvprobe.cli.settings import INPUT, Settings, common_options, output_options
from nvprobe.cli.view import keep_json, keep_page, show, tree_view, view_options
from nvprobe.errors import UsageError

if TYPE_CHECKING:
    from nvprobe.analysis.result import Analysis
    from nvprobe.comparison.budget import Budget


@click.command("analyze")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=INPUT)
@view_options
@filter_options
@click.option(
    "--index",
    "index_rules",
    multiple=True,
    metavar="REGEX",
    help="Take a number off range names: groups (?P<name>...) and (?P<index>...) (repeatable).",
)
@click.option(
    "--memory-snapshot",
    type=INPUT,
    metavar="PICKLE",
    help="A torch memory snapshot of the same run: who held memory at the peak. Not executed.",
)
@click.option(
    "--client-results",
    type=INPUT,
    metavar="JSON",
    help="What vllm bench serve --save-detailed wrote meanwhile: its latencies, by the steps.",
)
@stacks_option
@click.option(
    "--budget",
    is_flag=True,
    help="Hold the run against [tool.nvprobe.budget]: exit 3 where it exceeds one.",
)
@click.option("--keep-export", is_flag=True, help="Put the SQLite export of a .nsys-rep beside it.")
@click.option("--also-json", type=click.Path(path_type=Path), hidden=True)
@click.option("--also-html", type=click.Path(path_type=Path), hidden=True)
@output_options
@common_options
@click.pass_obj
def command(
    settings: Settings,
    /,
    inputs: tuple[str, ...],
    index_rules: tuple[str, ...],
    memory_snapshot: str | None,
    client_results: str | None,
    python_stacks: bool | None,
    budget: bool,
    keep_export: bool,
    also_json: Path | None,
    also_html: Path | None,
    **options: Any,
) -> int:
    """Say where the GPU time of a capture goes, and why.

    INPUT is a report of nsys (.nsys-rep), an export of one (.sqlite, _pqtdir), a torch.profiler
    trace (.json, .json.gz) or a run folder, told apart by content; several of one run are merged.
    The input is never changed, and nothing is written beside it unless asked for.
    """
    from nvprobe.cli.pipeline import analysis_of, exports_beside

    budgets = _budgets() if budget else []
    selection = selection_of(options)
    chosen = tree_view(**options)
    beside = [one for one in (memory_snapshot, client_results) if one]
    spare_inputs(settings.output, [*inputs, *beside])
    if keep_export:
        exports_beside(settings, inputs)
    analysis = analysis_of(
        settings,
        inputs,
        index_rules=index_rules,
        selection=selection,
        memory_snapshot=memory_snapshot,
        client_results=client_results,
        python_stacks=python_stacks,
    )
    show(settings, analysis, chosen, "nvprobe analyze --help shows what else to look at")
    if also_json is not None:  # these two: asked for by `nvprobe launch`, in its own run folder
        keep_json(analysis, also_json)
    if also_html is not None:
        keep_page(settings, analysis, also_html)
    return _held_against(budgets, settings, analysis) if budget else 0


def _budgets() -> list[Budget]:
    """Those of the project; UsageError without any."""
    from nvprobe.cli.budgets import budgets_of

    found = budgets_of()
    if not found:
        raise UsageError("--budget: pyproject.toml has no [tool.nvprobe.budget]")
    return found


def _held_against(budgets: list[Budget], settings: Settings, analysis: Analysis) -> int:
    """Say what came of the budgets, on stderr; the exit code."""
    from nvprobe.cli.budgets import EXIT_CODES
    from nvprobe.comparison.budget import check_budgets
    from nvprobe.comparison.gate import gate
    from nvprobe.report.cells import visible
    from nvprobe.report.document import document

    found = gate(check_budgets([document(analysis)], budgets))
    for check in found.checks:
        if check.outcome != "pass" or settings.verbosity > 0:
            click.echo(visible(f"nvprobe: {check.outcome}: {check.line}"), err=True)
    settings.note(f"nvprobe: budgets: {found.outcome}")
    return EXIT_CODES[found.outcome]
