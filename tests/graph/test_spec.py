"""Each rule of the spec refuses the graph that breaks it and names node and rule; good graphs pass."""

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import SpecError
from gradlet.graph.node import UOp, mk
from gradlet.graph.program import LinearProgram
from gradlet.graph.spec import check, check_program
from gradlet.graph.text import from_text
from gradlet.ops.op import AxisKind, Op, RangeArg, Stage

TENSOR = """
%0 = BUFFER float32 [number=0, size=24, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(2, 3, 4)]
%2 = PERMUTE float32 (%1) [axes=(2, 0, 1)]
%3 = PAD float32 (%2) [pads=((1, 1), (0, 0), (0, 0))]
%4 = SHRINK float32 (%3) [bounds=((0, 5), (0, 2), (1, 3))]
%5 = FLIP float32 (%4) [axes=(2, 0)]
%6 = STRIDE float32 (%5) [steps=(2, 1, 1)]
%7 = WINDOW float32 (%6) [axis=0, window_axis=1, stride=1, dilation=1, size=2]
%8 = UNWINDOW float32 (%7) [axis=0, window_axis=1, stride=1, dilation=1, size=3]
%9 = REDUCE_AXES float32 (%8) [op=ADD, axes=(0, 2)]
%10 = CONST float32 [1.5]
%11 = ADD float32 (%9, %10)
%12 = CMPLT bool (%11, %10)
%13 = WHERE float32 (%12, %11, %10)
%14 = BUFFER int32 [number=1, size=5, device='CPU']
%15 = GATHER float32 (%13, %14)
%16 = SCATTER float32 (%13, %14, %15) [op=ADD]
%17 = VARIABLE int32 [name='n', low=1, high=9]
%18 = CONST int32 [4]
%19 = BIND int32 (%17, %18)
%20 = CAST float32 (%19)
%21 = EXPAND float32 (%1) [shape=(2, 3, 4)]
%22 = SHRINK float32 (%16) [bounds=((0, 1),)]
%23 = WRITE float32 (%16, %22, %10)
%24 = COPY float32 (%23) [device='PYTHON']
%25 = CONTIGUOUS float32 (%24)
%26 = DETACH float32 (%25)
%27 = BITCAST int32 (%26)
%28 = XOR int32 (%27, %18)
%29 = FDIV float32 (%26, %10)
"""

KERNEL = """
%0 = PARAM float32 [slot=0, size=12]
%1 = PARAM float32 [slot=1, size=12]
%2 = CONST index [3]
%3 = CONST index [4]
%4 = RANGE index (%2) [number=0, kind=LOOP]
%5 = RANGE index (%3) [number=1, kind=REDUCE]
%6 = MUL index (%4, %3)
%7 = ADD index (%6, %5)
%8 = CMPLT bool (%7, %3)
%9 = INDEX float32 (%1, %7, %8)
%10 = CONST float32 [0.0]
%11 = LOAD float32 (%9, %10)
%12 = REDUCE float32 (%11, %5) [op=MAX]
%13 = INDEX float32 (%0, %4)
%14 = STORE void (%13, %12)
%15 = SINK void (%14) [name='rowmax', opts=(Opt(kind=PARALLEL, axis=0, amount=0, tail=EXACT),)]
"""


@pytest.mark.parametrize("text, stage", [(TENSOR, Stage.TENSOR), (KERNEL, Stage.KERNEL)])
def test_good_graphs_pass(text, stage):
    lines = text.strip().splitlines()
    for end in range(1, len(lines) + 1):
        check(from_text("\n".join(lines[:end])), stage)


B = "%0 = BUFFER float32 [number=0, size=6, device='CPU']\n%1 = RESHAPE float32 (%0) [shape=(2, 3)]\n"
I = "%0 = CONST index [3]\n%1 = PARAM float32 [slot=0, size=9]\n%2 = RANGE index (%0) [number=0, kind=LOOP]\n"
R = "%0 = CONST index [3]\n%1 = PARAM float32 [slot=0, size=9]\n%2 = RANGE index (%0) [number=0, kind=REDUCE]\n"

