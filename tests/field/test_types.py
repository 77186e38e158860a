"""Casts to 8 bits, unsigned edges, negative numerators and index spaces beyond 2**31, which others got wrong."""

from __future__ import annotations

import math
import mmap
import random
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.graph.bounds import bounds
from gradlet.graph.fold import fold
from gradlet.graph.node import UOp, mk
from gradlet.graph.rewrite import rewrite
from gradlet.ops.op import KernelArg, Op, VariableArg
from gradlet.rules.sets import INDEX_MATH
from gradlet.target.target import TARGETS, Target

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


CORNERS = {
    "float8_e4m3fn": {0x7F: math.nan, 0xFF: math.nan, 0x7E: 448.0, 0x01: 2.0**-9, 0x08: 2.0**-6, 0xFE: -448.0},
    "float8_e5m2": {
        0x7C: math.inf, 0xFC: -math.inf, 0x7D: math.nan, 0x7E: math.nan, 0x7F: math.nan, 0x7B: 57344.0, 0x01: 2.0**-16,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_nan_and_infinity_of_8_bits_are_no_ordinary_numbers(name: str, device: str) -> None:
    codes = Tensor(np.arange(256, dtype=np.uint8), device=device)
    values = codes.bitcast(name)
    wide = values.cast("float32").numpy()
    for code, value in CORNERS[name].items():
        np.testing.assert_equal(float(wide[code]), value)
    # The destination makes no difference.
    for dtype in ("bfloat16", "float16", "float64"):
        np.testing.assert_array_equal(values.cast(dtype).cast("float32").numpy(), wide)
    # Back again: the same codes, except that any NaN is one.
    back = values.cast("float32").cast(name).bitcast("uint8").numpy()
    keep = ~np.isnan(wide)
    assert back[keep].tolist() == np.arange(256)[keep].tolist()
    assert np.isnan(Tensor(back[~keep], device=device).bitcast(name).numpy()).all()


@pytest.mark.parametrize(("name", "largest"), [("float8_e4m3fn", math.nan), ("float8_e5m2", math.inf)])
def test_what_is_too_large_for_8_bits_is_the_same_folded_and_computed(name: str, largest: float, device: str) -> None:
    for value, expected in ((1e6, largest), (-1e6, -largest), (math.inf, largest), (math.nan, math.nan), (0.3, 0.3125)):
        stored = Tensor(np.full(40, value, np.float32), device=device).cast(name)
        constant = Tensor.full((40,), value, device=device).cast(name)
        listed = Tensor([value] * 40, dtype=name, device=device)
        for tensor in (stored, constant, listed):
            np.testing.assert_array_equal(tensor.numpy(), np.full(40, expected, np.float32))


@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if d.is_int], ids=lambda d: d.name)
def test_bits_of_integers_flip_within_their_type(dtype: Any, device: str) -> None:
    values = np.array([0, 1, 5, dtype.max, dtype.min], dtype.name)
    x = Tensor(values, device=device)
    with np.errstate(over="ignore"):
        assert (~x).tolist() == (~values).tolist() and (-x).tolist() == np.negative(values).tolist()
    assert (~x).dtype is (-x).dtype is dtype
    constant = Tensor.full((2,), 5, dtype=dtype, device=device)
    assert (~constant).tolist() == [int(~np.array(5, dtype.name))] * 2
    assert (-constant).tolist() == [int(np.negative(np.array(5, dtype.name)))] * 2
    assert (x.min().item(), x.max().item()) == (dtype.min, dtype.max)


def python_value(node: UOp, values: dict[str, int]) -> int:
    """The value of an index expression, by Python's integers."""
    if node.op is Op.VARIABLE:
        return values[node.arg.name]
    if node.op is Op.CONST:
        return int(node.arg)
    found = fold(node.op, node.dtype, [python_value(s, values) for s in node.src], node.src[0].dtype)
    assert found is not None
    return int(found)


def random_expression(choose: random.Random, leaves: list[UOp], depth: int) -> UOp:
    if depth == 0 or choose.random() < 0.2:
        return choose.choice(leaves)
    left = random_expression(choose, leaves, depth - 1)
    kind = choose.choice(["//", "%", "//", "%", "+", "-", "*", "min", "max"])
    if kind in ("//", "%"):
        divisor = choose.choice([n for n in range(-8, 9) if n])
        return left // divisor if kind == "//" else left % divisor
    if kind == "*":
        return left * choose.randint(-6, 6)
    right = random_expression(choose, leaves, depth - 1)
    return {"+": left.add, "-": left.sub, "min": left.minimum, "max": left.maximum}[kind](right)


