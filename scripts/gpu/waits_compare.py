#!/usr/bin/env python3
"""Hold the figures of ``waits_check.py`` against nvprobe's analysis of its capture.

    waits_compare.py ANALYSIS.json MEASURED.json [--within 0.05]

Prints a line for each figure and ends with 1 if any is further off than allowed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def under(rows: list[Document], path: str, **wanted: str) -> list[Document]:
    """Rows whose path is ``path`` or lies under it, and whose other fields match."""
    prefix = re.compile(rf"^{re.escape(path)}(?:/|$)")
    return [
        row
        for row in rows
        if prefix.match(row["path"] or "") and all(row[key] == wanted[key] for key in wanted)
    ]


def idle(document: Document, path: str, cause: str) -> int:
    """Idle time of a cause in a path and all below it."""
    return sum(row["ns"] for row in under(document["idle"]["by_path"], path, cause=cause))


def classes(document: Document, path: str, name: str) -> int:
    """Time of a combination of classes in a path."""
    rows = [row for row in document["overlap"]["by_path"] if row["path"] == path]
    return sum(row["classes"].get(name, 0) for row in rows)


def found(document: Document) -> dict[str, dict[str, int]]:
    """nvprobe's word on everything that the program measured."""
    waits = [row for row in under(document["syncs"], "planted_sync") if "Device" not in row["call"]]
    return {
        "planted_sync": {
            "bubble_ns": sum(row["bubble_ns"] for row in waits),
            "wait_ns": sum(row["wait_ns"] for row in waits),
        },
        "planted_copy": {
            "serial_ns": classes(document, "planted_copy/serial", "copy_h2d"),
            "beside_ns": classes(document, "planted_copy/beside", "compute+copy_h2d"),
        },
        "planted_loader": {"input_ns": idle(document, "planted_loader/data", "input")},
    }


def main() -> int:
    """Compare and print; 0 if everything is close enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("analysis", type=Path)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--within", type=float, default=0.05, metavar="SHARE")
    chosen = parser.parse_args()
    theirs = json.loads(chosen.measured.read_text())
    ours = found(json.loads(chosen.analysis.read_text()))
    off = 0
    for plant, figures in theirs.items():
        for name, measured in figures.items():
            got = ours[plant][name]
            error = got / measured - 1 if measured else float("inf")
            off += abs(error) > chosen.within
            verdict = "ok" if abs(error) <= chosen.within else "OFF"
            print(f"{verdict:4}{plant}.{name}: {got:,} of {measured:,} ns ({error:+.2%})")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
