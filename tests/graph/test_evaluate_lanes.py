"""Programs of lanes, run lane by lane in numpy: every described matrix unit, against plain products; TC=emulate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.dtype import DType
from gradlet.base.errors import CompilerError
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import SCHEDULABLE, Lowering, lower
from gradlet.graph import numeric
from gradlet.graph.evaluate_lanes import run_lanes
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.ops.op import KernelArg, Op
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
        return [x.cast(dtypes.float32).numpy() for x in found], count

    wanted, _ = values()
    with scope(TC="emulate"):
        found, count = values()
    assert count == 4
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=3e-2, atol=3e-2)
