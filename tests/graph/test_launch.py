"""The rules of a launch, its facts, its text and its key."""

from __future__ import annotations

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import SpecError
from gradlet.graph.key import structural_key
from gradlet.graph.launch import body_facts, is_launch, region_blocks, uses
from gradlet.graph.node import UOp, mk
from gradlet.graph.spec import check
from gradlet.graph.text import from_text, to_text
from gradlet.ops.op import AxisKind, BodyUse, KernelArg, LaunchArg, Op, Stage, VariableArg
from tests.codegen import launches
from tests.codegen.kernels import Builder
from tests.codegen.launches import launch, scale_body

BODY = scale_body(8)


def region_body(size: int, width: int = 4) -> UOp:
    """t[j] = x[g, j]."""
    b = Builder()
    g, j = b.range(size, AxisKind.PARALLEL), b.range(width)
    b.store(b.param(0, width), j, b.load(b.param(1, size * width), g * width + j))
    return b.sink("region")


def without_blocks() -> UOp:
    """out[0] = the sum of t."""
    b = Builder()
    k = b.reduce_range(4)
    b.store(b.param(0, 1), 0, b.reduce(Op.ADD, b.load(b.param(1, 4), k), k))
    return b.sink("sum")


def symbolic_region_body() -> UOp:
    b = Builder()
    g = b.range(mk(Op.VARIABLE, dtypes.index, (), VariableArg("v0", 1, 4)), AxisKind.PARALLEL)
    b.store(b.param(0, 4), g, b.load(b.param(1, 4), g))
    return b.sink("symbolic")


TWO = [region_body(3), region_body(3)]
FIRST, SECOND = BodyUse(0, (-1, 0)), BodyUse(1, (1, 2))
BAD: list[tuple[UOp, str]] = [
    (launch("l", [BODY], []), "a launch has stages"),
    (launch("l", [BODY], [[]]), "each stage has segments"),
    (launch("l", [BODY], [[[]]]), "a segment uses a body"),
    (launch("l", [UOp.const(dtypes.float32, 1.0)], [[[BodyUse(0, (0, 1))]]]), "the sources of a launch are kernels"),
    (launch("l", [launches.pack().sink], [[[BodyUse(0, (0, 1))]]]), "the sources of a launch are kernels"),
    (launch("l", [BODY], [[[BodyUse(2, (0, 1))]]]), "there is no body 2"),
    (launch("l", [BODY], [[[BodyUse(-1, (0, 1))]]]), "there is no body -1"),
    (launch("l", [BODY, scale_body(9)], [[[BodyUse(0, (0, 1))]]]), "every body is used"),
    (launch("l", [BODY], [[[BodyUse(0, (0,))]]]), r"has 1 slots, its PARAMs are \[0, 1\]"),
    (launch("l", [BODY], [[[BodyUse(0, (0, 2))]]]), r"numbered without gaps, here \[0, 2\]"),
    (launch("l", [BODY], [[[BodyUse(0, (1, 1))]], [[BodyUse(0, (0, 1))]]]), "gives slot 1 to a PARAM that is written"),
    (launch("l", [BODY], [[[BodyUse(0, (0, 1), (0,))]]]), r"gives variables \(0,\), it has 0"),
    (launch("l", launches.with_variables().sink.src, [[[BodyUse(0, (0, 1), (0, -1))]]]), r"gives variables \(0, -1\)"),
    (launch("l", [BODY], [[[BodyUse(0, (0, -1))]]], [32]), "only a region has scratch arrays"),
    (launch("l", [BODY], [[[BodyUse(0, (0, 1))]]], [0]), "a scratch array has bytes"),
    (launch("l", TWO, [[[BodyUse(0, (-2, 0)), SECOND]]], [16]), "asks for scratch array 1 of 1"),
    (launch("l", TWO, [[[FIRST, SECOND]]], [15]), "needs more than the 15 bytes of scratch array 0"),
    (launch("l", [region_body(3), region_body(4)], [[[FIRST, SECOND]]], [16]), r"one number of blocks, not \[3, 4\]"),
    (launch("l", [region_body(3), without_blocks()], [[[FIRST, BodyUse(1, (1, -1))]]], [16]), "only writes to scratch"),
    (launch("l", [without_blocks()], [[[BodyUse(0, (-2, -1)), BodyUse(0, (-1, 0))]]], [16, 16]), "number of blocks"),
    (launch("l", [region_body(3), symbolic_region_body()], [[[FIRST, BodyUse(1, (1, 2), (0,))]]], [16]),
     "whose size is a positive constant"),
]  # fmt: skip


@pytest.mark.parametrize(("sink", "says"), BAD, ids=[says for _, says in BAD])
def test_rules(sink: UOp, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        check(sink, Stage.KERNEL)


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_good_launches_and_their_text(make) -> None:
    sink = make().sink
    check(sink, Stage.KERNEL)
    assert from_text(to_text(sink)) is sink


def test_a_launch_occurs_at_the_kernel_stage_only() -> None:
    for stage in (Stage.TENSOR, Stage.LINEAR):
        with pytest.raises(SpecError):
            check(launches.pack().sink, stage)


def test_the_kernels_of_a_schedule_may_be_launches() -> None:
    schedule = mk(Op.SINK, dtypes.void, (launches.pack().sink, BODY), KernelArg("schedule"))
    check(schedule, Stage.KERNEL)


def test_the_text_shows_uses_and_scratch() -> None:
    text = to_text(launch("l", TWO, [[[FIRST, SECOND]]], [16]))
    assert text.splitlines()[-1].endswith(
        "[name='l', stages=(((BodyUse(body=0, slots=(-1, 0), variables=()), "
        "BodyUse(body=1, slots=(1, 2), variables=())),),), scratch=(16,)]"
    )


def test_equal_bodies_are_one_node_and_uses_are_part_of_the_key() -> None:
    assert scale_body(8) is BODY
    first, again, other = (launch("l", [BODY], [[[BodyUse(0, slots)]]]) for slots in ((0, 1), (0, 1), (1, 0)))
    assert first is again
    assert structural_key([first])[0] != structural_key([other])[0]
    assert structural_key([first])[0] == structural_key([again])[0]


def test_facts_of_bodies() -> None:
    sink = launches.with_variables().sink
    facts = body_facts(sink.src[0])
    assert [p.arg.slot for p in facts.params] == [0, 1]
    assert [v.arg.name for v in facts.variables] == ["v0", "v1"]
    assert facts.written == {0} and facts.blocks == ()
    assert [use.slots for use in uses(sink.arg)] == [(0, 2), (1, 2)]
    attention = launches.attention(bias=False).sink
    everything = [body_facts(body) for body in attention.src]
    assert [len(f.blocks) for f in everything] == [1, 0, 1]
    assert region_blocks(attention.arg.stages[0][0][1:], everything) == 3
    assert is_launch(attention.arg) and not is_launch(BODY.arg)
    assert isinstance(attention.arg, LaunchArg)


def test_variables_go_by_number() -> None:
    names = ["v10", "v2", "v0"]
    nodes = [mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, 0, 3)) for name in names]
    b = Builder()
    b.store(b.param(0, 40), nodes[0] + nodes[1] * 4 + nodes[2], UOp.const(dtypes.float32, 1.0))
    assert [v.arg.name for v in body_facts(b.sink("k")).variables] == ["v0", "v2", "v10"]
