"""Index arithmetic against plain integers."""

from __future__ import annotations

import itertools
import random
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import AxisKind, Op, RangeArg
from gradlet.rules.sets import simplify
from gradlet.schedule.indexing import FALSE, INDEX, IndexMath, condition, join


def loop(number: int, size: int) -> UOp:
    return mk(Op.RANGE, INDEX, (UOp.const(INDEX, size),), RangeArg(number, AxisKind.LOOP))


def value(node: UOp, loops: dict[UOp, int]) -> int:
    known: dict[UOp, int] = dict(loops)
    for n in toposort((node,)):
        if n in known:
            continue
        src = [known[s] for s in n.src]
        if n.op is Op.CONST:
            known[n] = n.arg
        elif n.op is Op.ADD:
            known[n] = src[0] + src[1]
        elif n.op is Op.MUL:
            known[n] = src[0] * src[1]
        elif n.op is Op.IDIV:
            known[n] = src[0] // src[1]
        elif n.op is Op.MOD:
            known[n] = src[0] % src[1]
        elif n.op is Op.CMPLT:
            known[n] = src[0] < src[1]
        elif n.op is Op.AND:
            known[n] = src[0] and src[1]
    return known[node]


def points(loops: list[UOp]) -> list[dict[UOp, int]]:
    sizes = [range(r.src[0].arg) for r in loops]
    return [dict(zip(loops, p, strict=True)) for p in itertools.product(*sizes)]


@settings(max_examples=150)
@given(st.integers(0, 10**6))
def test_divmod_of_random_sums(seed: int) -> None:
    rng = random.Random(seed)
    math = IndexMath()
    loops = [loop(i, rng.choice([2, 3, 4, 6])) for i in range(3)]
    factors = [rng.choice([-6, -1, 1, 2, 3, 4, 6, 12]) for _ in loops]
    total = math.combine(list(zip(loops, factors, strict=True)), rng.randint(-7, 13))
    for _ in range(2):
        divisor = rng.choice([2, 3, 4, 6, 12])
        quotient, remainder = math.divmod(total, divisor)
        again = math.combine([(quotient, divisor), (remainder, 1)])
        for at in points(loops):
            wanted = value(total, at)
            assert value(quotient, at) == wanted // divisor
            assert value(remainder, at) == wanted % divisor
            assert value(again, at) == wanted
            low, high = math.bounds(total)
            assert low <= wanted <= high
        total = rng.choice([quotient, remainder, again])


@settings(max_examples=100)
@given(st.integers(0, 10**6))
def test_reshape_of_random_shapes(seed: int) -> None:
    rng = random.Random(seed)

    def shape() -> tuple[int, ...]:
        rest, sizes = 24, []
        while rest > 1:
            size = rng.choice([d for d in (2, 3, 4, 6, 12, 24) if rest % d == 0])
            sizes.append(size)
            rest //= size
        for _ in range(rng.randint(0, 2)):
            sizes.insert(rng.randint(0, len(sizes)), 1)
        return tuple(sizes)

    new, middle, old = shape(), shape(), shape()
    math = IndexMath()
    idx = tuple(loop(i, size) if size > 1 else UOp.const(INDEX, 0) for i, size in enumerate(new))
    result = math.reshape(math.reshape(idx, new, middle), middle, old)
    direct = math.flatten(result, old)
    for at in points([i for i in idx if i.op is Op.RANGE]):
        flat = 0
        for one, size in zip(idx, new, strict=True):
            flat = flat * size + value(one, at)
        assert value(direct, at) == flat
        for one, size, below in zip(result, old, [prod(old[i + 1 :]) for i in range(len(old))], strict=True):
            assert value(one, at) == flat // below % size
    # Flattening what was taken apart gives back the plain sum: no division is left.
    assert not any(n.op in (Op.IDIV, Op.MOD) for n in toposort((direct,)))


