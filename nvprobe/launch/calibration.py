"""What recording costs on this machine, ns a record: measured once, kept, and put into run.json.

``nvprobe doctor --measure`` runs the loops of :mod:`nvprobe.launch.loops` alone, under nsys (CUDA
graphs whole, by node, and by node where nothing is recorded) and under torch.profiler. A difference
is the cost of one record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from nvprobe.cache_folder import cache_folder, is_own
from nvprobe.errors import ToolError
from nvprobe.launch.nsys import profile_argv
from nvprobe.launch.options import LaunchOptions, Window
from nvprobe.launch.plan import cuda_present
from nvprobe.nsys import Nsys
from nvprobe.version import __version__

Loops = Mapping[str, float]

_LOOPS = [sys.executable, "-m", "nvprobe.launch.loops"]
_TIMEOUT_S = 300
_GRAPHS_WHOLE = LaunchOptions(kernels_in_graphs=False)
_NODES = LaunchOptions(kernels_in_graphs=True)
_READY = LaunchOptions(kernels_in_graphs=True, window=Window(first=1))
"""Nobody opens that window."""


def measure(nsys: Nsys | None) -> dict[str, Any]:
    """Run the loops alone and under each profiler: some 10 seconds a run; keep and return it.

    Raises:
        ToolError: there is no GPU here, or a run failed.

    """
    if not cuda_present():
        raise ToolError("nothing to measure: costs a record are those of a GPU, and none is here")
    with tempfile.TemporaryDirectory(prefix="nvprobe-") as name:
        folder = Path(name)
        bare = _run(folder, "alone", _LOOPS)
        torch = _run(folder, "torch", _LOOPS, "--torch-profiler", emitter="record_function")
        document: dict[str, Any] = {
            "machine": machine(nsys),
            "measured_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "torch": costs(bare, torch, torch),
        }
        loops = {"alone": bare, "torch": torch}
        if nsys is not None:
            whole = _run(folder, "whole", _under(nsys, _GRAPHS_WHOLE, folder / "whole"))
            nodes = _run(folder, "nodes", _under(nsys, _NODES, folder / "nodes"))
            ready = _run(folder, "ready", _under(nsys, _READY, folder / "ready"))
            document["nsys"] = costs(bare, whole, nodes, ready)
            loops |= {"nsys": whole, "nsys, graphs by node": nodes, "nsys, not recording": ready}
    document["loops"] = loops
    _keep(document)
    return document


def costs(
    bare: Loops, recorded: Loops, nodes: Loops, ready: Loops | None = None
) -> dict[str, float]:
    """Nanoseconds that a record of each kind adds.

    Of ``nodes``, whose graphs nsys traces by node, and of ``ready``, where it does not record, only
    the nodes of CUDA graphs are used.

    A loop without a counterpart, and one that was not slower, costs nothing measurable: 0.
    """

    def added(name: str, to: str | None = None, under: Loops = recorded) -> float:
        """How much longer an iteration takes than the loop ``to`` does alone."""
        return max(0.0, round(under.get(name, 0.0) - bare.get(to or name, 0.0), 1))

    operator = added("operator")
    mark = recorded.get("instrumented_item", 0.0) - recorded.get("item", 0.0)
    return {
        "call_ns": added("call"),
        "launch_ns": max(0.0, round(added("launch") - operator, 1)),
        "range_ns": added("range"),
        "module_ns": added("instrumented_module", "module"),
        "mark_ns": max(0.0, round(mark, 1)),
        "graph_node_ns": added("graph_node", under=nodes),
        "operator_ns": operator,
        "ready_node_ns": added("graph_node", under=ready or bare),
    }


def machine(nsys: Nsys | None) -> dict[str, str | None]:
    """What the costs depend on: GPU, driver, processor, nsys and nvprobe."""
    driver = re.search(r"\d+\.\d+(?:\.\d+)?", _text("/proc/driver/nvidia/version"))
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    gpu = re.search(r"Model:\s*(.+)", _text(gpus[0]) if gpus else "")
    processor = re.search(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    return {
        "gpu": gpu[1].strip() if gpu else None,
        "driver": driver[0] if driver else None,
        "processor": processor[1].strip() if processor else None,
        "nsys": nsys.version_text if nsys else None,
        "nvprobe": __version__,
    }


def kept(nsys: Nsys | None) -> dict[str, Any] | None:
    """What was measured on this machine with this nsys and nvprobe, if it was."""
    file = _file(machine(nsys))
    if file is None:
        return None
    with suppress(OSError, ValueError):
        document = json.loads(file.read_text("utf-8")) if is_own(file) else None
        return document if isinstance(document, dict) else None
    return None


def for_run(nsys: Nsys | None, backend: Literal["nsys", "torch"]) -> dict[str, Any] | None:
    """The section ``calibration`` of ``run.json``; None where this machine was not measured."""
    document = kept(nsys)
    if document is None or backend not in document:
        return None
    return {name: document[name] for name in ("machine", "measured_utc")} | document[backend]


def _under(nsys: Nsys, options: LaunchOptions, report: Path) -> list[str]:
    return profile_argv(nsys, options, report, _LOOPS, cuda=True)[0]


def _run(
    folder: Path, name: str, command: Sequence[str], *words: str, emitter: str = "nvtx"
) -> dict[str, float]:
    """One run of the loops, with a sidecar as a launch has it."""
    result = folder / f"{name}.json"
    environ = {**os.environ, "NVPROBE_EMITTER": emitter, "NVPROBE_SIDECAR": os.fspath(folder)}
    try:
        done = subprocess.run(
            [*command, os.fspath(result), *words],
            env=environ,
            cwd=folder,  # with no module that could take the place of one
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        return {key: float(value) for key, value in json.loads(result.read_text("utf-8")).items()}
    except subprocess.TimeoutExpired:
        raise ToolError(f"the loops did not end within {_TIMEOUT_S} s ({name})") from None
    except (OSError, ValueError):
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise ToolError(f"the loops failed ({name}): {said[:200]}") from None


def _keep(document: Mapping[str, Any]) -> None:
    file = _file(document["machine"])
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        partial.replace(file)


def _file(facts: Mapping[str, str | None]) -> Path | None:
    folder = cache_folder()
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return None if folder is None else folder / "calibration" / f"{digest}.json"


def _text(file: str | Path) -> str:
    with suppress(OSError):
        return Path(file).read_text("utf-8", "replace")
    return ""
