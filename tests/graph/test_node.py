"""Nodes: interning, freeing, constants, operators, walking deep graphs, pickling."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import sys
import threading
import weakref

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import DTypeError
from gradlet.graph.node import (
    KIND_CONST_RIGHT,
    KIND_ONE,
    KIND_ZERO,
    SIG_SAME,
    UOp,
    count_nodes,
    mk,
    no_gc,
    substitute,
    toposort,
)
from gradlet.ops.op import BufferArg, Op, ShapeArg, VariableArg

DEPTH = 50_000


def variable(name: str, dtype=dtypes.index) -> UOp:
    return mk(Op.VARIABLE, dtype, (), VariableArg(name, 0, 9))


def chain(depth: int) -> UOp:
    """A graph `depth` adds deep, no two of them equal."""
    node = start = variable("x")
    for _ in range(depth):
        node = node + start
    return node


def test_equal_fields_give_the_same_object():
    a, b = variable("a"), variable("b")
    assert a is variable("a")
    assert a is not b
    assert a + b is a + b
    assert a + b is not b + a
    assert a.cast(dtypes.int32) is not a.cast(dtypes.int64)
    assert mk(Op.RESHAPE, a.dtype, (a,), ShapeArg((1, 1))) is mk(Op.RESHAPE, a.dtype, (a,), ShapeArg((1, 1)))


def test_nodes_die_with_their_last_reference():
    with no_gc():
        before = count_nodes(Op.MUL)
        node = variable("alone") * variable("b")
        watch = weakref.ref(node)
        assert count_nodes(Op.MUL) == before + 1
        del node
        assert watch() is None
        assert count_nodes(Op.MUL) == before


def test_node_is_found_again_after_its_twin_died():
    first = variable("twin") * 3
    uid = first.uid
    del first
    second = variable("twin") * 3
    assert second.uid > uid
    assert second is variable("twin") * 3


def test_creating_and_dropping_leaves_no_cyclic_garbage():
    def use_everything() -> None:
        node = (variable("a") + 1) * variable("b")
        loop = mk(Op.RANGE, dtypes.index, (UOp.const(dtypes.index, 4),), range_arg())
        inside = loop + node
        assert node.shape == ()
        assert inside.ranges == (loop,)
        assert loop.ranges == (loop,)
        inside.toposort()

    gc.collect()
    before = count_nodes(Op.RANGE)
    with no_gc():
        use_everything()
        assert count_nodes(Op.RANGE) == before
    assert gc.collect() == 0


def range_arg():
    from gradlet.ops.op import AxisKind, RangeArg

    return RangeArg(77, AxisKind.LOOP)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_gc_restores_what_was(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ZeroDivisionError), no_gc():
            assert not gc.isenabled()
            with no_gc():
                pass
            assert not gc.isenabled()
            1 / 0
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize(("count", "frozen", "old"), [(2, False, True), (0.5, False, False), (2, True, False)])
def test_much_that_a_block_without_collector_leaves_is_old(count, frozen, old):
    was = gc.isenabled()
    gc.enable()
    gc.collect()
    try:
        if frozen:
            gc.freeze()  # by somebody else, who does not want it undone
        before = gc.get_freeze_count()
        with no_gc():
            left = [[number] for number in range(int(count * no_gc.MUCH))]
        assert any(one is left[-1] for one in gc.get_objects(generation=2)) is old
        assert (gc.get_freeze_count() >= before) if frozen else not gc.get_freeze_count()
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()


# constants
def test_constants_are_told_apart_by_bits_and_type():
    zero, negative = UOp.const(dtypes.float32, 0.0), UOp.const(dtypes.float32, -0.0)
    assert zero is not negative
    assert math.copysign(1, negative.arg) == -1
    assert math.copysign(1, UOp.const(dtypes.float32, 0.0).arg) == 1
    values = [UOp.const(dtypes.bool, 1), UOp.const(dtypes.int32, 1), UOp.const(dtypes.float32, 1)]
    assert [type(v.arg) for v in values] == [bool, int, float]
    assert len(set(values)) == 3
    assert mk(Op.CONST, dtypes.float32, (), 1) is not mk(Op.CONST, dtypes.float32, (), 1.0)


def test_nan_is_found_whatever_object_it_is():
    first = UOp.const(dtypes.float32, float("nan"))
    assert first is UOp.const(dtypes.float32, math.inf - math.inf)
    assert first is not UOp.const(dtypes.float64, float("nan"))


def test_constants_are_exact_in_their_type():
    assert UOp.const(dtypes.float32, 0.1).arg != 0.1
    assert UOp.const(dtypes.uint8, -1).arg == 255
    assert UOp.const(dtypes.index, 2**40).arg == 2**40
    assert UOp.const(dtypes.index, True).arg is not True


def test_kind_tells_zero_and_one():
    assert UOp.const(dtypes.float32, -0.0).kind == KIND_ZERO
    assert UOp.const(dtypes.bool, False).kind == KIND_ZERO
    assert UOp.const(dtypes.int8, 1).kind == KIND_ONE
    assert UOp.const(dtypes.int8, 2).kind == Op.CONST
    assert UOp.const(dtypes.float32, math.nan).kind == Op.CONST


def test_fraction_does_not_fit_an_integer_node():
    with pytest.raises(DTypeError, match="2.5"):
        variable("a") + 2.5
    assert (variable("a") + 2.0).src[1].arg == 2


# construction
def test_constants_of_commutative_ops_stand_right():
    a, two = variable("a"), UOp.const(dtypes.index, 2)
    assert (2 + a).src == (a, two)
    assert mk(Op.MUL, a.dtype, (two, a)).src == (a, two)
    assert (2 - a).src[1] is two
    assert (2 // a).src == (two, a)
    assert mk(Op.ADD, a.dtype, (two, two)).src == (two, two)


def test_operators_build_the_ops_they_name():
    a, b = variable("a"), variable("b")
    assert (a + b).op is Op.ADD
    assert (a - b).src[1] is b * -1
    assert (a - 3).src[1].arg == -3
    assert (a // b).op is Op.IDIV and (a % b).op is Op.MOD
    assert (a < b).dtype is dtypes.bool and (a < b).src == (a, b)
    assert (a > b) is (b < a)
    assert a.eq(b).dtype is dtypes.bool
    assert (a < b).where(a, 0).dtype is dtypes.index
    assert (a < b).where(1, b).src[1].dtype is dtypes.index
    assert (-a).src[1].arg == -1
    assert a.cast(dtypes.index) is a
    vector = mk(Op.VECTORIZE, dtypes.float32.vec(4), (variable("f", dtypes.float32),) * 4)
    assert (vector < vector).dtype is dtypes.bool.vec(4)
    assert vector.cast(dtypes.int32).dtype is dtypes.int32.vec(4)
    assert (vector + 1).src[1].dtype is dtypes.float32.vec(4)


def test_replace_changes_only_what_is_named():
    node = variable("a") + variable("b")
    assert node.replace() is node
    assert node.replace(op=Op.MUL) is variable("a") * variable("b")


def test_mask_and_signature():
    a = variable("a")
    node = (a + 0) * 1
    assert node.mask == 1 << Op.VARIABLE | 1 << Op.CONST | 1 << Op.ADD | 1 << Op.MUL
    assert node.sig == Op.MUL | (Op.ADD | KIND_CONST_RIGHT) << 8 | KIND_ONE << 16
    assert node.src[0].sig == Op.ADD | Op.VARIABLE << 8 | KIND_ZERO << 16
    assert (a // a).sig == Op.IDIV | Op.VARIABLE << 8 | Op.VARIABLE << 16 | SIG_SAME
    assert (a // variable("b")).sig == Op.IDIV | Op.VARIABLE << 8 | Op.VARIABLE << 16
    sink = mk(Op.SINK, dtypes.void, (a, node, a), None)
    assert sink.mask == node.mask | 1 << Op.SINK


# walking
def test_toposort_has_each_node_once_sources_first():
    a = variable("a")
    shared = a * 2
    root = (shared + a) * (shared + 5)
    order = root.toposort()
    assert len(order) == len(set(order)) == 7
    position = {n: i for i, n in enumerate(order)}
    assert all(position[s] < position[n] for n in order for s in n.src)
    assert order[-1] is root
    assert set(toposort([a, shared, a])) == {a, shared, shared.src[1]}
    assert toposort([]) == []


def test_substitute_replaces_once_and_shares():
    a, b = variable("a"), variable("b")
    node = (a + b) * (a + 1)
    assert node.substitute({a: b, b: a}) is (b + a) * (b + 1)
    assert node.substitute({}) is node
    assert node.substitute({node: a}) is a
    assert substitute([a, node], {a: a * 2})[0] is a * 2


def test_deep_chain_is_created_walked_rebuilt_and_freed():
    before = count_nodes(Op.ADD)
    node = chain(DEPTH)
    assert len(node.toposort()) == DEPTH + 1
    assert node.shape == ()
    assert node.ranges == ()
    other = node.substitute({variable("x"): variable("y")})
    assert len(other.toposort()) == DEPTH + 1
    assert variable("x") not in other.toposort()
    assert pickle.loads(pickle.dumps(node)) is node
    repr(node)
    del node, other
    assert count_nodes(Op.ADD) == before


def test_repr_is_short_however_large_the_graph():
    node = variable("a")
    for _ in range(60):
        node = node * node  # a tree of 2**60 leaves if written out
    assert len(repr(node)) < 200
    wide = mk(Op.SINK, dtypes.void, tuple(variable("a") + i for i in range(100)), None)
    assert "100 in all" in repr(wide)


def test_copies_and_pickles_are_the_node_itself():
    node = (variable("a") + 1.0) * mk(Op.BUFFER, dtypes.index, (), BufferArg(10**9, 4, "CPU"))
    assert pickle.loads(pickle.dumps(node)) is node
    assert pickle.loads(pickle.dumps({"x": [node, node.src[0]]}))["x"] == [node, node.src[0]]
    assert copy.copy(node) is node
    assert copy.deepcopy(node) is node
    nan = UOp.const(dtypes.float32, math.nan)
    assert pickle.loads(pickle.dumps(nan)) is nan


def test_threads_share_one_node():
    """Threads that create the same graph at the same time get the same objects."""
    results: list[list[UOp]] = []
    barrier = threading.Barrier(4)

    def build() -> None:
        barrier.wait()
        node = variable("threaded")
        made = []
        for i in range(300):
            node = node * 3 + i
            made.append(node)
            assert len(toposort([node])) <= 3 * i + 6
        results.append(made)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(a is b for other in results[1:] for a, b in zip(results[0], other))


def test_nodes_die_and_come_back_in_many_threads(monkeypatch):
    """A node that one thread lets go while another makes it again is removed once, never instead of the new one."""
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    source = variable("comes and goes")
    doubled: list[tuple[UOp, UOp]] = []

    def churn() -> None:
        for i in range(1500):
            node = source * (i % 3 + 5) + 1
            if node is not (again := source * (i % 3 + 5) + 1):
                doubled.append((node, again))
            del node, again

    try:
        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    assert not doubled
