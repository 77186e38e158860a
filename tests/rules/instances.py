"""Random instances of the left side of a rule, made from the pattern alone."""

import numpy as np

from gradlet.base.dtype import dtypes
from gradlet.graph import numeric
from gradlet.graph.node import UOp, mk
from gradlet.graph.pattern import ANYTHING
from gradlet.ops.op import BINARY, COMPARE, ELEMENTWISE, UNARY, BufferArg, Op, VariableArg

INTEGERS = [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64, dtypes.index]
FLOATS = [d for d in dtypes.all() if d.is_float]
FLOAT_ONLY = {Op.FDIV, Op.POW, Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.TRUNC}
INTEGER_ONLY = {Op.IDIV, Op.MOD, Op.SHL, Op.SHR}
BITS = {Op.AND, Op.OR, Op.XOR}
HARD_FLOATS = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.25, 1e-7, -1e7, np.inf, -np.inf, np.nan, 7.0, 1e30, 255.0, -0.75]
LANES = 16


class CannotBuildError(Exception):
    """This draw gives no instance; draw again."""


class Instances:
    """Draws nodes that match a pattern. Leaves are buffers of LANES values and bounded variables."""

    def __init__(self, seed, only=None):
        self.rng = np.random.default_rng(seed)
        self.only = only
        self.leaves = {}
        self.count = 0

    def choose(self, items):
        return items[self.rng.integers(len(items))]

    def build(self, pattern):
        """A node that the pattern should match, and forget about earlier ones."""
        self.leaves = {}
        self.names = {}
        return self.node(pattern, self.type_of(pattern, None))

    # types
    def allowed(self, pattern, wanted):
        """Whether a pattern may stand for a value of this type."""
        test = pattern.dtype
        if test is None:
            return True
        if isinstance(test, str):
            return wanted.kind in test
        return wanted in test if isinstance(test, frozenset) else wanted is test

    def type_of(self, pattern, wanted):
        """A dtype for the pattern, `wanted` if that fits."""
        if wanted is not None:
            if not self.allowed(pattern, wanted):
                raise CannotBuildError
            return wanted
        ops = pattern.ops or frozenset()
        pool = self.only or [*INTEGERS, *FLOATS, dtypes.bool]
        if ops & COMPARE:
            pool = [dtypes.bool]
        elif ops & FLOAT_ONLY and not ops - FLOAT_ONLY:
            pool = [d for d in pool if d.is_float]
        elif ops & INTEGER_ONLY and not ops - INTEGER_ONLY:
            pool = [d for d in pool if d.is_int]
        elif ops & BITS:
            pool = [d for d in pool if not d.is_float]
        pool = [d for d in pool if self.allowed(pattern, d)]
        children = [s for s in pattern.src or () if not (ops & (COMPARE | {Op.CAST, Op.BITCAST}))]
        if ops & {Op.WHERE}:
            children = children[1:]
        for child in children:
            pool = [d for d in pool if self.compatible(child, d)]
        if not pool:
            raise CannotBuildError
        return self.choose(pool)

    def compatible(self, pattern, dtype):
        """Whether the pattern, looked through, can have this type."""
        if not self.allowed(pattern, dtype):
            return False
        ops = pattern.ops or frozenset()
        if ops and ops <= COMPARE and not dtype.is_bool:
            return False
        if ops and ops <= FLOAT_ONLY and not dtype.is_float:
            return False
        if ops and ops <= INTEGER_ONLY and not dtype.is_int:
            return False
        if ops & {Op.CAST, Op.BITCAST, Op.CONST} or ops & COMPARE:
            return True
        children = (pattern.src or ())[1:] if ops & {Op.WHERE} else pattern.src or ()
        return all(self.compatible(c, dtype) for c in children)

    # nodes
    def node(self, pattern, dtype):
        if pattern.name in self.names and pattern.name is not None:
            known = self.names[pattern.name]
            if known.dtype is not dtype:
                raise CannotBuildError
            return known
        if not self.allowed(pattern, dtype):
            raise CannotBuildError
        if pattern.choices:
            made = self.node(self.choose(pattern.choices), dtype)
        elif pattern.is_const:
            value = self.scalar(dtype) if pattern.arg is ANYTHING else pattern.arg
            made = UOp.const(dtype, value)
        elif pattern.ops is None:
            made = self.expression(dtype)
        else:
            made = self.operation(pattern, dtype)
        if pattern.name is not None:
            self.names[pattern.name] = made
        return made

    def operation(self, pattern, dtype):
        op = self.choose(sorted(pattern.ops))
        if op not in ELEMENTWISE or op is Op.MULADD:
            raise CannotBuildError
        patterns = pattern.src
        arity = 1 if op in UNARY else 2 if op in BINARY else 3
        types = self.source_types(op, dtype, patterns)
        if patterns is None:
            sources = [self.expression(t) for t in types]
        else:
            # Constants last: they may want to fit the values beside them.
            sources = [self.node(p, t) for p, t in zip(patterns, types[: len(patterns)], strict=True)]
            sources += [self.expression(t) for t in types[len(patterns) :]]
        assert len(sources) == arity
        return mk(op, dtype, tuple(sources), None)

    def source_types(self, op, dtype, patterns):
        first = patterns[0] if patterns else None
        if op in COMPARE:
            if not dtype.is_bool:
                raise CannotBuildError
            inner = [d for d in (self.only or [*INTEGERS, *FLOATS, dtypes.bool])
                     if all(self.compatible(p, d) for p in patterns or ())]  # fmt: skip
            known = [self.names[p.name].dtype for p in patterns or () if p.name in self.names and p.name is not None]
            if not inner and not known:
                raise CannotBuildError
            return [known[0] if known else self.choose(inner)] * 2
        if op is Op.WHERE:
            return [dtypes.bool, dtype, dtype]
        if op is Op.CAST:
            known = self.names.get(first.name) if first is not None and first.name is not None else None
            pool = [known.dtype] if known is not None else [*INTEGERS, *FLOATS, dtypes.bool]
            pool = [d for d in pool if first is None or self.compatible(first, d)]
            return [self.choose(pool)] if pool else self.fail()
        if op is Op.BITCAST:
            pool = [d for d in [*INTEGERS, *FLOATS] if d.itemsize == dtype.itemsize and d.kind != "x"]
            return [self.choose(pool)] if pool and dtype.kind != "x" else self.fail()
        if (op in FLOAT_ONLY and not dtype.is_float) or (op in INTEGER_ONLY and not dtype.is_int):
            raise CannotBuildError
        if (op in BITS and dtype.is_float) or (op is Op.ADD and dtype.is_bool):
            raise CannotBuildError
        return [dtype] * (1 if op in UNARY else 2)

    def fail(self):
        raise CannotBuildError

    # leaves
    def expression(self, dtype):
        """A leaf, or a small expression as rules meet them: sums, multiples, quotients, comparisons."""
        kind = self.rng.integers(10)
        if kind < 5:
            return self.leaf(dtype)
        if kind == 5:
            return UOp.const(dtype, self.scalar(dtype))
        if dtype.is_bool:
            inner = self.choose([d for d in self.only or [dtypes.int32, dtypes.float32, dtypes.index] if not d.is_bool])
            left, right = self.leaf(inner), self.choose([self.leaf(inner), UOp.const(inner, self.scalar(inner))])
            made = mk(self.choose([Op.CMPLT, Op.CMPEQ, Op.CMPNE]), dtypes.bool, (left, right))
            return made
        x = self.leaf(dtype)
        if kind == 6:
            return x * UOp.const(dtype, self.scalar(dtype))
        if kind == 7:
            return x + self.leaf(dtype)
        if dtype.is_float:
            return x.trunc() if kind == 8 else x * x
        constant = UOp.const(dtype, int(self.rng.integers(1, 9)))
        return x // constant if kind == 8 else x % constant

    def leaf(self, dtype):
        if self.leaves and self.rng.integers(3) == 0:
            known = [n for n in self.leaves if n.dtype is dtype]
            if known:
                return self.choose(known)
        self.count += 1
        if dtype.is_int and (dtype.kind == "x" or self.rng.integers(2)):
            low = int(self.rng.integers(0 if dtype.is_unsigned else -20, 20))
            high = low + int(self.choose([0, 1, 3, 7, 30]))
            made = mk(Op.VARIABLE, dtype, (), VariableArg(f"v{self.count}", low, high))
            self.leaves[made] = self.rng.integers(low, high + 1, LANES)
            return made
        made = mk(Op.BUFFER, dtype, (), BufferArg(-self.count, LANES, "TEST"))
        self.leaves[made] = self.values(dtype)
        return made

    def values(self, dtype):
        if dtype.is_bool:
            return self.rng.integers(0, 2, LANES).astype(bool)
        if dtype.is_float:
            with np.errstate(over="ignore"):
                numbers = numeric.cast(self.rng.permutation(HARD_FLOATS).astype(np.float32), dtypes.float32, dtype)
            return numeric.store(numbers, dtype)
        info = np.iinfo(dtype.name)
        near = self.rng.integers(max(-9, info.min), 10, LANES - 3)
        return np.array([info.min, info.max, info.max // 3, *near], dtype.name)

    def scalar(self, dtype):
        if dtype.is_bool:
            return bool(self.rng.integers(2))
        if dtype.is_float:
            return float(self.choose([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, 3.0, 0.1, np.inf, np.nan, 1e-7]))
        return int(self.choose([0, 1, 2, 3, 4, 6, 8, 12, 5, -1, -2, -3, 7, 16]))

    def buffers(self):
        return {n: v for n, v in self.leaves.items() if n.op is Op.BUFFER}

    def variables(self):
        return {n: v for n, v in self.leaves.items() if n.op is Op.VARIABLE}
