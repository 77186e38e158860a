"""Formulas of einsum and rearrange."""

from __future__ import annotations

import pytest

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.formula import parse_einsum, parse_rearrange


def test_einsum_letters() -> None:
    assert parse_einsum("ij,jk->ik", [(2, 3), (3, 4)]) == (["ij", "jk"], "ik")
    assert parse_einsum("ba", [(2, 3)]) == (["ba"], "ab")
    assert parse_einsum("...i,i", [(2, 4, 3), (3,)]) == (["ABi", "i"], "AB")
    assert parse_einsum("...i,...->...", [(2, 4, 3), (4,)]) == (["ABi", "B"], "AB")
    for formula, shapes, error in [
        ("i,j", [(2,)], ArgumentError),
        ("i1", [(2,)], ArgumentError),
        ("ij", [(2,)], ShapeError),
        ("i->ii", [(2,)], ArgumentError),
        ("i,i", [(2,), (3,)], ShapeError),
        ("....i", [(2,)], ShapeError),
        ("i->j", [(2,)], ArgumentError),
    ]:
        with pytest.raises(error):
            parse_einsum(formula, shapes)


def test_rearrange_steps() -> None:
    assert parse_rearrange("a (b c) -> c (a b)", (2, 6), {"b": 3}) == ((2, 3, 2), (2, 0, 1), (2, 6))
    assert parse_rearrange("... c -> c ...", (2, 3, 4), {}) == ((2, 3, 4), (2, 0, 1), (4, 2, 3))
    assert parse_rearrange("a 1 -> a", (5, 1), {}) == ((5,), (0,), (5,))
    for formula, shape, known in [
        ("a b", (2, 3), {}),
        ("a -> a", (2, 3), {}),
        ("(a b) -> a b", (6,), {}),
        ("(a b) -> a b", (6,), {"a": 4}),
        ("a b -> a", (2, 3), {}),
        ("a a -> a", (2, 2), {}),
        ("a [b] -> a b", (2, 3), {}),
        ("a b -> b a", (2, 3), {"a": 5}),
    ]:
        with pytest.raises((ArgumentError, ShapeError)):
            parse_rearrange(formula, shape, known)
