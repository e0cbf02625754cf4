"""Texts without paths, people, machines and secrets; names of kernels and layers stay."""

from __future__ import annotations

import pytest

from nvprobe.sharing.texts import Scrubber


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("load /home/jdoe/secret-project/train.py", "load train.py"),
        ("/opt/x/site-packages/torch/nn/linear.py:31", "torch/nn/linear.py:31"),
        ("/usr/lib/python3.12/threading.py(1012): run", "threading.py(1012): run"),
        ("my_model/attention.py:3", "attention.py:3"),
        ("transformers/trainer.py:12", "transformers/trainer.py:12"),
        ("see file:///data/x/y.json", "see y.json"),
        (r"C:\Users\ann\run.py", "run.py"),
        ("~/secret/notes.txt", "notes.txt"),
        ("connect to 10.20.30.40 port 80", "connect to 0.0.0.0 port 80"),
        ("version 2025.3.2.0", "version 2025.3.2.0"),
        ("mail ann@corp.example now", "mail user@host now"),
        ("wandb: https://wandb.ai/team/run?key=1", "wandb: https://"),
        ("token sk-synthetic-000111222333", "token ***"),
        ("api_key=abcd1234", "api_key=***"),
        ("decode token=17", "decode token=17"),
        ("step/forward/block.3", "step/forward/block.3"),
    ],
)
def test_names(text: str, clean: str) -> None:
    assert Scrubber().name(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "/encoder/layer.0/attention/MatMul",
        "aten::mm, seq = 4, op_id = 17, sizes = [[8, 4]]",
        "graph 0/0 fwd",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "## Call CompiledFxGraph fdmeqgnbizyyxsrefo47h5zpcb2aq4kn2tx6eyjvntiaujd3yend ##",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
        "Iteration[id] = 12",
    ],
)
def test_names_that_hold_nothing(text: str) -> None:
    assert Scrubber().name(text) == text
    assert Scrubber().kernel(text) == text


def test_two_files_of_one_name_stay_two() -> None:
    scrub = Scrubber()
    assert scrub.name("/home/a/utils.py:1") == "utils.py:1"
    assert scrub.name("/home/b/utils.py:1") == "utils~2.py:1"
    assert scrub.name("/home/a/utils.py:7") == "utils.py:7"
    assert scrub.name("a/utils.py:7") == "utils.py:7", "the same file, as seen from its folder"
    assert scrub.name("/x/proj/queue.py:1") == "program/queue.py:1", "not Python's own"


def test_users_hosts_and_secrets_of_environments() -> None:
    scrub = Scrubber()
    scrub.learn(["USER=jdoe\nHOSTNAME=gpu-17.corp.example\nMY_TOKEN=tiger-lily-7\nMODEL=gpt2"])
    assert scrub.name("jdoe's run on gpu-17") == "user's run on host"
    assert scrub.name("ping gpu-17.corp.example") == "ping host"
    assert scrub.text("is tiger-lily-7 gpt2") == "is *** gpt2"
    assert scrub.blob(b"\x01\x02jdoe\x00/home/jdoe/x\x00") == b"\x01\x02****\x00************\x00"


def test_programs_without_their_arguments() -> None:
    scrub = Scrubber()
    assert scrub.program("python3 /home/jdoe/secret-project/train.py") == "python3"
    assert scrub.program("/opt/env/bin/python3 -m train --key x") == "python3"
    assert scrub.program("pt_main_thread") == "pt_main_thread"
    assert scrub.program("VLLM::EngineCore 3") == "VLLM::EngineCore 3"


def test_hashed_names() -> None:
    scrub, other = Scrubber(hash_names=True), Scrubber(hash_names=True)
    clean = scrub.name("step/secretmodel.layers.3.qkv")
    assert clean.startswith("step/")
    assert clean.endswith(".layers.3.qkv")
    assert "secretmodel" not in clean
    assert scrub.name("fwd:secretmodel") == f"fwd:{clean.split('/')[1].split('.')[0]}"
    assert other.name("step/secretmodel.layers.3.qkv") != clean, "keyed by chance"
    for known in ("aten::mm", "ProfilerStep#3", "AddmmBackward0", "graph 0/0 fwd", "optimizer"):
        assert scrub.name(known) == known
