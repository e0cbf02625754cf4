"""What profiling needs, whether it is here, and the command that provides it.

Nothing is imported of torch or pandas: versions come from files and package metadata, so that the
doctor answers at once and also where these packages are broken.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from nvprobe.errors import ToolError
from nvprobe.launch.finish import missing_libraries
from nvprobe.launch.plan import cuda_present
from nvprobe.nsys import Nsys, find_importer, find_nsys

State = Literal["ok", "warning", "failed", "absent"]


@dataclass(frozen=True)
class Check:
    """One thing: its state, what was found, and what to do where it is not ``ok``."""

    name: str
    state: State
    found: str
    remedy: str | None = None


def examine() -> list[Check]:
    """All checks, in the order in which a capture needs them."""
    nsys, first = _nsys()
    checks: list[Callable[[], Check]] = [
        lambda: _importer(nsys),
        lambda: _nvtx(nsys),
        _torch,
        _driver,
        _sampling,
        _gpu_metrics,
        _disk,
        _analysis,
    ]
    return [first, *(check() for check in checks)]


def to_json(checks: list[Check]) -> dict[str, Any]:
    """Schema ``nvprobe.doctor/1``."""
    return {
        "schema": "nvprobe.doctor/1",
        "usable": is_usable(checks),
        "checks": [asdict(check) for check in checks],
    }


def is_usable(checks: list[Check]) -> bool:
    """Whether `nvprobe launch` can record anything: nsys with its importer, or torch."""
    state = {check.name: check.state for check in checks}
    nsys = state["nsys"] == "ok" and state["nsys importer"] == "ok"
    return nsys or state["torch"] == "ok"


def summary(checks: list[Check]) -> str:
    """What `nvprobe launch` will do here, in a line."""
    state = {check.name: check.state for check in checks}
    if not is_usable(checks):
        return "nvprobe launch can record nothing here: install nsys or torch"
    nsys = state["nsys"] == "ok" and state["nsys importer"] == "ok"
    recorder = "nsys" if nsys else "torch.profiler"
    gpu = "" if state["CUDA driver"] == "ok" else ", without GPU work"
    return f"nvprobe launch records with {recorder} here{gpu}"


def _nsys() -> tuple[Nsys | None, Check]:
    try:
        nsys = find_nsys()
    except ToolError as error:
        remedy = (
            "install Nsight Systems (Debian, Ubuntu: scripts/install-nsys; else "
            "developer.nvidia.com/nsight-systems), or set NVPROBE_NSYS; torch.profiler is used "
            "until then"
        )
        return None, Check("nsys", "absent", str(error), remedy)
    found = f"{nsys.version_text} at {nsys.path}"
    if not nsys.supports("--capture-range"):
        return nsys, Check(
            "nsys", "failed", f"{found}: its profile command offers no flags", "install it anew"
        )
    return nsys, Check("nsys", "ok", found)


def _importer(nsys: Nsys | None) -> Check:
    name = "nsys importer"
    if nsys is None:
        return Check(name, "absent", "there is no nsys")
    importer = find_importer(nsys)
    if importer is None:
        return Check(
            name,
            "failed",
            "there is no host-linux-*/QdstrmImporter beside nsys: profiles end without a report",
            "run scripts/install-nsys, or link the importer's folder beside target-linux-*",
        )
    return Check(name, "ok", str(importer))


def _nvtx(nsys: Nsys | None) -> Check:
    try:
        nvtx = version("nvtx")
    except PackageNotFoundError:
        return Check("nvtx", "failed", "the nvtx package is missing", "pip install nvtx")
    if nsys is not None and _numbers(nvtx) >= (0, 2, 12) and nsys.version < (2024,):
        return Check(
            "nvtx",
            "warning",
            f"{nvtx} with nsys {nsys.version_text}: nvprobe's own ranges are recorded, those that "
            "the program writes with nvtx.annotate are lost",
            "use nsys 2025.3 or newer, or pip install 'nvtx<0.2.12'",
        )
    return Check("nvtx", "ok", nvtx)


def _torch() -> Check:
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):  # an import hook, or a module without a spec
        spec = None
    if spec is None or spec.origin is None:
        return Check("torch", "absent", "not installed in this environment", "pip install torch")
    text = ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    except OSError:
        return Check("torch", "warning", "its version file cannot be read", "install it anew")
    release = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']+)'", text, re.MULTILINE)
    found = f"{release[1] if release else 'unknown'}, {f'CUDA {cuda[1]}' if cuda else 'CPU only'}"
    if cuda is None and cuda_present():
        return Check("torch", "warning", found, "a GPU is here: install a CUDA build of torch")
    return Check("torch", "ok", found)


def _driver() -> Check:
    if not cuda_present():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}
        why = "CUDA_VISIBLE_DEVICES hides all GPUs" if hidden else "no NVIDIA GPU is here"
        return Check("CUDA driver", "absent", f"{why}: ranges and host time can be recorded")
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Check(
            "CUDA driver",
            "failed",
            "a GPU is here, but libcuda.so.1 is not",
            "install the driver; in a container, start it with --gpus all",
        )
    number = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(number)):
        return Check("CUDA driver", "failed", "libcuda.so.1 has no version", "reinstall it")
    return Check("CUDA driver", "ok", f"CUDA {number.value // 1000}.{number.value % 1000 // 10}")


def _sampling() -> Check:
    """CPU sampling (``--call-chains``) needs perf_event_open."""
    name = "CPU sampling"
    try:
        paranoia = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text("ascii"))
    except (OSError, ValueError):
        return Check(name, "warning", "the kernel offers no perf events: --call-chains will fail")
    if paranoia > 2 and os.geteuid() != 0:
        return Check(
            name,
            "warning",
            f"perf_event_paranoid is {paranoia}: --call-chains will fail",
            "sudo sysctl kernel.perf_event_paranoid=2",
        )
    return Check(name, "ok", f"perf_event_paranoid is {paranoia}")


def _gpu_metrics() -> Check:
    """``--gpu-metrics`` needs the driver's performance counters."""
    name = "GPU metrics"
    if not cuda_present():
        return Check(name, "absent", "no GPU")
    try:
        parameters = Path("/proc/driver/nvidia/params").read_text("utf-8")
    except OSError:
        return Check(name, "warning", "the driver does not say who may read counters")
    restricted = re.search(r"RmProfilingAdminOnly: 1", parameters) is not None
    if restricted and not _is_system_administrator():
        return Check(
            name,
            "warning",
            "the driver keeps performance counters for administrators",
            "run as root, give the container --cap-add=SYS_ADMIN, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0",
        )
    return Check(name, "ok", "this user may read performance counters")


