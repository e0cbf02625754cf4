"""Range names: what is cut, what is kept."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvprobe.attribution.names import NO_TEXT, clean_names
from nvprobe.errors import UsageError
from tests.oracle import clean, clean_all
from tests.unit.attribution.names_by_expression import names_and_numbers


@pytest.mark.parametrize(
    ("text", "name", "index"),
    [
        ("step 4", "step", 4),
        ("iter_12", "iter", 12),
        ("ProfilerStep#3", "ProfilerStep", 3),
        ("training_step_7", "training_step", 7),
        ("train_step 5", "train_step", 5),
        ("Epoch 1/10", "Epoch", 1),
        ("Iteration: 8", "Iteration", 8),
        ("micro-batch/3", "micro-batch", 3),
        ("request#5", "request", 5),
        ("item = 6", "item", 6),
        ("loss#2", "loss", 2),
        ("layer 3", "layer 3", -1),
        ("blocks.0", "blocks.0", -1),
        ("fwd:0", "fwd:0", -1),
        ("mystep 4", "mystep 4", -1),
        ("step4", "step4", -1),
        ("#3", "#3", -1),
        ("step 99999999999999999999", "step 99999999999999999999", -1),
        ("", "(no name)", -1),
        ("step\n4", "step\n4", -1),
    ],
)
def test_an_index_is_cut(text: str, name: str, index: int) -> None:
    found = clean_names(pa.array([text]))
    assert (found.names[0].as_py(), found.index[0]) == (name, index)
    assert clean(text)[:2] == (name, index)


@pytest.mark.parametrize(
    ("text", "name", "sequence", "operator"),
    [
        ("aten::addmm, seq = 4, op_id = 17, sizes = [[8, 4]]", "aten::addmm", 4, 17),
        ("forward, op_id = 3", "forward", -1, 3),
        ("f<int, float>, seq = 12", "f<int, float>", 12, -1),
        ("a, sizes = [[], [2, 3]], input_op_ids = [(1,0)]", "a", -1, -1),
        ("a, seq = many", "a", -1, -1),
        ("step 3, op_id = 9", "step", -1, 9),
        ("x, y = 3", "x, y", -1, -1),
    ],
)
def test_torch_attributes_come_off(text: str, name: str, sequence: int, operator: int) -> None:
    found = clean_names(pa.array(["plain", text]))
    row = found.code[1]
    assert found.names[row].as_py() == name
    assert (found.sequence[1], found.operator_id[1]) == (sequence, operator)


MIXES = {
    "steps, some of which have more numbers": [
        *(f"[engine] step {n}: {n % 3} requests" for n in range(10, 16)),
        *(f"iter {n} of request {r}" for r in range(2) for n in range(4)),
        *(f"epoch {e}/9 batch {n}" for e in range(2) for n in range(3)),
        *(f"worker/decode-{n} (forward)" for n in range(5)),
    ],
    "too few, layers, parts of a step, paths of modules, numbers with units": [
        *(f"iteration {n} of epoch 2 (warm)" for n in range(4)),
        *(f"layer {n} forward" for n in range(6)),
        *(f"decode_{n}_proj" for n in range(6)),
        *(f"decode {n} layer {layer}" for n in range(3) for layer in range(3)),
        *(f"model.decode.{n}.proj" for n in range(6)),
        *(f"batch {n}k tokens" for n in range(6)),
        *(f"frame {n}.5 (late)" for n in range(6)),
        *(f"step {n} rank={rank}" for n in range(3) for rank in range(2)),
    ],
}


@pytest.mark.parametrize("texts", MIXES.values(), ids=MIXES)
def test_numbers_in_the_middle_of_names(texts: list[str]) -> None:
    found = clean_names(pa.array(texts))
    names = found.names.take(pa.array(found.code)).to_pylist()
    expected = clean_all(texts)
    assert dict(zip(texts, zip(names, found.index.tolist(), strict=True), strict=True)) == {
        text: (name, index) for text, (name, index, _) in expected.items()
    }


PIECES = [
    *("step", "iter", "iteration", "Decode", "microBATCH", "request", "x", "layer", "\u017ftep"),
    *(" ", "#", "=", ":", "_", "/", "-", ".", "\n", "\t", "(", "\u00e9", "\u212a", "k tokens"),
    *("0", "7", "10", "0" * 17 + "4", "9" * 18, "1" * 19, "/10", " step 4", "iter=12 ", "#3"),
]
VARYING = st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 11))
SHAPES = st.lists(st.one_of(st.sampled_from(PIECES), VARYING), max_size=8)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(SHAPES, st.integers(1, 8)), min_size=1, max_size=4))
@example([(["iter ", (1, 0, 11), " #", (1, 0, 11)], 6), ([(1, 1, 11), " iter 3 (x)"], 3)])
@example([(["3step ", (1, 0, 11), "step ", (2, 0, 11), " iter ", (0, 5, 11), ")"], 8)])
@example([(["iter ", (1, 0, 2), " step ", "1" * 18, (1, 0, 11), ")"], 8)])
def test_names_are_what_one_expression_a_rule_makes_of_them(
    shapes: list[tuple[list[str | tuple[int, int, int]], int]],
) -> None:
    made = [
        "".join(
            one if isinstance(one, str) else str((one[0] * n + one[1]) % one[2]) for one in shape
        )
        for shape, count in shapes
        for n in range(count)
    ]
    texts = [text for text in dict.fromkeys(made) if text.strip()]
    found = clean_names(pa.array(texts, pa.string()))
    names = found.names.take(pa.array(found.code)).to_pylist()
    expected = names_and_numbers(texts) if texts else []
    assert list(zip(names, found.index.tolist(), strict=True)) == [
        (name if name.strip() else NO_TEXT, number) for name, number in expected
    ]


def test_masks_are_names_of_steps() -> None:
    found = clean_names(pa.array([text for texts in MIXES.values() for text in texts]))
    like = dict(zip(found.names.to_pylist(), found.step_like.tolist(), strict=True))
    masked = [name for name, mask in zip(like, found.masked.tolist(), strict=True) if mask]
    assert masked == [
        "[engine] step #: # requests", "iter # of request", "epoch #/# batch",
        "worker/decode-# (forward)",
    ]  # fmt: skip
    assert all(like[name] for name in masked)
    assert not like["decode 0 layer 0"]
    assert found.index[:6].tolist() == [*range(10, 16)]
    assert found.index[6:14].tolist() == [*range(4), *range(4)]


def test_a_rule_of_the_users() -> None:
    found = clean_names(pa.array(["layer 3", "layer 4", "x"]), [r"(?P<name>layer) (?P<index>\d+)"])
    assert found.names.to_pylist() == ["layer", "x"]
    assert found.index.tolist() == [3, 4, -1]


@pytest.mark.parametrize("rule", ["(", r"layer (\d+)", r"(?P<name>l).*(?P<index>r 3)"])
def test_a_bad_rule_is_named(rule: str) -> None:
    with pytest.raises(UsageError, match="index rule"):
        clean_names(pa.array(["layer 3"]), [rule])


def test_step_like_names() -> None:
    found = clean_names(pa.array(["decode", "train-step", "stepper", "EPOCH"]))
    assert found.step_like.tolist() == [True, True, False, True]


def test_nameless_ranges_share_one_label() -> None:
    found = clean_names(pa.array(["", " \t", "step 3"]))
    assert found.names.to_pylist() == ["(no name)", "step"]
    assert found.code.tolist() == [0, 0, 1]