def test_division_of_negative_index_expressions_rounds_down() -> None:
    assert [fold(Op.IDIV, dtypes.index, pair) for pair in ((-7, 2), (7, -2))] == [-4, -4]
    assert [fold(Op.MOD, dtypes.index, pair) for pair in ((-7, 3), (7, -3), (-1, 8))] == [2, -2, 7]
    choose = random.Random(4)
    variables = [mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, -20, 20)) for name in "xyz"]
    for _ in range(150):
        leaves = [*variables, UOp.const(dtypes.index, choose.randint(-20, 20))]
        node = random_expression(choose, leaves, 4)
        simple = rewrite(node, INDEX_MATH)
        low, high = bounds(node)
        for _ in range(12):
            values = {name: choose.randint(-20, 20) for name in "xyz"}
            expected = python_value(node, values)
            assert python_value(simple, values) == expected, (node, values)
            assert low <= expected <= high


def test_elements_beyond_two_to_the_31() -> None:
    # 2 GiB of address space, of which a few pages are touched.
    count = 2**31 + 8
    memory = mmap.mmap(-1, count)
    array = np.frombuffer(memory, np.int8)
    array[-8:], array[2**31], array[5] = np.arange(1, 9), 77, 9
    x = Tensor.from_blob(array.ctypes.data, (count,), dtype="int8", owner=memory)
    assert x[-8:].tolist() == [77, 2, 3, 4, 5, 6, 7, 8] and x[2**31].item() == 77
    assert x[:: 2**28].sum().item() == 77 and x[5 :: 2**31 - 1].tolist() == [9, 5]
    assert (x[-8:] + x[-8:]).cast("int32").sum().item() == wrapped_sum([2 * v for v in (77, 2, 3, 4, 5, 6, 7, 8)])
    places = Tensor(np.array([5, count - 1, 2**31], np.int64))
    assert x[places].tolist() == x.gather(0, places).tolist() == [9, 8, 77]
    assert x.reshape(-1, 8)[-1].tolist() == [77, 2, 3, 4, 5, 6, 7, 8]
    assert x.reshape(-1, 8).T[0][:: 2**27].tolist() == [0, 0, 77]


def wrapped_sum(values: list[int]) -> int:
    return int(np.array(values).astype(np.int8).astype(np.int64).sum())


def test_small_memory_behind_a_large_index_space() -> None:
    x = Tensor(np.arange(1, 9, dtype=np.int32))
    assert x.pad(((2**32, 3),))[2**32 - 2 :].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0]
    assert x.expand(2**29, 8).reshape(-1)[-3:].tolist() == [6, 7, 8]
    cube = x.reshape(1, 8, 1).expand(2**20, 8, 2**10)
    assert cube[-1, :, -1].tolist() == cube.permute(2, 0, 1)[-1, -1].tolist() == list(range(1, 9))
    assert cube.permute(1, 2, 0).reshape(-1)[-5:].tolist() == [8] * 5
    rows = x.pad(((0, 2**31 - 8),)).reshape(-1, 8)
    assert rows.flip(0)[-1].tolist() == list(range(1, 9)) and rows[:2].sum().item() == 36


def kernels(tensor: Tensor) -> list[UOp]:
    found: list[UOp] = []
    for call in tensor.schedule().calls:
        found += [call.ast] if isinstance(call.ast.arg, KernelArg) else list(call.ast.src)
    return found


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_no_32_bit_index_overflows(target: Target) -> None:
    device = f"NULL:{target.name}"
    x = Tensor.empty(2**12, dtype="int8", device=device)
    many = x.expand(2**20, 2**12)
    views = [
        many.contiguous(), many.sum(1), many.permute(1, 0).contiguous(), x.pad(((2**32, 0),)).reshape(-1, 2**10).sum(0),
        many.reshape(2**10, 2**22).flip(1).contiguous(), many.cast("float32").sum(0),
    ]  # fmt: skip
    counted = 0
    for view in views:
        for ast in kernels(view):
            for node in lower(ast, target).uops:
                if node.dtype.scalar is dtypes.int32 and node.op in (Op.ADD, Op.MUL):
                    (a, b), (c, d) = (bounds(s) for s in node.src)
                    ends = [a + c, b + d] if node.op is Op.ADD else [a * c, a * d, b * c, b * d]
                    assert min(ends) >= -(2**31) and max(ends) < 2**31, node
                counted += node.dtype.scalar is dtypes.index and node.op in (Op.ADD, Op.MUL)
    assert counted
