"""Python call stacks of nsys: sampled (``--python-sampling``), of CUDA calls (``-backtrace=cuda``).

Each is an NVTX mark in a domain of nsys's own; its binary payload is the stack: a header of
``_HEADER`` bytes, one word nothing here needs, thread state and number of frames (32 bits each),
then per frame, innermost first, the string ids of function and file, and the line being run (32
bits). Public readers of captures of 2025 and 2026 agree on this layout, and the schemas in exports
of 2025.3 are the same for both; what does not fit is counted in a warning and left out. The mark of
a CUDA call begins at the very nanosecond that the call begins at, on its thread.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.nsys.processes import ProcessIndex, process_key
from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Handle, Rows, StringPool, Tables
from nvprobe.readers.nsys.versions import PYTHON_BACKTRACES, PYTHON_SAMPLES, Event
from nvprobe.trace import CallChains, Column, Samples

_EVENTS = "NVTX_EVENTS"
PYTHON_DOMAINS = {
    "Python Periodic Sampling": PYTHON_SAMPLES,
    "Python Backtrace on CUDA": PYTHON_BACKTRACES,
}
"""NVTX domains of stacks, and the table that their marks are put into."""
_WHAT = {PYTHON_SAMPLES: "Python samples", PYTHON_BACKTRACES: "Python back-traces"}
_INSTALLED = r"^.*/(?:(?:site|dist)-packages|python3\.\d+)/"
_HOMES = ("/", "/home", "/Users")
"""Folders in common that say nothing: what stands below may be a person's name."""
_TOP = r"^/+(?:(?:home|Users)/[^/]+/|[^/]+/)?"
_KEPT = 3
_WORD, _HEADER = 8, 32
_FIXED, _FRAME = _HEADER + 2 * _WORD, 3 * _WORD


def set_apart(exported: ExportRows, tables: Tables) -> None:
    """Take the stacks out of the NVTX events of ``exported``, into tables of their own."""
    rows = exported.rows.get(_EVENTS)
    domains = {} if rows is None else _domains(rows, tables)
    if rows is None or not domains:
        return
    process, domain = process_key(rows.ints("globalTid", UNKNOWN)), rows.ints("domainId", 0)
    mark = rows.ints("eventType", -1) == Event.MARK
    other = np.ones(len(rows), bool)
    for table, ids in domains.items():
        inside = np.zeros(len(rows), bool)
        for key, number in ids:
            inside |= (process == key) & (domain == number)
        inside &= mark
        exported.rows[table] = rows.take(inside)
        other &= ~inside
    exported.rows[_EVENTS] = rows.take(other)


@dataclass(frozen=True)
class PythonStacks:
    """The samples of one export, and the texts of their frames in the pool."""

    samples: Samples
    chain: Column
    depth: Column
    frame: Column
    """int64 per row of a stack: which of the frame texts it is."""
    texts: Handle

    @classmethod
    def read(
        cls, exported: ExportRows, index: ProcessIndex, tables: Tables, pool: StringPool, table: str
    ) -> PythonStacks:
        """Read the stacks of one table into ``pool``."""
        marks = exported.rows.get(table)
        if marks is None:
            none = np.empty(0, np.int64)
            return cls(Samples.absent(), none, none, none, pool.add(pa.array([], pa.string())))
        size, words = _words(marks.blobs("binaryData"))
        sound = _fits(size, words)
        if lost := len(marks) - int(np.count_nonzero(sound)):
            exported.warnings.append(
                f"{lost} {_WHAT[table]} have no stack that nvprobe can read (an export with "
                "--include-blobs=true keeps them)"
            )
        stack, chain, depth, frame = _stacks(size, words, np.flatnonzero(sound))
        distinct, code = np.unique(frame, axis=0, return_inverse=True)
        thread = index.thread(table)[sound]
        return cls(
            samples=Samples(
                process=index.thread_process[thread],
                thread=thread,
                time=marks.ints("start", 0)[sound],
                cpu=np.full(len(stack), -1),
                stack=stack,
            ),
            chain=chain,
            depth=depth,
            frame=code.reshape(-1),
            texts=pool.add(_texts(distinct, tables)),
        )

    def chains(self, pool: StringPool) -> CallChains:
        """The stacks, once the pool is frozen; a frame is called ``train.py(12): forward``."""
        if not self.samples.recorded:
            return CallChains.absent()
        rows = pool.rows(self.texts)
        return CallChains(chain=self.chain, depth=self.depth, symbol=rows[self.frame])


