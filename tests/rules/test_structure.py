"""Rules on movement, memory, ranges and vectors: random graphs have the same value before and after."""

from collections import Counter

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.evaluate import evaluate, run_kernel
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.rewrite import observe_rules, rewrite
from gradlet.graph.spec import check
from gradlet.ops.op import (
    ELEMENTWISE,
    AxesArg,
    AxisKind,
    BufferArg,
    KernelArg,
    LaneArg,
    Op,
    PadArg,
    ParamArg,
    RangeArg,
    ReduceArg,
    ReduceAxesArg,
    ShapeArg,
    ShrinkArg,
    Stage,
    StrideArg,
    VariableArg,
    WindowArg,
)
from gradlet.rules.sets import INDEX_MATH, SIMPLIFY

F32, INDEX = dtypes.float32, dtypes.index


class MovementGraphs:
    """Random graphs of movement ops, repeated scalars and element-wise ops over one buffer."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.data = self.rng.integers(-9, 9, 24).astype(np.float32)
        self.buffer = mk(Op.BUFFER, F32, (), BufferArg(-1, 24, "TEST"))

    def pick(self, *items):
        return items[self.rng.integers(len(items))]

    def leaf(self):
        shape = self.pick((24,), (2, 12), (2, 3, 4), (4, 6), (1, 24), (3, 1, 8))
        return mk(Op.RESHAPE, F32, (self.buffer,), ShapeArg(shape))

    def scalar(self, shape):
        value = UOp.const(F32, float(self.pick(0.0, 1.0, -2.5)))
        variable = mk(Op.VARIABLE, dtypes.int32, (), VariableArg("n", 1, 9)).cast(F32)
        node = self.pick(value, value, variable)
        ones = mk(Op.RESHAPE, F32, (node,), ShapeArg((1,) * len(shape)))
        return mk(Op.EXPAND, F32, (ones,), ShapeArg(shape))

    def step(self, x):
        shape = x.shape
        kind = self.rng.integers(12)
        if kind == 0:
            return self.move(Op.PERMUTE, x, AxesArg(tuple(int(a) for a in self.rng.permutation(len(shape)))))
        if kind == 1:
            bounds = []
            for size in shape:
                low = int(self.rng.integers(0, max(1, size // 2)))
                bounds.append((low, int(self.rng.integers(low + 1, size + 1))))
            return self.move(Op.SHRINK, x, ShrinkArg(tuple(self.pick(b, (0, s)) for b, s in zip(bounds, shape))))
        if kind == 2:
            pads = tuple((int(self.rng.integers(2)), int(self.rng.integers(2))) for _ in shape)
            return self.move(Op.PAD, x, PadArg(pads))
        if kind == 3:
            axes = tuple(a for a in range(len(shape)) if self.rng.integers(2))
            return self.move(Op.FLIP, x, AxesArg(axes))
        if kind == 4:
            return self.move(Op.STRIDE, x, StrideArg(tuple(int(self.pick(1, 1, 2)) for _ in shape)))
        if kind == 5:
            flat = int(np.prod(shape))
            return self.move(Op.RESHAPE, x, ShapeArg(self.pick((flat,), (1, flat), shape, (1, *shape), (*shape, 1))))
        if kind == 6:
            wider = tuple(int(self.pick(1, 2)) if s == 1 else s for s in shape)
            return self.move(Op.EXPAND, x, ShapeArg(wider))
        if kind == 7:
            scalar = self.scalar(shape)
            return self.pick(x * scalar, scalar + x, scalar.lt(x).where(scalar, x), x.lt(scalar).where(x, scalar))
        if kind == 8:
            return self.pick(x * 1.0, x + 0.0, self.scalar(shape) * self.scalar(shape) + x)
        if kind == 9 and x.op is Op.PAD:
            inner = [(b, b + s) for (b, _), s in zip(x.arg.pads, x.src[0].shape)]
            return self.move(Op.SHRINK, x, ShrinkArg(tuple(inner)))
        if kind == 10:
            return self.move(self.pick(Op.CONTIGUOUS, Op.DETACH), x, None)
        if kind == 11 and len(shape) > 1 and shape[0] > shape[1] >= 1:
            return self.move(Op.WINDOW, x, WindowArg(0, 1, 1, 1, shape[0] - shape[1] + 1))
        axes = self.pick((), (), (len(shape) - 1,))
        if len(shape) > 1:
            return self.move(Op.REDUCE_AXES, x, ReduceAxesArg(Op.ADD, axes))
        return x

    def move(self, op, x, arg):
        return mk(op, F32, (x,), arg)

    def graph(self):
        x = self.pick(self.leaf(), self.leaf(), self.scalar((2, 3)))
        for _ in range(self.rng.integers(2, 9)):
            if np.prod(x.shape) < 400:
                x = self.step(x)
        return x


def run_movement(seed):
    graphs = MovementGraphs(seed)
    node = graphs.graph()
    check(node, Stage.TENSOR)
    simple = rewrite(node, SIMPLIFY)
    check(simple, Stage.TENSOR)
    assert simple.shape == node.shape
    variable = {n: 3 for n in toposort((node,)) if n.op is Op.VARIABLE}
    before, after = evaluate([node, simple], {graphs.buffer: graphs.data}, variable)
    np.testing.assert_array_equal(before, after)


def loop(number, size, kind=AxisKind.LOOP):
    return mk(Op.RANGE, INDEX, (UOp.const(INDEX, size),), RangeArg(number, kind))


class KernelGraphs:
    """Random kernels with guards that are decided, loops of one iteration, and reduces over unused ranges."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.params = [mk(Op.PARAM, F32, (), ParamArg(slot, 64)) for slot in range(3)]

    def pick(self, *items):
        return items[self.rng.integers(len(items))]

    def guard(self, index):
        constants = [UOp.const(dtypes.bool, True), UOp.const(dtypes.bool, False), index.lt(10**6), index.lt(-1)]
        return self.pick(None, index.lt(40), *constants)

    def load(self, index):
        guard = self.guard(index)
        param = self.pick(*self.params[1:])
        where = mk(Op.INDEX, F32, (param, index) if guard is None else (param, index, guard))
        return mk(Op.LOAD, F32, (where,) if guard is None else (where, UOp.const(F32, -7.0)))

    def vector(self, value):
        lanes = [value, value + 1, value * 2, self.pick(value, value + 3)]
        whole = mk(Op.VECTORIZE, F32.vec(4), tuple(self.pick(lanes, [value], lanes)))
        parts = [mk(Op.EXTRACT, F32, (whole + self.pick(0, 1),), LaneArg(n)) for n in range(4)]
        again = mk(Op.VECTORIZE, F32.vec(4), tuple(parts))
        constant = mk(Op.VECTORIZE, F32.vec(4), (UOp.const(F32, 2.0),) * 4)
        either = self.pick(mk(Op.REDUCE_LANES, F32, (again,), ReduceArg(Op.ADD)),
                           mk(Op.EXTRACT, F32, (whole,), LaneArg(int(self.rng.integers(4)))),
                           mk(Op.EXTRACT, F32, (again * constant,), LaneArg(1)),
                           mk(Op.EXTRACT, F32, (constant,), LaneArg(1)))  # fmt: skip
        return either

    def reduce(self, value, ranges, kinds=(Op.MAX, Op.MIN, Op.ADD)):
        return mk(Op.REDUCE, value.dtype, (value, *ranges), ReduceArg(self.pick(*kinds)))

    def value(self, index, number):
        r = loop(10 + number, self.pick(1, 4), AxisKind.REDUCE)
        unused = loop(20 + number, self.pick(1, 3), AxisKind.REDUCE)
        kind = self.rng.integers(5)
        if kind == 0:
            return self.vector(self.load(index))
        if kind == 1:
            return self.reduce(self.load(index + r), (r, unused))
        if kind == 2:
            return self.reduce(self.load(index), (unused,))
        if kind == 3:
            count = self.reduce((index + 2).cast(dtypes.int32), (unused,))
            return count.cast(F32)
        return self.load(index)

    def kernel(self):
        stores = []
        for number in range(self.rng.integers(1, 4)):
            i = loop(2 * number, self.pick(1, 5))
            j = loop(2 * number + 1, self.pick(1, 6))
            index = i * 6 + j
            guard = self.guard(index)
            target = self.params[0]
            where = mk(Op.INDEX, F32, (target, index) if guard is None else (target, index, guard))
            stores.append(mk(Op.STORE, dtypes.void, (where, self.value(index, number))))
        return mk(Op.SINK, dtypes.void, tuple(stores), KernelArg("fuzz"))


def run_kernels(seed):
    graphs = KernelGraphs(seed)
    sink = graphs.kernel()
    simple = rewrite(sink, INDEX_MATH)
    check(simple, Stage.KERNEL)
    data = [graphs.rng.integers(-9, 9, 64).astype(np.float32) for _ in range(3)]
    before, after = ([d.copy() for d in data] for _ in range(2))
    run_kernel(sink, before, {})
    run_kernel(simple, after, {})
    for one, other in zip(before, after):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("run, count", [(run_movement, 400), (run_kernels, 250)], ids=["movement", "kernels"])
def test_random_graphs(run, count):
    for seed in range(count):
        run(seed)


STRUCTURAL = frozenset(Op) - ELEMENTWISE - {Op.CONST}


def test_every_structural_rule_was_applied():
    hits = Counter()
    with observe_rules(lambda rule, before, after: hits.update([rule])):
        for seed in range(400):
            run_movement(seed)
        for seed in range(250):
            run_kernels(seed)
    rules = [r for r in INDEX_MATH.rules if any(p.ops and p.ops & STRUCTURAL for p in r.pattern.walk())]
    assert len(rules) > 30
    missed = [f"{r}: {r.pattern!r}" for r in rules if not hits[r]]
    assert not missed, missed
