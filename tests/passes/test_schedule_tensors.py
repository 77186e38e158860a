"""Every pass from the tensor graph to kernels: the text before and the text after."""

from __future__ import annotations

import pytest

from gradlet.base.dtype import dtypes
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.text import from_text, to_text
from gradlet.ops.op import KernelArg, Op
from gradlet.schedule.context import Context
from gradlet.schedule.pipeline import PIPELINE, make_schedule
from gradlet.target.target import SM_90
from tests.schedule.helpers import target_of

# Buffers that reach lowering have large numbers: scheduling makes new ones, counted from 1.
# pass -> [(before, after)]; a graph is a SINK of its roots.
CASES: dict[str, list[tuple[str, str]]] = {
    "drop marks": [
        (
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = DETACH float32 (%0)
%2 = COPY float32 (%1) [device='CPU']
%3 = COPY float32 (%2) [device='OTHER']
%4 = SINK void (%3) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = COPY float32 (%0) [device='OTHER']
%2 = SINK void (%1) [name='schedule', opts=None]
""",
        ),
    ],
    "bind variables": [
        (
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = VARIABLE int32 [name='n', low=1, high=9]
%2 = CONST int32 [5]
%3 = BIND int32 (%1, %2)
%4 = VARIABLE int32 [name='m', low=3, high=3]
%5 = CONST int32 [3]
%6 = BIND int32 (%4, %5)
%7 = MUL int32 (%0, %3)
%8 = ADD int32 (%7, %6)
%9 = SINK void (%8) [name='schedule', opts=None]
""",
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = VARIABLE int32 [name='n', low=1, high=9]
%2 = MUL int32 (%0, %1)
%3 = CONST int32 [3]
%4 = ADD int32 (%2, %3)
%5 = SINK void (%4) [name='schedule', opts=None]
""",
        ),
    ],
    "write out sizes": [
        (
            """
%0 = BUFFER float32 [number=1, size=12, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(4, 3)]
%2 = VARIABLE index [name='n', low=0, high=4]
%3 = LIMIT float32 (%1, %2) [axis=0, filled=False]
%4 = EXP2 float32 (%3)
%5 = REDUCE_AXES float32 (%4) [op=ADD, axes=(0,)]
%6 = LIMIT float32 (%4, %2) [axis=0, filled=True]
%7 = SINK void (%5, %6) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=12, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(4, 3)]
%2 = EXP2 float32 (%1)
%3 = VARIABLE index [name='n', low=0, high=4]
%4 = REDUCE_AXES float32 (%2, %3) [op=ADD, axes=(0,), limited=(0,)]
%5 = CONST bool [True]
%6 = RESHAPE bool (%5) [shape=(1, 1)]
%7 = EXPAND bool (%6) [shape=(4, 3)]
%8 = LIMIT bool (%7, %3) [axis=0, filled=True]
%9 = CONST float32 [0.0]
%10 = WHERE float32 (%8, %2, %9)
%11 = SINK void (%4, %10) [name='schedule', opts=None]
""",
        ),
    ],
    "keep bases whole": [
        (
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(2, 2)]
%2 = SHRINK float32 (%1) [bounds=((0, 1), (0, 2))]
%3 = CONST float32 [7.0]
%4 = WRITE float32 (%1, %2, %3)
%5 = SINK void (%4) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(2, 2)]
%2 = SHRINK float32 (%1) [bounds=((0, 1), (0, 2))]
%3 = CONST float32 [7.0]
%4 = WRITE float32 (%0, %2, %3)
%5 = RESHAPE float32 (%4) [shape=(2, 2)]
%6 = SINK void (%5) [name='schedule', opts=None]
""",
        ),
    ],
    "simplify tensors": [
        (
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = CONST int32 [0]
%2 = ADD int32 (%0, %1)
%3 = RESHAPE int32 (%2) [shape=(2, 2)]
%4 = RESHAPE int32 (%3) [shape=(1, 4)]
%5 = SINK void (%4) [name='schedule', opts=None]
""",
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = RESHAPE int32 (%0) [shape=(1, 4)]
%2 = SINK void (%1) [name='schedule', opts=None]
""",
        ),
    ],
    "pick selected elements": [
        (
            """
%0 = BUFFER int32 [number=1, size=5, device='CPU']
%1 = RESHAPE int32 (%0) [shape=(5, 1)]
%2 = EXPAND int32 (%1) [shape=(5, 7)]
%3 = BUFFER int32 [number=0, size=4096, device='CPU']
%4 = SHRINK int32 (%3) [bounds=((0, 7),)]
%5 = RESHAPE int32 (%4) [shape=(1, 7)]
%6 = EXPAND int32 (%5) [shape=(5, 7)]
%7 = CMPEQ bool (%2, %6)
%8 = BUFFER float32 [number=2, size=35, device='CPU']
%9 = RESHAPE float32 (%8) [shape=(5, 7)]
%10 = CONST float32 [0.0]
%11 = WHERE float32 (%7, %9, %10)
%12 = REDUCE_AXES float32 (%11) [op=ADD, axes=(1,)]
%13 = SINK void (%12) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=2, size=35, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(5, 7)]
%2 = BUFFER int32 [number=1, size=5, device='CPU']
%3 = RESHAPE int32 (%2) [shape=(5, 1)]
%4 = EXPAND int32 (%3) [shape=(5, 7)]
%5 = SHRINK int32 (%4) [bounds=((0, 5), (0, 1))]
%6 = RESHAPE int32 (%5) [shape=(5,)]
%7 = GATHER float32 (%1, %6) [batch=1]
%8 = SINK void (%7) [name='schedule', opts=None]
""",
        ),
    ],
    "exchange sums": [
        (
            """
%0 = BUFFER float32 [number=1, size=24, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(3, 8)]
%2 = EXP float32 (%1)
%3 = REDUCE_AXES float32 (%2) [op=ADD, axes=(1,)]
%4 = RESHAPE float32 (%3) [shape=(3, 1)]
%5 = EXPAND float32 (%4) [shape=(3, 8)]
%6 = FDIV float32 (%2, %5)
%7 = BUFFER float32 [number=2, size=6, device='CPU']
%8 = RESHAPE float32 (%7) [shape=(3, 2, 1)]
%9 = EXPAND float32 (%8) [shape=(3, 2, 8)]
%10 = BUFFER float32 [number=3, size=16, device='CPU']
%11 = RESHAPE float32 (%10) [shape=(1, 2, 8)]
%12 = EXPAND float32 (%11) [shape=(3, 2, 8)]
%13 = MUL float32 (%9, %12)
%14 = REDUCE_AXES float32 (%13) [op=ADD, axes=(1,)]
%15 = MUL float32 (%14, %6)
%16 = REDUCE_AXES float32 (%15) [op=ADD, axes=(1,)]
%17 = SINK void (%16) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=2, size=6, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(3, 2, 1)]
%2 = RESHAPE float32 (%1) [shape=(3, 2)]
%3 = BUFFER float32 [number=1, size=24, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(3, 8)]
%5 = EXP float32 (%4)
%6 = REDUCE_AXES float32 (%5) [op=ADD, axes=(1,)]
%7 = RESHAPE float32 (%6) [shape=(3, 1)]
%8 = EXPAND float32 (%7) [shape=(3, 8)]
%9 = FDIV float32 (%5, %8)
%10 = RESHAPE float32 (%9) [shape=(3, 1, 8)]
%11 = EXPAND float32 (%10) [shape=(3, 2, 8)]
%12 = BUFFER float32 [number=3, size=16, device='CPU']
%13 = RESHAPE float32 (%12) [shape=(1, 2, 8)]
%14 = EXPAND float32 (%13) [shape=(3, 2, 8)]
%15 = MUL float32 (%11, %14)
%16 = REDUCE_AXES float32 (%15) [op=ADD, axes=(2,)]
%17 = MUL float32 (%2, %16)
%18 = REDUCE_AXES float32 (%17) [op=ADD, axes=(1,)]
%19 = SINK void (%18) [name='schedule', opts=None]
""",
        ),
    ],
    "ask windows": [
        (
            """
%0 = BUFFER int32 [number=0, size=4096, device='NULL:sm_90']
%1 = SHRINK int32 (%0) [bounds=((0, 1),)]
%2 = RESHAPE int32 (%1) [shape=()]
%3 = CAST float32 (%2)
%4 = RESHAPE float32 (%3) [shape=(1, 1, 1)]
%5 = EXPAND float32 (%4) [shape=(2, 1, 25)]
%6 = BUFFER float32 [number=1, size=50, device='NULL:sm_90']
%7 = RESHAPE float32 (%6) [shape=(2, 1, 5, 5, 1, 1)]
%8 = EXPAND float32 (%7) [shape=(2, 1, 5, 5, 3, 3)]
%9 = WINDOW float32 (%8) [axis=2, window_axis=4, stride=2, dilation=1, size=2]
%10 = WINDOW float32 (%9) [axis=3, window_axis=5, stride=2, dilation=1, size=2]
%11 = DETACH float32 (%10)
%12 = REDUCE_AXES float32 (%11) [op=MAX, axes=(4, 5)]
%13 = RESHAPE float32 (%12) [shape=(2, 1, 2, 2, 1, 1)]
%14 = EXPAND float32 (%13) [shape=(2, 1, 2, 2, 3, 3)]
%15 = CMPEQ bool (%11, %14)
%16 = CMPNE bool (%11, %11)
%17 = OR bool (%15, %16)
%18 = SHRINK int32 (%0) [bounds=((0, 25),)]
%19 = RESHAPE int32 (%18) [shape=(5, 5, 1, 1)]
%20 = EXPAND int32 (%19) [shape=(5, 5, 3, 3)]
%21 = WINDOW int32 (%20) [axis=0, window_axis=2, stride=2, dilation=1, size=2]
%22 = WINDOW int32 (%21) [axis=1, window_axis=3, stride=2, dilation=1, size=2]
%23 = RESHAPE int32 (%22) [shape=(1, 1, 2, 2, 3, 3)]
%24 = EXPAND int32 (%23) [shape=(2, 1, 2, 2, 3, 3)]
%25 = CONST int32 [2147483647]
%26 = WHERE int32 (%17, %24, %25)
%27 = REDUCE_AXES int32 (%26) [op=MIN, axes=(4, 5)]
%28 = RESHAPE int32 (%27) [shape=(2, 1, 4)]
%29 = BUFFER float32 [number=2, size=8, device='NULL:sm_90']
%30 = RESHAPE float32 (%29) [shape=(2, 1, 4)]
%31 = SCATTER float32 (%5, %28, %30) [op=ADD, batch=2]
%32 = RESHAPE float32 (%31) [shape=(2, 1, 5, 5)]
%33 = SINK void (%32) [name='schedule', opts=None]
""",
            """
%0 = BUFFER int32 [number=0, size=4096, device='NULL:sm_90']
%1 = SHRINK int32 (%0) [bounds=((0, 1),)]
%2 = RESHAPE int32 (%1) [shape=()]
%3 = CAST float32 (%2)
%4 = RESHAPE float32 (%3) [shape=(1, 1, 1)]
%5 = EXPAND float32 (%4) [shape=(2, 1, 25)]
%6 = BUFFER float32 [number=1, size=50, device='NULL:sm_90']
%7 = RESHAPE float32 (%6) [shape=(2, 1, 5, 5, 1, 1)]
%8 = EXPAND float32 (%7) [shape=(2, 1, 5, 5, 3, 3)]
%9 = WINDOW float32 (%8) [axis=2, window_axis=4, stride=2, dilation=1, size=2]
%10 = WINDOW float32 (%9) [axis=3, window_axis=5, stride=2, dilation=1, size=2]
%11 = DETACH float32 (%10)
%12 = REDUCE_AXES float32 (%11) [op=MAX, axes=(4, 5)]
%13 = RESHAPE float32 (%12) [shape=(2, 1, 2, 2, 1, 1)]
%14 = EXPAND float32 (%13) [shape=(2, 1, 2, 2, 3, 3)]
%15 = CMPEQ bool (%11, %14)
%16 = CMPNE bool (%11, %11)
%17 = OR bool (%15, %16)
%18 = SHRINK int32 (%0) [bounds=((0, 25),)]
%19 = RESHAPE int32 (%18) [shape=(5, 5, 1, 1)]
%20 = EXPAND int32 (%19) [shape=(5, 5, 3, 3)]
%21 = WINDOW int32 (%20) [axis=0, window_axis=2, stride=2, dilation=1, size=2]
%22 = WINDOW int32 (%21) [axis=1, window_axis=3, stride=2, dilation=1, size=2]
%23 = RESHAPE int32 (%22) [shape=(1, 1, 2, 2, 3, 3)]
%24 = EXPAND int32 (%23) [shape=(2, 1, 2, 2, 3, 3)]
%25 = CONST int32 [2147483647]
%26 = WHERE int32 (%17, %24, %25)
%27 = REDUCE_AXES int32 (%26) [op=MIN, axes=(4, 5)]
%28 = RESHAPE int32 (%27) [shape=(2, 1, 2, 2, 1, 1)]
%29 = EXPAND int32 (%28) [shape=(2, 1, 2, 2, 3, 3)]
%30 = CMPEQ bool (%29, %24)
%31 = CONST int32 [25]
%32 = CMPLT bool (%27, %31)
%33 = BUFFER float32 [number=2, size=8, device='NULL:sm_90']
%34 = RESHAPE float32 (%33) [shape=(2, 1, 4)]
%35 = RESHAPE float32 (%34) [shape=(2, 1, 2, 2)]
%36 = CONST float32 [0.0]
%37 = WHERE float32 (%32, %35, %36)
%38 = RESHAPE float32 (%37) [shape=(2, 1, 2, 2, 1, 1)]
%39 = EXPAND float32 (%38) [shape=(2, 1, 2, 2, 3, 3)]
%40 = WHERE float32 (%30, %39, %36)
%41 = UNWINDOW float32 (%40) [axis=3, window_axis=5, stride=2, dilation=1, size=5]
%42 = UNWINDOW float32 (%41) [axis=2, window_axis=4, stride=2, dilation=1, size=5]
%43 = REDUCE_AXES float32 (%42) [op=ADD, axes=(4, 5)]
%44 = RESHAPE float32 (%43) [shape=(2, 1, 25)]
%45 = ADD float32 (%5, %44)
%46 = RESHAPE float32 (%45) [shape=(2, 1, 5, 5)]
%47 = SINK void (%46) [name='schedule', opts=None]
""",
        ),
    ],
    "keep pixels as rows": [
        (
            """
%0 = BUFFER bfloat16 [number=1, size=131072, device='NULL:sm_90']
%1 = RESHAPE bfloat16 (%0) [shape=(8, 64, 16, 16)]
%2 = CAST float32 (%1)
%3 = PAD float32 (%2) [pads=((0, 0), (0, 0), (1, 1), (1, 1))]
%4 = RESHAPE float32 (%3) [shape=(8, 64, 18, 18, 1, 1)]
%5 = EXPAND float32 (%4) [shape=(8, 64, 18, 18, 3, 3)]
%6 = WINDOW float32 (%5) [axis=2, window_axis=4, stride=1, dilation=1, size=16]
%7 = WINDOW float32 (%6) [axis=3, window_axis=5, stride=1, dilation=1, size=16]
%8 = PERMUTE float32 (%7) [axes=(0, 1, 4, 5, 2, 3)]
%9 = RESHAPE float32 (%8) [shape=(8, 1, 1, 64, 3, 3, 16, 16)]
%10 = EXPAND float32 (%9) [shape=(8, 1, 64, 64, 3, 3, 16, 16)]
%11 = BUFFER bfloat16 [number=2, size=36864, device='NULL:sm_90']
%12 = RESHAPE bfloat16 (%11) [shape=(64, 64, 3, 3)]
%13 = CAST float32 (%12)
%14 = RESHAPE float32 (%13) [shape=(1, 1, 64, 64, 3, 3, 1, 1)]
%15 = EXPAND float32 (%14) [shape=(8, 1, 64, 64, 3, 3, 16, 16)]
%16 = MUL float32 (%10, %15)
%17 = REDUCE_AXES float32 (%16) [op=ADD, axes=(3, 4, 5)]
%18 = RESHAPE float32 (%17) [shape=(8, 64, 16, 16)]
%19 = CAST bfloat16 (%18)
%20 = CONST bfloat16 [0.0]
%21 = CMPLT bool (%19, %20)
%22 = CMPEQ bool (%19, %20)
%23 = OR bool (%21, %22)
%24 = WHERE bfloat16 (%23, %20, %19)
%25 = SINK void (%24) [name='schedule', opts=None]
""",
            """
%0 = BUFFER bfloat16 [number=1, size=131072, device='NULL:sm_90']
%1 = RESHAPE bfloat16 (%0) [shape=(8, 64, 16, 16)]
%2 = PAD bfloat16 (%1) [pads=((0, 0), (0, 0), (1, 1), (1, 1))]
%3 = RESHAPE bfloat16 (%2) [shape=(8, 64, 18, 18, 1, 1)]
%4 = EXPAND bfloat16 (%3) [shape=(8, 64, 18, 18, 3, 3)]
%5 = WINDOW bfloat16 (%4) [axis=2, window_axis=4, stride=1, dilation=1, size=16]
%6 = WINDOW bfloat16 (%5) [axis=3, window_axis=5, stride=1, dilation=1, size=16]
%7 = PERMUTE bfloat16 (%6) [axes=(0, 1, 4, 5, 2, 3)]
%8 = RESHAPE bfloat16 (%7) [shape=(8, 1, 1, 64, 3, 3, 16, 16)]
%9 = EXPAND bfloat16 (%8) [shape=(8, 1, 64, 64, 3, 3, 16, 16)]
%10 = PERMUTE bfloat16 (%9) [axes=(0, 1, 6, 7, 2, 4, 5, 3)]
%11 = CAST float32 (%10)
%12 = BUFFER bfloat16 [number=2, size=36864, device='NULL:sm_90']
%13 = RESHAPE bfloat16 (%12) [shape=(64, 64, 3, 3)]
%14 = RESHAPE bfloat16 (%13) [shape=(1, 1, 64, 64, 3, 3, 1, 1)]
%15 = EXPAND bfloat16 (%14) [shape=(8, 1, 64, 64, 3, 3, 16, 16)]
%16 = SHRINK bfloat16 (%15) [bounds=((0, 1), (0, 1), (0, 64), (0, 64), (0, 3), (0, 3), (0, 1), (0, 1))]
%17 = PERMUTE bfloat16 (%16) [axes=(0, 1, 6, 7, 2, 4, 5, 3)]
%18 = CONTIGUOUS bfloat16 (%17)
%19 = PERMUTE bfloat16 (%18) [axes=(0, 1, 4, 7, 5, 6, 2, 3)]
%20 = EXPAND bfloat16 (%19) [shape=(8, 1, 64, 64, 3, 3, 16, 16)]
%21 = PERMUTE bfloat16 (%20) [axes=(0, 1, 6, 7, 2, 4, 5, 3)]
%22 = CAST float32 (%21)
%23 = MUL float32 (%11, %22)
%24 = REDUCE_AXES float32 (%23) [op=ADD, axes=(5, 6, 7)]
%25 = RESHAPE float32 (%24) [shape=(8, 16, 16, 64)]
%26 = CAST bfloat16 (%25)
%27 = CONST bfloat16 [0.0]
%28 = CMPLT bool (%26, %27)
%29 = CMPEQ bool (%26, %27)
%30 = OR bool (%28, %29)
%31 = WHERE bfloat16 (%30, %27, %26)
%32 = PERMUTE bfloat16 (%31) [axes=(0, 3, 1, 2)]
%33 = SINK void (%32) [name='schedule', opts=None]
""",
        ),
    ],
    "pull sums through windows": [
        (
            """
%0 = BUFFER float32 [number=1, size=24, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(4, 1, 6)]
%2 = EXPAND float32 (%1) [shape=(4, 3, 6)]
%3 = BUFFER float32 [number=2, size=12, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(4, 3, 1)]
%5 = EXPAND float32 (%4) [shape=(4, 3, 6)]
%6 = MUL float32 (%2, %5)
%7 = REDUCE_AXES float32 (%6) [op=ADD, axes=(0,)]
%8 = PERMUTE float32 (%7) [axes=(1, 0)]
%9 = UNWINDOW float32 (%8) [axis=0, window_axis=1, stride=1, dilation=1, size=8]
%10 = REDUCE_AXES float32 (%9) [op=ADD, axes=(1,)]
%11 = SHRINK float32 (%10) [bounds=((1, 7),)]
%12 = SINK void (%11) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=24, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(4, 1, 6)]
%2 = PERMUTE float32 (%1) [axes=(0, 2, 1)]
%3 = EXPAND float32 (%2) [shape=(4, 6, 3)]
%4 = UNWINDOW float32 (%3) [axis=1, window_axis=2, stride=1, dilation=1, size=8]
%5 = SHRINK float32 (%4) [bounds=((0, 4), (1, 7), (0, 3))]
%6 = BUFFER float32 [number=2, size=12, device='CPU']
%7 = RESHAPE float32 (%6) [shape=(4, 3, 1)]
%8 = PERMUTE float32 (%7) [axes=(0, 2, 1)]
%9 = EXPAND float32 (%8) [shape=(4, 6, 3)]
%10 = MUL float32 (%5, %9)
%11 = REDUCE_AXES float32 (%10) [op=ADD, axes=(0, 2)]
%12 = SINK void (%11) [name='schedule', opts=None]
""",
        ),
    ],
    "form byte dots": [
        (
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = CONST int32 [255]
%2 = AND int32 (%0, %1)
%3 = BUFFER int32 [number=2, size=4, device='CPU']
%4 = CONST int32 [24]
%5 = SHL int32 (%3, %4)
%6 = SHR int32 (%5, %4)
%7 = MUL int32 (%2, %6)
%8 = CONST int32 [8]
%9 = SHR int32 (%0, %8)
%10 = AND int32 (%9, %1)
%11 = CONST int32 [16]
%12 = SHL int32 (%3, %11)
%13 = SHR int32 (%12, %4)
%14 = MUL int32 (%10, %13)
%15 = ADD int32 (%7, %14)
%16 = SHR int32 (%0, %11)
%17 = AND int32 (%16, %1)
%18 = SHL int32 (%3, %8)
%19 = SHR int32 (%18, %4)
%20 = MUL int32 (%17, %19)
%21 = ADD int32 (%15, %20)
%22 = SHR int32 (%0, %4)
%23 = AND int32 (%22, %1)
%24 = SHR int32 (%3, %4)
%25 = MUL int32 (%23, %24)
%26 = ADD int32 (%21, %25)
%27 = SINK void (%26) [name='schedule', opts=None]
""",
            """
%0 = BUFFER int32 [number=1, size=4, device='CPU']
%1 = BUFFER int32 [number=2, size=4, device='CPU']
%2 = CONST int32 [0]
%3 = DOT int32 (%0, %1, %2)
%4 = SINK void (%3) [name='schedule', opts=None]
""",
        ),
    ],
    "pack narrow products": [
        (  # two halves a word; the right factor in strips
            """
%0 = BUFFER int8 [number=1, size=5120, device='CPU']
%1 = RESHAPE int8 (%0) [shape=(64, 1, 80)]
%2 = CAST int32 (%1)
%3 = EXPAND int32 (%2) [shape=(64, 64, 80)]
%4 = BUFFER uint8 [number=2, size=5120, device='CPU']
%5 = RESHAPE uint8 (%4) [shape=(80, 64)]
%6 = CAST int32 (%5)
%7 = PERMUTE int32 (%6) [axes=(1, 0)]
%8 = RESHAPE int32 (%7) [shape=(1, 64, 80)]
%9 = EXPAND int32 (%8) [shape=(64, 64, 80)]
%10 = MUL int32 (%3, %9)
%11 = REDUCE_AXES int32 (%10) [op=ADD, axes=(2,)]
%12 = SINK void (%11) [name='schedule', opts=None]
""",
            """
%0 = BUFFER int8 [number=1, size=5120, device='CPU']
%1 = RESHAPE int8 (%0) [shape=(64, 1, 80)]
%2 = CAST int32 (%1)
%3 = RESHAPE int32 (%2) [shape=(64, 1, 40, 2)]
%4 = SHRINK int32 (%3) [bounds=((0, 64), (0, 1), (0, 40), (0, 1))]
%5 = RESHAPE int32 (%4) [shape=(64, 1, 40)]
%6 = CONST int32 [65535]
%7 = AND int32 (%5, %6)
%8 = SHRINK int32 (%3) [bounds=((0, 64), (0, 1), (0, 40), (1, 2))]
%9 = RESHAPE int32 (%8) [shape=(64, 1, 40)]
%10 = CONST int32 [16]
%11 = SHL int32 (%9, %10)
%12 = OR int32 (%7, %11)
%13 = CONTIGUOUS int32 (%12)
%14 = EXPAND int32 (%13) [shape=(64, 64, 40)]
%15 = BUFFER uint8 [number=2, size=5120, device='CPU']
%16 = RESHAPE uint8 (%15) [shape=(80, 64)]
%17 = PERMUTE uint8 (%16) [axes=(1, 0)]
%18 = RESHAPE uint8 (%17) [shape=(1, 64, 80)]
%19 = CAST int32 (%18)
%20 = RESHAPE int32 (%19) [shape=(1, 64, 40, 2)]
%21 = SHRINK int32 (%20) [bounds=((0, 1), (0, 64), (0, 40), (0, 1))]
%22 = RESHAPE int32 (%21) [shape=(1, 64, 40)]
%23 = AND int32 (%22, %6)
%24 = SHRINK int32 (%20) [bounds=((0, 1), (0, 64), (0, 40), (1, 2))]
%25 = RESHAPE int32 (%24) [shape=(1, 64, 40)]
%26 = SHL int32 (%25, %10)
%27 = OR int32 (%23, %26)
%28 = RESHAPE int32 (%27) [shape=(4, 16, 40)]
%29 = PERMUTE int32 (%28) [axes=(0, 2, 1)]
%30 = CONTIGUOUS int32 (%29)
%31 = PERMUTE int32 (%30) [axes=(0, 2, 1)]
%32 = RESHAPE int32 (%31) [shape=(1, 64, 40)]
%33 = EXPAND int32 (%32) [shape=(64, 64, 40)]
%34 = CONST int32 [0]
%35 = DOT16 int32 (%14, %33, %34)
%36 = REDUCE_AXES int32 (%35) [op=ADD, axes=(2,)]
%37 = SINK void (%36) [name='schedule', opts=None]
""",
        ),
    ],
    "convert before repeating": [
        (  # conversions move below the repetition
            """
%0 = BUFFER bfloat16 [number=1, size=8192, device='CPU']
%1 = RESHAPE bfloat16 (%0) [shape=(128, 1, 64)]
%2 = EXPAND bfloat16 (%1) [shape=(128, 96, 64)]
%3 = CAST float32 (%2)
%4 = BUFFER bfloat16 [number=2, size=6144, device='CPU']
%5 = RESHAPE bfloat16 (%4) [shape=(1, 96, 64)]
%6 = EXPAND bfloat16 (%5) [shape=(128, 96, 64)]
%7 = CAST float32 (%6)
%8 = MUL float32 (%3, %7)
%9 = REDUCE_AXES float32 (%8) [op=ADD, axes=(2,)]
%10 = SINK void (%9) [name='schedule', opts=None]
""",
            """
%0 = BUFFER bfloat16 [number=1, size=8192, device='CPU']
%1 = RESHAPE bfloat16 (%0) [shape=(128, 1, 64)]
%2 = CAST float32 (%1)
%3 = EXPAND float32 (%2) [shape=(128, 96, 64)]
%4 = BUFFER bfloat16 [number=2, size=6144, device='CPU']
%5 = RESHAPE bfloat16 (%4) [shape=(1, 96, 64)]
%6 = CAST float32 (%5)
%7 = EXPAND float32 (%6) [shape=(128, 96, 64)]
%8 = MUL float32 (%3, %7)
%9 = REDUCE_AXES float32 (%8) [op=ADD, axes=(2,)]
%10 = SINK void (%9) [name='schedule', opts=None]
""",
        ),
    ],
    "convert factors once": [
        (  # and are stored where they still would be repeated
            """
%0 = BUFFER bfloat16 [number=1, size=8192, device='CPU']
%1 = RESHAPE bfloat16 (%0) [shape=(128, 1, 64)]
%2 = CAST float32 (%1)
%3 = EXPAND float32 (%2) [shape=(128, 96, 64)]
%4 = BUFFER bfloat16 [number=2, size=6144, device='CPU']
%5 = RESHAPE bfloat16 (%4) [shape=(1, 96, 64)]
%6 = CAST float32 (%5)
%7 = EXPAND float32 (%6) [shape=(128, 96, 64)]
%8 = MUL float32 (%3, %7)
%9 = REDUCE_AXES float32 (%8) [op=ADD, axes=(2,)]
%10 = SINK void (%9) [name='schedule', opts=None]
""",
            """
%0 = BUFFER bfloat16 [number=1, size=8192, device='CPU']
%1 = RESHAPE bfloat16 (%0) [shape=(128, 1, 64)]
%2 = CAST float32 (%1)
%3 = CONTIGUOUS float32 (%2)
%4 = EXPAND float32 (%3) [shape=(128, 96, 64)]
%5 = BUFFER bfloat16 [number=2, size=6144, device='CPU']
%6 = RESHAPE bfloat16 (%5) [shape=(1, 96, 64)]
%7 = CAST float32 (%6)
%8 = CONTIGUOUS float32 (%7)
%9 = EXPAND float32 (%8) [shape=(128, 96, 64)]
%10 = MUL float32 (%4, %9)
%11 = REDUCE_AXES float32 (%10) [op=ADD, axes=(2,)]
%12 = SINK void (%11) [name='schedule', opts=None]
""",
        ),
    ],
    "cut deep products": [
        (
            """
%0 = BUFFER float32 [number=1, size=65536, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(8, 1, 8192)]
%2 = EXPAND float32 (%1) [shape=(8, 16, 8192)]
%3 = BUFFER float32 [number=2, size=131072, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(1, 16, 8192)]
%5 = EXPAND float32 (%4) [shape=(8, 16, 8192)]
%6 = MUL float32 (%2, %5)
%7 = REDUCE_AXES float32 (%6) [op=ADD, axes=(2,)]
%8 = SINK void (%7) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=65536, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(8, 1, 8192)]
%2 = RESHAPE float32 (%1) [shape=(8, 1, 2, 4096)]
%3 = PERMUTE float32 (%2) [axes=(2, 0, 1, 3)]
%4 = EXPAND float32 (%3) [shape=(2, 8, 16, 4096)]
%5 = BUFFER float32 [number=2, size=131072, device='CPU']
%6 = RESHAPE float32 (%5) [shape=(1, 16, 8192)]
%7 = RESHAPE float32 (%6) [shape=(1, 16, 2, 4096)]
%8 = PERMUTE float32 (%7) [axes=(2, 0, 1, 3)]
%9 = EXPAND float32 (%8) [shape=(2, 8, 16, 4096)]
%10 = MUL float32 (%4, %9)
%11 = REDUCE_AXES float32 (%10) [op=ADD, axes=(3,)]
%12 = REDUCE_AXES float32 (%11) [op=ADD, axes=(0,)]
%13 = SINK void (%12) [name='schedule', opts=None]
""",
        ),
    ],
    "cut column sums": [
        (
            """
%0 = BUFFER float32 [number=1, size=32768, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(512, 64)]
%2 = EXP float32 (%1)
%3 = REDUCE_AXES float32 (%2) [op=ADD, axes=(0,)]
%4 = SINK void (%3) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=32768, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(512, 64)]
%2 = EXP float32 (%1)
%3 = RESHAPE float32 (%2) [shape=(16, 32, 64)]
%4 = REDUCE_AXES float32 (%3) [op=ADD, axes=(1,)]
%5 = REDUCE_AXES float32 (%4) [op=ADD, axes=(0,)]
%6 = SINK void (%5) [name='schedule', opts=None]
""",
        ),
    ],
    "online reductions": [
        (
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = REDUCE_AXES float32 (%0) [op=MAX, axes=(0,)]
%2 = CONST float32 [-1.0]
%3 = MUL float32 (%1, %2)
%4 = RESHAPE float32 (%3) [shape=(1,)]
%5 = EXPAND float32 (%4) [shape=(1048576,)]
%6 = ADD float32 (%0, %5)
%7 = EXP float32 (%6)
%8 = REDUCE_AXES float32 (%7) [op=ADD, axes=(0,)]
%9 = SINK void (%8) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(256, 4096)]
%2 = REDUCE_AXES float32 (%1) [op=MAX, axes=(1,)]
%3 = RESHAPE float32 (%2) [shape=(256, 1)]
%4 = REDUCE_AXES float32 (%3) [op=MAX, axes=(0,)]
%5 = RESHAPE float32 (%4) [shape=()]
%6 = CONST float32 [-1.0]
%7 = MUL float32 (%5, %6)
%8 = RESHAPE float32 (%7) [shape=(1,)]
%9 = RESHAPE float32 (%8) [shape=(1, 1)]
%10 = EXPAND float32 (%9) [shape=(256, 1)]
%11 = MAX float32 (%3, %3)
%12 = CONST float32 [-3.4028234663852886e+38]
%13 = MAX float32 (%11, %12)
%14 = MUL float32 (%13, %6)
%15 = CMPEQ bool (%10, %14)
%16 = CONST float32 [0.0]
%17 = MUL float32 (%14, %6)
%18 = ADD float32 (%10, %17)
%19 = WHERE float32 (%15, %16, %18)
%20 = EXP float32 (%19)
%21 = MAX float32 (%3, %12)
%22 = MUL float32 (%21, %6)
%23 = EXPAND float32 (%22) [shape=(256, 4096)]
%24 = ADD float32 (%1, %23)
%25 = EXP float32 (%24)
%26 = REDUCE_AXES float32 (%25) [op=ADD, axes=(1,)]
%27 = RESHAPE float32 (%26) [shape=(256, 1)]
%28 = MUL float32 (%20, %27)
%29 = REDUCE_AXES float32 (%28) [op=ADD, axes=(0,)]
%30 = RESHAPE float32 (%29) [shape=()]
%31 = SINK void (%30) [name='schedule', opts=None]
""",
        ),
        (
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = REDUCE_AXES float32 (%0) [op=MAX, axes=(0,)]
%2 = RESHAPE float32 (%1) [shape=(1,)]
%3 = EXPAND float32 (%2) [shape=(1048576,)]
%4 = CMPEQ bool (%0, %3)
%5 = BUFFER int32 [number=2, size=1048576, device='CPU']
%6 = CONST int32 [1048576]
%7 = WHERE int32 (%4, %5, %6)
%8 = REDUCE_AXES int32 (%7) [op=MIN, axes=(0,)]
%9 = SINK void (%8) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(256, 4096)]
%2 = REDUCE_AXES float32 (%1) [op=MAX, axes=(1,)]
%3 = RESHAPE float32 (%2) [shape=(256, 1)]
%4 = REDUCE_AXES float32 (%3) [op=MAX, axes=(0,)]
%5 = RESHAPE float32 (%4) [shape=()]
%6 = RESHAPE float32 (%5) [shape=(1, 1)]
%7 = EXPAND float32 (%6) [shape=(256, 1)]
%8 = CMPEQ bool (%3, %7)
%9 = EXPAND float32 (%3) [shape=(256, 4096)]
%10 = CMPEQ bool (%1, %9)
%11 = BUFFER int32 [number=2, size=1048576, device='CPU']
%12 = RESHAPE int32 (%11) [shape=(256, 4096)]
%13 = CONST int32 [1048576]
%14 = WHERE int32 (%10, %12, %13)
%15 = REDUCE_AXES int32 (%14) [op=MIN, axes=(1,)]
%16 = RESHAPE int32 (%15) [shape=(256, 1)]
%17 = WHERE int32 (%8, %16, %13)
%18 = REDUCE_AXES int32 (%17) [op=MIN, axes=(0,)]
%19 = RESHAPE int32 (%18) [shape=()]
%20 = SINK void (%19) [name='schedule', opts=None]
""",
        ),
    ],
    "split long reductions": [
        (
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = REDUCE_AXES float32 (%0) [op=ADD, axes=(0,)]
%2 = SINK void (%1) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=1048576, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(16, 65536)]
%2 = REDUCE_AXES float32 (%1) [op=ADD, axes=(1,)]
%3 = REDUCE_AXES float32 (%2) [op=ADD, axes=(0,)]
%4 = SINK void (%3) [name='schedule', opts=None]
""",
        ),
    ],
    "split long scans": [
        (
            """
%0 = BUFFER float32 [number=1, size=20000, device='CPU']
%1 = CONST float32 [0.0]
%2 = SCAN float32 (%0, %1) [op=ADD, axis=0, exclusive=False]
%3 = SINK void (%2) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=20000, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(32, 625)]
%2 = REDUCE_AXES float32 (%1) [op=ADD, axes=(1,)]
%3 = CONST float32 [0.0]
%4 = SCAN float32 (%2, %3) [op=ADD, axis=0, exclusive=True]
%5 = SCAN float32 (%1, %4) [op=ADD, axis=1, exclusive=False]
%6 = RESHAPE float32 (%5) [shape=(20000,)]
%7 = SINK void (%6) [name='schedule', opts=None]
""",
        ),
    ],
    "stage convolutions": [
        (  # a row of the image with its zero, odd columns beside even ones
            """
%0 = BUFFER float32 [number=1, size=1024, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(1, 1, 32, 32)]
%2 = PAD float32 (%1) [pads=((0, 0), (0, 0), (0, 0), (1, 0))]
%3 = RESHAPE float32 (%2) [shape=(1, 1, 32, 33, 1)]
%4 = EXPAND float32 (%3) [shape=(1, 1, 32, 33, 3)]
%5 = WINDOW float32 (%4) [axis=3, window_axis=4, stride=2, dilation=1, size=16]
%6 = EXPAND float32 (%5) [shape=(1, 32, 32, 16, 3)]
%7 = BUFFER float32 [number=2, size=96, device='CPU']
%8 = RESHAPE float32 (%7) [shape=(1, 32, 1, 1, 3)]
%9 = EXPAND float32 (%8) [shape=(1, 32, 32, 16, 3)]
%10 = MUL float32 (%6, %9)
%11 = REDUCE_AXES float32 (%10) [op=ADD, axes=(4,)]
%12 = SINK void (%11) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=1024, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(1, 1, 32, 32)]
%2 = PAD float32 (%1) [pads=((0, 0), (0, 0), (0, 0), (1, 1))]
%3 = RESHAPE float32 (%2) [shape=(1, 1, 32, 17, 2)]
%4 = PERMUTE float32 (%3) [axes=(0, 1, 2, 4, 3)]
%5 = CONTIGUOUS float32 (%4)
%6 = PERMUTE float32 (%5) [axes=(0, 1, 2, 4, 3)]
%7 = RESHAPE float32 (%6) [shape=(1, 1, 32, 34, 1)]
%8 = EXPAND float32 (%7) [shape=(1, 1, 32, 34, 3)]
%9 = WINDOW float32 (%8) [axis=3, window_axis=4, stride=2, dilation=1, size=16]
%10 = EXPAND float32 (%9) [shape=(1, 32, 32, 16, 3)]
%11 = BUFFER float32 [number=2, size=96, device='CPU']
%12 = RESHAPE float32 (%11) [shape=(1, 32, 1, 1, 3)]
%13 = EXPAND float32 (%12) [shape=(1, 32, 32, 16, 3)]
%14 = MUL float32 (%10, %13)
%15 = REDUCE_AXES float32 (%14) [op=ADD, axes=(4,)]
%16 = SINK void (%15) [name='schedule', opts=None]
""",
        ),
    ],
    "keep channels last": [
        (  # what is computed from the sum alone moves below its copy
            """
%0 = BUFFER float32 [number=1, size=512, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(1, 8, 8, 1, 8)]
%2 = EXPAND float32 (%1) [shape=(1, 8, 8, 32, 8)]
%3 = BUFFER float32 [number=2, size=256, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(1, 1, 1, 32, 8)]
%5 = EXPAND float32 (%4) [shape=(1, 8, 8, 32, 8)]
%6 = MUL float32 (%2, %5)
%7 = REDUCE_AXES float32 (%6) [op=ADD, axes=(4,)]
%8 = CONTIGUOUS float32 (%7)
%9 = PERMUTE float32 (%8) [axes=(0, 3, 1, 2)]
%10 = BUFFER float32 [number=3, size=32, device='CPU']
%11 = RESHAPE float32 (%10) [shape=(1, 32, 1, 1)]
%12 = EXPAND float32 (%11) [shape=(1, 32, 8, 8)]
%13 = ADD float32 (%9, %12)
%14 = EXP2 float32 (%13)
%15 = MUL float32 (%13, %14)
%16 = SINK void (%15) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=512, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(1, 8, 8, 1, 8)]
%2 = EXPAND float32 (%1) [shape=(1, 8, 8, 32, 8)]
%3 = BUFFER float32 [number=2, size=256, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(1, 1, 1, 32, 8)]
%5 = EXPAND float32 (%4) [shape=(1, 8, 8, 32, 8)]
%6 = MUL float32 (%2, %5)
%7 = REDUCE_AXES float32 (%6) [op=ADD, axes=(4,)]
%8 = BUFFER float32 [number=3, size=32, device='CPU']
%9 = RESHAPE float32 (%8) [shape=(1, 32, 1, 1)]
%10 = EXPAND float32 (%9) [shape=(1, 32, 8, 8)]
%11 = PERMUTE float32 (%10) [axes=(0, 2, 3, 1)]
%12 = ADD float32 (%7, %11)
%13 = EXP2 float32 (%12)
%14 = MUL float32 (%12, %13)
%15 = CONTIGUOUS float32 (%14)
%16 = PERMUTE float32 (%15) [axes=(0, 3, 1, 2)]
%17 = SINK void (%16) [name='schedule', opts=None]
""",
        ),
    ],
    "lay out operands": [
        (  # the right factor is read in strips of columns, so it is kept in strips
            """
%0 = BUFFER float32 [number=1, size=524288, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(64, 1, 8192)]
%2 = EXPAND float32 (%1) [shape=(64, 1024, 8192)]
%3 = BUFFER float32 [number=2, size=8388608, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(8192, 1024)]
%5 = PERMUTE float32 (%4) [axes=(1, 0)]
%6 = RESHAPE float32 (%5) [shape=(1, 1024, 8192)]
%7 = EXPAND float32 (%6) [shape=(64, 1024, 8192)]
%8 = MUL float32 (%2, %7)
%9 = REDUCE_AXES float32 (%8) [op=ADD, axes=(2,)]
%10 = SINK void (%9) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=524288, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(64, 1, 8192)]
%2 = EXPAND float32 (%1) [shape=(64, 1024, 8192)]
%3 = BUFFER float32 [number=2, size=8388608, device='CPU']
%4 = RESHAPE float32 (%3) [shape=(8192, 1024)]
%5 = PERMUTE float32 (%4) [axes=(1, 0)]
%6 = RESHAPE float32 (%5) [shape=(1, 1024, 8192)]
%7 = RESHAPE float32 (%6) [shape=(64, 16, 8192)]
%8 = PERMUTE float32 (%7) [axes=(0, 2, 1)]
%9 = CONTIGUOUS float32 (%8)
%10 = PERMUTE float32 (%9) [axes=(0, 2, 1)]
%11 = RESHAPE float32 (%10) [shape=(1, 1024, 8192)]
%12 = EXPAND float32 (%11) [shape=(64, 1024, 8192)]
%13 = MUL float32 (%2, %12)
%14 = REDUCE_AXES float32 (%13) [op=ADD, axes=(2,)]
%15 = SINK void (%14) [name='schedule', opts=None]
""",
        ),
    ],
    "place writes": [
        (  # nobody reads the old values: in place
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = SHRINK float32 (%0) [bounds=((0, 2),)]
%2 = CONST float32 [7.0]
%3 = WRITE float32 (%0, %1, %2)
%4 = SINK void (%3) [name='schedule', opts=None]
""",
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = SHRINK float32 (%0) [bounds=((0, 2),)]
%2 = CONST float32 [7.0]
%3 = RESHAPE float32 (%2) [shape=(1,)]
%4 = EXPAND float32 (%3) [shape=(2,)]
%5 = WRITE float32 (%0, %1, %4)
%6 = SINK void (%5) [name='schedule', opts=None]
""",
        ),
        (  # a result needs the old values after the write: an expression
            """
%0 = BUFFER float32 [number=1, size=4, device='CPU']
%1 = SHRINK float32 (%0) [bounds=((0, 2),)]
%2 = CONST float32 [7.0]
%3 = WRITE float32 (%0, %1, %2)
%4 = MUL float32 (%3, %0)
%5 = SINK void (%4) [name='schedule', opts=None]
""",
            """
%0 = CONST bool [True]
%1 = RESHAPE bool (%0) [shape=(1,)]
%2 = EXPAND bool (%1) [shape=(2,)]
%3 = PAD bool (%2) [pads=((0, 2),)]
%4 = CONST float32 [7.0]
%5 = RESHAPE float32 (%4) [shape=(1,)]
%6 = EXPAND float32 (%5) [shape=(2,)]
%7 = PAD float32 (%6) [pads=((0, 2),)]
%8 = BUFFER float32 [number=1, size=4, device='CPU']
%9 = WHERE float32 (%3, %7, %8)
%10 = MUL float32 (%9, %8)
%11 = SINK void (%10) [name='schedule', opts=None]
""",
        ),
    ],
    "store constants": [
        (
            """
%0 = CONST float32 [3.0]
%1 = RESHAPE float32 (%0) [shape=(1,)]
%2 = EXPAND float32 (%1) [shape=(4,)]
%3 = SINK void (%2) [name='schedule', opts=None]
""",
            """
%0 = CONST float32 [3.0]
%1 = RESHAPE float32 (%0) [shape=(1,)]
%2 = EXPAND float32 (%1) [shape=(4,)]
%3 = CONTIGUOUS float32 (%2)
%4 = SINK void (%3) [name='schedule', opts=None]
""",
        ),
    ],
}

