"""Integer rules proven with Z3: for all values, with division that rounds down, before and after are equal."""

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.node import toposort
from gradlet.graph.pattern import variants
from gradlet.graph.rewrite import Matchers
from gradlet.ops.op import COMPARE, Op
from gradlet.rules import bounded, folds, grows, removes, reorders
from tests.rules.instances import CannotBuildError, Instances

z3 = pytest.importorskip("z3")

RULES = removes.RULES + folds.RULES + reorders.RULES + bounded.RULES + grows.MODULO_BY_DIVISION
INTEGER_OPS = frozenset({Op.ADD, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN, Op.WHERE, Op.CONST}) | COMPARE
BOOL_OPS = frozenset({Op.AND, Op.OR, Op.XOR})
TIMEOUT_MS = 20_000
PROOFS = 6
DRAWS = 3000


def floor_divide(x, y):
    """Z3 rounds so that the remainder is positive; for a negative divisor that is not down."""
    return z3.If(y == 0, 0, z3.If(y > 0, x / y, (-x) / (-y)))


MEANING = {
    Op.ADD: lambda x, y: x + y,
    Op.MUL: lambda x, y: x * y,
    Op.IDIV: floor_divide,
    Op.MOD: lambda x, y: z3.If(y == 0, 0, x - y * floor_divide(x, y)),
    Op.MAX: lambda x, y: z3.If(x >= y, x, y),
    Op.MIN: lambda x, y: z3.If(x <= y, x, y),
    Op.CMPLT: lambda x, y: x < y,
    Op.CMPEQ: lambda x, y: x == y,
    Op.CMPNE: lambda x, y: x != y,
    Op.AND: z3.And,
    Op.OR: z3.Or,
    Op.XOR: z3.Xor,
    Op.WHERE: z3.If,
}

BOOL_MEANING = {
    Op.MUL: z3.And,
    Op.MIN: z3.And,
    Op.MAX: z3.Or,
    Op.CMPLT: lambda x, y: z3.And(z3.Not(x), y),
}
# What a condition of a rule with free constants amounts to: nothing for integers without end.
CONDITIONS = (reorders._above_lowest, reorders._below_highest)


def encode(node, known, facts):
    """The Z3 expression of a graph over `index` and bool; the bounds of variables go to `facts`."""
    for part in toposort((node,)):
        if part in known:
            continue
        if part.op is Op.CONST:
            known[part] = z3.BoolVal(part.arg) if part.dtype.is_bool else z3.IntVal(part.arg)
        elif part.op is Op.VARIABLE:
            known[part] = z3.Int(part.arg.name)
            facts += [known[part] >= part.arg.low, known[part] <= part.arg.high]
        elif part.op is Op.BUFFER and part.dtype.is_bool:
            known[part] = z3.Bool(f"b{part.arg.number}")
        elif part.op in MEANING:
            of_bools = part.src[0].dtype.is_bool
            if part.op in BOOL_OPS and not of_bools:
                raise CannotBuildError  # bits: see below
            meaning = BOOL_MEANING.get(part.op, MEANING[part.op]) if of_bools else MEANING[part.op]
            known[part] = meaning(*[known[s] for s in part.src])
        else:
            raise CannotBuildError
    return known[node]


def prove(before, after, facts):
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*facts)
    solver.add(before != after)
    answer = solver.check()
    assert answer == z3.unsat, f"{answer}: {solver.model() if answer == z3.sat else 'no proof in time'}"


def is_integer(rule):
    """Whether the rule speaks of integers and conditions only, in ops that Z3's integers have."""
    for part in rule.pattern.walk():
        if part.ops and not part.ops & (INTEGER_OPS | BOOL_OPS):
            return False
        if isinstance(part.dtype, str) and not set(part.dtype) & set("xb"):
            return False
    return True


def cases():
    return [pytest.param(r, n, id=f"{n}-{r.name}") for n, r in enumerate(RULES.rules) if is_integer(r)]


@pytest.mark.parametrize("rule, number", cases())
def test_instances_are_proven(rule, number):
    """Function rules decide with constants in hand: take several, and prove each for all values of its variables."""
    matchers = Matchers(rule.cases(), context_free=False)
    instances = Instances(1000 + number, only=[dtypes.index, dtypes.bool])
    proofs = 0
    for _ in range(DRAWS):
        try:
            node = instances.build(rule.pattern)
            matcher = matchers[node.sig]
            result = matcher(node, None) if matcher is not None else None
            if result is None:
                continue
            known, facts = {}, []
            before, after = encode(node, known, facts), encode(result, known, facts)
        except CannotBuildError:
            continue
        prove(before, after, facts)
        proofs += 1
        if proofs == PROOFS:
            break
    assert proofs or not draws_index(rule), f"no instance of {rule.pattern!r}"


