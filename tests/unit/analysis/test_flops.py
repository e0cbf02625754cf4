"""FLOPs against torch: its schemas, its own counter, the shapes its operators give."""

from __future__ import annotations

import json
import warnings
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.kernels.flops import CONVOLUTIONS, FORMULAS, Inputs
from nvprobe.merging.load import load
from tests.conftest import examples

torch = pytest.importorskip("torch")

SDPA = "aten::_scaled_dot_product_"


def _schemas(name: str) -> list[list[str]]:
    """Names of the arguments of every overload that returns its result."""
    found = torch._C._jit_get_schemas_for_operator(name)
    names = [[one.name for one in schema.arguments] for schema in found
             if not any(a.is_out for a in schema.arguments)]  # fmt: skip
    if not names:
        pytest.skip(f"this torch has no {name}")
    return names


@pytest.mark.parametrize("name", sorted(set(CONVOLUTIONS) - {"aten::convolution_backward"}))
def test_arguments_of_convolutions_stand_where_the_schema_says(name: str) -> None:
    formula: Any = CONVOLUTIONS[name]
    (names,) = _schemas(name)
    told = {field: getattr(formula, field) for field in formula.__dataclass_fields__}
    assert told == {field: names.index(field) if field in names else None for field in told}


def test_arguments_of_the_backward_stand_where_the_schema_says() -> None:
    (names,) = _schemas("aten::convolution_backward")
    assert names[:3] == ["grad_output", "input", "weight"]
    assert (names[7], names[10]) == ("transposed", "output_mask")


@pytest.mark.parametrize("name", [name for name in FORMULAS if name.startswith(SDPA)])
def test_causal_attention_is_told_where_the_schema_says(name: str) -> None:
    formula = FORMULAS[name]
    assert isinstance(formula, partial)
    for names in _schemas(name):
        assert names[formula.args[0]] == "is_causal"


