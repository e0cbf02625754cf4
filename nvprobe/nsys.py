"""Find Nsight Systems, learn its version and flags, and drive its export and importer.

Nothing here profiles: `nvprobe.launch` does, and `nvprobe.readers` exports reports with it.
Flags differ by version, so they are read from ``nsys profile --help`` rather than remembered; the
answer is cached by path and version. What nsys prints is never trusted: it may be another program,
hang, or print nonsense, and each of those is a :class:`~nvprobe.errors.ToolError` of one line.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvprobe import limits
from nvprobe.cache_folder import is_own, make_own
from nvprobe.errors import ToolError
from nvprobe.private_exports import drop_private_rows, private_folder, settle

PROBE_TIMEOUT_S = 20.0
"""How long ``nsys --version`` and ``--help`` may take before nsys counts as hung."""

_PAYLOADS = "--include-blobs"
_VERSION = re.compile(r"Nsight Systems version (\d+(?:\.\d+)+)(\S*)")
_HEADING = re.compile(r"^\s{0,8}-[^\n]*$", re.MULTILINE)
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")

_INSTALL_FOLDERS = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/usr/lib/nsight-systems/bin/nsys",
)
_IMPORTER_FOLDERS = (
    "/usr/lib/nsight-systems/host-linux-*",
    "/opt/nvidia/nsight-systems/*/host-linux-*",
    "/opt/nvidia/nsight-compute/*/host/host-linux-*",
)


@dataclass(frozen=True)
class Nsys:
    """One working nsys: where it is, its version, and what ``nsys profile --help`` offers."""

    path: Path
    version: tuple[int, ...]
    version_text: str
    flags: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Each long flag of ``nsys profile`` and what its help says of it."""

    def supports(self, flag: str, value: str | None = None) -> bool:
        """Whether ``nsys profile`` has ``flag`` (and its help names ``value``)."""
        if flag not in self.flags:
            return False
        return value is None or re.search(rf"\b{re.escape(value)}\b", self.flags[flag]) is not None


