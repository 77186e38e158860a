"""Sums of byte products are found in what programs write, and only where all four belong together."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, toposort
from gradlet.ops.op import DOTS, Op
from gradlet.rules.sets import simplify
from gradlet.schedule.context import sink
from gradlet.schedule.dots import form_dots


def word(n: int = 6, dtype: str = "int32") -> Tensor:
    return Tensor.empty(n, dtype=dtype)


def unsigned(a: Tensor, place: int) -> Tensor:
    return (a >> (8 * place)) & 255


def signed(b: Tensor, place: int) -> Tensor:
    return (b << (24 - 8 * place)) >> 24


def products(a: Tensor, b: Tensor, places: tuple[int, ...] = (0, 1, 2, 3)) -> Tensor:
    total = unsigned(a, places[0]).cast("int32") * signed(b, places[0])
    for place in places[1:]:
        total = total + signed(b, place) * unsigned(a, place).cast("int32")
    return total


def dots(value: Tensor) -> int:
    """How many were found, after checking that the value stays the same, with the least and largest bytes too."""
    node: UOp = simplify(value.uop)
    changed = form_dots(sink([node])).src[0]
    buffers = {}
    for n in toposort((node,)):
        if n.op is Op.BUFFER:
            made = np.random.default_rng(n.arg.number).integers(0, 2**32, n.arg.size, dtype=np.uint32)
            made[:3] = (0x80808080, 0x7F7F7F7F, 0xFFFFFFFF)
            buffers[n] = made.view(np.int32) if n.dtype.kind == "i" else made
    got, wanted = evaluate([changed, node], buffers)
    np.testing.assert_array_equal(got, wanted)
    return sum(n.op in DOTS for n in toposort((changed,)))


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_four_products(dtype: str) -> None:
    assert dots(products(word(dtype=dtype), word())) == 1
    assert dots(products(word(dtype=dtype), word(), (2, 0, 3, 1))) == 1
    assert dots(products(word(dtype=dtype) & 0x0F0F0F0F, word()) + 3) == 1


def test_several_in_one_sum() -> None:
    a, b, c = word(), word(), word()
    assert dots(products(a & 0x0F0F0F0F, b) + products((a >> 4) & 0x0F0F0F0F, c)) == 2
    assert dots(products(a, b) + c + products(b, a)) == 2
    masked = (a & 0x0F0F0F0F) | (((c >> 3) & 0x01010101) << 4)
    assert dots(products(masked, b)) == 1


def test_words_that_are_repeated() -> None:
    a, b = word(12).reshape(3, 4), word(4).reshape(1, 4)
    assert dots(products(a, b.expand(3, 4)).sum(1, dtype="int32")) == 1
    assert dots(products(a, b)) == 1


def test_what_is_no_dot() -> None:
    a, b, c = word(), word(), word()
    assert dots(products(a, b, (0, 1, 2))) == 0
    mixed = products(a, b, (0, 1, 2)) + unsigned(a, 3) * signed(c, 3)
    assert dots(mixed) == 0
    assert dots(products(a, b, (0, 1, 2)) + (a >> 24) * signed(b, 3)) == 0  # has a sign
    assert dots(products(a, b, (1, 2, 3)) + (a & 127) * signed(b, 0)) == 0


def half_products(a: Tensor, b: Tensor) -> Tensor:
    return (a & 0xFFFF) * ((b << 16) >> 16) + (b >> 16) * (a >> 16)


def test_products_of_halves() -> None:
    a, b = word(), word()
    assert dots(half_products(a & 0x00FF00FF, b)) == 1
    assert dots(half_products(a & 0x7FFF7FFF, b) + 5) == 1
    both = half_products(a & 0x00FF00FF, b) + half_products((a >> 8) & 0x00FF00FF, word())
    assert dots(both) == 2


def test_halves_that_may_be_negative_or_lack_a_partner() -> None:
    a, b = word(), word()
    assert dots(half_products(a, b)) == 0
    assert dots(half_products(a & 0x00FF80FF, b)) == 0, "the lower half may have its sign bit"
    masked = a & 0x00FF00FF
    assert dots((masked & 0xFFFF) * ((b << 16) >> 16) + (a & 0x00FF00FE) * 3) == 0
    assert dots((masked & 0xFFF0) * ((b << 16) >> 16) + (masked >> 16) * (b >> 16)) == 0
