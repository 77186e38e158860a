"""Random numbers: the algorithm's published answers, seeds, draws, ranges, and rough statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.ops.random import threefry2x32
from gradlet.tensor import random_state


def words(*values: int) -> list[Tensor]:
    return [Tensor([v], dtype="uint32") for v in values]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        # Known answers of Salmon et al.: key, counter -> result.
        ((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 4, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_known_answers(inputs: tuple[int, ...], expected: tuple[int, int], device: str) -> None:
    result = threefry2x32(*[w.to(device) for w in words(*inputs)])
    assert tuple(r.item() for r in result) == expected


def test_a_seed_gives_the_same_numbers_on_every_device() -> None:
    found = []
    for device in ("CPU", "PYTHON", "CPU"):
        Tensor.manual_seed(42)
        found.append([Tensor.rand(5, device=device).tolist(), Tensor.randint(5, device=device).tolist()])
    assert found[0] == found[1] == found[2]


def test_draws_differ_and_seeds_differ() -> None:
    Tensor.manual_seed(1)
    first, second = Tensor.rand(8).tolist(), Tensor.rand(8).tolist()
    assert first != second
    Tensor.manual_seed(2)
    assert Tensor.rand(8).tolist() != first
    Tensor.manual_seed(1)
    assert Tensor.rand(8).tolist() == first


def test_a_draw_keeps_its_numbers_however_often_it_is_read() -> None:
    x = Tensor.rand(4)
    y = x + 0
    assert x.tolist() == y.tolist() == x.tolist()


def test_the_seed_and_draw_are_no_part_of_the_kernel() -> None:
    kernels = []
    for seed in (1, 2):
        Tensor.manual_seed(seed)
        kernels.append([Tensor.rand(7).schedule().calls[0].ast for _ in range(2)])
    assert kernels[0][0] is kernels[0][1] is kernels[1][0]


def test_uniform_statistics() -> None:
    Tensor.manual_seed(0)
    x = Tensor.rand(100_000).numpy()
    assert x.dtype == np.float32
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.005
    assert abs(x.var() - 1 / 12) < 0.002
    assert len(np.unique(x)) > 99_000
    low = Tensor.uniform(10_000, low=-3, high=-1).numpy()
    assert low.min() >= -3
    assert low.max() < -1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_stay_below_one(dtype: str) -> None:
    x = Tensor.rand(20_000, dtype=dtype)
    assert x.dtype.name == dtype
    assert x.max().item() < 1
    assert x.min().item() >= 0


def test_normal_statistics() -> None:
    Tensor.manual_seed(0)
    x = Tensor.randn(100_000).numpy()
    assert np.isfinite(x).all()
    assert abs(x.mean()) < 0.015
    assert abs(x.std() - 1) < 0.01
    assert abs((x**3).mean()) < 0.05
    assert abs((x**4).mean() - 3) < 0.15
    shifted = Tensor.normal(50_000, mean=5, std=0.5).numpy()
    assert abs(shifted.mean() - 5) < 0.02
    assert abs(shifted.std() - 0.5) < 0.01


def test_integers_cover_the_range_evenly() -> None:
    Tensor.manual_seed(0)
    x = Tensor.randint(60_000, low=-2, high=4)
    assert x.dtype is dtypes.int32
    counts = np.bincount(x.numpy() + 2, minlength=6)
    assert counts.shape == (6,)
    assert (abs(counts - 10_000) < 500).all()
    wide = Tensor.randint(1000, low=-(2**31), high=2**31, dtype="int64").numpy()
    assert wide.min() < -(2**30) < 2**30 < wide.max()
    assert Tensor.randint(5, low=3, high=4).tolist() == [3] * 5


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="range"):
        Tensor.randint(3, low=5, high=5)
    with pytest.raises(DTypeError, match="fit"):
        Tensor.randint(3, low=0, high=1000, dtype="uint8")
    with pytest.raises(DTypeError, match="randint"):
        Tensor.rand(3, dtype="int32")
    with pytest.raises(ArgumentError):
        Tensor.manual_seed(1.5)  # type: ignore[arg-type]


def test_initialisers_have_their_bounds() -> None:
    for made, bound in [
        (Tensor.kaiming_uniform(50, 24), math.sqrt(6 / (1 + 0.01**2) / 24)),
        (Tensor.glorot_uniform(50, 24), math.sqrt(6 / 74)),
        (Tensor.scaled_uniform(50, 24), 1 / math.sqrt(1200)),
    ]:
        values = made.numpy()
        assert abs(values).max() <= bound * 1.0001
        assert abs(values).max() > bound * 0.98
    std = math.sqrt(2 / (1 + 0.01**2) / 24)
    assert abs(Tensor.kaiming_normal(500, 24).numpy().std() - std) < 0.05 * std


def test_dropout_keeps_the_mean_and_only_drops_while_training() -> None:
    Tensor.manual_seed(0)
    x = Tensor.ones(20_000)
    assert x.dropout(0.3) is x
    with Tensor.train():
        dropped = x.dropout(0.3).numpy()
    kept = dropped != 0
    assert abs(kept.mean() - 0.7) < 0.02
    np.testing.assert_allclose(dropped[kept], 1 / 0.7, rtol=1e-6)
    assert not Tensor.training
    with pytest.raises(ArgumentError):
        x.dropout(1.5)


def test_train_restores_after_an_error_and_nests() -> None:
    with pytest.raises(RuntimeError), Tensor.train():
        raise RuntimeError
    assert not Tensor.training
    with Tensor.train():
        with Tensor.train(False):
            assert not Tensor.training
        assert Tensor.training

    @Tensor.train()
    def inside() -> bool:
        return bool(Tensor.training)

    assert inside()


def test_multinomial_follows_the_weights() -> None:
    Tensor.manual_seed(0)
    drawn = Tensor([0.1, 0.0, 0.6, 0.3]).multinomial(20_000, replacement=True).numpy()
    shares = np.bincount(drawn, minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.1, 0, 0.6, 0.3], atol=0.02)


def test_rebasing_draws() -> None:
    Tensor.manual_seed(7)
    start = random_state.draws()
    captured = Tensor.rand(3)
    values = {n: n.arg.low for n in captured.uop.toposort() if n.op.name == "VARIABLE"}
    random_state.advance(4)
    moved = {n.arg.name: v for n, v in random_state.rebased(values, start).items()}
    assert moved["draw0"] == 5
    assert moved["seed0a"] == 7


def test_a_random_tensor_is_one_kernel() -> None:
    before = GlobalCounters.kernels
    Tensor.rand(100).realize()
    assert GlobalCounters.kernels == before + 1
