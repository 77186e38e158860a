"""Schedules as text: what is printed is read back, what cannot be read is refused with place and remedy."""

from __future__ import annotations

import random
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError
from gradlet.base.settings import Context, codegen_key, scope
from gradlet.codegen import pipeline
from gradlet.engine.compile import get_kernel
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import DETAILS, Opt, OptKind, Tail
from gradlet.optimize.analysis import kernel_ranges
from gradlet.optimize.opttext import opt_text, opts_for, opts_text, parse_opts
from gradlet.target.target import AVX512
from tests.codegen import kernels


class Side(IntEnum):
    NEAR = 0
    FAR = 1


class Everything(NamedTuple):
    """Every type that a field of a detail may have."""

    number: int
    names: tuple[int, ...] = ()
    side: Side = Side.NEAR
    flag: bool = False


def random_opt(choose: random.Random) -> Opt:
    kind = choose.choice(list(OptKind))
    amount, tail = choose.choice((0, 2, 16, 1000)), choose.choice(list(Tail))
    detail = None
    if DETAILS.get(kind) is Everything:
        names = tuple(choose.randrange(-1, 40) for _ in range(choose.randrange(4)))
        detail = Everything(choose.randrange(-9, 9), names, choose.choice(list(Side)), choose.random() < 0.5)
    elif kind in DETAILS:
        return random_opt(choose)
    return Opt(kind, choose.randrange(-1, 30), amount, tail, detail)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("separator", [", ", "\n", ",\n", "  # why\n "])
def test_text_is_read_back(seed: int, separator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETAILS, OptKind.REORDER, Everything)
    choose = random.Random(seed)
    opts = tuple(random_opt(choose) for _ in range(choose.randrange(1, 12)))
    again = parse_opts(opts_text(opts, separator))
    assert again == opts and hash(again) == hash(opts)
    assert [type(o.tail) for o in again] == [Tail] * len(opts)


def test_text_is_short() -> None:
    assert opt_text(Opt(OptKind.PARALLEL, 0, 0)) == "PARALLEL(range 0)"
    assert opt_text(Opt(OptKind.SPLIT, 1, 16, Tail.MASK)) == "SPLIT(range 1, 16, MASK)"
    assert parse_opts(" \n# nothing\n") == ()


MISTAKES = {
    "SPLT(range 1, 2)": "column 1, at 'SPLT.range 1, 2.': there is no opt SPLT; they are .*SPLIT",
    "UNROLL(range 0, 2), SPLIT(1, 2)": "column 27, at '1, 2.': an opt names a range first, as in SPLIT",
    "UNROLL(range 0, 2)\n SPLIT[range 1, 2)": "line 2, column 7.*this letter has no meaning",
    "SPLIT range 1": "column 7.*expected '\\('",
    "SPLIT(range x)": "column 13.*expected the number of the range",
    "SPLIT(range 1, 16, FOO)": "column 20.*no tail FOO; use one of EXACT, MASK, SHIFT",
    "SPLIT(range 1, MASK, 16)": "expected an amount, then a tail, then field=value",
    "SPLIT(range 1, 16": "column 18, at the end: expected ',' or '\\)'",
    "SPLIT(range 1, 16), ": "at the end: an opt has to follow the comma",
    "SPLIT(range 1, x=2)": "SPLIT has no field x; it has none",
    "REORDER(range 1, x=2)": "REORDER has no field x; its fields are number, names, side, flag",
    "REORDER(range 1, number=2, number=3)": "column 28.*number is given twice",
    "REORDER(range 1, number=)": "expected an integer or a tuple",
    "REORDER(range 1, number=2, names=(1 2))": "expected ',' or '\\)' inside a tuple",
    "REORDER(range 1, number=2, side=UP)": "UP is not among NEAR, FAR",
    "REORDER(range 1, side=FAR)": "column 1.*REORDER needs number=",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named_with_their_place(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DETAILS, OptKind.REORDER, Everything)
    with pytest.raises(ArgumentError, match=MISTAKES[text]):
        parse_opts(text)


def test_opts_by_name_of_the_kernel() -> None:
    text = "sum*: UNROLL(range 0, 4); matmul_2: \n PARALLEL(range 0),\n UNROLL(range 1, 2) # both;"
    assert opts_for(text, "sum_8_8") == (Opt(OptKind.UNROLL, 0, 4),)
    assert opts_for(text.split("#")[0], "matmul_2") == (Opt(OptKind.PARALLEL, 0, 0), Opt(OptKind.UNROLL, 1, 2))
    assert opts_for(text, "other") is None
    assert opts_for("", "other") is None
    assert opts_for("PARALLEL(range 0)", "other") == (Opt(OptKind.PARALLEL, 0, 0),)
    assert opts_for("other: ", "other") == ()
    with pytest.raises(ArgumentError, match="expected 'KERNEL: opts' between semicolons, got 'UNROLL"):
        opts_for("sum: UNROLL(range 0, 4); UNROLL(range 0, 4)", "x")


def test_setting_applies_and_is_part_of_the_key() -> None:
    sink = kernels.matmul(12, 16, 8).sink
    before = codegen_key()
    with Context(OPTS="VECTORIZE(range 1, 8), UNROLL(range 0, 4)"):
        assert codegen_key() != before
        assert opts_text(pipeline.lower(sink, AVX512).opts) == "VECTORIZE(range 1, 8), UNROLL(range 0, 4)"
    with scope(OPTS=f"{sink.arg.name}: UNROLL(range 0, 2)"):
        assert opts_text(pipeline.lower(sink, AVX512).opts) == "UNROLL(range 0, 2)"
        other = sink.replace(arg=KernelArg("other"))
        assert pipeline.lower(other, AVX512).opts != (Opt(OptKind.UNROLL, 0, 2),)
        given = sink.replace(arg=KernelArg(sink.arg.name, (Opt(OptKind.UNROLL, 1, 4),)))
        assert pipeline.lower(given, AVX512).opts == (Opt(OptKind.UNROLL, 1, 4),)  # its own before the setting's
    with (
        scope(OPTS="UNROLL(range 0, 7)"),
        pytest.raises(ArgumentError, match="UNROLL.range 0, 7. is not possible here"),
    ):
        pipeline.lower(sink, AVX512)


def test_a_user_gives_opts_by_hand() -> None:
    """The same expression under three schedules: three kernels, one result."""
    a, b = (np.random.default_rng(i).standard_normal((24, 24)).astype(np.float32) for i in range(2))
    for text in ("", "VECTORIZE(range 1, 8)", "UNROLL(range 2, 4), UNROLL(range 0, 3)"):
        with Context(OPTS=text):
            found = (Tensor(a, device="CPU") @ Tensor(b, device="CPU")).numpy()
        np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-5)
    (call,) = (Tensor(a, device="CPU") @ Tensor(b, device="CPU")).schedule().calls
    one = get_kernel(call.ast, "CPU")
    with Context(OPTS="UNROLL(range 0, 2)"):
        assert get_kernel(call.ast, "CPU") is not one
    assert get_kernel(call.ast, "CPU") is one


def test_ranges_shown_are_those_that_opts_name(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.ones((6, 4, 5), np.float32), device="CPU")
    with scope(DEBUG=3, OPTS="UNROLL(range 0, 2)"):
        (x * 3 + 1).realize()
    shown = capsys.readouterr().out
    assert "opts: UNROLL(range 0, 2)" in shown
    assert "loop0=120" in shown  # three axes became one range
    (call,) = (x * 5 + 1).schedule().calls
    assert [r.src[0].arg for r in kernel_ranges(pipeline.schedulable(call.ast, AVX512))] == [120]
