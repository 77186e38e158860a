"""Realising a constant must not change other graphs that hold the same constant."""

import numpy as np

from gradlet import Tensor


def test_a_realised_scalar_stays_a_scalar_elsewhere():
    Tensor(2.5, device="CPU").realize()
    Tensor.full((3,), 2.5, device="CPU").contiguous().realize()
    x = Tensor(np.arange(3, dtype=np.float32), device="PYTHON")
    np.testing.assert_array_equal((x * 2.5 + Tensor.full((3,), 2.5, device="PYTHON")).numpy(), [2.5, 5, 7.5])
    np.testing.assert_array_equal((x < 1).where(2.5, x).numpy(), [2.5, 1, 2])
