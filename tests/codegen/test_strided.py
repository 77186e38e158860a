"""Lanes a few elements apart, against the values of loads one by one."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.dtype import dtypes
from gradlet.codegen.strided import near_load, strided_load
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op, ParamArg
from gradlet.target.target import AVX2, AVX512, NEON, Target
from tests.codegen import kernels
from tests.codegen.check import check_linear


@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_loads_end_at_the_last_lane(factor: int, count: int) -> None:
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 1000))
    found = strided_load(dtypes.float32, param, lambda n: UOp.const(dtypes.index, n), factor, count, None)
    assert found is not None
    order = toposort((found,))
    loads = [n for n in order if n.op is Op.LOAD]
    assert sum(n.op is Op.SHUFFLE for n in order) == factor - 1
    assert not any(n.op is Op.EXTRACT for n in order)
    starts = [int(n.src[0].src[1].arg) for n in loads]
    assert len(loads) == factor
    assert max(starts) + count - 1 == factor * (count - 1)
    assert elements(found) == [factor * lane for lane in range(count)]


def elements(node: UOp) -> list[int]:
    """Which element each lane of loads and shuffles of them is."""
    if node.op is Op.LOAD:
        start = int(node.src[0].src[1].arg)
        return list(range(start, start + node.dtype.count))
    lanes = [element for source in node.src for element in elements(source)]
    return [lanes[pick] for pick in node.arg.picks]


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_guards_go_with_their_lanes(factor: int) -> None:
    gate = mk(Op.CMPLT, dtypes.bool.vec(8), (UOp.const(dtypes.int32.vec(8), 1), UOp.const(dtypes.int32.vec(8), 2)))
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 1000))
    found = strided_load(dtypes.float32, param, lambda n: UOp.const(dtypes.index, n), factor, 8, gate)
    assert found is not None
    allowed: dict[int, int] = {}  # element -> the lane whose guard it has
    for load in (n for n in toposort((found,)) if n.op is Op.LOAD):
        start, guard = int(load.src[0].src[1].arg), load.src[0].src[2]
        assert guard.op is Op.SHUFFLE and guard.src[0] is gate and not guard.src[1].arg
        allowed |= {start + place: pick for place, pick in enumerate(guard.arg.picks) if pick < 8}
    assert allowed == {factor * lane: lane for lane in range(8)}


@pytest.mark.parametrize("factor", [0, 1, 5, -2])
def test_other_distances_are_left_to_single_loads(factor: int) -> None:
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 1000))
    assert strided_load(dtypes.float32, param, lambda n: UOp.const(dtypes.index, n), factor, 8, None) is None


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("width", [7, 31, 64])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_strided_views(step: int, width: int, dtype: str) -> None:
    data = np.arange(3 * width).reshape(3, width).astype(dtype)
    x = Tensor(data).realize()
    np.testing.assert_array_equal((x[:, ::step] + 1).numpy(), data[:, ::step] + 1)
    padded = np.pad(data, ((0, 0), (2, 3)))
    np.testing.assert_array_equal((x.pad(((0, 0), (2, 3)))[:, 1::step] + 1).numpy(), padded[:, 1::step] + 1)


def test_lanes_that_share_an_element_keep_their_own_guards() -> None:
    """Every other element of the result is an element of the source, the ones between are zero."""
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 1000))
    elements = [UOp.const(dtypes.index, lane // 2) for lane in range(8)]
    gate = mk(Op.VECTORIZE, dtypes.bool.vec(8), tuple([UOp.const(dtypes.bool, lane % 2 == 0) for lane in range(8)]))
    found = near_load(dtypes.float32, param, elements, gate)
    assert found is not None and found.op is Op.WHERE and found.src[0] is gate
    for width in (3, 8, 21):
        data = np.arange(2 * width).reshape(2, width).astype("float32") + 1
        spread = Tensor(data).reshape(2, width, 1).pad(((0, 0), (0, 0), (0, 1))).reshape(2, 2 * width) + 0.5
        expected = np.zeros((2, 2 * width), "float32")
        expected[:, ::2] = data
        np.testing.assert_array_equal(spread.numpy(), expected + 0.5)


@pytest.mark.parametrize("places", [[0, 0, 0, 0], [0, 9, 1, 2]])
def test_elements_that_are_no_short_vector_are_left_to_single_loads(places: list[int]) -> None:
    param = mk(Op.PARAM, dtypes.float32, (), ParamArg(0, 1000))
    assert near_load(dtypes.float32, param, [UOp.const(dtypes.index, n) for n in places], None) is None


@pytest.mark.parametrize("target", [AVX512, AVX2, NEON], ids=lambda t: t.name)
@pytest.mark.parametrize("kind", ["pattern", "lanes", "both"])
def test_guards_of_windows_need_no_single_lanes(kind: str, target: Target) -> None:
    """Every element serves two or three lanes, some of which may not have it: by their place, by memory, or by both."""
    b = kernels.Builder()
    out, x, m = b.param(0, 6 * 16), b.param(1, 6 * 8), b.param(2, 6 * 16)
    i, j = b.range(6), b.range(16)
    by_place = ((j % 2).eq(0) if kind == "both" else (j % 2).eq(1)) & (UOp.const(dtypes.index, 1) < i)
    by_memory = UOp.const(dtypes.float32, 0.5) < b.load(m, i * 16 + j)
    gate = {"pattern": by_place, "lanes": by_memory, "both": by_place & by_memory}[kind]
    b.store(out, i * 16 + j, b.load(x, i * 8 + j // 2, gate))
    source, mask = kernels.random(6, 8) + 3, kernels.random(6, 16)
    row, column = np.indices((6, 16))
    places = (column % 2 == (0 if kind == "both" else 1)) & (row > 1)
    allowed = {"pattern": places, "lanes": mask > 0.5, "both": places & (mask > 0.5)}[kind]
    expected = np.where(allowed, source[row, column // 2], 0).astype(np.float32)
    program = check_linear(
        kernels.Kernel(b.sink("windows"), [kernels.empty(6, 16), source, mask], {0: expected}), target
    )
    assert not any(n.op is Op.EXTRACT for n in program.uops)
