"""Chains of movement ops, forwards and backwards."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.base.errors import CompilerError
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp
from gradlet.schedule.moves import chain_to, replay, root_of, select, shortest, unmove, whole_root_of
from tests.schedule.helpers import contents, expand, flip, pad, permute, reshape, shrink, stride, tensor, write


def views(base: UOp) -> list[UOp]:
    return [
        reshape(base, 24), permute(base, 1, 0), flip(base, 0, 1), shrink(base, (1, 3), (2, 6)), stride(base, 2, 4),
        stride(flip(shrink(permute(base, 1, 0), (1, 6), (0, 4)), 0), 2, 3), reshape(shrink(base, (0, 4), (1, 4)), 12),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(7))
def test_select_is_a_write(number: int) -> None:
    base = tensor(4, 6)
    view = views(base)[number]
    value = tensor(*view.shape)
    expression = select(base, chain_to(view, base), value)
    wanted, got = evaluate([write(base, view, value), expression], contents([base, value]))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("number", range(7))
def test_replay_is_the_same_view_of_another_node(number: int) -> None:
    base, other = tensor(4, 6), tensor(4, 6)
    view = views(base)[number]
    assert replay(chain_to(view, base), other) is views(other)[number]


def test_unmove_of_a_rearrangement_is_its_inverse() -> None:
    base = tensor(4, 6)
    view = reshape(permute(flip(base, 1), 1, 0), 2, 12)
    (got, wanted) = evaluate([unmove(chain_to(view, base), view), base], contents([base]))
    np.testing.assert_array_equal(got, wanted)


def test_writing_through_an_expansion_has_no_meaning() -> None:
    base = tensor(4, 1)
    with pytest.raises(CompilerError, match="cannot write through EXPAND"):
        unmove(chain_to(expand(base, 4, 3), base), tensor(4, 3))


def test_roots() -> None:
    base = tensor(4, 6)
    assert root_of(pad(base, (1, 0), (0, 0))) is base.src[0]
    padded = pad(base, (1, 0), (0, 0))
    assert whole_root_of(reshape(padded, 30)) is padded
    with pytest.raises(CompilerError):
        chain_to(base + 1, base)


def test_shortest_view_has_no_detours() -> None:
    base = tensor(24)
    there_and_back = reshape(reshape(reshape(base, 4, 6), 24), 4, 6)
    assert shortest(there_and_back) is reshape(base, 4, 6)
    assert shortest(reshape(reshape(base, 4, 6), 24)) is base
    view = permute(reshape(reshape(base, 2, 12), 4, 6), 1, 0)
    assert chain_to(shortest(view), base) == [permute(reshape(base, 4, 6), 1, 0), reshape(base, 4, 6)]
