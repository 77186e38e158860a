"""Casts between all types as Tensor does them, on every device and folded, rounded exactly once."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.floatformat import FORMATS

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is the reference for narrow floats")

DEVICES = ("CPU", "PYTHON")
FLOAT8 = tuple(d.name for d in dtypes.all() if d.is_float8)
NARROW = (*FLOAT8, "float16", "bfloat16")
INTEGERS = tuple(d.name for d in dtypes.all() if d.is_int)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def numpy_type(name: str) -> np.dtype[Any]:
    """numpy's or ml_dtypes' type of this name."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def all_codes(name: str) -> np.ndarray[Any, Any]:
    """Every value of a narrow float, by code."""
    kind = numpy_type(name)
    return np.arange(2 ** (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)


def codes_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.bitcast(f"uint{tensor.dtype.bits}").numpy()


@cache
def nan_codes(name: str) -> np.ndarray[Any, Any]:
    form = FORMATS[name]
    values = [form.decode(c) for c in range(2**form.bits)]
    return np.isnan(values)


def same_codes(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], name: str, what: str) -> None:
    """Equal codes; any NaN is any other."""
    nan = nan_codes(name)
    wrong = np.flatnonzero((found != expected) & ~(nan[found] & nan[expected]))
    assert wrong.size == 0, f"{what}: {wrong.size} differ, first at {wrong[0]}: {found[wrong[0]]}, {expected[wrong[0]]}"


@cache
def nearest_of(name: str) -> Nearest:
    return Nearest(name)


class Nearest:
    """Rounding by looking for the nearest value in the list of them all, with exact comparisons."""

    def __init__(self, name: str) -> None:
        self.form = FORMATS[name]
        codes = range(self.form.largest_code + 1)
        values = [self.form.decode(c) for c in codes]
        beyond = values[-1] + (values[-1] - values[-2])
        self.middles = [(a + b) / 2 for a, b in zip(values, [*values[1:], beyond], strict=True)]

    def code(self, value: int | float) -> int:
        if value != value:
            return self.form.nan
        size = abs(value)
        code = bisect_left(self.middles, size)
        if code < len(self.middles) and self.middles[code] == size and code % 2:
            code += 1  # a tie goes to the even one
        if code > self.form.largest_code:
            code = self.form.infinity if self.form.has_infinity else self.form.nan
            if self.form.special == "fnuz":
                return code
        negative = value < 0 or (value == 0 and str(value).startswith("-"))
        if self.form.special == "fnuz" and code == 0:
            negative = False
        return code | (self.form.sign_mask if negative else 0)


@pytest.mark.parametrize("name", FLOAT8)
def test_every_8_bit_code_is_read(name: str, device: str) -> None:
    codes = all_codes(name)
    x = Tensor(codes, device=device)
    assert x.dtype.name == name
    wide = codes.astype(np.float32)
    np.testing.assert_array_equal(x.numpy(), wide)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        y = x.cast(dtype)
        np.testing.assert_array_equal(y.numpy().astype(np.float32), wide)
        numbers = ~np.isnan(wide)
        np.testing.assert_array_equal(np.signbit(y.numpy())[numbers], np.signbit(wide)[numbers])
    with np.errstate(all="ignore"):
        clean = np.nan_to_num(wide, nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
        for dtype in ("int8", "uint8", "int32", "uint16"):
            limits = np.iinfo(dtype)
            expected = np.clip(np.trunc(clean.astype(np.float64)), limits.min, limits.max).astype(dtype)
            np.testing.assert_array_equal(x.cast(dtype).numpy(), expected)
    np.testing.assert_array_equal(x.cast("bool").numpy(), wide != 0)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FLOAT8)
def test_every_16_bit_float_is_rounded_to_8_bits(name: str, source: str, device: str) -> None:
    values = all_codes(source)
    with np.errstate(all="ignore"):
        expected = values.astype(numpy_type(name)).view(np.uint8)
    found = codes_of(Tensor(values, device=device).cast(name))
    same_codes(found, expected, name, f"{source} to {name}")


