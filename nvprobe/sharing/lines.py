"""Sidecars, ``run.json`` and analyses: JSON whose texts are cleaned one by one."""

from __future__ import annotations

from collections.abc import Callable
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
_OWN_WORDS = """
call category cause class dtype family id kind limiter nvprobe nvtx operator phase precision python
role schema severity state status torch what bound
"""
_PLAIN = frozenset(_OWN_WORDS.split())
"""Keys whose texts are nvprobe's or the library's own words."""
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
                out.write(msgspec.json.encode(_names(found, scrub)) + b"\n")


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
    found = _names(_object(source), scrub)
    target.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _object(source: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(source.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{shown(source)}: is damaged; make it again") from error
    if not isinstance(found, dict):
        raise InputError(f"{shown(source)}: holds no object; make it again")
    return found


def _names(value: Any, scrub: Scrubber, key: str = "") -> Any:
    """A value with its texts as names, but those of known words."""
    if isinstance(value, dict):
        return {scrub.text(one): _names(inner, scrub, one) for one, inner in value.items()
                if one not in _DROPPED}  # fmt: skip
    if isinstance(value, list):
        return [_names(one, scrub, key) for one in value]
    if not isinstance(value, str):
        return value
    clean: Callable[[str], str] = scrub.text if key in _PLAIN else scrub.name
    return clean(value)
