"""Which attention becomes one kernel of a GPU: what its copy engine can bring, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import OptKind
from gradlet.target.target import SM_90


def memory(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device="NULL:sm_90")


def packed() -> Tensor:
    x = memory(2, 256, 3, 4, 64)
    q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def repeated() -> Tensor:
    q, k, v = memory(1, 256, 8, 128), memory(1, 256, 2, 128), memory(1, 256, 2, 128)
    parts = (t.transpose(1, 2) for t in (q, k, v))
    return next(parts).scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)


def computed() -> Tensor:
    """Turned by position, as language models do."""
    q, k, v = (memory(1, 256, 4, 64).transpose(1, 2) for _ in range(3))
    cosine, sine = memory(256, 32), memory(256, 32)

    def turned(x: Tensor) -> Tensor:
        low, high = x[..., :32], x[..., 32:]
        return (low * cosine - high * sine).cat(low * sine + high * cosine, dim=-1)

    return turned(q).scaled_dot_product_attention(turned(k), v, is_causal=True)


def projected() -> Tensor:
    """Heads of projections, side by side again."""
    x = memory(2, 256, 256)
    q, k, v = ((x @ memory(256, 256)).reshape(2, 256, 4, 64).transpose(1, 2) for _ in range(3))
    mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(2, 256, 256) @ memory(256, 256)


def written_out() -> Tensor:
    q, k, v = (memory(2, 4, 130, 64) for _ in range(3))
    scores = (q @ k.transpose(-1, -2)).cast(dtypes.float32) * 0.1
    return scores.softmax(-1).cast(dtypes.bfloat16) @ v


def cached() -> Tensor:
    k, v = (memory(1, 4, 1024, 64)[:, :, :300] for _ in range(2))
    return memory(1, 4, 64, 64).scaled_dot_product_attention(k, v)


def many() -> Tensor:
    """A mask that counts further than one table of numbers."""
    q, k, v = (memory(2, 10000, 128, dtype="float16") for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def plain(width: int = 64, dtype: str = "bfloat16", rows: int = 256, part: int = 0) -> Callable[[], Tensor]:
    def attention() -> Tensor:
        sizes = (rows, 256, 256)
        q, k, v = (memory(1, 4, n, width + part, dtype=dtype)[..., :width] for n in sizes)
        return q.scaled_dot_product_attention(k, v)

    return attention


def across() -> Tensor:
    q, k, v = memory(4, 256, 64), memory(4, 256, 64), memory(4, 64, 256).transpose(1, 2)
    return q.scaled_dot_product_attention(k, v)


def rotated(result: Tensor) -> int:
    return sum(any(o.kind is OptKind.ROTATE for o in lower(c.ast, SM_90).opts) for c in result.schedule().calls)


@pytest.mark.parametrize("attention", [packed, projected, repeated, computed, written_out, cached, many])
def test_what_the_copy_engine_brings_is_one_kernel(attention: Callable[[], Tensor]) -> None:
    assert rotated(attention()) == 1


@pytest.mark.parametrize("attention", [
    plain(width=80), plain(dtype="float32"), plain(rows=1), plain(width=60, part=4), across,
], ids=["width", "type", "one row", "part", "across"])  # fmt: skip
def test_others_go_by_stored_scores(attention: Callable[[], Tensor]) -> None:
    assert rotated(attention()) == 0


def test_two_products_and_all_between_are_in_registers() -> None:
    (call,) = plain(width=128)().schedule().calls
    program = lower(call.ast, SM_90)
    units = [n.arg for n in program.uops if n.op is Op.WGMMA]
    # Scores of the first block, of the next one beside the values before, and the last values.
    assert [unit.registers for unit in units] == [False, False, True, True]
    assert {(unit.columns, unit.depth) for unit in units} == {(128, 128)}
    shared = [n for n in program.uops if n.op is Op.LOCAL and not n.arg.private]
    assert all(n.dtype is dtypes.bfloat16 for n in shared) and len(dict.fromkeys(shared)) == 3
    assert (program.grid, program.threads) == (8, 384)
    assert not any(n.op is Op.BARRIER for n in program.uops)


def test_workgroups_with_most_keys_come_first() -> None:
    q, k, v = (memory(3, 512, 64) for _ in range(3))
    (call,) = q.scaled_dot_product_attention(k, v, is_causal=True).schedule().calls
    uops = lower(call.ast, SM_90).uops
    walks = [n for n in uops if n.op is Op.RANGE and n.arg.kind is AxisKind.WALK]
    loops = [n for n in uops if n.op is Op.RANGE and bounds(n.src[0]) == (0, 3)]
    assert len(walks) == len(loops) == 2
    for walk, loop in zip(walks, loops, strict=True):
        sizes = [bounds(loop.src[0].substitute({walk: UOp.const(walk.dtype, i)})) for i in range(12)]
        assert sizes == [(n, n) for n in (3, 2, 1, 0) for _ in range(3)]  # beside the first block; three heads in turns
