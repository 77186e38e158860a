"""Signal windows against torch's, in every number of points from none on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes

torch = pytest.importorskip("torch")

SYMMETRIC: list[tuple[str, dict[str, Any]]] = [
    ("cosine", {}),
    ("exponential", {"tau": 2.5}),
    ("gaussian", {"std": 1.7}),
    ("general_cosine", {"a": [0.46, 0.23, 0.31, 0.1]}),
    ("general_hamming", {"alpha": 0.6}),
    ("nuttall", {}),
]
PERIODIC: list[tuple[str, dict[str, Any]]] = [
    ("bartlett", {}),
    ("blackman", {}),
    ("hamming", {"alpha": 0.6, "beta": 0.3}),
    ("hann", {}),
    ("kaiser", {"beta": 7.5}),
]


@pytest.mark.parametrize(("name", "options"), SYMMETRIC, ids=[row[0] for row in SYMMETRIC])
def test_windows_of_torch_signal(name: str, options: dict[str, Any]) -> None:
    for points in (0, 1, 9):
        for sym in (True, False):
            ours = getattr(Tensor, f"{name}_window")(points, sym=sym, dtype="float64", **options)
            theirs = getattr(torch.signal.windows, name)(points, sym=sym, dtype=torch.float64, **options)
            assert ours.dtype is dtypes.float64
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-14, err_msg=f"{points} {sym}")


@pytest.mark.parametrize(("name", "options"), PERIODIC, ids=[row[0] for row in PERIODIC])
def test_windows_of_torch(name: str, options: dict[str, Any]) -> None:
    for points in (0, 1, 9):
        for periodic in (True, False):
            ours = getattr(Tensor, f"{name}_window")(points, periodic, dtype="float64", **options)
            theirs = getattr(torch, f"{name}_window")(points, periodic, dtype=torch.float64, **options)
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-7, atol=1e-12, err_msg=f"{points}")


def test_a_center_of_its_own() -> None:
    ours = Tensor.exponential_window(6, center=1.5, tau=2.0, sym=False)
    assert ours.dtype is dtypes.float32
    theirs = torch.signal.windows.exponential(6, center=1.5, tau=2.0, sym=False)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_a_large_beta_does_not_overflow() -> None:
    window = Tensor.kaiser_window(5, periodic=False, beta=3000.0).numpy()
    assert window[2] == 1
    assert np.isfinite(window).all()


def test_narrow_types_are_rounded_once() -> None:
    wide = Tensor.hann_window(9, dtype="float64")
    assert Tensor.hann_window(9, dtype="bfloat16").tolist() == wide.cast("bfloat16").tolist()
