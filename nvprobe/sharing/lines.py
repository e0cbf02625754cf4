"""Sidecars, ``run.json`` and analyses: JSON whose texts are cleaned one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import shown, too_much
from nvprobe.sharing.texts import Scrubber

_RUN_KEYS = (
    "schema", "nvprobe", "python", "backend", "nsys", "nsys_flags", "window", "annotated", "rank",
    "world_size", "exit_code", "signal", "duration_s", "files", "notes", "problem", "steps",
    "overhead", "calibration",
)  # fmt: skip
"""Keys of ``run.json`` that may be handed on: neither the command nor when it ran."""
_OF_THE_PROGRAM = "class detail file from_node function fx module name path root source src stack"
_NAMES = frozenset(_OF_THE_PROGRAM.split())
"""Keys of a sidecar whose texts are the program's own names."""
_NOT_THE_PROGRAMS = ("hook", "triton", "extern")
"""Kinds of lines and kernels whose ``name`` is nvprobe's or Inductor's."""
_DROPPED = ("node", "command", "program")


def redact_sidecar(source: Path, target: Path, scrub: Scrubber) -> None:
    """Write a copy of a sidecar; a line without a JSON object is left out."""
    with source.open("rb") as lines, target.open("wb") as out:
        while line := lines.readline(limits.record_bytes() + 1):
            if len(line) > limits.record_bytes():
                raise too_much(source, "a line without an end")
            try:
                found = msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                scrub.found["lines that cannot be read"] += 1
                continue
            if isinstance(found, dict):
                out.write(msgspec.json.encode(_line(found, scrub)) + b"\n")


def redact_run(source: Path, target: Path, scrub: Scrubber, renamed: dict[str, str]) -> list[str]:
    """Write a copy of ``run.json``; returns the keys that were left out."""
    run = _object(source)
    kept = {key: scrub.value(run[key]) for key in _RUN_KEYS if key in run}
    files = run.get("files")
    kept["files"] = [renamed[one] for one in files if one in renamed] if isinstance(
        files, list) else []  # fmt: skip
    target.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    return sorted(key for key in run if key not in _RUN_KEYS)


def redact_json(source: Path, target: Path, scrub: Scrubber) -> None:
    """Write a copy of an analysis or of another document of nvprobe."""
    found = scrub.value(_object(source))
    target.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _object(source: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(source.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{shown(source)}: is damaged; make it again") from error
    if not isinstance(found, dict):
        raise InputError(f"{shown(source)}: holds no object; make it again")
    return found


def _line(value: Any, scrub: Scrubber, key: str = "") -> Any:
    """A line of a sidecar, or what is inside; rows are cleaned by the columns that they are of."""
    if isinstance(value, dict):
        kept = {one: inner for one, inner in value.items() if one not in _DROPPED}
        columns, plain = value.get("columns"), value.get("kind") in _NOT_THE_PROGRAMS
        plain |= "extern" in value
        return {
            scrub.text(one): _rows(inner, columns, scrub)
            if one == "rows" and isinstance(columns, list)
            else _line(inner, scrub, "" if one == "name" and plain else one)
            for one, inner in kept.items()
        }
    if isinstance(value, list):
        return [_line(one, scrub, key) for one in value]
    if not isinstance(value, str):
        return value
    return scrub.name(value) if key in _NAMES else scrub.text(value)


def _rows(rows: Any, columns: list[Any], scrub: Scrubber) -> Any:
    keys = [str(column) for column in columns]
    return [
        [_line(cell, scrub, key) for key, cell in zip(keys, row, strict=False)]
        if isinstance(row, list) else _line(row, scrub)
        for row in (rows if isinstance(rows, list) else ())
    ]  # fmt: skip