SOFTMAX = """
%0 = BUFFER float32 [number=1000001, size=12, device='CPU']
%1 = RESHAPE float32 (%0) [shape=(3, 4)]
%2 = EXP float32 (%1)
%3 = REDUCE_AXES float32 (%2) [op=ADD, axes=(1,)]
%4 = RESHAPE float32 (%3) [shape=(3, 1)]
%5 = EXPAND float32 (%4) [shape=(3, 4)]
%6 = FDIV float32 (%2, %5)
%7 = SINK void (%6) [name='schedule', opts=None]
"""

LOWERED = """
%0 = PARAM float32 [slot=0, size=12]
%1 = CONST index [3]
%2 = RANGE index (%1) [number=0, kind=LOOP]
%3 = CONST index [4]
%4 = MUL index (%2, %3)
%5 = RANGE index (%3) [number=1, kind=LOOP]
%6 = ADD index (%4, %5)
%7 = INDEX float32 (%0, %6)
%8 = PARAM float32 [slot=1, size=12]
%9 = INDEX float32 (%8, %6)
%10 = LOAD float32 (%9)
%11 = EXP float32 (%10)
%12 = RANGE index (%3) [number=2, kind=REDUCE]
%13 = ADD index (%4, %12)
%14 = INDEX float32 (%8, %13)
%15 = LOAD float32 (%14)
%16 = EXP float32 (%15)
%17 = REDUCE float32 (%16, %12) [op=ADD]
%18 = FDIV float32 (%11, %17)
%19 = STORE void (%7, %18)
%20 = SINK void (%19) [name='r_3_4_4', opts=None]
%21 = SINK void (%20) [name='schedule', opts=None]
"""

