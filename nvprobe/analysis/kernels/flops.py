"""Floating-point operations of torch operators, from what was recorded of their inputs.

A multiply-add counts as two. Matrix products and elementwise operators follow from shapes alone. A
convolution also needs its stride, padding and dilation, and causal attention that it is causal:
torch.profiler records such arguments (``Concrete Inputs``), ``emit_nvtx`` does not. Without them a
convolution has no formula, and attention counts every pair of positions.

Positions of arguments are those of torch's operator schemas; tests/unit/analysis/test_flops.py
checks them, and every formula, against torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Shape = list[int]
Counted = tuple[int, int]
"""FLOPs, elements of the result."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """One operator call: a shape for each argument (``[]`` if not a tensor), their values."""

    shapes: list[Shape]
    arguments: list[Any] | None = None
    """Numbers, truth values, lists of them, ``None`` for tensors; ``None``: not recorded."""

    @classmethod
    def of(cls, shapes: str, arguments: str = "") -> Inputs:
        """From JSON: ``Input Dims``, and ``Concrete Inputs``, a list of texts, where recorded.

        Raises ValueError or TypeError for anything else: a file may hold whatever it likes.
        """
        sizes = json.loads(shapes)
        if not all(type(size) is int for shape in sizes for size in shape):
            raise TypeError("a shape is a list of integers")
        return cls(sizes, [_value(one) for one in json.loads(arguments)] if arguments else None)

    def numbers(self, position: int) -> list[int]:
        """The integers (truth values are some) at a position; LookupError without arguments."""
        if self.arguments is None:
            raise LookupError("arguments were not recorded")
        value = self.arguments[position]
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(one, int) for one in values):
            raise TypeError("no integers")
        return values

    def each(self, position: int, dimensions: int) -> list[int]:
        """A number for each dimension; a single one stands for all."""
        values = self.numbers(position)
        return values * dimensions if len(values) == 1 else values


def _value(text: Any) -> Any:
    """``[1, 1]``, ``True``, ``0.`` or nothing; other words stay texts."""
    if not isinstance(text, str):
        raise TypeError("a value is recorded as text")
    try:
        return json.loads(text.replace("True", "true").replace("False", "false")) if text else None
    except ValueError:
        return text


def _product(a: Shape, b: Shape) -> Counted:
    """A matrix product, batched or not."""
    batch = math.prod(a[:-2])
    rows, inner, columns = a[-2], a[-1], b[-1]
    return 2 * batch * rows * inner * columns, batch * rows * columns


def _mm(inputs: Inputs) -> Counted:
    return _product(inputs.shapes[0], inputs.shapes[1])


def _addmm(inputs: Inputs) -> Counted:
    return _product(inputs.shapes[1], inputs.shapes[2])


def _mv(inputs: Inputs) -> Counted:
    rows, inner = inputs.shapes[0]
    return 2 * rows * inner, rows


def _addmv(inputs: Inputs) -> Counted:
    rows, inner = inputs.shapes[1]
    return 2 * rows * inner, rows


def _attention(causal: int, inputs: Inputs) -> Counted:
    """Scaled dot-product attention over [batch, heads, length, width]: scores, values.

    Several query heads may share a key head: the products are those of the query's heads.
    ``causal`` is the position of ``is_causal``, from the end: overloads differ in front of it.
    """
    query, key, value = inputs.shapes[:3]
    pairs = _pairs(inputs, causal, query, key)
    return 2 * pairs * (query[-1] + value[-1]), math.prod(query[:-1]) * value[-1]


def _attention_backward(causal: int, inputs: Inputs) -> Counted:
    """Five products: scores again, and the gradients of value, scores, query and key."""
    query, key, value = inputs.shapes[1:4]
    pairs = _pairs(inputs, causal, query, key)
    flops = 2 * pairs * (3 * query[-1] + 2 * value[-1])
    return flops, sum(math.prod(shape) for shape in (query, key, value))


def _pairs(inputs: Inputs, causal: int, query: Shape, key: Shape) -> int:
    """Pairs of positions in all heads; causal, where given: query i sees the keys up to i."""
    queries, keys = query[-2], key[-2]
    pairs = queries * keys
    if inputs.arguments is not None and inputs.arguments[causal] is True:
        seen = min(queries, keys)
        pairs = seen * (seen + 1) // 2 + (queries - seen) * keys
    return math.prod(query[:-2]) * pairs


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution of input [batch, channels, …] and weight [channels out, channels / groups, …].

    Each output position is a product with the whole weight, whatever the groups.
    """

    padding: int
    stride: int
    dilation: int | None = None
    """Positions of arguments; no dilation: it is 1."""

    def __call__(self, inputs: Inputs) -> Counted:
        source, weight = inputs.shapes[:2]
        spatial, kernel = source[2:], weight[2:]
        rank = len(spatial)
        padding, stride = inputs.each(self.padding, rank), inputs.each(self.stride, rank)
        dilation = [1] * rank if self.dilation is None else inputs.each(self.dilation, rank)
        out = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, p, s, d in zip(spatial, kernel, padding, stride, dilation, strict=True)
        ]
        positions = source[0] * math.prod(out)
        return 2 * positions * math.prod(weight), positions * weight[0]


