"""Programs of lanes, run lane by lane in numpy: every described matrix unit, against plain products; TC=emulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType
from gradlet.base.errors import CompilerError
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import SCHEDULABLE, Lowering, lower
from gradlet.device.python import runtime
from gradlet.graph import numeric
from gradlet.graph.evaluate_lanes import run_lanes
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import (
    AccArg,
    AcrossArg,
    AxisKind,
    BarrierArg,
    KernelArg,
    LocalArg,
    Op,
    ParamArg,
    RangeArg,
    SpecialArg,
)  # fmt: skip
from gradlet.optimize import units
from gradlet.optimize.analysis import KernelFacts
from gradlet.optimize.blocks import product_of
from gradlet.target.matrixcore import FACTORS
from gradlet.target.target import SM_80, SM_86, SM_89, SM_90, Target
from gradlet.target.unitblocks import COLUMNS, Block

RNG = np.random.default_rng(5)
LANES = replace(SM_90, name="lanes", copy_engine=False)  # whose lanes copy for themselves


def factor(dtype: DType, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Random memory of a type, and its values."""
    if dtype.is_int:
        info = np.iinfo(dtype.name)
        whole = RNG.integers(info.min, int(info.max) + 1, shape).astype(dtype.name)
        return whole, whole.astype(np.int64)
    values = numeric.round_to(RNG.standard_normal(shape).astype(np.float32), dtype)
    return numeric.store(values, dtype), values.astype(np.float64)


def product(
    target: Target, dtype: DType, block: Block | None, rows: int, depth: int, columns: int, ways: str
) -> tuple[LinearProgram, list[np.ndarray], np.ndarray]:
    """The program of a product whose factors lie along (n) or across (t) the sum, its memory, the right result."""
    total = FACTORS[dtype].total
    shapes = (
        ((depth, rows) if ways[0] == "t" else (rows, depth)),
        ((depth, columns) if ways[1] == "t" else (columns, depth)),
    )
    memory, values = zip(*[factor(dtype, *shape) for shape in shapes], strict=True)
    left, right = (Tensor.empty(*s, device=f"NULL:{target.cpu}", dtype=dtype) for s in shapes)
    left, right = (left.T if ways[0] == "t" else left), (right if ways[1] == "t" else right.T)
    wanted = (values[0].T if ways[0] == "t" else values[0]) @ (values[1] if ways[1] == "t" else values[1].T)
    (call,) = left.matmul(right, dtype=total).schedule().calls
    ast: UOp = call.ast  # type: ignore[union-attr]
    if block is not None:
        facts = KernelFacts(SCHEDULABLE.run(ast, Lowering(target)))
        found = product_of(facts, (total,))
        assert found is not None
        opts = units._opts(facts, found, block, target, target.copy_engine)
        ast = ast.replace(arg=KernelArg(ast.arg.name, tuple(opts)))
    program = lower(ast, target)
    assert any(n.op is Op.WGMMA for n in program.uops)
    arrays = [np.zeros(rows * columns, numeric.storage_type(total)), *[m.reshape(-1) for m in memory]]
    return program, arrays, wanted


def check(program: LinearProgram, arrays: list[np.ndarray], wanted: np.ndarray, rounded: bool = False) -> None:
    run_lanes(program, arrays)
    found = arrays[0].reshape(wanted.shape)
    if found.dtype.kind == "i":
        np.testing.assert_array_equal(found, wanted.astype(np.int32))
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-2 if rounded else 1e-5, atol=5e-2 if rounded else 1e-4)


QUICK = [
    (SM_90, dtypes.int8, Block(64, 64, 3), "nn"),
    (SM_90, dtypes.bfloat16, Block(64, 64, 3), "tt"),
    (SM_80, dtypes.float16, Block(64, 64, 2), "nt"),
]


def every() -> Iterator[Any]:
    """All types, widths and ways that the units of a target have, and all heights."""
    for target in (SM_90, LANES, SM_80, SM_89):
        for dtype, described in FACTORS.items():
            known = target.matrix_units is not None and described.name in target.matrix_units.factors
            if not known or (target is LANES and described.name == "tf32"):
                continue
            for columns in COLUMNS:
                # What lies across the sum is copied in rows of 128 bytes; lanes share pieces evenly.
                if columns < 64 and not target.copy_engine:
                    continue
                for ways in ("nn", "nt", "tn", "tt") if described.turns and columns % 64 == 0 else ("nn",):
                    yield target, dtype, Block(64, columns, 3 if columns < 256 else 2), ways
    for rows in (128, 192):
        yield SM_90, dtypes.float8_e4m3fn, Block(rows, 64, 3), "nn"
        yield SM_90, dtypes.float16, Block(rows, 128, 3), "tn"


