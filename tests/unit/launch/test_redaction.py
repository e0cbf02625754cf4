"""Secrets do not reach files or the screen; ordinary commands do, unchanged."""

from __future__ import annotations

import random
import string
import uuid

import pytest

from nvprobe.launch.redaction import redacted, redacted_words

SECRETS = [
    "sk-proj-abcdefghij0123456789",
    "sk_live_abcdefghij012345",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghij_k",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefghijkl",
    "glpat-abcdefghijklmnopqrst",
    "nvapi-abcdefghijklmnop",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "0123456789abcdef0123456789abcdef01234567",
    str(uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)),
]
PLAIN = [
    "python", "train.py", "--lr=3e-4", "--epochs", "10", "--max-tokens", "128",
    "--tokenizer=gpt2", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-Coder-32B-Instruct-AWQ",
    "checkpoint_epoch_0010_step_00012000.safetensors", "--nproc-per-node=8",
    "ResNet50V2ImageNetPretrainedWeights", "torch.distributed.elastic.rendezvous",
    "https://huggingface.co/datasets/allenai/c4", "localhost:29500", "model.layers[0].dropout=0.1",
    "data.batch_size=32", "--date=2026-11-30T07:12:54", "s3://bucket/prefix/part-00000-of-01024",
    "keyboard_layout_for_everyone_in_the_room", "--trace=cuda,nvtx,osrt",
    "--capture-range=cudaProfilerApi", "fp8_e4m3fn_with_bf16_accumulation_kernel",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "--opt={}", "x={},y=1", 'say "{}" now', "{{'a': '{}'}}", "https://h/?q={}"]
)
def test_keys_are_known_by_their_look(secret: str, around: str) -> None:
    clean = redacted_words([around.format(secret)])[0]
    assert secret not in clean
    assert "***" in clean


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2",
        "https://ann:hunter2@host/x",
        "postgresql+psycopg://ann:hunter2@db:5432/x",
        "redis://:hunter2@db",
        "https://ann:hun/hunter2@host/",
        "ann:hunter2@host",
        '{"api_key": "hunter2"}',
        "user=ann;password=hunter2",
        "https://h/?access_token=hunter2&x=1",
        "db.secretName: hunter2",
    ],
)
def test_passwords_are_known_by_where_they_stand(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert "hunter2" not in redacted_words(["--x", text])[1]


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "hunter2"],
        ["--token=hunter2"],
        ["--accessTokenId", "hunter2"],
        ["Bearer", "hunter2"],
        ["wandb.api_key=hunter2"],
        ["HF_TOKEN=hunter2"],
        ["--pwd", "hunter2"],
        ["--auth=hunter2"],
    ],
)
def test_secrets_are_known_by_their_option(words: list[str]) -> None:
    assert not any("hunter2" in word for word in redacted_words(words))


def test_ordinary_words_stay() -> None:
    assert redacted_words(PLAIN) == PLAIN
    assert [redacted(word) for word in PLAIN] == PLAIN


@pytest.mark.parametrize("length", [24, 32, 40, 64])
@pytest.mark.parametrize(
    "letters",
    [
        string.ascii_letters + string.digits,
        string.ascii_letters + string.digits + "-_",
        string.digits + "abcdef",
    ],
)
def test_long_random_strings(length: int, letters: str) -> None:
    """Nearly all of them: a random string may by chance look like a word."""
    dice = random.Random(length)
    words = ["".join(dice.choices(letters, k=length)) for _ in range(500)]
    seen = sum(word in redacted(word) for word in words)
    assert seen <= 20 - length // 4


def test_a_hostile_word_takes_no_time() -> None:
    parts = ("://a:", "key=", "a", "-----BEGIN ", ":@", "Bearer ", "eyJaaaaaaaaa.", "sk-")
    for part in parts:
        redacted(part * (100_000 // len(part)))
