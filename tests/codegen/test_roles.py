"""Products whose factors the copy engine brings: boxes, who begins copies, the order of blocks, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.codegen.pipeline import lower
from gradlet.device.cuda import tensormap
from gradlet.graph.node import UOp
from gradlet.graph.program import LinearProgram
from gradlet.graph.spec import check_program
from gradlet.ops.op import AxisKind, BoxArg, KernelArg, Op, RingArg
from gradlet.ops.opt import Opt, OptKind, StageDetail, TileOrderDetail
from gradlet.optimize import units
from gradlet.optimize.actions import language as actions
from gradlet.optimize.analysis import KernelFacts
from gradlet.render.cuda import boxes_of, render, shared_bytes
from gradlet.schedule import rowpitch
from gradlet.target.target import SM_90

D = "NULL:sm_90"


def factor(rows: int, columns: int) -> Tensor:
    return Tensor.empty(rows, columns, device=D, dtype=dtypes.bfloat16)


def kernel(value: Tensor) -> UOp:
    (call,) = value.schedule().calls
    return call.ast  # type: ignore[no-any-return]


def count(found: LinearProgram, op: Op) -> int:
    return sum(n.op is op for n in found.uops)


def test_one_warp_begins_copies_and_the_others_multiply() -> None:
    found = lower(kernel(factor(4096, 4096) @ factor(4096, 4096)), SM_90)
    check_program(found)
    assert (found.grid, found.threads) == (132, 256 + 32)
    assert [n.arg for n in found.uops if n.op is Op.RING] == [RingArg(4, (128 + 256) * 128, 8)]
    # The rows of the first factor are one box, 256 columns of the second four; every warp stores four of 16 rows.
    assert (count(found, Op.COPY_BOX), count(found, Op.STORE_BOX), count(found, Op.WGMMA)) == (5, 4, 1)
    assert shared_bytes(found) == 4 * (128 + 256) * 128 + 8 * 2 * 2048 + 4 * 16 <= SM_90.shared_bytes
    roles = [n for n in found.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.ROLE]
    assert [n.src[0].arg for n in roles] == [1, 256]
    assert not any(n.op in (Op.BARRIER, Op.COPY_ASYNC, Op.SHUFFLE) for n in found.uops[: found.uops.index(roles[1])])
    text = render(found, SM_90)
    assert text.count("const __grid_constant__ Map m") == 3 and "wgmma.mma_async" in text


def test_boxes_end_where_their_operands_do() -> None:
    found = lower(kernel(factor(1000, 520) @ factor(1032, 520).T), SM_90)
    first, second, result = (box.arg for box in boxes_of(found))
    assert first == BoxArg((520, 1000), (1, 520), (64, 128))
    assert second == BoxArg((520, 1032), (1, 520), (64, 128))
    assert result == BoxArg((1032, 1000), (1, 1032), (64, 16))


def test_several_products_have_boxes_with_an_axis_more() -> None:
    many = Tensor.empty(3, 200, 136, device=D, dtype=dtypes.bfloat16)
    other = Tensor.empty(3, 136, 256, device=D, dtype=dtypes.bfloat16)
    found = lower(kernel((many @ other).relu()), SM_90)
    first, second, result = (box.arg for box in boxes_of(found))
    assert first.sizes == (136, 200, 3) and first.box == (64, 64, 1)
    assert second.sizes[0] == 256 and second.box[:2] == (64, 64)
    assert result.sizes == (256, 200, 3) and result.box == (64, 16, 1)


def test_blocks_are_walked_in_groups_the_last_one_smaller() -> None:
    found = lower(kernel(factor(5000, 512) @ factor(512, 4096)), SM_90)
    walks = [n for n in found.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.WALK]
    wide = next(n.arg.columns for n in found.uops if n.op is Op.WGMMA)
    assert {n.src[0].arg for n in walks} == {40 * (4096 // wide)}
    orders = [o for o in found.opts if o.kind is OptKind.TILE_ORDER]
    assert [o.amount for o in orders] == [8]


def test_the_words_are_refused_with_reasons() -> None:
    ast = kernel(factor(256, 512) @ factor(512, 512))
    opts = units.tensor_tile(KernelFacts(ast), SM_90) or []
    stages = [o for o in opts if o.kind is OptKind.STAGE]
    before = opts[: opts.index(stages[0])]
    assert all(isinstance(o.detail, StageDetail) and o.detail.engine for o in stages)
    specialize = next(o for o in opts if o.kind is OptKind.SPECIALIZE)
    for wrong, text in (
        ([*before, *stages, specialize], "choose TENSORIZE before"),
        ([*opts, Opt(OptKind.PERSISTENT, stages[0].axis, 132)], "a range of workgroups"),
        ([*opts, Opt(OptKind.TILE_ORDER, 0, 8)], "along"),
        ([*opts, Opt(OptKind.TILE_ORDER, 0, 8, detail=TileOrderDetail(0))], "two different ranges"),
        ([*opts, Opt(OptKind.EPILOGUE, 0, 1)], "is not stored once"),
    ):
        with pytest.raises(Exception, match=text):
            actions.apply(ast, wrong, SM_90)
    with pytest.raises(Exception, match="needs SPECIALIZE"):
        rest = tuple(o for o in opts if o.kind is not OptKind.SPECIALIZE)
        lower(ast.replace(arg=KernelArg(ast.arg.name, rest)), SM_90)
    with pytest.raises(Exception, match="no copy engine"):
        actions.apply(ast, opts, replace(SM_90, copy_engine=False))


def test_rows_that_are_no_multiple_of_16_bytes_apart_are_no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowpitch, "USES_OF_PIECES", 1 << 40)  # they would be copied
    ast = kernel(factor(256, 512) @ factor(512, 512))
    with scope(SCHEDULE_CACHE=0):
        odd = kernel(factor(256, 516)[:, :512] @ factor(512, 512))
    opts = units.tensor_tile(KernelFacts(ast), SM_90) or []
    with pytest.raises(Exception, match="no multiple of 16"):
        actions.apply(odd, opts, SM_90)
    assert not count(lower(odd, SM_90), Op.BOX)


def convolution(image: tuple[int, ...], weights: tuple[int, ...], **how: int) -> LinearProgram:
    x, w = (Tensor.empty(*shape, device=D, dtype=dtypes.bfloat16).permute(0, 3, 1, 2) for shape in (image, weights))
    return lower(kernel(x.conv2d(w, **how).permute(0, 2, 3, 1).contiguous()), SM_90)


def test_the_image_of_a_convolution_is_a_box_with_zeros_around_it() -> None:
    found = convolution((64, 56, 56, 256), (256, 3, 3, 256), padding=1)
    image, weights, result = (box.arg for box in boxes_of(found))
    assert image == BoxArg((256, 56, 56, 64), (1, 256, 14336, 802816), (64, 8, 1, 16))
    assert weights == BoxArg((2304, 256), (1, 2304), (64, 256))
    assert result.box == (64, 8, 2)
    assert (count(found, Op.WGMMA), count(found, Op.COPY_BOX), count(found, Op.STORE_BOX)) == (1, 2, 4)


def test_strides_of_a_convolution_are_strides_of_the_box() -> None:
    found = convolution((64, 56, 56, 256), (256, 3, 3, 256), padding=1, stride=2)
    image, _, result = (box.arg for box in boxes_of(found))
    assert image.sizes == (256, 56, 56, 64) and image.apart == (1, 2, 1, 1)
    assert result.sizes == (256, 28, 28, 64)


def test_products_of_few_rows_have_them_as_columns() -> None:
    found = lower(kernel(factor(32, 8192) @ factor(8192, 8192)), SM_90)
    (unit,) = (n.arg for n in found.uops if n.op is Op.WGMMA)
    assert (unit.rows, unit.columns, unit.first_across) == (64, 32, True) and found.grid == 128


def test_float32_is_rounded_only_where_that_is_allowed() -> None:
    left, right = (Tensor.empty(512, 512, device=D) for _ in range(2))
    ast = kernel(left @ right.T)
    assert not count(lower(ast, SM_90), Op.WGMMA)
    with scope(ALLOW_TF32=1):
        found = lower(ast, SM_90)
        assert [n.arg.depth for n in found.uops if n.op is Op.WGMMA] == [32]
        assert [box.arg.rounded for box in boxes_of(found)] == [True, True, False]
        assert ".k8.f32.tf32.tf32" in render(found, SM_90).replace("m64n64", ".").replace("m64n128", ".")


def test_maps_of_types_without_a_name_move_as_many_bytes() -> None:
    sizes = {dtypes.int32: "UINT32", dtypes.float8_e4m3fn: "UINT8", dtypes.float64: "UINT64", dtypes.int16: "UINT16"}
    for dtype, kind in sizes.items():
        assert tensormap.box(0, dtype, BoxArg((64, 64), (1, 64), (16, 16))).kind == kind


def test_maps_say_how_memory_lies_in_bytes() -> None:
    found = lower(kernel(factor(1000, 520) @ factor(1024, 520).T), SM_90)
    boxes = [tensormap.box(box.slot, box.dtype, box.arg) for box in boxes_of(found)]
    assert [(b.argument, b.kind, b.strides) for b in boxes] == [
        (1, "BFLOAT16", (1040,)), (2, "BFLOAT16", (1040,)), (0, "BFLOAT16", (2048,)),
    ]  # fmt: skip
    assert [tensormap.fetched(b) for b in boxes] == [128, 128, 256]
