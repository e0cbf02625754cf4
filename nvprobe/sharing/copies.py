"""One input, and its copy: which file is what, under which name, and what was left out."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nvprobe.errors import InputError, UsageError
from nvprobe.private_exports import private_folder, settle
from nvprobe.readers import Format, sniff
from nvprobe.readers.input_errors import shown
from nvprobe.sharing.lines import redact_json, redact_run, redact_sidecar
from nvprobe.sharing.nsys import redact_export
from nvprobe.sharing.texts import Scrubber
from nvprobe.sharing.torch_trace import redact_trace

_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_RANKS = re.compile(r"(?:rank|process)\d+(?:-\d+)?")
_ANALYSIS = b'"nvprobe.'
_WHY_NOT = "the analysis does not need it"
WHY_NO_REPORT = (
    "its format is nsys's own: environment, command line and files in it cannot be taken out"
)


@dataclass
class Redacted:
    """What became of an input."""

    written: list[str] = field(default_factory=list)
    """Files of the copy."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What of the input is not in the copy, and why."""
    replaced: dict[str, int] = field(default_factory=dict)
    """How many distinct texts held something of each kind."""


def redact(source: Path, target: Path, *, hash_names: bool = False) -> Redacted:
    """Write a copy of an export, a torch trace, a sidecar, an analysis, or a folder of a run.

    The copy appears when it is whole; only its owner can read it. Raises InputError for what cannot
    be redacted, UsageError where ``target`` is there.
    """
    if target.exists():
        raise UsageError(f"{shown(target)} exists already; name another")
    scrub, found = Scrubber(hash_names=hash_names), Redacted()
    scrub.learn([f"USER={_or_nothing(getpass.getuser)}"])
    scrub.host(_or_nothing(socket.gethostname))
    scrub.learn([str(source.resolve().parent)])
    with private_folder(target) as folder:
        made = folder / target.name
        if source.is_dir() and not _is_columnar(source):
            _folder(source, made, scrub, found, "")
        else:
            _file(source, made, scrub, found, target.name)
        settle(made, target)
    found.replaced = {kind: count for kind, count in sorted(scrub.found.items()) if count}
    return found


def _or_nothing(ask: object) -> str:
    assert callable(ask)
    with suppress(OSError, KeyError, ImportError):
        return str(ask())
    return ""


def _is_columnar(folder: Path) -> bool:
    return any((folder / f"StringIds.{kind}").is_file() for kind in ("parquet", "arrow"))


def _file(source: Path, target: Path, scrub: Scrubber, found: Redacted, name: str) -> None:
    """One file, or one columnar export."""
    if source.name.endswith(_REPORTS):
        raise InputError(
            f"{shown(source)} cannot be shared: {WHY_NO_REPORT}. "
            "Redact its export: nsys export --type sqlite REPORT, or the run folder"
        )
    if _is_analysis(source):
        if scrub.hashes:
            raise InputError(
                f"{shown(source)}: its sentences hold names; "
                "redact the capture with --hash-names and analyze the copy"
            )
        redact_json(source, target, scrub)
    else:
        kind = sniff(source)
        if kind in (Format.NSYS_SQLITE, Format.NSYS_PARQUET):
            for table in redact_export(source, target, scrub):
                found.left_out[f"{name}: table {table}"] = "nvprobe does not read it"
        elif kind is Format.TORCH_TRACE:
            for key in redact_trace(source, target, scrub):
                found.left_out[f"{name}: {key}"] = "not known to be harmless"
        elif kind is Format.SIDECAR:
            redact_sidecar(source, target, scrub)
        else:
            raise InputError(f"{shown(source)}: is a {kind.value}; give a file or a run folder")
    found.written.append(name)


def _is_analysis(path: Path) -> bool:
    """Whether a file is a document of nvprobe: an analysis, a comparison, the facts of a run."""
    if not path.is_file() or path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(256)
    return b'"schema"' in head and _ANALYSIS in head


def _folder(source: Path, target: Path, scrub: Scrubber, found: Redacted, below: str) -> None:
    """A run folder, or one of several runs; files that are none of a run's are left out."""
    plan = dict(_planned(source, found, below, hashes=scrub.hashes))
    if not plan:
        raise InputError(
            f"{shown(source)}: nothing to redact in this folder; "
            "give a run folder, an _pqtdir of nsys export, or one file"
        )
    target.mkdir(mode=0o700)
    renamed = {path.name: name for path, name in plan.items()}
    for path, name in plan.items():
        if path.is_dir() and not _is_columnar(path):
            _folder(path, target / name, scrub, found, f"{below}{name}/")
        elif name == "run.json":
            for key in redact_run(path, target / name, scrub, renamed):
                found.left_out[f"{below}run.json: {key}"] = _WHY_NOT
            found.written.append(f"{below}{name}")
        else:
            _file(path, target / name, scrub, found, f"{below}{name}")


def _planned(
    source: Path, found: Redacted, below: str, *, hashes: bool
) -> Iterator[tuple[Path, str]]:
    """What of a folder is copied and its name there; exports first: they name users and hosts."""
    traces = 0
    for path in sorted(source.iterdir(), key=_order):
        name = path.name
        if path.is_symlink():
            found.left_out[f"{below}{name}"] = "it is a link"
        elif name.endswith(_REPORTS):
            found.left_out[f"{below}{name}"] = WHY_NO_REPORT
        elif path.is_dir():
            if _RANKS.fullmatch(name) or name == "graph_nodes" or (path / "run.json").is_file():
                yield path, name if _RANKS.fullmatch(name) or name == "graph_nodes" else "run"
            elif _is_columnar(path):
                yield path, "report_pqtdir"
        elif path.suffix == ".sqlite":
            yield path, "report.sqlite"
        elif re.fullmatch(r"sidecar\.\d+\.\d+\.jsonl", name) or name in ("run.json", "job.json"):
            yield path, name
        elif name.endswith((".json", ".json.gz")) and _is_trace(path):
            yield path, f"trace.{traces}.json.gz"
            traces += 1
        elif _is_analysis(path) and not hashes:
            yield path, "analysis.json"
        else:
            found.left_out[f"{below}{name}"] = "make it anew from the copy" if path.suffix in (
                ".json",
                ".html", ".md") else "it is not a file of a run"  # fmt: skip


def _order(path: Path) -> tuple[bool, bool, str]:
    return path.suffix != ".sqlite", path.name == "run.json", path.name


def _is_trace(path: Path) -> bool:
    with suppress(InputError):
        return not _is_analysis(path) and sniff(path) is Format.TORCH_TRACE
    return False
