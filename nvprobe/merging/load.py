"""Several inputs of one run become one Trace: ``load`` of the public API.

A profile of nsys gives device times, calls and waits; a torch trace gives operators, shapes,
frames, autograd numbers; sidecars what neither carries. Recorded in one process they share a clock
(:mod:`nvprobe.merging.clock`); of two runs of one program, the torch trace's ranges are laid
over the profile by the kernels they launched (:mod:`nvprobe.merging.sequence`).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import msgspec

from nvprobe.attribution import attribute
from nvprobe.attribution.repeated import with_repeated_nodes
from nvprobe.errors import InputError, UsageError, check_path
from nvprobe.merging.alignment import align
from nvprobe.merging.clock import Offset, clock_offset
from nvprobe.merging.graph_nodes import NODES, with_nodes
from nvprobe.merging.one_run import first_rank, not_of_one_run, of_one_run
from nvprobe.merging.overlay import merged
from nvprobe.merging.pairs import thread_rows
from nvprobe.merging.sequence import Match, match_kernels
from nvprobe.merging.several_traces import joined
from nvprobe.readers import Format, sniff
from nvprobe.readers import load as load_one
from nvprobe.readers.input_errors import shown
from nvprobe.readers.kineto import MergedRanks, load_kineto
from nvprobe.readers.run_json import read_profiling_cost, recorded_with, why_empty
from nvprobe.readers.sidecar import merge_sidecars, without_clock_marks
from nvprobe.readers.sidecar_kinds import read_sidecar
from nvprobe.readers.sniff import trace_files
from nvprobe.trace import Clock, Missing, Trace

_SAME_PROGRAM = 0.75
"""Share of kernels that must match before two runs count as runs of one program."""
_BETWEEN_CALLS_NS = 50_000
"""How far an edge between two fixed points of a alignment may be off."""
_LARGE_BYTES = 1 << 30
"""Text of a torch trace beyond which its Python frames stay on disk."""
_PACKED = 14
"""How much longer the text of a compressed trace is."""
_PROFILES = (Format.NSYS_SQLITE, Format.NSYS_PARQUET, Format.NSYS_REPORT)


def load(*inputs: str | os.PathLike[str], python_stacks: bool | None = None) -> Trace:
    """One Trace of one input, or of several of one run (profile, torch traces, sidecars).

    A folder stands for what is in it. ``python_stacks`` says whether the Python frames of a torch
    trace are read, which give source lines; by default they are, but of traces of more than a
    gigabyte of text. Raises :class:`~nvprobe.errors.InputError` where an input cannot be read or
    two of them are not of one program.
    """
    if not inputs:
        raise UsageError("nothing to read: give a file, or several of one run")
    for one in inputs:
        check_path("input", one)
    notes: list[str] = []
    files = [(path, sniff(path)) for path in _files(inputs, notes)]
    profiles = [path for path, kind in files if kind in _PROFILES]
    traces = [path for path, kind in files if kind is Format.TORCH_TRACE]
    sidecars = [path for path, kind in files if kind is Format.SIDECAR]
    if len(profiles) > 1:
        raise UsageError(not_of_one_run([shown(path) for path in profiles]))
    if not profiles and not traces:
        raise UsageError("a sidecar alone has no GPU work; give the profile it was written beside")
    torch = [_torch(path, python_stacks) for path in traces]
    whole = _loaded(profiles, torch, one_run=_is_launched(inputs))
    if sidecars:
        whole = merge_sidecars(whole, [read_sidecar(path) for path in sidecars])
    profiling = read_profiling_cost([*profiles, *traces][0])
    if profiles and (profiles[0].parent / NODES / "run.json").is_file():
        whole = with_nodes(whole, load(profiles[0].parent / NODES))
    first = msgspec.structs.replace(
        whole.sources[0],
        notes={**whole.sources[0].notes, **recorded_with([*profiles, *traces][0])},
    )
    return dataclasses.replace(
        without_clock_marks(whole),
        profiling=profiling,
        sources=(first, *whole.sources[1:]),
        warnings=(*notes, *whole.warnings),
    )


def _loaded(profiles: list[Path], traces: list[Trace], *, one_run: bool) -> Trace:
    if not profiles:
        return of_one_run(traces, one_run=one_run)
    profile = with_repeated_nodes(load_one(profiles[0]))
    return combine(profile, of_one_run(traces, one_run=one_run)) if traces else profile


def _torch(path: Path, stacks: bool | None) -> Trace:
    """A torch trace; by default with its Python frames, unless they would take gigabytes."""
    read = not _is_large(path) if stacks is None else stacks
    try:
        trace = load_kineto(path, python_stacks=read)
    except MergedRanks as ranks:
        trace = joined(
            [
                load_kineto(path, python_stacks=read, label=one, damage=one == ranks.labels[0])
                for one in ranks.labels
            ]
        )
    if read or any("source lines" in one.what for one in trace.missing):
        return trace
    why = f"the Python frames of {shown(path)} were left out" + (
        " to save memory: it is large" if stacks is None else ""
    )
    missing = Missing("source lines", why, "nvprobe analyze --python-stacks reads them")
    return dataclasses.replace(trace, missing=(*trace.missing, missing))


def _is_large(path: Path) -> bool:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return path.stat().st_size * (_PACKED if packed else 1) > _LARGE_BYTES


def _is_launched(inputs: tuple[str | os.PathLike[str], ...]) -> bool:
    """Whether the input is a folder that ``nvprobe launch`` wrote: all in it is of one run."""
    return len(inputs) == 1 and Path(inputs[0], "run.json").is_file()


def _files(inputs: tuple[str | os.PathLike[str], ...], notes: list[str]) -> list[Path]:
    """The inputs, folders of runs and traces replaced by what is in them."""
    out: list[Path] = []
    for path in map(Path, inputs):
        if path.is_dir() and sniff(path) is Format.RUN_FOLDER:
            out += _contents(path, notes)
        else:
            out.append(path)
    return out


def _contents(folder: Path, notes: list[str]) -> list[Path]:
    """The export (else the report), the torch traces and the sidecars of a folder."""
    exports = sorted([*folder.glob("*.sqlite"), *folder.glob("*_pqtdir")])
    reports = exports or sorted(folder.glob("*.nsys-rep"))
    traces = first_rank(folder, trace_files(folder), notes)
    found = [*reports[:1], *traces, *sorted(folder.glob("sidecar.*.jsonl"))]
    if not reports and not traces:
        why = why_empty(folder) or "no report and no trace in this run folder"
        raise InputError(f"{shown(folder)}: {why}; run it again")
    return found


def combine(profile: Trace, torch: Trace) -> Trace:
    """Lay a torch trace over a profile of nsys: one clock, or by the sequence of kernels."""
    offset = clock_offset(profile, torch)
    if offset is not None:
        return _on_one_clock(profile, torch, offset)
    if len(torch.sources) > 1:
        files = ", ".join(shown(source.file) for source in torch.sources)
        raise InputError(
            f"{files}: several torch traces, and none of the processes of the report; give one of "
            "them"
        )
    return _by_sequence(profile, torch)


def _on_one_clock(profile: Trace, torch: Trace, offset: Offset) -> Trace:
    assert profile.origin_ns is not None
    assert torch.origin_ns is not None
    shift = torch.origin_ns - profile.origin_ns
    threads = thread_rows(profile, torch)
    clock = Clock("shared", (offset.low, offset.high), None)
    error = (offset.high - offset.low + 1) // 2
    return merged(
        profile, torch, threads, lambda _, times: offset.moved(times + shift), clock, error
    )


def _by_sequence(profile: Trace, torch: Trace) -> Trace:
    first, second = attribute(profile), attribute(torch)
    match = match_kernels(first, second)
    if match.share < _SAME_PROGRAM:
        raise InputError(_not_one_program(profile, torch, match))
    alignment = align(first, second, match)
    clock = Clock("sequence", None, match.share)
    return merged(profile, torch, alignment.threads, alignment.times, clock, _BETWEEN_CALLS_NS)


def _not_one_program(profile: Trace, torch: Trace, match: Match) -> str:
    files = " and ".join(shown(trace.sources[0].file) for trace in (profile, torch))
    if not len(torch.ops):
        return (
            f"{files}: not of one process, and the torch trace has no kernels to match by; "
            "record both in one run, or the torch trace with ProfilerActivity.CUDA"
        )
    return (
        f"{files}: not two captures of one program: {match.share:.0%} of the kernels match, "
        f"{_SAME_PROGRAM:.0%} are needed; give one of them, or captures of the same program"
    )