def candidates(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Places where nsys may be, the most wanted first: PATH, CUDA, NVIDIA's folders, newest first.

    ``NVPROBE_NSYS`` is not among them: it is an order, not a place to look (see :func:`find_nsys`).
    """
    on_path = shutil.which("nsys", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path)
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if environ.get(variable):
            yield Path(environ[variable]) / "bin" / "nsys"
    yield Path(sys.prefix) / "bin" / "nsys"
    for pattern in _INSTALL_FOLDERS:
        yield from _newest_first(pattern)


def find_nsys(
    explicit: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ
) -> Nsys:
    """The nsys to use: ``explicit``, else ``NVPROBE_NSYS``, else the first candidate that works.

    Raises:
        ToolError: the one named does not work, or none was found.

    """
    ordered = explicit or environ.get("NVPROBE_NSYS")
    if ordered:
        return probe(Path(_resolve(os.fspath(ordered), environ)))
    refusals = []
    for path in candidates(environ):
        if not os.access(path, os.X_OK) or path.is_dir():
            continue
        try:
            return probe(path)
        except ToolError as error:
            refusals.append(str(error))
    if refusals:
        raise ToolError(refusals[0])
    raise ToolError(
        "nsys was not found on PATH, in the CUDA toolkit or under /opt/nvidia: install Nsight "
        "Systems, or set NVPROBE_NSYS to its path"
    )


def probe(path: Path) -> Nsys:
    """Ask the nsys at ``path`` for its version and flags.

    Raises:
        ToolError: it cannot be run, hangs, fails, or is some other program.

    """
    text = _ask([os.fspath(path), "--version"])
    match = _VERSION.search(text)
    if match is None:
        raise ToolError(f"{path.name} at {path.parent} is not Nsight Systems: it prints no version")
    version_text = match.group(1) + match.group(2)
    version = tuple(int(part) for part in match.group(1).split("."))
    cached = _cache_file(path, version_text)
    flags = _read_cache(cached)
    if flags is None:
        flags = parse_flags(_ask([os.fspath(path), "profile", "--help"]))
        _write_cache(cached, flags)
    return Nsys(path, version, version_text, flags)


def parse_flags(help_text: str) -> dict[str, str]:
    """Long flags of a help page, each with the text below it."""
    headings = list(_HEADING.finditer(help_text))
    flags: dict[str, str] = {}
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        end = following.start() if following else len(help_text)
        about = " ".join(help_text[heading.start() : end].split())
        line = heading.group()
        choice = re.search(r"(--[a-z-]*-)\[([a-z|]+)\]", line)
        names = (
            [choice.group(1) + word for word in choice.group(2).split("|")]
            if choice
            else _FLAG.findall(line)[:2]
        )
        for name in names:
            flags.setdefault(name, about)
    return flags


def export(
    nsys: Nsys, report: Path, output: Path, kind: str = "sqlite", timeout_s: float | None = None
) -> Path:
    """Export ``report`` with ``nsys export``; ``kind`` is ``sqlite`` or ``parquetdir``.

    The environments that nsys recorded are not in it, and only its owner can read it.

    Raises:
        ToolError: nsys failed, hung, or wrote nothing; the message carries its last line.

    """
    argv = [os.fspath(nsys.path), "export", "--type", kind, "--force-overwrite", "true"]
    argv += [f"{_PAYLOADS}=true"] if _offers_payloads(nsys) else []
    with private_folder(beside=output) as folder:
        made = folder / output.name
        largest = limits.unpacked(report.stat().st_size) if report.is_file() else None
        argv += ["--output", os.fspath(made), os.fspath(report)]
        log = _ask(argv, timeout_s, largest=largest)
        if not made.exists() or not made.stat().st_size:
            said = _last_line(log)
            raise ToolError(f"nsys export wrote no {made.name} from {report.name}: {said}")
        drop_private_rows(made)
        settle(made, output)
    return output


def _offers_payloads(nsys: Nsys) -> bool:
    """Whether ``nsys export`` can write the bytes of NVTX payloads, left out by default."""
    with contextlib.suppress(ToolError):
        return _PAYLOADS in _ask([os.fspath(nsys.path), "export", "--help"])
    return False


def find_importer(nsys: Nsys) -> Path | None:
    """The program that turns a ``.qdstrm`` into a report: beside nsys, else any installed."""
    home = nsys.path.resolve().parent
    for folder in (home.parent, home.parent.parent):
        for found in sorted(folder.glob("host-linux-*/QdstrmImporter"), reverse=True):
            return found
    for pattern in _IMPORTER_FOLDERS:
        for found in _newest_first(f"{pattern}/QdstrmImporter"):
            return found
    return None


def import_qdstrm(
    importer: Path, qdstrm: Path, output: Path, timeout_s: float | None = None
) -> Path:
    """Finish an import that nsys left undone: ``qdstrm`` becomes the report ``output``.

    Raises:
        ToolError: the importer failed, hung, or wrote nothing; the message carries its last line.

    """
    argv = [os.fspath(importer), "--input-file", os.fspath(qdstrm)]
    log = _ask([*argv, "--output-file", os.fspath(output)], timeout_s)
    if not output.exists():
        raise ToolError(f"the importer wrote no report from {qdstrm.name}: {_last_line(log)}")
    return output


def _ask(
    argv: Sequence[str], timeout_s: float | None = PROBE_TIMEOUT_S, *, largest: int | None = None
) -> str:
    """What a command prints, both streams together; it may write files of ``largest`` bytes."""
    name = " ".join([Path(argv[0]).name, *(word for word in argv[1:3] if word.isalpha())])
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
            preexec_fn=functools.partial(_bound_files, largest) if largest else None,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{name} did not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ToolError(f"{name} cannot be run: {error.strerror}") from None
    text = done.stdout.decode("utf-8", "replace")
    if largest and done.returncode in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        most = f"{largest >> 20:,} MiB"
        raise ToolError(f"{name} wrote more than {most} from one report; {limits.HOW_TO_RAISE}")
    if done.returncode:
        raise ToolError(f"{name} failed with code {done.returncode}: {_last_line(text)}")
    return text


def _bound_files(largest: int) -> None:
    """In a child before its program starts."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = largest if hard == resource.RLIM_INFINITY else min(largest, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


def _last_line(text: str) -> str:
    """The last line that says something, without control characters, at most 200 long."""
    lines = [re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", line).strip() for line in text.splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "it printed nothing")


def _resolve(name: str, environ: Mapping[str, str]) -> str:
    """A bare name is looked up on PATH, as a shell would."""
    return name if os.sep in name else shutil.which(name, path=environ.get("PATH")) or name


def _newest_first(pattern: str) -> list[Path]:
    """Paths that match an absolute pattern, higher version numbers first."""

    def numbers(path: Path) -> list[int]:
        """The numbers in a path, in order."""
        return [int(digits) for digits in re.findall(r"\d+", os.fspath(path))]

    return sorted(Path("/").glob(pattern.lstrip("/")), key=numbers, reverse=True)


def _cache_file(path: Path, version: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    key = hashlib.sha256(f"{path}\0{version}".encode()).hexdigest()[:16]
    return root / "nvprobe" / f"nsys-flags-{key}.json"


def _read_cache(file: Path) -> dict[str, str] | None:
    """Flags cached earlier, or None where there are none to trust."""
    try:
        flags = json.loads(file.read_text("utf-8")) if is_own(file) else None
    except (OSError, ValueError):
        return None
    if not isinstance(flags, dict) or not flags:
        return None
    return {str(name): str(about) for name, about in flags.items()}


def _write_cache(file: Path, flags: Mapping[str, str]) -> None:
    """Keep the flags; a home that cannot be written costs a second probe, nothing else."""
    if not flags:
        return
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        make_own(file.parent)
        partial.touch(0o600)
        partial.write_text(json.dumps(dict(flags)), "utf-8")
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