def test_reshape_by_common_divisors_needs_no_division() -> None:
    math = IndexMath()
    i, j, k = loop(0, 4), loop(1, 6), loop(2, 5)
    result = math.reshape((i, j, k), (4, 6, 5), (24, 5))
    assert not any(n.op in (Op.IDIV, Op.MOD) for one in result for n in toposort((one,)))
    back = math.reshape(result, (24, 5), (4, 6, 5))
    assert back == (i, j, k)


@pytest.mark.parametrize(
    ("offset", "size", "count"), [(0, 6, 0), (-1, 6, 1), (1, 6, 1), (-1, 4, 2), (0, 100, 0)]
)  # fmt: skip
def test_within_asks_only_what_bounds_leave_open(offset: int, size: int, count: int) -> None:
    math = IndexMath()
    i = loop(0, 6)
    gate = math.within(math.combine([(i, 1)], offset), size)
    assert len(gate) == count
    for at in points([i]):
        inside = 0 <= at[i] + offset < size
        assert (bool(value(condition(gate), at)) if gate else True) == inside


@settings(max_examples=100)
@given(st.integers(0, 10**6))
def test_assumed_gates_change_no_index_where_they_hold(seed: int) -> None:
    rng = random.Random(seed)
    math = IndexMath()
    loops = [loop(i, rng.choice([3, 4, 6])) for i in range(3)]
    gate = join((), ())
    for one in loops[: rng.randint(1, 3)]:
        factor = rng.choice([-2, -1, 1, 1, 3])
        gate = join(gate, math.within(math.combine([(one, factor)], rng.randint(-4, 4)), rng.choice([2, 4, 9])))
    total = math.combine([(one, rng.choice([-4, 1, 2, 4, 8])) for one in loops], rng.randint(-9, 9))
    divisor = rng.choice([2, 4, 8, 16])
    plain = math.divmod(total, divisor)
    math.assume(gate)
    assumed = math.divmod(total, divisor)
    math.assume(())
    assert math.divmod(total, divisor) == plain
    for at in points(loops):
        if all(value(g, at) for g in gate if g is not FALSE) and FALSE not in gate:
            assert [value(n, at) for n in assumed] == [value(n, at) for n in plain]


def test_padding_leaves_no_division_in_what_was_reshaped() -> None:
    math = IndexMath()
    i, j = loop(0, 130), loop(1, 130)
    moved = (math.combine([(i, 1)], -1), math.combine([(j, 1)], -1))
    math.assume(join(math.within(moved[0], 128), math.within(moved[1], 128)))
    flat = math.reshape(moved, (128, 128), (16384,))
    assert math.reshape(flat, (16384,), (128, 128)) == moved
    math.assume(())
    assert math.reshape(flat, (16384,), (128, 128)) != moved


def test_impossible_guard_is_false() -> None:
    math = IndexMath()
    assert FALSE in math.within(math.combine([(loop(0, 6), 1)], 10), 6)
    assert FALSE in math.within(math.combine([(loop(0, 6), 1)], -10), 6)


def test_join_keeps_each_condition_once() -> None:
    a = loop(0, 6) < 3
    b = UOp.const(dtypes.index, 1) < loop(0, 6)
    assert join((a,), (b, a)) == (a, b)
    assert join((), (a,)) == (a,)


@pytest.mark.parametrize("seed", range(10))
def test_sums_of_loops_are_in_normal_form(seed: int) -> None:
    """Simplifying a lowered kernel then finds nothing to do in its addresses."""
    rng = random.Random(seed)
    loops = [loop(number, rng.randint(2, 9)) for number in range(6)]
    parts = [(one, rng.randint(1, 500)) for one in rng.sample(loops, rng.randint(1, 6))]
    built = IndexMath().combine(parts, rng.randint(0, 5))
    assert simplify(built) is built
    places = {one: rng.randrange(one.src[0].arg) for one in loops}
    constant = value(built, places) - sum(places[one] * factor for one, factor in parts)
    assert 0 <= constant <= 5
