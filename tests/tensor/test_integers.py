"""Random integer expressions mean the same folded, interpreted and compiled: what Python's integers say, wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType

INTEGERS = tuple(d for d in dtypes.all() if d.is_int)
# Values where things go wrong; the rest is random.
LENGTH = 40


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if not dtype.is_unsigned and value >> (dtype.bits - 1) else value


class Operation(NamedTuple):
    """What a method of tensors does to Python integers, before wrapping."""

    ours: Callable[..., Any]
    exact: Callable[..., int]


def shift_left(x: int, y: int, bits: int) -> int:
    return x << y if 0 <= y < bits else 0


def shift_right(x: int, y: int, bits: int) -> int:
    return x >> y if 0 <= y < bits else -1 if x < 0 else 0


UNARY = {
    "neg": Operation(lambda x: -x, lambda x, bits: -x),
    "not": Operation(lambda x: ~x, lambda x, bits: ~x),
    "abs": Operation(lambda x: x.abs(), lambda x, bits: abs(x)),
    "sign": Operation(lambda x: x.sign(), lambda x, bits: (x > 0) - (x < 0)),
    "square": Operation(lambda x: x**2, lambda x, bits: x * x),
    "cube": Operation(lambda x: x**3, lambda x, bits: x**3),
}
BINARY = {
    "add": Operation(lambda x, y: x + y, lambda x, y, bits: x + y),
    "sub": Operation(lambda x, y: x - y, lambda x, y, bits: x - y),
    "mul": Operation(lambda x, y: x * y, lambda x, y, bits: x * y),
    "div": Operation(lambda x, y: x // y, lambda x, y, bits: x // y if y else 0),
    "mod": Operation(lambda x, y: x % y, lambda x, y, bits: x % y if y else 0),
    "and": Operation(lambda x, y: x & y, lambda x, y, bits: x & y),
    "or": Operation(lambda x, y: x | y, lambda x, y, bits: x | y),
    "xor": Operation(lambda x, y: x ^ y, lambda x, y, bits: x ^ y),
    "shl": Operation(lambda x, y: x << y, shift_left),
    "shr": Operation(lambda x, y: x >> y, shift_right),
    "max": Operation(lambda x, y: x.maximum(y), lambda x, y, bits: max(x, y)),
    "min": Operation(lambda x, y: x.minimum(y), lambda x, y, bits: min(x, y)),
    "choose": Operation(lambda x, y: (x < y).where(x * 2, y), lambda x, y, bits: x * 2 if x < y else y),
    "equal": Operation(lambda x, y: (x == y).where(x, y + 1), lambda x, y, bits: x if x == y else y + 1),
}

Expression = tuple[Any, ...]


def numbers(dtype: DType) -> st.SearchStrategy[int]:
    near = [dtype.min, dtype.max, dtype.max - 1, 0, 1, 2, 3, 7, 8, dtype.bits, dtype.bits - 1, 10]
    near += [] if dtype.is_unsigned else [-1, -2, -3, -8, dtype.min + 1]
    return st.one_of(st.sampled_from(near), st.integers(int(dtype.min), int(dtype.max)))


def expressions(dtype: DType) -> st.SearchStrategy[Expression]:
    leaves = st.one_of(st.sampled_from([("x",), ("y",)]), st.tuples(st.just("const"), numbers(dtype)))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
            st.tuples(st.sampled_from(sorted(UNARY)), inner),
            st.tuples(st.just("through"), inner, st.sampled_from(INTEGERS)),
        ),
        max_leaves=6,
    )


def exact(expression: Expression, x: int, y: int, dtype: DType) -> int:
    """The value by Python's integers."""
    kind, *parts = expression
    if kind in ("x", "y"):
        return x if kind == "x" else y
    if kind == "const":
        return int(parts[0])
    if kind == "through":
        return wrap(wrap(exact(parts[0], x, y, dtype), parts[1]), dtype)
    values = [exact(part, x, y, dtype) for part in parts]
    return wrap((UNARY.get(kind) or BINARY[kind]).exact(*values, dtype.bits), dtype)