@pytest.mark.parametrize(
    ("target", "dtype", "block", "ways"), [*QUICK, *[pytest.param(*each, marks=pytest.mark.slow) for each in every()]]
)
def test_every_unit_gives_the_product(target: Target, dtype: DType, block: Block, ways: str) -> None:
    with scope(ALLOW_TF32=1, SCHEDULE_CACHE=0):
        rows, columns = block.rows, max(64, block.columns)  # what is smaller goes without a unit
        depth = 3 * 128 // dtype.itemsize
        found = product(target, dtype, block, rows, depth, columns, ways)
    (unit,) = [n.arg for n in found[0].uops if n.op is Op.WGMMA]
    assert (unit.rows, unit.columns) == (block.rows, block.columns)
    check(*found, rounded=dtype is dtypes.float32)


@pytest.mark.parametrize("target", [SM_90, SM_86])
def test_sizes_that_blocks_do_not_divide(target: Target) -> None:
    check(*product(target, dtypes.int8, None, 100, 272, 200, "nn"))


def test_roles_that_wait_for_each_other_are_an_error() -> None:
    program, arrays, _ = product(SM_90, dtypes.int8, None, 64, 1024, 64, "nn")
    stuck = [n for n in program.uops if n.op is not Op.PASS_ON or n.src[0].arg.full]
    with pytest.raises(CompilerError, match="wait for each other forever"):
        run_lanes(replace(program, uops=tuple(stuck)), arrays)


def test_sums_and_softmaxes_of_rows_share_lanes() -> None:
    x = RNG.standard_normal((5, 300)).astype(np.float32)
    for value, wanted in (
        (lambda t: t.sum(1), x.sum(1)),
        (lambda t: t.softmax(1), np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        (lambda t: t.sum(0), x.sum(0)),
    ):
        with scope(TC="emulate"):
            np.testing.assert_allclose(value(Tensor(x, device="PYTHON")).numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setting", ["emulate", "emulate:sm_80"])
def test_a_setting_has_the_python_device_run_what_lanes_would(setting: str) -> None:
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in ((70, 136), (136, 72), (72,))]

    def value() -> np.ndarray:
        a, b, c = (Tensor(x, device="PYTHON").cast(dtypes.bfloat16).realize() for x in arrays)
        return (a @ b + c).relu().cast(dtypes.float32).numpy()

    wanted = value()
    with scope(TC=setting):
        np.testing.assert_allclose(value(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("queries", "keys", "features", "causal"),
    [(128, 128, 64, True), *[pytest.param(*each, marks=pytest.mark.slow) for each in
     ((200, 200, 64, True), (130, 300, 128, False), (256, 256, 128, True))]],
)  # fmt: skip
def test_attention_is_one_program_of_lanes(queries: int, keys: int, features: int, causal: bool) -> None:
    shapes = ((1, 2, queries, features), (1, 2, keys, features), (1, 2, keys, features))
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]

    def value() -> tuple[np.ndarray, int]:
        q, k, v = (Tensor(x, device="PYTHON").cast(dtypes.bfloat16).realize() for x in arrays)
        mixed = q.scaled_dot_product_attention(k, v, is_causal=causal)
        calls = mixed.schedule().calls
        return mixed.cast(dtypes.float32).numpy(), len(calls)

    wanted, _ = value()
    with scope(TC="emulate"):
        found, count = value()
    assert count == 1
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def test_units_can_be_turned_off() -> None:
    a, b = (Tensor.empty(512, 512, device="NULL:sm_90", dtype=dtypes.bfloat16) for _ in range(2))
    found = []
    for setting in ("1", "0"):
        with scope(TC=setting):
            found.append(sum(n.op is Op.WGMMA for n in lower((a @ b).schedule().calls[-1].ast, SM_90).uops))
    assert found == [1, 0]


def test_the_gradient_of_attention_is_two_programs_of_lanes() -> None:
    arrays = [RNG.standard_normal((1, 1, rows, 64)).astype(np.float32) for rows in (64, 130, 130, 64)]

    def values() -> tuple[list[np.ndarray], int]:
        q, k, v, slope = (Tensor(x, device="PYTHON").cast(dtypes.bfloat16).realize() for x in arrays)
        out = q.scaled_dot_product_attention(k, v, is_causal=True)
        found = [out, *out.gradient(q, k, v, gradient=slope)]
        count = len(found[0].schedule(*found[1:]).calls)
        found[0].realize(*found[1:])  # one by one they would be other programs
        return [x.cast(dtypes.float32).numpy() for x in found], count

    wanted, _ = values()
    with scope(TC="emulate"):
        found, count = values()
    assert count == 4
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=3e-2, atol=3e-2)


