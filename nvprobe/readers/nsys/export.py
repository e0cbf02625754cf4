"""One export on its way to a Trace: its rows, and what their ids mean."""

from __future__ import annotations

from dataclasses import dataclass

from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.processes import Gpus, ProcessIndex
from nvprobe.readers.nsys.tables import ExportRows, Rows
from nvprobe.trace import Column


@dataclass(frozen=True)
class Export:
    """The event tables of an export, its processes, threads, GPUs and names."""

    events: ExportRows
    index: ProcessIndex
    gpus: Gpus
    names: Names

    @property
    def rows(self) -> dict[str, Rows]:
        """Rows by table name."""
        return self.events.rows

    def get(self, *tables: str) -> list[tuple[str, Rows]]:
        """Those of ``tables`` that the export has, in that order."""
        return self.events.get(*tables)

    def release(self, *tables: str) -> None:
        """Let go of rows that are not needed any more."""
        self.events.release(*tables)

    def hosted(self, table: str) -> dict[str, Column]:
        """Columns ``process`` and ``thread`` of a table of the host."""
        thread = self.index.thread(table)
        return {"process": self.index.thread_process[thread], "thread": thread}

    def located(self, table: str) -> dict[str, Column]:
        """Columns ``process`` and ``device`` of a table of the GPU."""
        process = self.index.process(table)
        return {"process": process, "device": self.gpus.device(table, process)}
