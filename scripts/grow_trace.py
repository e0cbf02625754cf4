#!/usr/bin/env python3
"""Grow a real torch.profiler trace: repeat its events N times, shifted in time.

    grow_trace.py SOURCE.json[.gz] OUTPUT.json[.gz] REPEATS

Each repetition gets its own correlation, flow, external, sequence and Python ids, so that kernels
keep pointing at their own launches; names, streams, threads and devices stay shared. Totals of
the result are exactly REPEATS times those of the source. The text is a stream: the result may
be larger than memory. The source must end its event list with ``],`` or be a bare list.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import IO

TIME = re.compile(rb'"ts":\s*(\d+)(?:\.(\d{1,3}))?(?=[,}\s])')
IDS = (
    "correlation",
    "id",
    "External id",
    "external id",
    "Sequence number",
    "Python id",
    "Python parent id",
    "Record function id",
    "wait_on_cuda_event_record_corr_id",
)
ID = re.compile(rb'"(?:' + "|".join(IDS).encode() + rb')":\s*(\d+)')
NUMBER = re.compile(TIME.pattern + b"|" + ID.pattern)


def split_document(text: bytes) -> tuple[bytes, bytes, bytes]:
    """What stands before the events, the events (without brackets) and what stands after."""
    key = text.find(b'"traceEvents"')
    begin = text.index(b"[", max(key, 0)) + 1
    depth, position = 1, begin
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]]', text[begin:], re.S):
        token = match.group()
        depth += (token == b"[") - (token == b"]")
        if depth == 0:
            position = begin + match.start()
            break
    else:
        raise SystemExit("the event list of the source never ends")
    return text[:begin], text[begin:position].strip(), text[position:]


def template(events: bytes) -> tuple[list[bytes], list[int], list[bool], int, int]:
    """Literals around the numbers that change, the numbers (ns or ids), and both strides."""
    literals, numbers, timed = [], [], []
    last = 0
    for match in NUMBER.finditer(events):
        group = 3 if match.group(3) else 1
        literals.append(events[last : match.start(group)])
        last = match.end()
        timed.append(group == 1)
        thousandths = (match.group(2) or b"0").ljust(3, b"0")
        numbers.append(
            int(match.group(group)) * (1000 if group == 1 else 1)
            + (int(thousandths) if group == 1 else 0)
        )
    literals.append(events[last:])
    times = [n for n, is_time in zip(numbers, timed, strict=True) if is_time and n > 0]
    ids = [n for n, is_time in zip(numbers, timed, strict=True) if not is_time and n < 1 << 40]
    return literals, numbers, timed, max(times) - min(times) + 1_000_000, max(ids, default=0) + 1


def repetition(parts: tuple[list[bytes], list[int], list[bool], int, int], turn: int) -> bytes:
    """The events once more, ``turn`` strides later."""
    literals, numbers, timed, period, stride = parts
    out = [literals[0]]
    for literal, number, is_time in zip(literals[1:], numbers, timed, strict=True):
        if is_time:
            whole, rest = divmod(number + turn * period if number else 0, 1000)
            out.append(b"%d.%03d" % (whole, rest))
        else:
            out.append(b"%d" % (number + turn * stride if number < 1 << 40 else number))
        out.append(literal)
    return b"".join(out)


def grow(source: Path, target: IO[bytes], repeats: int) -> int:
    """Write the grown trace; the number of bytes written."""
    raw = source.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    head, events, tail = split_document(text)
    parts = template(events)
    written = target.write(head)
    for turn in range(repeats):
        written += target.write((b",\n  " if turn else b"\n  ") + repetition(parts, turn))
    return written + target.write(b"\n  " + tail)


def main(source: str, output: str, repeats: str) -> None:
    opener = gzip.open if output.endswith(".gz") else open
    with opener(output, "wb") as target:
        written = grow(Path(source), target, int(repeats))
    print(json.dumps({"output": Path(output).name, "bytes": written, "repeats": int(repeats)}))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