DIMENSION = st.tuples(
    st.integers(1, 3), st.integers(0, 2), st.integers(1, 3), st.integers(1, 2), st.integers(5, 9)
)
"""Kernel, padding, stride, dilation, size."""


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """A convolution that torch takes, of one to three dimensions."""
    kernel, padding, stride, dilation, size = zip(
        *draw(st.lists(DIMENSION, min_size=1, max_size=3)), strict=True
    )
    groups, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    inside, outside = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3))
    first, second = (inside, outside // groups) if transposed else (outside, inside // groups)
    more = [min(s - 1, 1) if transposed else 0 for s in stride]
    return {
        "input": [draw(st.integers(1, 2)), inside, *size],
        "weight": [first, second, *kernel],
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "transposed": transposed,
        "output_padding": more,
        "groups": groups,
    }


def _recorded(one: dict[str, Any], order: list[str], **more: Any) -> str:
    """``Concrete Inputs`` of an operator with that schema, as torch.profiler writes them."""
    values = {**one, **more}
    tensors = ("self", "input", "weight", "bias", "grad_output")
    return json.dumps([
        str(values[name]) if name in values and name not in tensors else "" for name in order
    ])  # fmt: skip


@examples(60)
@given(convolutions())
def test_a_convolution_is_what_torch_counts(one: dict[str, Any]) -> None:
    from torch.utils.flop_counter import conv_flop_count

    source, weight = torch.zeros(one["input"]), torch.zeros(one["weight"])
    parameters = [one[key] for key in ("stride", "padding", "dilation", "transposed",
                                       "output_padding", "groups")]  # fmt: skip
    result = torch.convolution(source, weight, None, *parameters)
    name = "aten::cudnn_convolution" + "_transpose" * one["transposed"]
    (order,) = _schemas(name)
    inputs = Inputs.of(json.dumps([one["input"], one["weight"]]), _recorded(one, order))
    flops, elements = FORMULAS[name](inputs)
    assert flops == conv_flop_count(
        one["input"], one["weight"], list(result.shape), transposed=one["transposed"]
    )
    assert elements == result.numel()


@examples(40)
@given(convolutions(), st.tuples(*[st.booleans()] * 3))
def test_a_backward_is_one_product_for_each_gradient(
    one: dict[str, Any], wanted: tuple[bool, bool, bool]
) -> None:
    source, weight = torch.zeros(one["input"]), torch.zeros(one["weight"])
    parameters = [one[key] for key in ("stride", "padding", "dilation", "transposed",
                                       "output_padding", "groups")]  # fmt: skip
    forward = torch.convolution(source, weight, None, *parameters)
    results = torch.ops.aten.convolution_backward(
        torch.zeros(forward.shape), source, weight, [forward.shape[1]], *parameters, list(wanted)
    )
    (order,) = _schemas("aten::convolution_backward")
    shapes = [list(forward.shape), one["input"], one["weight"]]
    text = _recorded(one, order, output_mask=list(wanted))
    flops, elements = FORMULAS["aten::convolution_backward"](Inputs.of(json.dumps(shapes), text))
    assert elements == sum(made.numel() for made, asked in zip(results, wanted, strict=True)
                           if asked)  # fmt: skip
    assert flops == (wanted[0] + wanted[1]) * _multiplications(one, list(forward.shape)) * 2


def _multiplications(one: dict[str, Any], result: list[int]) -> int:
    """Of a convolution: a weight times an input, for each output (transposed: each input)."""
    batch, spatial = one["input"][0], (one["input"] if one["transposed"] else result)[2:]
    count = 0
    for _ in product(range(batch), *map(range, spatial)):
        count += int(np.prod(one["weight"]))
    return count


def test_what_the_profiler_writes_is_read(tmp_path: Path) -> None:
    """A convolution's backward, recorded on the CPU: torch's counter and the trace agree."""
    from torch.utils.flop_counter import FlopCounterMode

    file, counted = tmp_path / "trace.json", {}
    source = torch.zeros(2, 6, 9, 9, requires_grad=True)
    weight = torch.zeros(4, 6, 3, 3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile:
            torch.nn.functional.conv2d(source, weight, stride=2, padding=1).sum().backward()
        profile.export_chrome_trace(str(file))
        with FlopCounterMode(display=False) as counter:
            torch.nn.functional.conv2d(source, weight, stride=2, padding=1).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    trace = load(file)
    assert trace.operators.arguments is not None
    names = trace.texts(trace.ranges.name[trace.operators.range])
    row = names.index("aten::convolution_backward")
    inputs = Inputs.of(
        trace.text(trace.operators.shapes[row]) or "",
        trace.text(trace.operators.arguments[row]) or "",
    )
    flops, _ = FORMULAS["aten::convolution_backward"](inputs)
    assert flops == counted[torch.ops.aten.convolution_backward]
    kept = np.flatnonzero(trace.operators.arguments >= 0)
    assert all("conv" in (names[one] or "") for one in kept)


def _attended(one: dict[str, int], *, causal: bool) -> int:
    """Pairs of query and key positions, one by one."""
    return sum(
        1
        for query, key in product(range(one["queries"]), range(one["keys"]))
        if not causal or key <= query
    )


@examples(60)
@given(
    st.fixed_dictionaries({key: st.integers(1, 6) for key in
                           ("batch", "shared", "groups", "queries", "keys", "width", "deep")}),
    st.booleans(),
    st.sampled_from(("flash", "efficient", "cudnn")),
)  # fmt: skip
def test_attention_counts_what_queries_see(one: dict[str, int], causal: bool, how: str) -> None:
    """Heads share keys (grouped queries); causal ones see only what is before them."""
    heads = one["shared"] * one["groups"]
    query = [one["batch"], heads, one["queries"], one["width"]]
    key = [one["batch"], one["shared"], one["keys"], one["width"]]
    value = [*key[:3], one["deep"]]
    pairs = one["batch"] * heads * _attended(one, causal=causal)
    for name, shapes, columns in (
        (f"{SDPA}{how}_attention", [query, key, value], one["width"] + one["deep"]),
        (f"{SDPA}{how}_attention_backward", [[], query, key, value],
         3 * one["width"] + 2 * one["deep"]),
    ):  # fmt: skip
        order = _schemas(name)[0]
        text = _recorded({"is_causal": causal}, order)
        assert FORMULAS[name](Inputs.of(json.dumps(shapes), text))[0] == 2 * pairs * columns
        if not causal:  # emit_nvtx tells no arguments: every pair counts
            assert FORMULAS[name](Inputs.of(json.dumps(shapes)))[0] == 2 * pairs * columns


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("mm", lambda a, b: torch.mm(a[0], b[0])),
        ("bmm", torch.bmm),
        ("bmm", lambda a, b: torch.einsum("bij,bjk->bik", a, b)),
        ("addmm", lambda a, b: torch.addmm(torch.zeros(5), a[0], b[0])),
        ("addmm", lambda a, b: torch.nn.functional.linear(a[0], b[0].T.contiguous(),
                                                          torch.zeros(5))),
        ("baddbmm", lambda a, b: torch.baddbmm(torch.zeros(5), a, b)),
    ],
)  # fmt: skip
def test_products_are_what_torch_counts(name: str, call: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    seen: list[tuple[int, int]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = operator(*args, **(kwargs or {}))
            called = operator.name().split(".")[0]
            if called == f"aten::{name}":
                shapes = [list(a.shape) if hasattr(a, "shape") else [] for a in args]
                flops, elements = FORMULAS[called](Inputs(shapes))
                assert elements == result.numel()
                seen.append((flops, elements))
            return result

    a, b = torch.zeros(2, 3, 4), torch.zeros(2, 4, 5)
    with FlopCounterMode(display=False) as counter, Watch():
        call(a, b)
    assert len(seen) == 1
    assert seen[0][0] == counter.get_total_flops()


@pytest.mark.parametrize("text", [
    "[1]", '[["x", 4]]', '[["", "a"], [1000000000]]', '{"a": 1}', "", "[[[[", "null",
])  # fmt: skip
def test_damaged_inputs_are_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        Inputs.of(text)
