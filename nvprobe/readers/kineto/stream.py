"""A torch trace as a stream of event texts: inflate, find the event list, cut it between events.

Nothing here understands an event. A piece that :class:`EventStream` yields is the text of whole
events separated by commas (about :data:`PIECE` bytes), cut where a ``}`` and a comma are followed
by the first key of an event. A cut that falls inside an event (a list of objects in its arguments)
makes both pieces fail to decode, which the reader notices and repairs.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nvprobe import limits
from nvprobe.readers.input_errors import too_much

PIECE = 2 << 20
"""Bytes of text to hand on at a time; bounds the Python objects alive at once."""
_OVERLAP = 1 << 16
"""Bytes before a block in which an event may end that the block follows."""
_BEGINNING = 4096
_TAIL_LIMIT = 64 << 20
"""What stands after the events is metadata; more than this is not kept."""

EVENT_START = rb'\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:'
_BETWEEN = re.compile(rb"\}\s*,\s*(?=" + EVENT_START + rb")")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_BEGIN = re.compile(rb"\[\s*(?=\{\s*\"(?:ph|cat|name|ts)\"\s*:)")
_LIST_END = re.compile(rb"(?:\}|\A)\s*(\])\s*(?=,\s*\"|\}\s*$|$)")


def inflate(path: Path, faults: list[str]) -> Iterator[bytes]:
    """The file's text in blocks, decompressed if it is gzip under any name.

    What ends early or is damaged appends a word to ``faults``: ``cut`` or ``damaged``.
    """
    with path.open("rb") as file:
        magic = file.read(2)
        file.seek(0)
        if magic != b"\x1f\x8b":
            while block := file.read(PIECE):
                yield block
            return
        member = zlib.decompressobj(wbits=31)
        size = 0
        while packed := file.read(PIECE // 8):
            most = limits.unpacked(file.tell())
            while packed:
                before = member.copy()
                try:
                    text = member.decompress(packed, PIECE)
                    size += len(text)
                    if size > most:
                        raise too_much(
                            path,
                            f"more than {most >> 20:,} MiB of text in its first "
                            f"{(file.tell() >> 10) + 1:,} KiB",
                        )
                    yield text
                except zlib.error:
                    faults.append("damaged")
                    yield _until_fault(before, packed)
                    return
                packed = member.unconsumed_tail
                if member.eof:
                    packed = member.unused_data.lstrip(b"\0")
                    member = zlib.decompressobj(wbits=31)
                    if packed[:2] != b"\x1f\x8b":
                        return
        faults.append("cut")


def _until_fault(member: zlib._Decompress, packed: bytes) -> bytes:
    """What can still be inflated of a block with a fault in it (zlib gives nothing of it)."""
    out = []
    for row in range(len(packed)):
        try:
            out.append(member.decompress(packed[row : row + 1]))
        except zlib.error:
            break
    return b"".join(out)


class EventStream:
    """Iterate over the event texts of a file; afterwards ``head`` and ``tail`` are the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = b""
        self.tail = b""
        self.beginning = b""
        """The first bytes of the text, by which a file of another kind is known."""
        self.faults: list[str] = []
        """Why the file ended before its event list did: ``cut`` or ``damaged``."""
        self.size = 0
        """Bytes of text read."""
        self.ended = False
        """The end of the event list was met (here or by the reader): the rest is tail."""

    def __iter__(self) -> Iterator[bytes]:
        blocks = inflate(self.path, self.faults)
        carry = self._open(blocks)
        for block in blocks:
            self.size += len(block)
            if self.ended:
                if len(self.tail) < _TAIL_LIMIT:
                    self.tail += block
                continue
            searched = max(len(carry) - _OVERLAP, 0) if len(carry) >= PIECE else 0
            carry += block
            if len(carry) < PIECE:
                continue
            cut = _last_cut(carry, searched)
            if cut is None:
                if len(carry) > limits.record_bytes():
                    raise too_much(self.path, f"{len(carry) >> 20:,} MiB without an event's end")
                continue
            yield carry[: cut[0]]
            carry = self._rest_of(carry, cut[1])
        if not self.ended:
            yield from self._close(carry)

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; what was read beyond it."""
        text = b""
        for block in blocks:
            self.size += len(block)
            searched = max(len(text) - _OVERLAP, 0)
            text += block if text else block.lstrip(b"\xef\xbb\xbf \t\r\n")
            self.beginning = self.beginning or text[:_BEGINNING]
            if text[:1] == b"[":
                return text[1:]
            found = _EVENTS_KEY.search(text, searched)
            if found:
                self.head = text[: found.end() - 1]
                return text[found.end() :]
            if len(text) > _TAIL_LIMIT:
                break
        # The key itself is damaged: whatever list looks like one of events is tried.
        first = _EVENTS_BEGIN.search(text)
        self.head = text[: first.start()] if first else text
        return text[first.end() :] if first else b""

    def _rest_of(self, carry: bytes, begin: int) -> bytes:
        if not self.ended:
            return carry[begin:]
        self.tail += carry[begin:]
        return b""

    def _close(self, rest: bytes) -> Iterator[bytes]:
        """The last piece: everything before the end of the list, if the list has one.

        The first bracket after which the rest of the document is sound is the end: one before it
        would leave half an event over.
        """
        for end in _LIST_END.finditer(rest):
            close = end.start(1)
            if _is_tail(rest[close + 1 :]):
                self.tail = rest[close + 1 :]
                self.ended = True
                if rest[:close].strip():
                    yield rest[:close]
                return
        if rest.strip():
            yield rest


def _last_cut(text: bytes, searched: int) -> tuple[int, int] | None:
    """(end of the last whole event, begin of the next), looking at as little text as will do.

    Up to ``searched`` there is none.
    """
    window = _OVERLAP
    while True:
        begin = max(len(text) - window, searched)
        cuts = list(_BETWEEN.finditer(text, begin))
        if cuts:
            return cuts[-1].start() + 1, cuts[-1].end()
        if begin == searched:
            return None
        window *= 8


def _is_tail(text: bytes) -> bool:
    """Whether this can stand after the event list: nothing, or further keys of the document."""
    if not text.strip():
        return True
    try:
        msgspec.json.decode(b'{"":0' + text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return True