class Attention(NamedTuple):
    """Heads of queries and of keys, queries, keys, width, whether later keys are hidden, and the type."""

    heads: int
    of_keys: int
    queries: int
    keys: int
    width: int
    causal: bool
    dtype: DType

    def arrays(self) -> list[np.ndarray]:
        """Queries, keys, values and the gradient of the result; later keys score higher in every other warp's rows."""
        rng = np.random.default_rng(self.queries)
        rows = [(self.heads, self.queries), *[(self.of_keys, self.keys)] * 2, (self.heads, self.queries)]
        found = [rng.standard_normal((1, *each, self.width)).astype(np.float32) for each in rows]
        found[0][..., 0] = np.where(np.arange(self.queries) // 16 % 2, 1, -1) * np.sqrt(self.width)
        found[1][..., 0] = np.linspace(0, 6, self.keys)
        return [numeric.round_to(x, self.dtype) for x in found]

    def wanted(self) -> list[np.ndarray]:
        """The result in float64, and the gradients of queries, keys and values."""
        q, k, v, slope = (x.astype(np.float64) for x in self.arrays())
        times = self.heads // self.of_keys
        k, v = (np.repeat(x, times, 1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3) / np.sqrt(self.width)
        if self.causal:
            scores[..., np.arange(self.keys) > np.arange(self.queries).reshape(-1, 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out, of_weights = weights @ v, slope @ v.swapaxes(2, 3)
        of_scores = weights * (of_weights - (slope * out).sum(-1, keepdims=True)) / np.sqrt(self.width)
        shared = (1, self.of_keys, times, self.keys, self.width)
        of_keys, of_values = (x.swapaxes(2, 3) @ y for x, y in ((of_scores, q), (weights, slope)))
        return [out, of_scores @ k, of_keys.reshape(shared).sum(2), of_values.reshape(shared).sum(2)]

    def found(self, gradients: bool) -> list[np.ndarray]:
        """What lanes compute of these."""
        with scope(TC="emulate"):
            q, k, v, slope = (Tensor(x, device="PYTHON").cast(self.dtype).realize() for x in self.arrays())
            times = self.heads // self.of_keys
            out = q.scaled_dot_product_attention(k, v, is_causal=self.causal, enable_gqa=times > 1)
            found = [out, *(out.gradient(q, k, v, gradient=slope) if gradients else ())]
            found[0].realize(*found[1:])
            return [x.cast(dtypes.float32).numpy() for x in found]

    def check(self, gradients: bool) -> None:
        """Compare them by the largest error, as a part of the largest value."""
        limit = 1.5e-2 if self.dtype is dtypes.bfloat16 else 2e-3
        for found, wanted in zip(self.found(gradients), self.wanted()[: 4 if gradients else 1], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=limit * np.abs(wanted).max())


BF16, F16 = dtypes.bfloat16, dtypes.float16


# Some warps of a workgroup scale their results in a block of keys where others need not.
@pytest.mark.parametrize(
    "case",
    [Attention(1, 1, 300, 270, 64, True, BF16), Attention(2, 1, 200, 330, 64, False, F16),
     *[pytest.param(each, marks=pytest.mark.slow) for each in (
         Attention(1, 1, 300, 270, 64, False, BF16), Attention(1, 1, 384, 384, 64, True, BF16),
         Attention(1, 1, 257, 513, 64, True, F16), Attention(4, 2, 150, 410, 64, True, BF16),
         Attention(1, 1, 300, 270, 128, True, BF16), Attention(2, 1, 140, 390, 128, False, F16),
         Attention(2, 2, 270, 300, 128, True, BF16))]],
)  # fmt: skip
def test_attention_where_warps_differ_in_what_they_scale(case: Attention) -> None:
    case.check(gradients=False)


@pytest.mark.parametrize(
    "case",
    [Attention(1, 1, 140, 130, 64, True, BF16),
     *[pytest.param(each, marks=pytest.mark.slow) for each in (
         Attention(1, 1, 300, 270, 64, True, BF16), Attention(1, 1, 130, 270, 64, False, F16),
         Attention(4, 2, 150, 170, 64, True, F16), Attention(1, 1, 200, 150, 128, True, BF16),
         Attention(2, 1, 130, 200, 128, False, BF16))]],
)  # fmt: skip
def test_gradients_of_attention_are_those_of_float64(case: Attention) -> None:
    case.check(gradients=True)


LANE = mk(Op.SPECIAL, dtypes.index, (), SpecialArg("thread", 64))
OWN = mk(Op.LOCAL, dtypes.int32, (), LocalArg(0, 1, private=True))


def of_lanes(size: UOp, inside: Callable[[UOp], list[UOp]] = lambda register: []) -> LinearProgram:
    """Lanes that go through a loop as often as they say, and sum: in a register, an array of their own, memory."""
    out, numbers = (mk(Op.PARAM, dtypes.int32, (), ParamArg(*each)) for each in ((0, 192), (1, 4)))
    zero, nothing = UOp.const(dtypes.index, 0), UOp.const(dtypes.int32, 0)
    loop = mk(Op.RANGE, dtypes.index, (size,), RangeArg(1, AxisKind.LOOP))
    register, own = mk(Op.ACC, dtypes.int32, (nothing, loop), AccArg(0)), mk(Op.INDEX, dtypes.int32, (OWN, zero))
    far = [mk(Op.INDEX, dtypes.int32, (out, LANE + 64 * n)) for n in range(3)]
    # Lanes that have no iteration would read what there is not.
    number = mk(Op.LOAD, dtypes.int32, (mk(Op.INDEX, dtypes.int32, (numbers, size - 1)),))
    uops = [zero, nothing, *out.toposort(), size, mk(Op.STORE, dtypes.void, (own, nothing)), register, loop]
    uops += [mk(Op.UPDATE, dtypes.int32, (register, register + number)), *inside(register)]
    for place in (own, far[2]):
        uops.append(mk(Op.STORE, dtypes.void, (place, mk(Op.LOAD, dtypes.int32, (place,)) + number)))
    uops += [mk(Op.END, dtypes.void, (loop,)), mk(Op.STORE, dtypes.void, (far[0], register))]
    after = mk(Op.LOAD, dtypes.int32, (own, nothing))  # not the node that loads inside
    uops.append(mk(Op.STORE, dtypes.void, (far[1], after)))
    ordered: dict[UOp, None] = {}
    for node in uops:
        ordered |= dict.fromkeys([n for n in node.toposort() if n.op is not Op.RANGE or n is node])
    return LinearProgram("lanes", tuple(ordered), (out, numbers), (0,), (), 1, 64, 0, 0, (), ((1, 64),))


def test_lanes_may_go_through_a_loop_as_often_as_each_likes() -> None:
    numbers, out = np.arange(10, 50, 10, dtype=np.int32), np.zeros(192, np.int32)
    run_lanes(of_lanes(LANE % 5), [out, numbers])
    times = np.arange(64) % 5
    np.testing.assert_array_equal(out.reshape(3, 64), np.tile(times * times * 10, (3, 1)))


def exchanged(register: UOp) -> list[UOp]:
    return [mk(Op.ACROSS, dtypes.int32, (register,), AcrossArg(Op.ADD, 32, 1))]


def waited_for(register: UOp) -> list[UOp]:
    return [mk(Op.BARRIER, dtypes.void, (), BarrierArg(0))]


@pytest.mark.parametrize(
    ("size", "inside", "wrong"),
    [(LANE % 5, exchanged, "lanes exchange values"), (LANE // 32 + 1, exchanged, ""),
     (LANE // 32, waited_for, "BARRIER"), (LANE * 0 + 2, waited_for, "")],
)  # fmt: skip
def test_what_lanes_do_together_they_all_do(size: UOp, inside: Callable[[UOp], list[UOp]], wrong: str) -> None:
    arrays = [np.zeros(192, np.int32), np.ones(4, np.int32)]
    if not wrong:
        run_lanes(of_lanes(size, inside), arrays)
        return
    with pytest.raises(CompilerError, match=wrong):
        run_lanes(of_lanes(size, inside), arrays)


def changed(program: LinearProgram, old: UOp, new: UOp | None) -> LinearProgram:
    """The program with another node in place of one, or without it."""
    made: dict[UOp, UOp | None] = {}
    for node in program.uops:
        src = tuple([made.get(s) or s for s in node.src])
        made[node] = new if node is old else node if src == node.src else node.replace(src=src)
    return replace(program, uops=tuple([n for n in made.values() if n is not None]))


def wrong_ones(program: LinearProgram) -> Iterator[LinearProgram]:
    """Without a wait for products or copies by lanes, or with a product more under way than there may be."""
    for node in program.uops:
        if node.op is Op.WAIT and node.arg.pending not in (-2, -3):
            yield changed(program, node, None)
        elif node.op is Op.WGMMA and node.arg.pending < 8:
            yield changed(program, node, node.replace(arg=node.arg._replace(pending=node.arg.pending + 1)))


@pytest.mark.parametrize(
    ("target", "dtype", "block", "ways"),
    [(SM_90, dtypes.int8, Block(64, 64, 3), "nn"), (SM_80, dtypes.float16, Block(64, 64, 2), "nt"),
     *[pytest.param(*each, marks=pytest.mark.slow) for each in (
         (SM_90, dtypes.bfloat16, Block(64, 64, 3), "tt"), (LANES, dtypes.float16, Block(64, 64, 3), "nn"))]],
)  # fmt: skip
def test_products_and_copies_may_take_as_long_as_a_program_waits(
    target: Target, dtype: DType, block: Block, ways: str
) -> None:
    with scope(SCHEDULE_CACHE=0):
        program, arrays, wanted = product(target, dtype, block, 64, 1024, 64, ways)
    run_lanes(program, arrays, late=True)
    np.testing.assert_allclose(arrays[0].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-3)
    wrong = list(wrong_ones(program))
    assert len(wrong) > 1
    for each in wrong:
        with pytest.raises((AssertionError, CompilerError)):
            run_lanes(each, arrays, late=True)
            np.testing.assert_allclose(arrays[0].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("case", "gradients"),
    [(Attention(1, 1, 200, 330, 64, False, F16), False),
     *[pytest.param(*each, marks=pytest.mark.slow) for each in (
         (Attention(1, 1, 300, 270, 64, True, BF16), False), (Attention(1, 1, 270, 300, 128, True, BF16), False),
         (Attention(4, 2, 150, 410, 64, True, BF16), False), (Attention(1, 1, 140, 130, 64, True, BF16), True),
         (Attention(1, 1, 130, 200, 64, False, F16), True), (Attention(2, 1, 140, 130, 128, True, BF16), True))]],
)  # fmt: skip
def test_attention_waits_for_what_it_uses(case: Attention, gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[LinearProgram] = []

    def late(program: LinearProgram, arrays: list[np.ndarray], variables: dict[UOp, int]) -> None:
        programs.append(program)
        run_lanes(program, arrays, variables, late=True)

    monkeypatch.setattr(runtime, "run_lanes", late)
    case.check(gradients)
    assert sum(n.op is Op.WGMMA for program in programs for n in program.uops) >= (2 if not gradients else 10)


# Of the kernel of the result, of that of the queries' gradient, and of that of the keys' and values'.
@pytest.mark.parametrize(
    ("kernel", "number"),
    [*[(0, n) for n in range(7)], *[pytest.param(k, n, marks=pytest.mark.slow) for k in (1, 2) for n in range(3)]],
)
def test_attention_without_one_of_its_waits_is_wrong(kernel: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, ran = Attention(1, 1, 140, 130 if kernel else 330, 64, False, F16), list[LinearProgram]()

    def other(program: LinearProgram, arrays: list[np.ndarray], variables: dict[UOp, int]) -> None:
        if any(n.op is Op.WGMMA for n in program.uops):
            ran.append(program)
            program = list(wrong_ones(program))[number] if len(ran) == kernel + 1 else program
        run_lanes(program, arrays, variables, late=True)

    monkeypatch.setattr(runtime, "run_lanes", other)
    with pytest.raises((AssertionError, CompilerError)):
        case.check(gradients=kernel > 0)
    assert len(ran) > kernel
