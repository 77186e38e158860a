"""Structural keys: equal under renaming of leaves, different for everything else."""

from __future__ import annotations

import math

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.allocation import counter_node, new_buffer_node
from gradlet.graph.key import structural_key
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import BufferArg, Op, ShapeArg, VariableArg

F = dtypes.float32


def buffer(number: int, size: int = 4, dtype=F, device: str = "CPU") -> UOp:
    return mk(Op.BUFFER, dtype, (), BufferArg(10**9 + number, size, device))


def variable(name: str, low: int = 0, high: int = 9) -> UOp:
    return mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, low, high))


def bind(name: str, value: int) -> UOp:
    return mk(Op.BIND, dtypes.index, (variable(name), UOp.const(dtypes.index, value)))


def key(*roots: UOp):
    return structural_key(roots)[0]


A, B, C, D = (buffer(n) for n in range(4))


def test_equal_under_other_leaves_which_come_in_order():
    first, second = structural_key([A * B + A, B]), structural_key([C * D + C, D])
    assert first[0] == second[0]
    assert hash(first[0]) == hash(second[0])
    assert first[1] == (B, A) and second[1] == (D, C)


def test_equal_whatever_was_created_first():
    """Numbers depend on structure, not on when the nodes were made."""
    two, three = UOp.const(F, 2.0), UOp.const(F, 3.0)
    early = (A + 3.0) * (B + 2.0)
    late = (C + 3.0) * (D + 2.0)
    assert two.uid < three.uid
    assert key(early) == key(late)
    assert key((B + 3.0) * (A + 2.0)) == key(early)


DIFFERENT = [
    (A + A, A + B),
    (A + B, A * B),
    (A + B, A + B + A),
    ((A + B) + A, (A + B) + B),
    (A + 1.0, A + 2.0),
    (A + 0.0, A + -0.0),
    (A + buffer(1, 5), A + B),
    (A.cast(dtypes.int32), A.cast(dtypes.int64)),
    (buffer(0, dtype=dtypes.int32), A),
    (buffer(0, device="PYTHON"), A),
    (mk(Op.RESHAPE, F, (A,), ShapeArg((2, 2))), mk(Op.RESHAPE, F, (A,), ShapeArg((4, 1)))),
    (UOp.const(dtypes.int32, 1), UOp.const(F, 1.0)),
    (UOp.const(dtypes.int32, 1), UOp.const(dtypes.bool, True)),
    (variable("n", 0, 9), variable("n", 0, 8)),
    (bind("n", 3), variable("n")),
    (variable("n") + variable("m"), variable("n") + variable("n")),
    (bind("n", 3) + variable("m"), bind("n", 3) + variable("n")),
    (bind("n", 3) + bind("m", 3), bind("n", 3) + bind("n", 3)),
]


@pytest.mark.parametrize(("first", "second"), DIFFERENT, ids=repr)
def test_different(first, second):
    assert key(first) != key(second)


def test_number_and_order_of_roots_count():
    assert key(A, B) != key(A)
    assert key(A, A) != key(A, B)
    assert key(A + B, A) == key(C + D, C)
    assert key(A + B, A) != key(A + B, B)
    assert key() != key(A)
    assert structural_key([])[1] == ()


def test_names_of_variables_and_bound_values_do_not_count():
    first = variable("n") * 2 + bind("m", 3)
    second = variable("k") * 2 + bind("l", 5)
    assert key(first) == key(second)
    leaves = structural_key([first])[1]
    assert set(leaves) == {variable("n"), bind("m", 3), variable("m")}
    assert [leaf.op for leaf in leaves] == [leaf.op for leaf in structural_key([second])[1]]


def test_nan_constants_are_equal():
    assert key(A + math.nan) == key(B + math.nan)


def test_key_holds_no_nodes():
    """A kept key must not keep graphs alive."""
    assert not any(isinstance(part, UOp) for part in key(A * B + bind("n", 3).cast(F)))


def test_deep_graph():
    def deep(start: UOp) -> UOp:
        node = start
        for _ in range(50_000):
            node = node + start
        return node

    first, second = deep(A), deep(B)
    assert key(first) == key(second)
    assert key(first + A) != key(first)


def test_the_table_that_counts_is_exchanged_with_no_other_buffer() -> None:
    counting, other = counter_node("CPU", 8), new_buffer_node("CPU", dtypes.int32, 8)
    assert structural_key([counting + counting])[0] != structural_key([other + other])[0]
    assert structural_key([counting + other])[0] != structural_key([other + counting])[0]
    assert structural_key([counting])[0] == structural_key([counter_node("CPU", 8)])[0]