def _domains(rows: Rows, tables: Tables) -> dict[str, set[tuple[int, int]]]:
    """(process, id) of the domains that hold Python stacks, by the table for their marks."""
    created = rows.take(rows.ints("eventType", -1) == Event.DOMAIN_CREATE)
    ids = created.ints("textId", UNKNOWN)
    known = np.unique(ids[ids != UNKNOWN])
    by_id = dict(zip(known.tolist(), tables.strings(known).to_pylist(), strict=True))
    process = process_key(created.ints("globalTid", UNKNOWN)).tolist()
    columns = created.texts("text").to_pylist(), ids.tolist(), created.ints("domainId", 0).tolist()
    found: dict[str, set[tuple[int, int]]] = {}
    for key, text, name, domain in zip(process, *columns, strict=True):
        table = PYTHON_DOMAINS.get(text or by_id.get(name) or "")
        if table is not None:
            found.setdefault(table, set()).add((key, domain))
    return found


def _words(payloads: pa.ChunkedArray) -> tuple[Column, Column]:
    """(size in words of each payload, the words of all of them); a broken one has size 0."""
    length = pc.fill_null(pc.binary_length(payloads), 0).to_numpy().astype(np.int64)
    whole = length % _WORD == 0
    texts = payloads.filter(pa.array(whole)).to_pylist()
    joined = b"".join(text for text in texts if text is not None)
    return np.where(whole, length // _WORD, 0), np.frombuffer(joined, "<u8")


def _fits(size: Column, words: Column) -> Column:
    """bool: the payload is as long as its number of frames asks for."""
    out = np.zeros(len(size), bool)
    rows = np.flatnonzero(size >= _FIXED // _WORD)
    count = words[_begins(size)[rows] + _FIXED // _WORD - 1] >> np.uint64(32)
    out[rows] = count * _FRAME + _FIXED == size[rows] * _WORD
    return out


def _begins(size: Column) -> Column:
    return np.cumsum(size) - size


def _stacks(size: Column, words: Column, rows: Column) -> tuple[Column, Column, Column, Column]:
    """(stack of each sample; chain, depth and [function, file, line] of each frame).

    Samples with the same frames have the same stack: a program is found in few places.
    """
    first = _begins(size)[rows] + _FIXED // _WORD
    count = size[rows] - _FIXED // _WORD
    texts = [words[at : at + n].tobytes() for at, n in zip(first, count, strict=True)]
    coded = pa.array(texts, pa.binary()).dictionary_encode()
    frames = np.frombuffer(b"".join(coded.dictionary.to_pylist()), "<u8").reshape(-1, 3)
    of_stack = pc.binary_length(coded.dictionary).to_numpy(zero_copy_only=False) // _FRAME
    chain = np.repeat(np.arange(len(of_stack)), of_stack)
    depth = np.arange(len(chain)) - np.repeat(np.cumsum(of_stack) - of_stack, of_stack)
    frames = frames.astype(np.int64) & np.array([-1, -1, 0xFFFFFFFF])  # behind the line is padding
    return coded.indices.to_numpy(zero_copy_only=False), chain, depth, frames


def _texts(frames: Column, tables: Tables) -> pa.StringArray:
    """``train.py(12): forward`` of each [function, file, line]."""
    ids = np.unique(frames[:, :2])
    texts = [text or "<unknown>" for text in tables.strings(ids).to_pylist()]
    names = dict(zip(ids.tolist(), texts, strict=True))
    files = _short_paths({names[file] for file in frames[:, 1].tolist()})
    return pa.array(
        [
            f"{files[names[file]]}({line}): {names[function]}"
            for function, file, line in frames.tolist()
        ],
        pa.string(),
    )


def _short_paths(files: set[str]) -> dict[str, str]:
    """Each file as a report shows it: without the folders of the machine it was recorded on.

    Installed files begin with their package, the others below the folder they have in common.
    Those that have none keep their last two folders, and nothing of whose home they lie in.
    """
    short = {file: re.sub(_INSTALLED, "", file) for file in files}
    rest = [file for file in files if short[file] == file and file.startswith("/")]
    root = posixpath.commonpath([posixpath.dirname(file) for file in rest]) if rest else "/"
    for file in rest:
        if root in _HOMES:
            short[file] = "/".join(re.sub(_TOP, "", file).split("/")[-_KEPT:])
        else:
            short[file] = posixpath.relpath(file, root)
    return short
