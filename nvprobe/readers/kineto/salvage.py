"""What can be read of a piece of a torch trace that is not valid JSON.

Every object that starts like an event is tried by itself: as it stands, then with the faults that
profilers have put into it repaired (in names control characters, invalid UTF-8, lone backslashes,
quotes that were not escaped; numbers that are none). What cannot be read is counted, never guessed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from nvprobe.readers.kineto.stream import EVENT_START

_START = re.compile(r"(?:\A|[^:\s])\s*(?=" + EVENT_START.decode() + r")")
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NAME_BEGIN = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(r'"\s*(?:,\s*"(?:pid|tid|ts|cat|ph|args|id|dur|s|bp)"\s*:|\})')
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_SEPARATOR = re.compile(r"[\s,\[\]}]*\Z")
_DOCUMENT_KEY = re.compile(r'"(?:schemaVersion|traceEvents|deviceProperties)"\s*:')
_LIST_END = re.compile(r"[\s,]*\]")
_NO_NUMBER = re.compile(r"(?<![\w.])-?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_LONE_SURROGATE = re.compile(
    r"(?<!\\)(?:\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2})",
    re.IGNORECASE,
)
_STRING = re.compile(r'("(?:[^"\\]|\\.)*")', re.DOTALL)


def _refused(constant: str) -> None:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refused)
"""Python's own reads (and writes) NaN and Infinity, which are not JSON: those are repaired."""


@dataclass
class Salvage:
    """What was found in one piece."""

    events: list[bytes] = field(default_factory=list)
    """Texts of whole events, valid JSON."""
    repaired: int = 0
    """Events that were readable only after a fault in them was repaired."""
    lost: int = 0
    """Events that could not be read."""
    unfinished: str = ""
    """An event that the piece ends in the middle of."""
    tail: str | None = None
    """What stands after the end of the event list, if the list ends in this piece."""
    documents: int = 0
    """Beginnings of further documents between the events: several writers on one file."""


def salvage(piece: bytes) -> Salvage:
    """Read what is sound in a piece of an event list."""
    try:
        text, garbled = piece.decode(), False
    except UnicodeDecodeError:
        text, garbled = piece.decode(errors="replace"), True
    found = Salvage()
    starts = [match.end() for match in _START.finditer(text)]
    position = 0
    for row, start in enumerate(starts):
        if start < position:
            continue
        limit = starts[row + 1] if row + 1 < len(starts) else len(text)
        found.lost += _has_lost(text[position:start])
        position = _read(text, start, limit, found, last=row + 1 == len(starts), garbled=garbled)
    end = _LIST_END.match(text, position)
    if end and found.events and not found.unfinished:
        position = end.end()
        found.tail = text[position:]
    found.documents = len(_DOCUMENT_KEY.findall(text, 0, position))
    return found


def _has_lost(between: str) -> bool:
    """Whether the text between two events was an event, whose very beginning is damaged.

    What begins another document there (several writers on one file) was none.
    """
    return not _SEPARATOR.match(between) and not _DOCUMENT_KEY.search(between)


def _read(text: str, start: int, limit: int, found: Salvage, *, last: bool, garbled: bool) -> int:
    """Read the event at ``start`` (the next one may begin at ``limit``); where to go on."""
    try:
        _, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _repair(text[start:limit], limit, found, last=last)
    body = text[start:end]
    clean = "".join(_escaped(body)) if not body.isprintable() else body
    clean = _without_half_pairs(clean)
    found.repaired += (clean != body) or (garbled and "\ufffd" in body)
    found.events.append(clean.encode(errors="replace"))
    return end


def _repair(body: str, limit: int, found: Salvage, *, last: bool) -> int:
    """Try the event with its texts repaired."""
    backslashes = _LONE_BACKSLASH.sub(r"\\\\", body)
    quotes = _with_quotes_escaped(backslashes)
    readings = (read(text) for read in (str, _without_no_numbers) for text in (backslashes, quotes))
    for candidate in readings:
        try:
            _, end = _DECODER.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        clean = _without_half_pairs("".join(_escaped(candidate[:end])))
        found.events.append(clean.encode(errors="replace"))
        found.repaired += 1
        return limit
    if last and _is_open(quotes):
        found.unfinished = body
    else:
        found.lost += 1
    return limit


def _with_quotes_escaped(body: str) -> str:
    """The event with the quotes inside its name escaped."""
    begin = _NAME_BEGIN.search(body)
    end = _NAME_END.search(body, begin.end()) if begin else None
    if begin is None or end is None:
        return body
    name = _BARE_QUOTE.sub(r"\"", body[begin.end() : end.start()])
    return body[: begin.end()] + name + body[end.start() :]


def _without_no_numbers(body: str) -> str:
    """Bare ``NaN``, ``Infinity``, ``-inf`` (of Python, of C++) as null."""
    parts = _STRING.split(body)
    return "".join(
        part if row % 2 else _NO_NUMBER.sub("null", part) for row, part in enumerate(parts)
    )


def _without_half_pairs(body: str) -> str:
    """Escapes of half a surrogate pair as U+FFFD: Python reads them, msgspec does not."""
    return _LONE_SURROGATE.sub(r"\\ufffd", body) if "\\u" in body else body


def _is_open(body: str) -> bool:
    """Whether the text may be the beginning of an event whose rest stands elsewhere."""
    return not re.search(r"\}\s*[\]\}]?\s*,?\s*$", body) or body.count("{") > body.count("}")


def _escaped(body: str) -> list[str]:
    """Control characters as JSON escapes; line ends and tabs between tokens stay what they are."""
    parts = _STRING.split(body)
    return [
        re.sub(r"[\x00-\x1f]", lambda m: f"\\u{ord(m[0]):04x}", part) if row % 2 else part
        for row, part in enumerate(parts)
    ]
