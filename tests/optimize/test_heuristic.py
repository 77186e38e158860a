"""The heuristic chooses only what `actions.apply` accepts."""

from __future__ import annotations

import pytest

from gradlet.graph.text import from_text
from gradlet.optimize import actions, heuristic
from gradlet.target.target import TARGETS

# One store over rows and columns, others over rows alone: lanes along the columns of the first leave none for the rows.
OUTPUTS_THAT_SHARE_ROWS = """\
%0 = PARAM bool [slot=0, size=640]
%1 = CONST index [64]
%2 = RANGE index (%1) [number=0, kind=LOOP]
%3 = CONST index [10]
%4 = MUL index (%2, %3)
%5 = RANGE index (%3) [number=1, kind=LOOP]
%6 = ADD index (%4, %5)
%7 = INDEX bool (%0, %6)
%8 = PARAM int32 [slot=4, size=64]
%9 = INDEX int32 (%8, %2)
%10 = LOAD int32 (%9)
%11 = PARAM int32 [slot=5, size=10]
%12 = INDEX int32 (%11, %5)
%13 = LOAD int32 (%12)
%14 = CMPEQ bool (%10, %13)
%15 = STORE void (%7, %14)
%16 = PARAM bool [slot=1, size=64]
%17 = INDEX bool (%16, %2)
%18 = CONST int32 [-1]
%19 = CMPNE bool (%10, %18)
%20 = STORE void (%17, %19)
%21 = PARAM float32 [slot=2, size=1]
%22 = CONST index [0]
%23 = INDEX float32 (%21, %22)
%24 = RANGE index (%1) [number=2, kind=REDUCE]
%25 = INDEX int32 (%8, %24)
%26 = LOAD int32 (%25)
%27 = CMPNE bool (%26, %18)
%28 = CONST float32 [1.0]
%29 = CONST float32 [0.0]
%30 = WHERE float32 (%27, %28, %29)
%31 = REDUCE float32 (%30, %24) [op=ADD]
%32 = STORE void (%23, %31)
%33 = PARAM float32 [slot=3, size=64]
%34 = INDEX float32 (%33, %2)
%35 = FDIV float32 (%28, %31)
%36 = WHERE float32 (%19, %35, %29)
%37 = CONST float32 [-1.0]
%38 = MUL float32 (%36, %37)
%39 = STORE void (%34, %38)
%40 = SINK void (%15, %20, %32, %39) [name='outputs', opts=None]
"""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_outputs_that_share_a_range_get_lanes_along_one_only(name: str) -> None:
    kernel = from_text(OUTPUTS_THAT_SHARE_ROWS)
    target = TARGETS[name]
    opts = heuristic.choose(kernel, target)
    assert opts or target.kind == "gpu"  # stores over different ranges run on one lane there
    assert actions.apply(kernel, opts, target).arg.opts == opts
