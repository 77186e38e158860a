"""Printing and parsing of graphs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradlet.base.dtype import as_scalar, dtypes
from gradlet.base.errors import ArgumentError
from gradlet.graph import text
from gradlet.graph.node import UOp, mk
from gradlet.graph.text import from_text, one_line, to_text
from gradlet.ops import op as ops
from gradlet.ops.op import OP_INFO, AxisKind, Op
from gradlet.ops.opt import Opt, OptKind, StageDetail, Tail

SHAPE = st.lists(st.integers(0, 9), max_size=4).map(tuple)
PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(tuple)
NAME = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=8)
REDUCER = st.sampled_from([Op.ADD, Op.MUL, Op.MAX, Op.MIN])
DETAIL = st.builds(
    StageDetail, st.integers(0, 9), order=st.lists(st.integers(0, 9)).map(tuple), converted=st.booleans()
)
OPT = st.builds(
    Opt, st.sampled_from(list(OptKind)), st.integers(0, 9), st.integers(0, 64), st.sampled_from(list(Tail)),
    st.none() | DETAIL,
)  # fmt: skip
ARGS = {
    ops.ShapeArg: st.builds(ops.ShapeArg, SHAPE),
    ops.AxesArg: st.builds(ops.AxesArg, SHAPE),
    ops.PadArg: st.builds(ops.PadArg, PAIRS),
    ops.ShrinkArg: st.builds(ops.ShrinkArg, PAIRS),
    ops.StrideArg: st.builds(ops.StrideArg, SHAPE),
    ops.WindowArg: st.builds(ops.WindowArg, *[st.integers(0, 99)] * 5),
    ops.ReduceAxesArg: st.builds(ops.ReduceAxesArg, REDUCER, SHAPE, st.just(()) | SHAPE),
    ops.LimitArg: st.builds(ops.LimitArg, st.integers(0, 9), st.booleans()),
    ops.ReduceArg: st.builds(ops.ReduceArg, REDUCER),
    ops.ScatterArg: st.builds(ops.ScatterArg, st.none() | REDUCER, st.integers(0, 9)),
    ops.GatherArg: st.builds(ops.GatherArg, st.integers(0, 9)),
    ops.ScanArg: st.builds(ops.ScanArg, REDUCER, st.integers(0, 9), st.booleans()),
    ops.MergeArg: st.builds(ops.MergeArg, st.booleans()),
    ops.LargestArg: st.builds(ops.LargestArg, st.integers(0, 99)),
    ops.BufferArg: st.builds(ops.BufferArg, st.integers(0, 99), st.integers(0, 99), NAME),
    ops.CustomArg: st.builds(
        ops.CustomArg,
        st.just(mk(Op.SINK, dtypes.void, (), ops.KernelArg("custom"))),
        SHAPE,
        st.integers(0, 9),
        st.lists(SHAPE, max_size=3).map(tuple),
        st.just((dtypes.float32, dtypes.int8)),
        st.just((True, False)),
        NAME,
    ),
    ops.DeviceArg: st.builds(ops.DeviceArg, NAME),
    ops.DerivativeArg: st.builds(ops.DerivativeArg, NAME, st.none()),
    ops.VariableArg: st.builds(ops.VariableArg, NAME, st.integers(-9, 9), st.integers(-9, 9)),
    ops.ParamArg: st.builds(ops.ParamArg, st.integers(0, 99), st.integers(0, 99)),
    ops.LocalArg: st.builds(ops.LocalArg, st.integers(0, 99), st.integers(0, 99), st.booleans()),
    ops.RangeArg: st.builds(ops.RangeArg, st.integers(0, 99), st.sampled_from(list(AxisKind))),
    ops.LaneArg: st.builds(ops.LaneArg, st.integers(0, 99)),
    ops.ShuffleArg: st.builds(ops.ShuffleArg, st.lists(st.integers(0, 9), max_size=4).map(tuple)),
    ops.StoreArg: st.builds(ops.StoreArg, st.booleans()),
    ops.PrefetchArg: st.builds(ops.PrefetchArg, st.integers(1, 3)),
    ops.PrefixArg: st.builds(ops.PrefixArg, st.sampled_from([Op.ADD, Op.MAX]), st.booleans()),
    ops.AccArg: st.builds(ops.AccArg, st.integers(0, 99)),
    ops.SpecialArg: st.builds(ops.SpecialArg, NAME, st.integers(0, 99)),
    ops.AcrossArg: st.builds(ops.AcrossArg, REDUCER, st.integers(1, 64), st.integers(1, 64)),
    ops.WgmmaArg: st.builds(
        ops.WgmmaArg, *[st.integers(1, 256)] * 3, *[st.booleans()] * 2, st.integers(0, 1), *[st.booleans()] * 2
    ),
    ops.CopyArg: st.builds(ops.CopyArg, st.integers(1, 16)),
    ops.WaitArg: st.builds(ops.WaitArg, st.integers(0, 9), st.integers(0, 9)),
    ops.BoxArg: st.builds(ops.BoxArg, SHAPE, SHAPE, SHAPE, SHAPE, st.booleans()),
    ops.RingArg: st.builds(ops.RingArg, *[st.integers(1, 9)] * 3),
    ops.TurnArg: st.builds(ops.TurnArg, st.booleans(), st.integers(0, 9)),
    ops.BarrierArg: st.builds(ops.BarrierArg, st.integers(0, 99)),
    ops.KernelArg: st.builds(ops.KernelArg, NAME, st.none() | st.lists(OPT, max_size=3).map(tuple)),
}
TYPES = [d.vec(n) for d in (*dtypes.all(), dtypes.index) for n in (1, 4)]


@st.composite
def graphs(draw):
    """A random graph: any op over any sources; only the form matters here."""
    nodes = []
    for _ in range(draw(st.integers(1, 15))):
        dtype = draw(st.sampled_from(TYPES))
        kind = draw(st.sampled_from(list(Op)))
        info = OP_INFO[kind]
        if kind is Op.CONST or (not nodes and info.arity != 0):
            value = draw(st.floats() if dtype.is_float else st.booleans() if dtype.is_bool else st.integers())
            nodes.append(UOp.const(dtype, value))
            continue
        count = draw(st.integers(0, 4)) if info.arity is None else info.arity
        sources = tuple(draw(st.sampled_from(nodes)) for _ in range(count))
        arg = draw(ARGS[info.arg]) if info.arg is not None else None
        nodes.append(mk(kind, draw(st.sampled_from([dtype, dtypes.void])), sources, arg))
    return nodes[-1]


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_round_trip_of_random_graphs(node):
    printed = to_text(node)
    assert from_text(printed) is node
    assert to_text(from_text(printed)) == printed


def test_the_text_is_readable():
    buffer = mk(Op.BUFFER, dtypes.float32, (), ops.BufferArg(0, 12, "CPU"))
    x = mk(Op.RESHAPE, dtypes.float32, (buffer,), ops.ShapeArg((3, 4)))
    y = mk(Op.REDUCE_AXES, dtypes.float32, (x + 1,), ops.ReduceAxesArg(Op.MAX, (1,)))
    assert to_text(y) == (
        "%0 = BUFFER float32 [number=0, size=12, device='CPU']\n"
        "%1 = RESHAPE float32 (%0) [shape=(3, 4)]\n"
        "%2 = CONST float32 [1.0]\n"
        "%3 = ADD float32 (%1, %2)\n"
        "%4 = REDUCE_AXES float32 (%3) [op=MAX, axes=(1,)]\n"
    )


def test_the_text_does_not_depend_on_history():
    def build(order):
        leaves = {k: mk(Op.BUFFER, dtypes.int32, (), ops.BufferArg(k, 1, "X")) for k in order}
        return leaves[7001] * leaves[7002] + leaves[7003]

    first = to_text(build([7001, 7002, 7003]))
    assert to_text(build([7003, 7002, 7001])) == first


def test_special_constants_survive():
    for dtype, value in ((dtypes.float32, -0.0), (dtypes.float64, math.inf), (dtypes.float16, -math.inf),
                         (dtypes.float32, math.nan), (dtypes.bool, True), (dtypes.int64, -(2**63)),
                         (dtypes.bfloat16, as_scalar(1.1, dtypes.bfloat16))):  # fmt: skip
        node = UOp.const(dtype, value)
        assert from_text(to_text(node)) is node


def test_schedules_are_printed():
    arg = ops.KernelArg("sum", (Opt(OptKind.UNROLL, 1, 4), Opt(OptKind.PARALLEL, 0, 0, Tail.MASK)))
    sink = mk(Op.SINK, dtypes.void, (), arg)
    assert "opts=(Opt(kind=UNROLL, axis=1, amount=4, tail=EXACT), Opt(kind=PARALLEL" in to_text(sink)
    assert from_text(to_text(sink)) is sink


USE = st.builds(ops.BodyUse, st.integers(0, 9), st.lists(st.integers(-3, 9), max_size=3).map(tuple), SHAPE)
LAUNCH = st.builds(
    ops.LaunchArg,
    NAME,
    st.lists(st.lists(st.lists(USE, max_size=2).map(tuple), max_size=2).map(tuple), max_size=2).map(tuple),
    SHAPE,
)


@settings(max_examples=50, deadline=None)
@given(LAUNCH)
def test_launches_are_printed(arg):
    sink = mk(Op.SINK, dtypes.void, (UOp.const(dtypes.int32, 1),), arg)
    assert from_text(to_text(sink)) is sink


def test_comments_and_deep_graphs():
    node = UOp.const(dtypes.int32, 1) + mk(Op.VARIABLE, dtypes.int32, (), ops.VariableArg("n", 0, 9))
    for _ in range(20_000):
        node = node + 1
    assert from_text("# deep\n\n" + to_text(node)) is node
    assert len(one_line(node)) <= text.ONE_LINE_LENGTH


@pytest.mark.parametrize(
    "bad, says",
    [
        ("", "no node"),
        ("%0 = NOPE float32", "line 1: unknown op NOPE"),
        ("%0 = CONST float99 [1]", "float99"),
        ("%0 = SQRT float32 (%7)", "%7 is not defined"),
        ("%0 = PARAM float32 [slot=1, length=2]", "unknown field length"),
        ("%0 = PARAM float32 [slot=1]", "size"),
        ("hello", "expected"),
        ("%0 = CONST float32 [__import__('os')]", "cannot read"),
    ],
)
def test_bad_text_names_the_line(bad, says):
    with pytest.raises(ArgumentError, match=says):
        from_text(bad)


def test_one_line_shows_the_node_and_its_sources():
    n = mk(Op.VARIABLE, dtypes.int32, (), ops.VariableArg("n", 0, 9))
    assert one_line(n * 2) == "MUL int32 (VARIABLE int32 [name='n', low=0, high=9], CONST int32 [2])"
    many = mk(Op.SINK, dtypes.void, (n,) * 50, ops.KernelArg("k"))
    assert "50 in all" in one_line(many)