def _is_system_administrator() -> bool:
    """Whether this process has CAP_SYS_ADMIN (bit 21), which root in a container may lack."""
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return os.geteuid() == 0
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", status)
    return effective is not None and bool(int(effective[1], 16) >> 21 & 1)


def _disk() -> Check:
    """nsys keeps what it records in the temporary folder, then writes the report."""
    free = {}
    for name, folder in (("temporary folder", tempfile.gettempdir()), ("working folder", ".")):
        try:
            free[name] = shutil.disk_usage(folder).free / 2**30
        except OSError:
            free[name] = 0.0
    found = ", ".join(f"{name} {size:.1f} GiB free" for name, size in free.items())
    if min(free.values()) < 2:
        remedy = "free some space, or set TMPDIR and -o to another disk"
        return Check("disk space", "warning", found, remedy)
    return Check("disk space", "ok", found)


def _analysis() -> Check:
    lacking = missing_libraries()
    if lacking:
        return Check(
            "analysis",
            "warning",
            f"{', '.join(lacking)} missing: captures work, analyses do not",
            f"pip install {' '.join(lacking)}, or copy run folders to where nvprobe is complete",
        )
    release = ".".join(map(str, sys.version_info[:3]))
    return Check("analysis", "ok", f"all libraries are here, Python {release}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