BAD_TENSOR = [
    (B + "%2 = RESHAPE float32 (%1) [shape=(4,)]", "6 elements"),
    (B + "%2 = RESHAPE int32 (%1) [shape=(6,)]", "dtype is that of the source"),
    (B + "%2 = EXPAND float32 (%1) [shape=(2, 6)]", "axes of size 1"),
    (B + "%2 = EXPAND float32 (%1) [shape=(2, 3, 1)]", "keeps the rank"),
    (B + "%2 = PERMUTE float32 (%1) [axes=(0, 0)]", "permutation"),
    (B + "%2 = PAD float32 (%1) [pads=((-1, 0), (0, 0))]", "negative"),
    (B + "%2 = PAD float32 (%1) [pads=((1, 0),)]", "1 entries for 2 axes"),
    (B + "%2 = SHRINK float32 (%1) [bounds=((0, 3), (0, 3))]", r"\[0, 3\) lies outside an axis of size 2"),
    (B + "%2 = FLIP float32 (%1) [axes=(2,)]", "outside 0..1"),
    (B + "%2 = FLIP float32 (%1) [axes=(1, 1)]", "twice"),
    (B + "%2 = STRIDE float32 (%1) [steps=(0, 1)]", "not positive"),
    (B + "%2 = WINDOW float32 (%1) [axis=0, window_axis=1, stride=1, dilation=1, size=1]", "reads element 2"),
    (B + "%2 = WINDOW float32 (%1) [axis=1, window_axis=1, stride=1, dilation=1, size=1]", "twice"),
    (B + "%2 = REDUCE_AXES float32 (%1) [op=XOR, axes=(0,)]", "does not reduce"),
    (B + "%2 = REDUCE_AXES float32 (%1) [op=ADD, axes=(1, 0)]", "sorted"),
    (B + "%2 = GATHER float32 (%1, %1)", "index is an integer"),
    (B + "%2 = BUFFER int32 [number=1, size=4, device='CPU']\n%3 = SCATTER float32 (%1, %2, %1) [op=None]",
     r"not \(4, 3\)"),
    (B + "%2 = CAST int32 (%1)\n%3 = GATHER float32 (%1, %2) [batch=2]", "behind 2 shared axes"),
    (B + "%2 = BUFFER int32 [number=1, size=4, device='CPU']\n%3 = GATHER float32 (%1, %2) [batch=1]", "do not share"),
    (B + "%2 = CONST float32 [0.0]\n%3 = SCAN float32 (%1, %2) [op=XOR, axis=0, exclusive=False]", "no running"),
    (B + "%2 = CONST float32 [0.0]\n%3 = SCAN float32 (%1, %2) [op=ADD, axis=2, exclusive=False]", "outside 0..1"),
    (B + "%2 = CONST float32 [0.0]\n%3 = SCAN float32 (%1, %2, %1) [op=ADD, axis=0, exclusive=False]", "sources are"),
    (B + "%2 = CONST float64 [0.0]\n%3 = SCAN float32 (%1, %2) [op=ADD, axis=0, exclusive=False]", "one dtype"),
    (B + "%2 = SCAN float32 (%1, %0) [op=ADD, axis=0, exclusive=False]", r"start has shape \(6,\), not \(3,\)"),
    (B + "%2 = SCAN float32 (%1, %0, %0) [op=MULADD, axis=0, exclusive=False]", "start has shape"),
    (B + "%2 = MERGE float32 (%1) [half=False]", "integers are merged"),
    ("%0 = BUFFER int32 [number=1, size=6, device='CPU']\n%1 = RESHAPE int32 (%0) [shape=(3, 2)]\n"
     "%2 = MERGE int32 (%1) [half=False]", "two rows are merged"),
    (B + "%2 = LARGEST float32 (%1) [taken=2]", "integers are ordered"),
    ("%0 = BUFFER int32 [number=1, size=6, device='CPU']\n%1 = LARGEST int32 (%0) [taken=7]", "7 of 6"),
    (B + "%2 = SQRT float32 (%1)\n%3 = WRITE float32 (%1, %2, %1)", "reaches SQRT before the base"),
    (B + "%2 = ADD float32 (%0, %1)", "operands have shapes"),
    (B + "%2 = CONST int32 [1]\n%3 = ADD float32 (%1, %2)", "cast one of them"),
    (B + "%2 = ADD float64 (%1, %1)", "result has dtype"),
    (B + "%2 = CMPLT float32 (%1, %1)", "result has dtype dtypes.bool"),
    (B + "%2 = MOD float32 (%1, %1)", "MOD does not take float32"),
    (B + "%2 = CONST bool [True]\n%3 = ADD bool (%2, %2)", "ADD does not take bool"),
    (B + "%2 = CAST bool (%1)\n%3 = REDUCE_AXES bool (%2) [op=ADD, axes=(0,)]", "bools are not added"),
    (B + "%2 = BITCAST float64 (%1)", "differ in size"),
    (B + "%2 = WHERE float32 (%1, %1, %1)", "condition is a bool"),
    (B + "%2 = SQRT float32 (%1, %1)", "1 sources, here 2"),
    (B + "%2 = SQRT float32 (%1) [1]", "takes no arg"),
    (B + "%2 = LOAD float32 (%1)", "does not occur at this stage"),
    (B + "%2 = CAST float32x4 (%1)", "no vectors"),
    ("%0 = CONST float32 [0.1]", "not exact"),
    ("%0 = CONST float32 [1]", "Python float"),
    ("%0 = CONST int8 [200]", "not exact"),
    ("%0 = VARIABLE float32 [name='n', low=0, high=1]", "integer"),
    ("%0 = VARIABLE int32 [name='n', low=2, high=1]", "empty"),
    ("%0 = VARIABLE int32 [name='n', low=0, high=3]\n%1 = CONST int32 [4]\n%2 = BIND int32 (%0, %1)", "outside"),
    ("%0 = BUFFER index [number=0, size=1, device='CPU']", "cannot hold index"),
]  # fmt: skip