def draws_index(rule):
    """Whether instances over index and bool exist: rules on other integers have theirs in test_rules."""
    return not any(isinstance(p.dtype, str) and not set(p.dtype) & set("xb") for p in rule.pattern.walk())


class Symbolic:
    """A pattern read as a Z3 expression with every constant free."""

    def __init__(self):
        self.names = {}
        self.count = 0

    def of(self, pattern, is_bool):
        if pattern.name is not None and pattern.name in self.names:
            return self.names[pattern.name]
        if pattern.is_literal:
            return z3.BoolVal(bool(pattern.arg)) if is_bool else z3.IntVal(int(pattern.arg))
        if pattern.src is None:
            self.count += 1
            name = pattern.name or f"unnamed{self.count}"
            made = z3.Bool(name) if is_bool or pattern.dtype == "b" else z3.Int(name)
        else:
            op = next(iter(pattern.ops))
            kinds = [op in BOOL_OPS] * len(pattern.src)
            if op is Op.WHERE:
                kinds = [True, is_bool, is_bool]
            if op in COMPARE:
                kinds = [any(p.dtype == "b" or (p.ops and p.ops & (BOOL_OPS | COMPARE)) for p in pattern.src)] * 2
            made = MEANING[op](*[self.of(p, k) for p, k in zip(pattern.src, kinds, strict=True)])
        if pattern.name is not None:
            self.names[pattern.name] = made
        return made


def templates():
    for number, rule in enumerate(RULES.rules):
        single = all(p.ops is None or len(p.ops) == 1 for p in rule.pattern.walk())
        if rule.template is None or (rule.when is not None and rule.when not in CONDITIONS):
            continue
        if is_integer(rule) and single and not bits(rule):
            yield pytest.param(rule, id=f"{number}-{rule.name}")


def bits(rule):
    """Bit patterns of integers are not Z3 integers: `x & -1`, `x | 0` are left to the bit-vector proofs."""
    return any(p.ops and p.ops & BOOL_OPS and not condition(p) for p in rule.pattern.walk())


def condition(pattern):
    return all(p.dtype == "b" or p.is_literal or (p.ops and p.ops & (BOOL_OPS | COMPARE)) for p in pattern.src or ())


@pytest.mark.parametrize("rule", list(templates()))
def test_templates_are_proven_for_all_constants(rule):
    for pattern in variants(rule.pattern):
        symbols = Symbolic()
        ops = pattern.ops or frozenset()
        is_bool = bool(ops & (COMPARE | BOOL_OPS)) or any(p.dtype == "b" for p in (pattern.src or ())[1:])
        before = symbols.of(pattern, is_bool)
        after = symbols.of(rule.template, is_bool)
        prove(before, after, [])


def is_of_bits(rule):
    """Whether the rule speaks of any integers, in ops that are exact on bit vectors."""
    for part in rule.pattern.walk():
        if part.ops is not None and (len(part.ops) > 1 or not part.ops <= {Op.CONST, *BITS}):
            return False
        if part.dtype in ("b", "f", "x") or part.arg is True:
            return False
    return rule.template is not None


BITS = {Op.ADD: lambda x, y: x + y, Op.MUL: lambda x, y: x * y, Op.AND: lambda x, y: x & y,
        Op.OR: lambda x, y: x | y, Op.XOR: lambda x, y: x ^ y}  # fmt: skip


BIT_RULES = [r for r in RULES.rules if is_of_bits(r)]


@pytest.mark.parametrize("rule", BIT_RULES, ids=lambda r: r.name)
def test_rules_that_wrap_are_proven_on_bits(rule):
    def of(pattern, names):
        if pattern.name in names and pattern.name is not None:
            return names[pattern.name]
        if pattern.is_literal:
            return z3.BitVecVal(int(pattern.arg), 8)
        if pattern.src is None:
            made = z3.BitVec(pattern.name, 8)
        else:
            made = BITS[next(iter(pattern.ops))](*[of(p, names) for p in pattern.src])
        if pattern.name is not None:
            names[pattern.name] = made
        return made

    for pattern in variants(rule.pattern):
        names = {}
        before = of(pattern, names)
        facts = [names["c"] == 255] if rule.when is removes.has_all_bits else []
        prove(before, of(rule.template, names), facts)


def test_there_is_something_to_prove():
    assert len(cases()) > 60 and len(list(templates())) > 25 and len(BIT_RULES) > 10
