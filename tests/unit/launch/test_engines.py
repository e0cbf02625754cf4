"""What a launch sets for an engine, and how a session of nsys replaces ``nsys profile``."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvprobe.errors import UsageError
from nvprobe.launch.engines import engine_of, health_url, notes_for, variables_for
from nvprobe.launch.nsys import session_argv
from nvprobe.launch.options import LaunchOptions, Window
from nvprobe.launch.plan import _settle_window
from nvprobe.nsys import Nsys


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 /opt/bin/vllm serve model", "vLLM"),
        ("vllm bench throughput", "vLLM"),
        ("python -m vllm.entrypoints.openai.api_server --port 1", "vLLM"),
        ("python3.11 -m sglang.launch_server --model x", "SGLang"),
        ("trtllm-serve model", "TensorRT-LLM"),
        ("python train.py --backend vllm", None),
        ("python train.py vllm", None),
        ("python -m mine.vllm", None),
    ],
)
def test_engines_are_known_by_their_command(command: str, name: str | None) -> None:
    engine = engine_of(command.split())
    assert (engine and engine.name) == name


def test_variables_are_said_and_those_of_the_user_stay() -> None:
    engine = engine_of(["vllm", "serve"])
    own = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    assert variables_for(engine, own) == {"VLLM_NVTX_SCOPES_FOR_PROFILING": "1"}
    assert [note.partition("=")[0] for note in notes_for(engine, {})] == [
        "vLLM: VLLM_WORKER_MULTIPROC_METHOD",
        "vLLM: VLLM_NVTX_SCOPES_FOR_PROFILING",
    ]
    for name in variables_for(engine, {}):
        assert "GRAPH" not in name
        assert "EAGER" not in name


@pytest.mark.parametrize("window", [Window(5, 9), Window(1, 2, "requests"), Window(at_least=4)])
def test_a_window_that_would_never_open_is_refused(window: Window, nsys_of_tests: Nsys) -> None:
    options = LaunchOptions(window=window)
    with pytest.raises(UsageError, match="TensorRT-LLM: nvprobe cannot count"):
        _settle_window(options, nsys_of_tests, [], engine_of(["trtllm-serve", "model"]))
    settled = _settle_window(options, nsys_of_tests, [], engine_of(["vllm", "serve"]))
    assert settled.window.outside


def test_the_address_of_a_server() -> None:
    engine = engine_of(["vllm", "serve"])
    assert engine is not None
    assert health_url(engine, ["vllm", "serve"]) == "http://127.0.0.1:8000/health"
    for words in (["--port", "91"], ["--port=91"]):
        assert health_url(engine, ["vllm", "serve", *words]) == "http://127.0.0.1:91/health"


def test_a_session_has_every_flag_of_profile_once(nsys_of_tests: Nsys) -> None:
    profile = [
        *("nsys", "profile", "--output=/r/report", "--trace=cuda,nvtx", "--sample=none"),
        *("--kill=none", "--trace-fork-before-exec=true", "--gpu-metrics-device=all"),
    ]
    launch, start, stop = session_argv(nsys_of_tests, profile, "s")
    assert launch[1:] == [
        "launch", "--session-new=s", "--trace=cuda,nvtx", "--trace-fork-before-exec=true",
    ]  # fmt: skip
    assert start[1:] == [
        *("start", "--session=s", "--output=/r/report", "--sample=none"),
        "--gpu-metrics-device=all",
    ]
    assert stop[1:] == ["stop", "--session=s"]


@pytest.fixture
def nsys_of_tests() -> Nsys:
    made = object.__new__(Nsys)
    object.__setattr__(made, "path", Path("/usr/bin/nsys"))
    return made