BAD_KERNEL = [
    (I + "%3 = INDEX float64 (%1, %2)", "parameter's elements"),
    (I + "%3 = INDEX float32 (%2, %2)", "first source is one of PARAM, LOCAL, AFTER"),
    (I + "%3 = LOCAL float32 [number=0, size=0]", "array empty"),
    (I + "%3 = AFTER float32 (%1, %2)", "first source is a LOCAL"),
    (I + "%3 = LOCAL float32 [number=0, size=4]\n%4 = AFTER float32 (%3, %0)", "CONST is neither a STORE nor a range"),
    (I + "%3 = LOCAL float32 [number=0, size=4]\n%4 = INDEX float32 (%1, %2)\n%5 = LOAD float32 (%4)\n"
         "%6 = STORE void (%4, %5)\n%7 = AFTER float32 (%3, %6, %2)", "elsewhere than into the array"),
    (I + "%3 = INDEX float32 (%1, %2, %2)", "guard is bool"),
    (I + "%3 = CONST float32 [1.0]\n%4 = INDEX float32 (%1, %3)", "element number is an integer"),
    (I + "%3 = INDEX float32 (%1, %2)\n%4 = LOAD int32 (%3)", "memory holds float32"),
    (I + "%3 = CMPLT bool (%2, %0)\n%4 = INDEX float32 (%1, %2, %3)\n%5 = LOAD float32 (%4)", "false guard"),
    (I + "%3 = INDEX float32 (%1, %2)\n%4 = CONST float32 [0.0]\n%5 = LOAD float32 (%3, %4)", "false guard"),
    (I + "%3 = INDEX float32 (%1, %2)\n%4 = STORE void (%3, %2)", "goes into memory of float32"),
    (I + "%3 = LOAD float32 (%1)", "first source is an INDEX"),
    (I + "%3 = INDEX float32 (%1, %2)\n%4 = LOAD float32 (%3)\n%5 = REDUCE float32 (%4, %2) [op=ADD]",
     "kind LOOP is not closed"),
    (I + "%3 = INDEX float32 (%1, %2)\n%4 = LOAD float32 (%3)\n%5 = REDUCE float32 (%4) [op=ADD]", "closes no range"),
    (R + "%3 = INDEX float32 (%1, %2)\n%4 = LOAD float32 (%3)\n%5 = STORE void (%3, %4)", r"closes ranges \[0\]"),
    (I + "%3 = SINK void (%2) [name='k', opts=None]", "RANGE is not a STORE"),
    (I + "%3 = RANGE index (%0) [number=0, kind=PARALLEL]\n%4 = ADD index (%2, %3)\n%5 = INDEX float32 (%1, %4)\n"
         "%6 = LOAD float32 (%5)\n%7 = STORE void (%5, %6)\n%8 = SINK void (%7) [name='k', opts=None]",
     "two ranges have one number"),
    (I + "%3 = CARRY index (%0, %2, %2) [number=0]", "ORDERED"),
    (I + "%3 = CARRY index (%0, %2) [number=0]", "a start, a row number and ranges"),
    (I + "%3 = NEXT index (%2, %2, %2)", "is not a CARRY"),
    (I + "%3 = RESHAPE float32 (%1) [shape=(9,)]", "does not occur at this stage"),
    (I + "%3 = VECTORIZE indexx4 (%2, %2)", "2 sources for 4 lanes"),
    (I + "%3 = VECTORIZE indexx4 (%2)\n%4 = EXTRACT index (%3) [lane=4]", "no lane 4"),
    (I + "%3 = VECTORIZE indexx4 (%2)\n%4 = INDEX float32 (%1, %3)\n%5 = LOAD float32x8 (%4)", "4 lanes of 8"),
    (I + "%3 = VECTORIZE indexx4 (%2)\n%4 = ADD index (%3, %2)", "operands have dtypes"),
]  # fmt: skip


