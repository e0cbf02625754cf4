"""Inference engines: what of their environment a launch sets, and where they answer.

Nothing changes what an engine computes: no graph, eager or batch setting is touched, and a variable
that the user has set stays. Each variable is reported in a line and shown by ``--dry-run``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Engine:
    """An inference engine, known by its command."""

    name: str
    commands: tuple[str, ...]
    """Names of its commands, and of modules after ``-m``."""
    port: int
    """Where it answers ``/health`` by default."""
    variables: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    """What each variable is set for."""
    counted: bool = True
    """Whether hooks of nvprobe count its iterations and requests."""


ENGINES = (
    Engine(
        "vLLM",
        ("vllm",),
        8000,
        {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NVTX_SCOPES_FOR_PROFILING": "1"},
        {
            "VLLM_WORKER_MULTIPROC_METHOD": "workers are spawned, so that each is recorded",
            "VLLM_NVTX_SCOPES_FOR_PROFILING": "vLLM writes its own ranges",
        },
    ),
    Engine(
        "SGLang",
        ("sglang",),
        30000,
        {"SGLANG_ENABLE_NVTX_SCHEDULER": "1"},
        {"SGLANG_ENABLE_NVTX_SCHEDULER": "its scheduler writes its own ranges"},
    ),
    Engine("TensorRT-LLM", ("trtllm-serve", "trtllm-bench", "tensorrt_llm"), 8000, counted=False),
)


def engine_of(words: Sequence[str]) -> Engine | None:
    """The engine that a command starts."""
    for position, word in enumerate(words):
        module = words[position + 1] if word == "-m" and position + 1 < len(words) else ""
        names = {Path(word).name, module.partition(".")[0]}
        for engine in ENGINES:
            if names & set(engine.commands):
                return engine
        if not word.startswith("-") and position and not re.search(r"python[\d.]*$", word):
            return None  # the program's own arguments begin
    return None


def variables_for(engine: Engine | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What to set for it: what the user has not set."""
    if engine is None:
        return {}
    return {name: value for name, value in engine.variables.items() if name not in environ}


def notes_for(engine: Engine | None, environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that is set."""
    return [
        f"{engine.name if engine else ''}: {name}={value} ({engine.why[name] if engine else ''})"
        for name, value in variables_for(engine, environ).items()
    ]


def health_url(engine: Engine, words: Sequence[str]) -> str:
    """Where the server that a command starts says that it is ready."""
    port = engine.port
    for position, word in enumerate(words):
        match = re.fullmatch(r"--port(?:=(\d+))?", word)
        if match is not None:
            following = words[position + 1] if position + 1 < len(words) else ""
            given = match[1] or following
            port = int(given) if given.isdigit() else port
    return f"http://127.0.0.1:{port}/health"
