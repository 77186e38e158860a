"""C of whole kernels and of a launch, compared with golden files: what `export_c` writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.launch import lower_launch
from gradlet.codegen.pipeline import lower
from gradlet.render import c, cbasics
from gradlet.target.target import AVX2, SSE
from tests.codegen import launches

D = "NULL:avx2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("elementwise", lambda: Tensor.empty(1000, 1000, device=D) * 2 + 1),
        ("bfloat16", lambda: Tensor.empty(64, 64, device=D, dtype=dtypes.bfloat16).maximum(0)),
        ("rows", lambda: Tensor.empty(8, 300, device=D).sum(1)),
        ("whole", lambda: Tensor.empty(7, 5, device=D, dtype=dtypes.int32) // 3 % 5),
    ],
)
def test_kernels(name: str, value: Callable[[], Tensor], golden: Callable[..., None]) -> None:
    golden("\n".join(c.render(lower(value().schedule().calls[-1].ast, AVX2), AVX2, "kernel").lines), "c")


def test_launches(golden: Callable[..., None]) -> None:
    found = c.render(lower_launch(launches.chain().sink, AVX2), AVX2, "launch")
    golden("\n".join(found.lines), "c")
    assert found.work % 64 == 0


def test_only_functions_that_are_called_are_there() -> None:
    names = [text.partition("(")[0].split()[-1] for text in cbasics.functions("x = odd_float_of_integer(y);", AVX2, ())]
    assert names == ["odd_float_of_unsigned", "odd_float_of_integer"]
    (fused,) = cbasics.functions("fused_float(a, b, c)", AVX2, ())
    (rounded,) = cbasics.functions("fused_float(a, b, c)", SSE, ())
    assert "fmaf(x, y, z)" in fused and "x * y + z" in rounded