@pytest.mark.parametrize(
    "text, rule, stage",
    [(*case, Stage.TENSOR) for case in BAD_TENSOR] + [(*case, Stage.KERNEL) for case in BAD_KERNEL],
)
def test_broken_rules_are_named(text, rule, stage):
    node = from_text(text)
    with pytest.raises(SpecError, match=rule) as caught:
        check(node, stage)
    assert f"stage {stage.name}" in str(caught.value)


def test_the_message_holds_the_node():
    node = from_text(B + "%2 = ADD float32 (%0, %1)")
    with pytest.raises(SpecError, match="in ADD float32 .BUFFER float32"):
        check(node, Stage.TENSOR)


def test_ops_that_are_gone_stay_gone():
    node = from_text(B + "%2 = SQRT float32 (%1)")
    check(node, Stage.TENSOR, gone=frozenset({Op.EXP}))
    with pytest.raises(SpecError, match="SQRT was removed"):
        check(node, Stage.TENSOR, gone=frozenset({Op.SQRT}))


def test_several_roots_and_deep_graphs():
    node = UOp.const(dtypes.int32, 0)
    for _ in range(20_000):
        node = node + 1
    check([node, node * 2], Stage.TENSOR)


def program(*uops):
    return LinearProgram("p", uops, (), (), (), 1, 1, 0, 0)


def test_linear_programs():
    three = UOp.const(dtypes.index, 3)
    i, j = (mk(Op.RANGE, dtypes.index, (three,), RangeArg(n, AxisKind.LOOP)) for n in (0, 1))
    end_i, end_j = mk(Op.END, dtypes.void, (i,)), mk(Op.END, dtypes.void, (j,))
    check_program(program(three, i, j, i + j, end_j, end_i))
    bad = [
        ((i, end_i), "does not stand before"),
        ((three, i, j, end_i, end_j), "innermost"),
        ((three, i), "no END"),
        ((three, i, end_i, i + three), "after the loop's END"),
        ((three, three), "twice"),
    ]
    for uops, rule in bad:
        with pytest.raises(SpecError, match=rule):
            check_program(program(*uops))
