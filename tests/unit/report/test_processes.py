"""The JSON names the processes that recorded something, and no folder of theirs."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.document import to_dict


def test_the_machines_other_processes_are_left_out(tmp_path: Path) -> None:
    report = tmp_path / "report.sqlite"
    with unpacked() as path:
        shutil.copyfile(path, report)
    with closing(sqlite3.connect(report)) as export, export:
        ((own, pid),) = export.execute("SELECT globalPid, pid FROM PROCESSES").fetchall()
        export.execute("UPDATE PROCESSES SET name = '/home/ann/env/bin/python3'")
        for number, name in ((1, "kworker/0:1"), (2, "/usr/bin/mail"), (3, None)):
            row = (own + (number << 24), pid + number, name)
            export.execute("INSERT INTO PROCESSES (globalPid, pid, name) VALUES (?, ?, ?)", row)
    processes = to_dict(analyze(attribute(load(report))))["processes"]
    assert [(one["pid"], one["name"]) for one in processes] == [(pid, "python3")]
    assert processes[0]["initiating_thread"] is not None