# These decide beside the graph and leave it as it is.
DECISIONS = ("decide kernels", "order kernels", "reuse memory")


def context_of(node: UOp) -> Context:
    return Context(list(node.src), len(node.src), 0, lambda d: SM_90 if d == "NULL:sm_90" else target_of(d), "CPU")


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))])
def test_pass(name: str, number: int) -> None:
    before, after = CASES[name][number]
    node = from_text(before)
    (row,) = [p for p in PIPELINE.passes if p.name == name]
    if callable(row.run):
        context = context_of(node)
        context.sums.update(n for n in toposort((node,)) if n.op is Op.CONTIGUOUS and n.src[0].op is Op.REDUCE_AXES)
        result = row.run(node, context)
    else:
        from gradlet.graph.rewrite import rewrite

        result = rewrite(node, row.run)
    assert to_text(result).strip() == after.strip()


def run_until(node: UOp, last: str) -> tuple[UOp, UOp, Context]:
    """The graph before and after the pass `last`, all passes before it run."""
    context = context_of(node)
    seen: list[tuple[str, UOp, UOp]] = []
    PIPELINE.run(node, context, [lambda row, before, after, seconds: seen.append((row.name, before, after))])
    return next((before, after, context) for name, before, after in seen if name == last)


def test_lower_kernels() -> None:
    before, after, context = run_until(from_text(SOFTMAX), "lower kernels")
    assert to_text(before).strip() == SOFTMAX.strip()
    assert to_text(after).strip() == LOWERED.strip()
    assert [call.written for call in context.calls] == [(0,)]


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_leave_the_graph_alone(name: str) -> None:
    before, after, _ = run_until(from_text(SOFTMAX), name)
    assert before is after


def test_every_pass_has_a_test() -> None:
    assert {row.name for row in PIPELINE.passes} == {*CASES, "lower kernels", *DECISIONS}


def test_values_of_variables_reach_the_schedule() -> None:
    before = from_text(CASES["bind variables"][0][0])
    schedule = make_schedule(before.src, target_of)
    assert {v.arg.name: n for v, n in schedule.values.items()} == {"n": 5}


def test_sink_holds_the_roots() -> None:
    node = mk(Op.SINK, dtypes.void, (UOp.const(dtypes.int32, 1),), KernelArg("schedule"))
    assert from_text(to_text(node)) is node
