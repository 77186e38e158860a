"""Modules of launches: any cut of a stage's blocks gives the same result; more segments are no more code."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet.base.errors import RenderError
from gradlet.codegen.launch import SharedBodies, lower_launch
from gradlet.device.common.llvm import emit_object
from gradlet.device.cpu.jit import load
from gradlet.device.cpu.target import host_target
from gradlet.graph.program import LinearProgram
from gradlet.render import llvmir
from gradlet.render.llvmlaunch import entries_name, modules, render, stage_name
from gradlet.target.target import AVX2, NEON, NVPTX
from tests.codegen import launches
from tests.codegen.launches import Launch

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def cuts(blocks: int, seed: int) -> list[int]:
    """Places from 0 to `blocks`, some of them twice."""
    inside = np.random.default_rng(seed).integers(0, blocks + 1, min(blocks, 7))
    return [0, *sorted(int(i) for i in inside), blocks]


@pytest.mark.parametrize("make", launches.ALL, ids=launches.names())
def test_any_cut_of_a_stage_gives_the_same(make: Callable[[], Launch]) -> None:
    case = make()
    target = host_target()
    program = lower_launch(case.sink, target)
    names = tuple(stage_name(program, number) for number in range(len(program.stages)))
    code = load(emit_object(render(program, target), target), names)
    arrays = launches.copies(case)
    words = struct.pack(f"<{len(arrays) + len(case.variables)}q", *[a.ctypes.data for a in arrays], *case.variables)
    table = ctypes.create_string_buffer(words)
    for number, name in enumerate(names):
        places = cuts(sum(work.blocks for work in program.work[number]), number)
        parts = list(zip(places, places[1:]))
        for begin, end in reversed(parts):  # in another order than one thread would take them
            FUNCTION(code.addresses[name])(ctypes.addressof(table), begin, end)
    launches.compare(case, arrays)
    assert table.raw[: len(words)] == words


@pytest.mark.parametrize("make", [launches.mixed, launches.with_variables], ids=["mixed", "with_variables"])
def test_llvm_ir(make: Callable[[], Launch], golden: Callable[..., None]) -> None:
    golden(render(lower_launch(make().sink, AVX2), AVX2), "ll")


def test_many_segments_are_no_more_code_than_few() -> None:
    few, many = (render(lower_launch(launches.optimizer(count).sink, AVX2), AVX2).splitlines() for count in (6, 300))
    assert len(few) == len(many)
    assert [line for line in few if "constant" not in line] != few
    different = [a for a, b in zip(few, many, strict=True) if a != b]
    assert all("constant [" in line for line in different)


def test_a_loader_finds_every_function_in_one_array() -> None:
    case = launches.mixed()
    target = host_target()
    program = lower_launch(case.sink, target)
    names = tuple(stage_name(program, number) for number in range(len(program.stages)))
    code = emit_object(render(program, target), target)
    one_by_one, at_once = load(code, names), load(code, names, entries_name(program))
    assert list(at_once.addresses) == list(one_by_one.addresses)
    first, again = (list(loaded.addresses.values()) for loaded in (one_by_one, at_once))
    assert [a - first[0] for a in first] == [a - again[0] for a in again]


def test_a_body_of_several_launches_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = launches.pack((7, 64)), launches.pack((7, 64, 100))
    shared = SharedBodies([few.sink, many.sink])
    programs = [lower_launch(case.sink, AVX2, (), shared) for case in (few, many)]
    made: list[str] = []
    plain = llvmir.kernel_function

    def counted(program: LinearProgram, *rest: Any) -> llvmir.Function:
        made.append(program.name)
        return plain(program, *rest)

    monkeypatch.setattr(llvmir, "kernel_function", counted)
    texts = [modules(render(program, AVX2, apart=True))[1] for program in programs]
    assert made == ["scale_7", "scale_64", "scale_100"]
    assert list(texts[0].values()) == list(texts[1].values())


def test_equal_segments_share_their_code_and_regions_have_their_own() -> None:
    text = render(lower_launch(launches.mixed().sink, AVX2), AVX2)
    stage = text[text.index("define void @mixed_stage0") :]
    stage = stage[: stage.index("\n}")]
    assert [stage.count(f"call void @mixed_body{number}(") for number in range(4)] == [1, 1, 1, 0]
    assert stage.count("alloca [36 x i8], align 64") == 1
    assert text.count("define internal void") == 3


def test_a_stage_that_is_one_body_is_no_function_that_calls_it() -> None:
    """Its words are read where the launch's table has them; what several stages use stands apart from them."""
    text = render(lower_launch(launches.mixed().sink, AVX2), AVX2)
    stage = text[text.index("define void @mixed_stage1") :]
    assert "call void @mixed" not in stage[: stage.index("\n}")]
    assert "mixed_stage1_words" not in text and "mixed_body3" not in text
    twice = launches.ping_pong().sink
    uses = [use.body for stage in twice.arg.stages for segment in stage for use in segment]
    text = render(lower_launch(twice, AVX2), AVX2)
    assert all(f"define internal void @ping_pong_body{body}(" in text for body in uses if uses.count(body) > 1)


def test_a_word_is_looked_for_where_some_segment_has_it() -> None:
    """One loop copies all words of a shape; it asks where a word lies only where that differs."""
    text = render(lower_launch(launches.ping_pong().sink, AVX2), AVX2)
    stage = text[text.index("define void @ping_pong_stage0") :]
    stage = stage[: stage.index("\n}")]
    assert stage.count("select i1 %v") == 1
    assert stage.count("ptr %arrays_end, ptr %table") == 1
    text = render(lower_launch(launches.pack().sink, AVX2), AVX2)
    stage = text[text.index("define void @pack_stage0") :]
    stage = stage[: stage.index("\n}")]
    assert "arrays_end" not in stage


def test_the_text_depends_on_the_launch_alone() -> None:
    texts = {render(lower_launch(launches.mixed().sink, NEON), NEON) for _ in range(3)}
    assert len(texts) == 1


def test_gpus_have_no_launches() -> None:
    program = lower_launch(launches.pack().sink, AVX2)
    with pytest.raises(RenderError, match="launch pack holds several kernels, which nvptx cannot run"):
        render(program, NVPTX)
