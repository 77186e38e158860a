"""Native code that runs a graph of launches: it fills the tables of all programs, then calls one after another.

It is the same for all graphs, so a graph costs no compilation, and has no state, so it loads as an image.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from gradlet.device.common import llvm
from gradlet.device.cpu.image import MAGIC, image_of
from gradlet.device.cpu.jit import load
from gradlet.device.cpu.pool import HEADER_WORDS
from gradlet.device.cpu.target import host_target
from gradlet.runtime import diskcache

# The words of a graph: how many moves fill the tables, where they stand, the words that they take, the words that they
# set, how often the graph has run, the pool's function for a stage that threads share, how many stages there are. Then
# the words of each stage.
GRAPH_WORDS: Final = 7
RUNS_WORD: Final = 4

_SOURCE: Final = """
target triple = "{triple}"

define void @walk(ptr %graph) {{
entry:
  %count = load i64, ptr %graph, align 8
  %moves_at = getelementptr i64, ptr %graph, i64 1
  %moves = load ptr, ptr %moves_at, align 8
  %words_at = getelementptr i64, ptr %graph, i64 2
  %words = load ptr, ptr %words_at, align 8
  %tables_at = getelementptr i64, ptr %graph, i64 3
  %tables = load ptr, ptr %tables_at, align 8
  %share_at = getelementptr i64, ptr %graph, i64 5
  %pool_run = load ptr, ptr %share_at, align 8
  %stages_at = getelementptr i64, ptr %graph, i64 6
  %stages = load i64, ptr %stages_at, align 8
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %move, label %moved
move:
  %i = phi i64 [ 0, %entry ], [ %i_next, %move ]
  %move_at = getelementptr {{ i32, i32 }}, ptr %moves, i64 %i
  %from = load i32, ptr %move_at, align 4
  %to_at = getelementptr i32, ptr %move_at, i64 1
  %to = load i32, ptr %to_at, align 4
  %source = getelementptr i64, ptr %words, i32 %from
  %target = getelementptr i64, ptr %tables, i32 %to
  %word = load i64, ptr %source, align 8
  store i64 %word, ptr %target, align 8
  %i_next = add i64 %i, 1
  %more_moves = icmp slt i64 %i_next, %count
  br i1 %more_moves, label %move, label %moved
moved:
  %first = getelementptr i64, ptr %graph, i64 {graph_words}
  br label %stage
stage:
  %number = phi i64 [ 0, %moved ], [ %number_next, %next ]
  %stage_at = phi ptr [ %first, %moved ], [ %stage_next, %next ]
  %parts_at = getelementptr i64, ptr %stage_at, i64 2
  %parts = load i64, ptr %parts_at, align 8
  %several = icmp sgt i64 %parts, 1
  br i1 %several, label %share, label %alone
share:
  call void %pool_run(ptr %stage_at)
  br label %next
alone:
  %function = load ptr, ptr %stage_at, align 8
  %total_at = getelementptr i64, ptr %stage_at, i64 1
  %total = load i64, ptr %total_at, align 8
  %table_at = getelementptr i64, ptr %stage_at, i64 4
  %table = load ptr, ptr %table_at, align 8
  call void %function(ptr %table, i64 0, i64 %total)
  br label %next
next:
  %number_next = add i64 %number, 1
  %stage_next = getelementptr i64, ptr %stage_at, i64 {header_words}
  %more = icmp slt i64 %number_next, %stages
  br i1 %more, label %stage, label %out
out:
  %runs_at = getelementptr i64, ptr %graph, i64 {runs_word}
  %runs = load i64, ptr %runs_at, align 8
  %runs_next = add i64 %runs, 1
  store i64 %runs_next, ptr %runs_at, align 8
  ret void
}}
"""


@cache
def walk() -> Callable[[int], None]:
    """Runs the graph whose words stand at an address; it has at least one stage."""
    target = host_target()
    numbers = {"graph_words": GRAPH_WORDS, "header_words": HEADER_WORDS, "runs_word": RUNS_WORD}
    source = _SOURCE.format(triple=target.triple, **numbers)
    entry = diskcache.key(source, target.key, llvm.version(), MAGIC.hex())
    code = diskcache.get(entry)
    if code is None:
        code = llvm.emit_object(source, target)
        code = image_of(code) or code
        diskcache.put(entry, code)
    loaded = load(code, ("walk",))
    function: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.addresses["walk"])
    function.code = loaded  # lives as long
    return function  # type: ignore[no-any-return]
