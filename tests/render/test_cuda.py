"""CUDA C of whole kernels, compared with golden files, and small facts about the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradlet import Tensor, dtypes
from gradlet.base.errors import RenderError
from gradlet.codegen.pipeline import lower
from gradlet.render import cuda, cudabasics
from gradlet.target.target import SM_90
from tests.codegen import launches

D = "NULL:sm_90"


def kernel(value: Tensor) -> str:
    """The text behind the functions that all kernels have."""
    text = cuda.render(lower(value.schedule().calls[-1].ast, SM_90), SM_90)
    assert text.startswith(cudabasics.BASICS.strip() + "\n" + cudabasics.DERIVED.strip())
    return text[text.index(cudabasics.DERIVED.strip()) + len(cudabasics.DERIVED.strip()) :].lstrip()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("elementwise", lambda: Tensor.empty(1000, 1000, device=D) * 2 + 1),
        ("bfloat16", lambda: Tensor.empty(4096, 4096, device=D, dtype=dtypes.bfloat16) * 2),
        ("rows", lambda: Tensor.empty(1000, 300, device=D).sum(1)),
        ("columns", lambda: Tensor.empty(1000, 320, device=D).sum(0)),
        ("float8", lambda: Tensor.empty(64, device=D).cast(dtypes.float8_e4m3fn)),
    ],
)
def test_kernels(name: str, value: Callable[[], Tensor], golden: Callable[..., None]) -> None:
    golden(kernel(value()), "cu")


def test_launches_of_several_kernels_are_refused() -> None:
    from gradlet.codegen.launch import lower_launch
    from gradlet.target.target import AVX2

    program = lower_launch(launches.chain().sink, AVX2)
    with pytest.raises(RenderError, match="a GPU runs one kernel a launch"):
        cuda.render(program, SM_90)


def test_large_arrays_are_numbered_in_64_bits() -> None:
    x = Tensor.empty(1 << 16, 1 << 16, device=D, dtype=dtypes.uint8)
    assert "const long long" in kernel(x + 1)
    assert "long long" not in kernel(Tensor.empty(64, 64, device=D) + 1)
