"""Every form of docs/inference.md with its columns, and the speed of reading them."""

from __future__ import annotations

import re
import sys

import pyarrow as pa
import pytest

from nvprobe.attribution.engines import FORMS, Role, StepPhase, parse
from nvprobe.attribution.names import clean_names
from nvprobe.errors import UsageError

PREFILL, DECODE, MIXED = StepPhase.PREFILL, StepPhase.DECODE, StepPhase.MIXED

STEPS: list[tuple[str, str, StepPhase, dict[str, int]]] = [
    (
        "execute_context_1(512)_generation_0(0)",
        "execute",
        PREFILL,
        {"prefill_requests": 1, "prefill_tokens": 512, "decode_requests": 0, "decode_tokens": 0},
    ),
    (
        "execute_context_0(0)_generation_3(3)",
        "execute",
        DECODE,
        {"prefill_requests": 0, "prefill_tokens": 0, "decode_requests": 3, "decode_tokens": 3},
    ),
    (
        "execute_context_2(700)_generation_17(17)",
        "execute",
        MIXED,
        {"prefill_requests": 2, "prefill_tokens": 700, "decode_requests": 17, "decode_tokens": 17},
    ),
    (
        "execute_515_context_1(sq512sk512sqsq262144sqsk262144)_generation_3(sq3sk901sqsq3sqsk901)",
        "execute",
        MIXED,
        {
            "prefill_requests": 1,
            "prefill_tokens": 512,
            "decode_requests": 3,
            "decode_tokens": 3,
            "kv_tokens": 1413,
        },
    ),
    (
        "execute_new_1_cached_4",
        "execute",
        MIXED,
        {"prefill_requests": 1, "decode_requests": 4},
    ),
    (
        "step[EXTEND bs=1 toks=512]",
        "step",
        PREFILL,
        {"prefill_requests": 1, "prefill_tokens": 512},
    ),
    ("step[DECODE bs=2]", "step", DECODE, {"decode_requests": 2}),
    (
        "step[MIXED bs=5 toks=516] c_sq=512 g_sq=4 forward_id=77",
        "step",
        MIXED,
        {"iteration": 77, "prefill_tokens": 512, "decode_tokens": 4},
    ),
    (
        "step[MIXED bs=5 toks=516 c_sq=512 g_sq=4 forward_id=77]",
        "step",
        MIXED,
        {"iteration": 77, "prefill_tokens": 512, "decode_tokens": 4},
    ),
    (
        "step[DECODE bs=2] forward_id=9",
        "step",
        DECODE,
        {"iteration": 9, "decode_requests": 2},
    ),
    ("step[TARGET_VERIFY bs=2]", "step", StepPhase.VERIFY, {"decode_requests": 2}),
    ("step[IDLE bs=0]", "step", StepPhase.IDLE, {"decode_requests": 0}),
    (
        "step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]",
        "step",
        StepPhase.DRAFT,
        {"decode_requests": 3, "padded_requests": 4},
    ),
    (
        "[Executor] _forward_step 60003: 1 ctx reqs, 512 ctx tokens, 29 gen reqs",
        "[Executor] _forward_step",
        MIXED,
        {
            "iteration": 60003,
            "prefill_requests": 1,
            "prefill_tokens": 512,
            "decode_requests": 29,
        },
    ),
    (
        "[Executor] _forward_step 7: 0 ctx reqs, 4 gen reqs",
        "[Executor] _forward_step",
        DECODE,
        {"iteration": 7, "prefill_requests": 0, "decode_requests": 4},
    ),
    (
        "[Executor] _forward_step: 2 ctx reqs, 0 gen reqs",
        "[Executor] _forward_step",
        PREFILL,
        {"prefill_requests": 2, "decode_requests": 0},
    ),
    (
        "prefill[bs=2 tok=14721 ctx=[4096,10625]]",
        "prefill",
        PREFILL,
        {"prefill_requests": 2, "prefill_tokens": 14721},
    ),
    (
        "iteration[prefill=2/700 decode=3/3]",
        "iteration",
        MIXED,
        {"prefill_requests": 2, "prefill_tokens": 700, "decode_requests": 3, "decode_tokens": 3},
    ),
    (
        "decode[bs=117/128 tok=117 d=117 p=0]",
        "decode",
        DECODE,
        {"decode_requests": 117, "padded_requests": 128, "decode_tokens": 117},
    ),
]