def built(expression: Expression, x: Tensor, y: Tensor, dtype: DType) -> Any:
    """The expression over tensors; numbers stay numbers unless they meet each other only."""
    kind, *parts = expression
    if kind in ("x", "y"):
        return x if kind == "x" else y
    if kind == "const":
        return int(parts[0])
    values = [built(part, x, y, dtype) for part in parts if not isinstance(part, DType)]
    if not any(isinstance(v, Tensor) for v in values):
        values[0] = Tensor.full(x.shape, values[0], dtype=dtype, device=x.device)
    if kind == "through":
        return values[0].cast(parts[1]).cast(dtype)
    # A number on the left takes the type of the tensor on the right.
    values = [v if isinstance(v, Tensor) else Tensor.full(x.shape, v, dtype=dtype, device=x.device) for v in values[:1]
              ] + values[1:]  # fmt: skip
    return (UNARY.get(kind) or BINARY[kind]).ours(*values)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_random_expressions(dtype: DType) -> None:
    @settings(max_examples=7, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(expressions(dtype), min_size=3, max_size=5), st.lists(numbers(dtype), min_size=8, max_size=8))
    def check(trees: list[Expression], values: list[int]) -> None:
        left = [v for v in values for _ in range(5)]
        right = (values[::-1] * 5)[:LENGTH]
        expected = [[exact(tree, a, b, dtype) for a, b in zip(left, right, strict=True)] for tree in trees]
        for device in ("CPU", "PYTHON"):
            x, y = (Tensor(np.array(v, dtype.name), device=device) for v in (left, right))
            results = [built(tree, x, y, dtype) for tree in trees]
            results = [r if isinstance(r, Tensor) else Tensor.full((LENGTH,), r, dtype=dtype) for r in results]
            results[0].realize(*results[1:])
            for tree, result, wanted in zip(trees, results, expected, strict=True):
                assert result.dtype is dtype, tree
                assert result.tolist() == wanted, (device, tree)
        a, b = left[0], right[0]
        constants = [built(tree, *(Tensor.full((2,), v, dtype=dtype) for v in (a, b)), dtype) for tree in trees]
        for tree, result, wanted in zip(trees, constants, expected, strict=True):
            found = result.tolist() if isinstance(result, Tensor) else [result] * 2
            assert found == [wanted[0]] * 2, ("folded", tree)

    check()


@pytest.mark.parametrize("device", ["CPU", pytest.param("PYTHON", marks=pytest.mark.slow)])
# 64 squarings take long to schedule: once is enough.
@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.bits < 64 or d.is_unsigned], ids=lambda d: d.name)
def test_integer_powers(dtype: DType, device: str) -> None:
    bases = [0, 1, 2, 3, 7, 13, dtype.max, *([] if dtype.is_unsigned else [-1, -2, -3, dtype.min])]
    exponents = [0, 1, 2, 3, 5, 7, 19, 40, *([] if dtype.is_unsigned else [-1, -2])]
    pairs = [(b, e) for b in bases for e in exponents]

    def power(base: int, exponent: int) -> int:
        if exponent >= 0:
            return wrap(base**exponent, dtype)
        return 0 if abs(base) != 1 else (base if exponent % 2 else 1)

    x = Tensor(np.array([b for b, _ in pairs], dtype.name), device=device)
    y = Tensor(np.array([e for _, e in pairs], dtype.name), device=device)
    wanted = [power(b, e) for b, e in pairs]
    result = x**y
    assert result.dtype is dtype and result.tolist() == wanted
    for exponent in (0, 2, 19):
        assert (x**exponent).tolist() == [power(b, exponent) for b, _ in pairs]
    for base, exponent in pairs[5::23]:
        folded = Tensor.full((1,), base, dtype=dtype) ** Tensor.full((1,), exponent, dtype=dtype)
        assert folded.item() == power(base, exponent)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_extremes_and_where_they_are(dtype: DType, device: str) -> None:
    values = np.array([5, dtype.max, 3, dtype.min, dtype.max, dtype.min, 7, 1] * 5, dtype.name)
    x = Tensor(values, device=device)
    assert (x.min().item(), x.max().item()) == (dtype.min, dtype.max)
    assert (x.argmin().item(), x.argmax().item()) == (3, 1)
    assert x.sort()[0].tolist() == np.sort(values).tolist()
    pooled = x.reshape(1, 1, 8, 5).max_pool2d(3, 1, padding=1)
    assert pooled.dtype is dtype and pooled.min().item() >= int(values.min())
    low = Tensor.full((1, 1, 4, 4), dtype.min, dtype=dtype, device=device).contiguous().max_pool2d(3, 1, padding=1)
    assert low.dtype is dtype and set(low.flatten().tolist()) == {dtype.min}


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_narrow_integers_wrap_inside_fused_sums(dtype: DType, device: str) -> None:
    values = [dtype.max, dtype.min, dtype.max - 1, 1, dtype.max // 2 + 1, 3] * 4
    x = Tensor(np.array(values, dtype.name), device=device)
    for ours, theirs in (
        (-x.abs(), lambda v: -wrap(abs(v), dtype)), (x + x, lambda v: v + v), (~x, lambda v: ~v),
        (x * x + 1, lambda v: v * v + 1), (x - 3, lambda v: v - 3), (x << 1, lambda v: v << 1),
    ):  # fmt: skip
        inside = [wrap(theirs(v), dtype) for v in values]
        total = ours.cat(ours).sum()
        assert total.dtype in (dtypes.int64, dtypes.uint64)
        assert total.item() == wrap(2 * sum(inside), total.dtype)
        assert ours.sum(dtype=dtype).item() == wrap(sum(inside), dtype)
        assert ours.tolist() == inside
