"""``%load_ext nvprobe`` and ``%%nvprobe``: record a cell with torch.profiler, report below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvprobe.api import Results


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; called by ``%load_ext nvprobe``."""

    def nvprobe(line: str, cell: str) -> Results | None:
        """Record the cell and show its report. With a name (``%%nvprobe run``) keep the results."""
        return _run(shell, line.strip(), cell)

    shell.register_magic_function(nvprobe, "cell", "nvprobe")


def _run(shell: Any, name: str, cell: str) -> Results | None:
    """Run a cell recorded; None where it raised, which IPython has shown."""
    from nvprobe.integrations.in_process import record

    with record() as recording:
        outcome = shell.run_cell(cell)
    if not outcome.success:
        return None
    if name:
        shell.user_ns[name] = recording.results
    return recording.results