def test_every_16_bit_float_is_converted(device: str) -> None:
    half, brain = all_codes("float16"), all_codes("bfloat16")
    with np.errstate(all="ignore"):
        same_codes(
            codes_of(Tensor(half, device=device).cast("bfloat16")),
            half.astype(ml_dtypes.bfloat16).view(np.uint16), "bfloat16", "float16 to bfloat16",
        )  # fmt: skip
        same_codes(
            codes_of(Tensor(brain, device=device).cast("float16")),
            brain.astype(np.float32).astype(np.float16).view(np.uint16), "float16", "bfloat16 to float16",
        )  # fmt: skip
        for values in (half, brain):
            wide = values.astype(np.float32)
            for dtype in ("float32", "float64"):
                np.testing.assert_array_equal(Tensor(values, device=device).cast(dtype).numpy(), wide.astype(dtype))
            for dtype in INTEGERS:
                limits = np.iinfo(dtype)
                expected = [
                    0 if v != v else max(limits.min, min(limits.max, int(v))) if abs(v) < 2**70 else
                    (limits.max if v > 0 else limits.min) for v in wide[::31].tolist()
                ]  # fmt: skip
                found = Tensor(values[::31].copy(), device=device).cast(dtype).numpy()
                np.testing.assert_array_equal(found, np.array(expected, dtype))


def boundary_floats(name: str, seed: int) -> list[float]:
    """Random numbers of every size, and those around every tie of a format (or some of them)."""
    nearest = nearest_of(name)
    rng = np.random.default_rng(seed)
    middles = np.array(nearest.middles)
    if middles.size > 600:
        middles = np.concatenate([middles[:50], middles[-50:], rng.choice(middles, 500, replace=False)])
    sizes = 2.0 ** rng.uniform(-160 if name == "bfloat16" else -30, 160 if name == "bfloat16" else 20, 400)
    around = [middles, np.nextafter(middles, np.inf), np.nextafter(middles, 0.0), middles * (1 + 2.0**-30)]
    values = np.concatenate([*around, middles * (1 - 2.0**-30), sizes, [0.0, 1e300, 5e-324, np.inf, np.nan]])
    return [*values.tolist(), *(-values).tolist()]


@pytest.mark.parametrize("name", NARROW)
def test_float64_is_rounded_once(name: str, device: str) -> None:
    values = boundary_floats(name, 1)
    nearest = nearest_of(name)
    expected = np.array([nearest.code(v) for v in values])
    found = codes_of(Tensor(np.array(values), device=device).cast(name))
    same_codes(found, expected, name, f"float64 to {name}")
    folded = codes_of(Tensor([*values[:40], *values[-40:]], dtype=name, device=device))
    same_codes(folded, np.concatenate([expected[:40], expected[-40:]]), name, f"Python floats to {name}")


@pytest.mark.parametrize("name", NARROW)
def test_float32_is_rounded_as_ml_dtypes_does(name: str, device: str) -> None:
    with np.errstate(all="ignore"):
        values = np.array(boundary_floats(name, 2), np.float32)
        values = np.concatenate([values, np.nextafter(values, np.float32(0)), np.nextafter(values, np.float32(np.inf))])
        expected = values.astype(numpy_type(name))
    found = codes_of(Tensor(values, device=device).cast(name))
    same_codes(found, expected.view(found.dtype), name, f"float32 to {name}")


@pytest.mark.parametrize("name", NARROW)
def test_integers_are_rounded_once(name: str, device: str) -> None:
    nearest = nearest_of(name)
    rng = np.random.default_rng(3)
    for source in INTEGERS:
        limits = np.iinfo(source)
        bits = limits.bits - (limits.min < 0)
        values = {0, 1, limits.max, limits.max - 1, limits.min, limits.min + 1}
        for exponent in range(bits):
            # Powers of two, the tie behind them, and their neighbours.
            digits = FORMATS[name].digits
            tie = 2**exponent + (2 ** (exponent - digits) if exponent >= digits else 0)
            values |= {2**exponent, tie - 1, tie, tie + 1}
        values |= {int(v) for v in rng.integers(limits.min, limits.max, 60, dtype=source, endpoint=True)}
        values |= {-v for v in values}
        chosen = sorted(v for v in values if limits.min <= v <= limits.max)
        found = codes_of(Tensor(np.array(chosen, source), device=device).cast(name))
        same_codes(found, np.array([nearest.code(v) for v in chosen]), name, f"{source} to {name}")