@dataclass(frozen=True, slots=True)
class _TransposedConvolution:
    """Input [batch, channels, …], weight [channels, channels out / groups, …].

    Each *input* position is a product with the whole weight.
    """

    padding: int
    output_padding: int
    stride: int
    dilation: int
    groups: int | None = None
    """No position: one group."""

    def __call__(self, inputs: Inputs) -> Counted:
        source, weight = inputs.shapes[:2]
        spatial, kernel = source[2:], weight[2:]
        padding, more, stride, dilation = (
            inputs.each(position, len(spatial))
            for position in (self.padding, self.output_padding, self.stride, self.dilation)
        )
        out = [
            (n - 1) * s - 2 * p + d * (k - 1) + o + 1
            for n, k, p, o, s, d in zip(
                spatial, kernel, padding, more, stride, dilation, strict=True
            )
        ]
        groups = 1 if self.groups is None else inputs.numbers(self.groups)[0]
        flops = 2 * source[0] * math.prod(spatial) * math.prod(weight)
        return flops, source[0] * weight[1] * groups * math.prod(out)


def _convolution_backward(inputs: Inputs) -> Counted:
    """A product as large as the forward one for the input's gradient, one for the weight's."""
    gradient, source, weight = inputs.shapes[:3]
    (transposed,), wanted = inputs.numbers(7), inputs.numbers(10)
    positions = source[0] * math.prod((source if transposed else gradient)[2:])
    products = wanted[0] + wanted[1]
    sizes = (math.prod(source), math.prod(weight), gradient[1])
    result = sum(size for size, one in zip(sizes, wanted, strict=True) if one)
    return products * 2 * positions * math.prod(weight), result


def _elementwise(inputs: Inputs) -> Counted:
    """One operation an element of the broadcast result."""
    tensors = [shape for shape in inputs.shapes if shape]
    result = np.broadcast_shapes(*(tuple(shape) for shape in tensors))
    return math.prod(result), math.prod(result)


CONVOLUTIONS: dict[str, Callable[[Inputs], Counted]] = {
    "aten::cudnn_convolution": _Convolution(2, 3, 4),
    "aten::cudnn_convolution_relu": _Convolution(4, 3, 5),
    "aten::cudnn_convolution_add_relu": _Convolution(6, 5, 7),
    "aten::cudnn_convolution_transpose": _TransposedConvolution(2, 3, 4, 5, 6),
    "aten::miopen_convolution": _Convolution(3, 4, 5),
    "aten::miopen_convolution_relu": _Convolution(4, 3, 5),
    "aten::miopen_depthwise_convolution": _Convolution(3, 4, 5),
    "aten::miopen_convolution_transpose": _TransposedConvolution(3, 4, 5, 6, 7),
    "aten::_conv_depthwise2d": _Convolution(5, 4, 6),
    "aten::conv_depthwise3d": _Convolution(5, 4, 6),
    "aten::_slow_conv2d_forward": _Convolution(5, 4),
    "aten::slow_conv_dilated2d": _Convolution(5, 4, 6),
    "aten::slow_conv_dilated3d": _Convolution(5, 4, 6),
    "aten::slow_conv_transpose2d": _TransposedConvolution(5, 6, 4, 7),
    "aten::slow_conv_transpose3d": _TransposedConvolution(5, 6, 4, 7),
    "aten::convolution_backward": _convolution_backward,
}
"""What ``aten::convolution`` calls on a GPU, and its backward: never one inside the other."""

_SDPA = "aten::_scaled_dot_product_"
FORMULAS: dict[str, Callable[[Inputs], Counted]] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::_int_mm": _mm,
    "aten::_scaled_mm": _mm,
    **dict.fromkeys(
        ("aten::addmm", "aten::addmm_", "aten::_addmm_activation", "aten::baddbmm",
         "aten::baddbmm_"), _addmm,
    ),
    "aten::mv": _mv,
    "aten::addmv": _addmv,
    "aten::addmv_": _addmv,
    f"{_SDPA}flash_attention": partial(_attention, -3),
    f"{_SDPA}efficient_attention": partial(_attention, -2),
    f"{_SDPA}cudnn_attention": partial(_attention, -3),
    f"{_SDPA}flash_attention_backward": partial(_attention_backward, -4),
    f"{_SDPA}efficient_attention_backward": partial(_attention_backward, -2),
    f"{_SDPA}cudnn_attention_backward": partial(_attention_backward, -2),
    **CONVOLUTIONS,
    **{
        f"aten::{name}": _elementwise
        for name in (
            "add", "add_", "sub", "mul", "mul_", "div", "div_", "relu", "relu_", "gelu", "silu",
            "sigmoid", "tanh", "exp", "gelu_backward", "threshold_backward",
        )
    },
}  # fmt: skip
"""Operator → (FLOPs, elements of the result) from what was recorded of its inputs."""