OTHERS: list[tuple[str, str, Role]] = [
    ("capture_512_FULL", "capture", Role.PART),
    ("capture_16_PIECEWISE", "capture", Role.PART),
    (
        "{'Module': 'LlamaForCausalLM.model.layers.0.self_attn', 'Inputs': [[4, 4096]]}",
        "LlamaForCausalLM.model.layers.0.self_attn",
        Role.MODULE,
    ),
    (
        "{'Module': 'Llama.norm', 'TrainableParams': {'weight': [64]}, 'Outputs': [[4, 64]]}",
        "outputs",
        Role.PART,
    ),
    (
        "TSL:XlaModule:#hlo_module=jit_train_step,program_id=7#",
        "XlaModule:jit_train_step",
        Role.CALL,
    ),
    ("TSL:XlaModule:#prefix=a/b,hlo_module=jit_f#", "XlaModule:jit_f", Role.CALL),
    ("XlaModule:#hlo_module=jit_f,program_id=7#", "XlaModule:jit_f", Role.CALL),
    ("TSL:Thunk:#name=fusion.1,hlo_op=fusion.1#", "Thunk:fusion.1", Role.PART),
    ("Thunk:#hlo_op=dot.3#", "Thunk:dot.3", Role.PART),
]

UNTOUCHED = [
    "gpu_model_runner: forward",
    "schedule: allocate",
    "llm_engine step: process",
    "scheduler.run_batch",
    "_sample_async",
    "forward/decode",
    "execute_contexts",
    "step[ ]",
]


@pytest.mark.parametrize(("text", "name", "phase", "numbers"), STEPS)
def test_numbers_of_a_step_become_columns(
    text: str, name: str, phase: StepPhase, numbers: dict[str, int]
) -> None:
    found = parse(pa.array(["before", text, "after"]))
    assert found.row.tolist() == [1]
    assert found.names.to_pylist() == [name]
    assert found.role.tolist() == [Role.STEP]
    columns = {key: int(values[0]) for key, values in found.batches.columns().items()}
    assert columns.pop("phase") == phase
    assert {key: columns[key] for key in numbers} == numbers
    others = set(columns) - set(numbers) - {"prefill_requests", "decode_requests"}
    assert {columns[key] for key in others} <= {-1}


@pytest.mark.parametrize(("text", "name", "role"), OTHERS)
def test_names_that_are_no_steps(text: str, name: str, role: Role) -> None:
    found = parse(pa.array([text]))
    assert (found.names.to_pylist(), found.role.tolist()) == ([name], [role])


def test_other_names_stay() -> None:
    assert not len(parse(pa.array(UNTOUCHED)).row)
    assert clean_names(pa.array(UNTOUCHED)).names.to_pylist() == UNTOUCHED


def test_each_form_is_a_regular_expression_with_the_same_meaning_in_python() -> None:
    """The oracle: the first form that Python finds gives the same name."""
    texts = [text for text, *_ in STEPS] + [text for text, *_ in OTHERS]
    found = parse(pa.array(texts))
    for text, name in zip(texts, found.names.to_pylist(), strict=True):
        form, match = next(
            (form, match) for form in FORMS if (match := re.fullmatch(form.pattern, text))
        )
        assert name == form.name + match.groupdict().get("name", "")
        assert re.match(form.begins, text)


def test_iterations_of_one_name_are_one_range() -> None:
    texts = [f"execute_context_{i % 2}({i})_generation_{i}({i})" for i in range(100)]
    found = clean_names(pa.array(texts))
    assert found.names.to_pylist() == ["execute"]
    assert found.role.tolist() == [Role.STEP]


def test_a_rule_of_the_user_names_steps() -> None:
    rule = r"turn (?P<iteration>\d+) of (?P<requests>\d+) (?P<phase>prefill|decode)"
    found = parse(pa.array(["turn 3 of 8 decode", "turn x"]), [rule])
    assert found.row.tolist() == [0]
    assert found.names.to_pylist() == ["step"]
    assert found.batches.iteration.tolist() == [3]
    assert found.batches.decode_requests.tolist() == [8]
    assert found.batches.phase.tolist() == [DECODE]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("(", r"--step-name '\(': Invalid regular expression: missing \)$"),
        (r"(?P<number>\d+)", "number.*means nothing; groups are"),
        (r"(\d+)", "--step-name"),
        (r"(?P<iteration>.*)", "--step-name"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(pa.array(["a name"]), [rule])


FORMS_OF_MANY = [
    "something with %d of %d",
    "execute_context_1(%d)_generation_3(%d)",
    "iteration %d of request %d: decode",
    "batch %d #%d",
]


@pytest.mark.parametrize("form", FORMS_OF_MANY)
def test_distinct_names_are_not_read_one_by_one(form: str) -> None:
    def calls(names: int) -> int:
        """Calls of functions, in Python and in C, for so many names."""
        texts, count = pa.array([form % (i, i) for i in range(names)]), 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        try:
            clean_names(texts)
        finally:
            sys.setprofile(None)
        return count

    assert calls(40_000) < calls(1_000) + 4_000