@pytest.mark.parametrize("name", FLOAT8)
def test_a_constant_is_cast_as_a_value_is(name: str) -> None:
    for value in (0.3, -0.3, 449.0, 464.0, 465.0, 1e9, -1e9, 2.0**-18, -0.0, float("inf"), float("nan")):
        constant = Tensor.full((3,), value, dtype="float32").cast(name)
        stored = Tensor(np.full(3, value, np.float32)).cast(name)
        same_codes(codes_of(constant), codes_of(stored), name, f"{value} as {name}")
        # The way to another type leads through the rounded value, whatever that type is.
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            np.testing.assert_array_equal(constant.cast(dtype).numpy(), stored.cast(dtype).numpy())
            np.testing.assert_array_equal(constant.cast(dtype).cast("float32").numpy(), stored.cast("float32").numpy())


@pytest.mark.parametrize("name", FLOAT8)
def test_arithmetic_on_8_bits_rounds_once(name: str, device: str) -> None:
    codes = all_codes(name)
    count = 256 if device == "CPU" else 64
    left, right = np.repeat(codes, count), np.tile(codes[:: 256 // count], 256)
    x, y = Tensor(left, device=device), Tensor(right, device=device)
    a, b = left.astype(np.float32), right.astype(np.float32)
    with np.errstate(all="ignore"):
        for found, expected in (
            (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x.maximum(y), np.maximum(a, b)),
            (x.minimum(y), np.minimum(a, b)), (x.sqrt(), np.sqrt(a)), (-x, -a), (x.abs(), np.abs(a)),
        ):  # fmt: skip
            assert found.dtype.name == name
            wanted = expected.astype(numpy_type(name)).view(np.uint8)
            got = codes_of(found)
            # Which of two equal zeros is the larger one is not said.
            zero = (got & 0x7F == 0) & (wanted & 0x7F == 0) if FORMATS[name].special != "fnuz" else False
            same_codes(np.where(zero, 0, got), np.where(zero, 0, wanted), name, name)
        np.testing.assert_array_equal((x < y).numpy(), a < b)
        np.testing.assert_array_equal((x == y).numpy(), a == b)


@pytest.mark.parametrize("name", FLOAT8)
def test_bitcast_keeps_every_code(name: str, device: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    for integer in ("uint8", "int8"):
        x = Tensor(codes.view(integer), device=device)
        assert x.bitcast(name).bitcast(integer).tolist() == codes.view(integer).tolist()
        np.testing.assert_array_equal((x + 0).bitcast(name).numpy(), all_codes(name).astype(np.float32))
    wide = Tensor(codes, device=device).bitcast(name).bitcast("float32")
    assert wide.shape == (64,)
    assert codes_of(wide.bitcast(name)).tolist() == codes.tolist()


@pytest.mark.parametrize("name", [*FLOAT8, "bfloat16"])
def test_reading_and_keeping(name: str) -> None:
    import pickle

    x = Tensor([[0.5, -1.5], [2.0, 0.0]], dtype=name)
    assert x.tolist() == [[0.5, -1.5], [2.0, 0.0]] and x[0, 1].item() == -1.5
    assert x.numpy().dtype == np.float32 and name in repr(x)
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype is x.dtype and again.tolist() == x.tolist()
    array = x.numpy().astype(numpy_type(name))
    assert Tensor(array).dtype is x.dtype and Tensor(array).tolist() == x.tolist()
    assert Tensor(array, dtype="float64").tolist() == x.tolist()
    assert (x + array).tolist() == (x + x).tolist()


@pytest.mark.parametrize("name", FLOAT8)
def test_sums_of_8_bits_are_carried_in_float32(name: str, device: str) -> None:
    # One after another in the type itself, the sum of ones would stop at 16 (or 8).
    ones = Tensor.ones(32, 64, dtype=name, device=device).contiguous()
    assert (ones.sum(1) / 8).dtype.name == name
    assert set(ones.sum(1).tolist()) == {64.0} and ones.mean().item() == 1.0
    product = (ones * 0.5) @ (ones * 0.25).T
    assert product.dtype.name == name and set(product.flatten().tolist()) == {8.0}
    assert set(ones.sum(0, dtype="float32").tolist()) == {32.0}
    assert ones.dot(ones.T, dtype=dtypes.float32).dtype is dtypes.float32


def test_gradient_of_a_product_of_8_bits() -> None:
    x, w = Tensor([[1.0, 2.0]], dtype="float8_e5m2"), Tensor([[0.5], [4.0]], dtype="float8_e5m2")
    dx, dw = (x @ w).sum().gradient(x, w)
    assert dx.dtype is dw.dtype is dtypes.float8_e5m2
    assert dx.tolist() == [[0.5, 4.0]] and dw.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("name", FLOAT8)
def test_largest_and_order_of_8_bits(name: str, device: str) -> None:
    x = Tensor([-3.0, 5.0, -224.0, 0.5], dtype=name, device=device)
    assert (x.max().item(), x.min().item(), x.argmax().item(), x.argmin().item()) == (5.0, -224.0, 1, 2)
    assert x.sort()[0].tolist() == [-224.0, -3.0, 0.5, 5.0]
    assert x.topk(2)[0].tolist() == [5.0, 0.5]
    assert (-x.abs()).max().item() == -0.5
    assert (
        Tensor([[-224.0]], dtype=name, device=device).reshape(1, 1, 1, 1).max_pool2d(3, 1, padding=1).item() == -224.0
    )


CHAIN = (
    lambda x, y: x + y, lambda x, y: x * y, lambda x, y: x - y, lambda x, y: x / y, lambda x, y: x.maximum(y),
    lambda x, y: x.sqrt(), lambda x, y: -x, lambda x, y: x.abs(), lambda x, y: (x < y).where(x, y),
    lambda x, y: x * 0.5 + y, lambda x, y: x.trunc(), lambda x, y: x.floor(), lambda x, y: x.round(),
    lambda x, y: x.cast("float32").cast(x.dtype), lambda x, y: x.relu(), lambda x, y: x.clip(-2, 2),
)  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_chains_of_operations_are_the_same_compiled_and_interpreted(name: str) -> None:
    rng = np.random.default_rng(5)
    dtype = dtypes.by_name(name)
    for _ in range(6):
        codes = rng.integers(0, 2**dtype.bits, (2, 64)).astype(f"u{dtype.itemsize}")
        steps = [CHAIN[i] for i in rng.integers(0, len(CHAIN), 6)]
        results = []
        for device in DEVICES:
            x, y = (Tensor(bits, device=device).bitcast(dtype) for bits in codes)
            for step in steps:
                x, y = step(x, y), x
            assert x.dtype is dtype
            results.append(x.numpy())
        np.testing.assert_array_equal(*results)


METHODS = (
    "acos", "asinh", "ceil", "cos", "cumsum", "elu", "erf", "exp", "floor", "gelu", "hardswish", "isfinite", "isinf",
    "isnan", "log", "log1p", "log_softmax", "logcumsumexp", "logsumexp", "max", "mean", "median", "mish",
    "nan_to_num", "nanmean", "nansum", "prod", "reciprocal", "relu6", "round", "rsqrt", "sigmoid", "sign", "silu",
    "sin", "softmax", "softplus", "sort", "sqrt", "std", "tanh", "trunc", "var",
)  # fmt: skip


def test_methods_of_8_bits_round_what_float32_gives() -> None:
    values = [0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.5, 16.0, 0.25, 240.0, -240.0, 0.015625, float("nan")]
    narrow = Tensor(values, dtype="float8_e4m3fn").realize()
    wide = narrow.cast("float32").realize()
    for method in METHODS:
        ours, theirs = getattr(narrow, method)(), getattr(wide, method)()
        if isinstance(ours, tuple):
            ours, theirs = ours[0], theirs[0]
        if theirs.dtype is dtypes.float32:
            assert ours.dtype is narrow.dtype, method
            theirs = theirs.cast(narrow.dtype)
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), method)
