"""Kernels for a GPU, run lane by lane on the CPU, against the CPU device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base.settings import scope
from gradlet.target.target import SM_80, SM_86, SM_89, SM_90, Target
from tests.device.cuda import emulate
from tests.tensor.test_custom_kernel import neighbours, neighbours_of

if emulate.COMPILER is None:
    pytest.skip("no C++ compiler", allow_module_level=True)

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True, scope="module")
def _only_here() -> Iterator[None]:
    """Other tests see the devices that users see."""
    yield
    emulate.unregister()


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def same(function: Callable[..., Any], *arrays: np.ndarray, tolerance: float = 1e-5, target: Target = SM_90) -> None:
    device = emulate.register(target)
    wanted = function(*[Tensor(a, device="CPU") for a in arrays]).numpy()
    found = function(*[Tensor(a, device=device) for a in arrays]).numpy()
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)


QUICK: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "softmax": (lambda x: x.softmax(-1), [(3, 1000)]),
    "column sums": (lambda x: x.sum(0), [(300, 70)]),
    "element-wise, no multiple of a workgroup": (lambda x: (x * 2 + 1).exp(), [(37, 129)]),
}


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of bfloat16 tensors."""

    def of_numbers(*tensors: Any) -> Any:
        return function(*[t.cast(dtypes.bfloat16).realize() for t in tensors]).cast(dtypes.float32)

    return of_numbers


TENSOR: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a @ b": (_narrow(lambda a, b: a @ b), [(128, 192), (192, 128)]),
    "a @ b.T, odd": (_narrow(lambda a, b: a @ b.T), [(100, 136), (200, 136)]),
    "a @ b, rows at odd places": (_narrow(lambda a, b: a @ b), [(100, 135), (135, 263)]),
    "a.T @ b": (_narrow(lambda a, b: a.T @ b), [(128, 128), (128, 136)]),
    "a.T @ b.T": (_narrow(lambda a, b: a.T @ b.T), [(128, 128), (128, 128)]),
    "columns of odd size": (_narrow(lambda a, b: a @ b), [(72, 200), (200, 328)]),
    "several, with a tail": (_narrow(lambda a, b, c: (a @ b + c).relu()), [(2, 130, 136), (2, 136, 72), (72,)]),
}


def _added_in(total: Any, *types: Any) -> Callable[..., Any]:
    """The product of tensors of these types, added up in another one."""

    def of_numbers(*tensors: Any) -> Any:
        scale = 40 if total.is_int else 1
        a, b = ((t * scale).cast(d).realize().cast(total) for t, d in zip(tensors, types, strict=True))
        return a @ b

    return of_numbers


FLOAT8, WHOLE = dtypes.float8_e4m3fn, dtypes.int32
BYTES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "e4m3": (_added_in(dtypes.float32, FLOAT8, FLOAT8), [(128, 256), (256, 128)]),
    "e5m2 by e4m3, odd": (_added_in(dtypes.float32, dtypes.float8_e5m2, FLOAT8), [(100, 300), (300, 96)]),
    "u8 by s8, odd": (_added_in(WHOLE, dtypes.uint8, dtypes.int8), [(100, 272), (272, 200)]),
    "u8 by s8, one block": (_added_in(WHOLE, dtypes.uint8, dtypes.int8), [(40, 160), (160, 64)]),
    "s8, several": (_added_in(WHOLE, dtypes.int8, dtypes.int8), [(2, 65, 144), (2, 144, 72)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BYTES)
def test_products_of_8_bits_by_matrix_units(name: str) -> None:
    function, shapes = BYTES[name]
    same(function, *[np.abs(numbers(*s)) if "u8" in name else numbers(*s) for s in shapes], tolerance=1e-5)


WARPS: dict[str, tuple[Target, str]] = {
    "a @ b": (SM_80, "a @ b"), "a.T @ b": (SM_86, "a.T @ b"), "a.T @ b.T": (SM_80, "a.T @ b.T"),
    "odd": (SM_86, "a @ b.T, odd"), "tail": (SM_80, "several, with a tail"),
    "one block": (SM_80, "u8 by s8, one block"), "e5m2 by e4m3": (SM_89, "e5m2 by e4m3, odd"),
    "s8": (SM_80, "s8, several"), "u8 by s8": (SM_86, "u8 by s8, odd"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["one block", *[pytest.param(n, marks=pytest.mark.slow) for n in WARPS]])
def test_products_by_warps(name: str) -> None:
    target, which = WARPS[name]
    function, shapes = {**TENSOR, **BYTES}[which]
    arrays = [np.abs(numbers(*s)) if "u8" in which else numbers(*s) for s in shapes]
    same(function, *arrays, tolerance=1e-5 if which in BYTES else 1e-2, target=target)


@pytest.mark.slow
def test_blocks_of_warps_of_all_sizes() -> None:
    function, _ = TENSOR["a @ b"]
    with scope(SCHEDULE_CACHE=0):
        for cores, (rows, columns) in {1: (128, 256), 8: (256, 256), 16: (256, 256)}.items():
            target = replace(SM_80, cores=cores, name=f"sm_80_{cores}")
            same(function, numbers(rows, 136), numbers(136, columns), tolerance=1e-2, target=target)


@pytest.mark.slow
def test_float32_by_warps_where_it_is_allowed() -> None:
    with scope(ALLOW_TF32=1):
        same(lambda a, b: (a @ b.T).relu(), numbers(100, 136), numbers(200, 136), tolerance=1e-3, target=SM_80)


def _channels_last(**how: int) -> Callable[..., Any]:
    """A convolution of images and weights whose channels lie side by side; its result lies so, too."""

    def convolution(x: Any, w: Any) -> Any:
        turned = x.permute(0, 3, 1, 2).conv2d(w.permute(0, 3, 1, 2), **how)
        return (turned.relu() + 1).permute(0, 2, 3, 1).contiguous()

    return _narrow(convolution)


CONVOLUTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "3 x 3, odd": (_channels_last(padding=1), [(3, 12, 12, 72), (64, 3, 3, 72)]),
    "strided": (_channels_last(padding=1, stride=2), [(2, 17, 17, 96), (72, 3, 3, 96)]),
    "of single pixels": (_channels_last(), [(2, 9, 9, 128), (64, 1, 1, 128)]),
    "narrower than a box": (_channels_last(padding=1), [(17, 7, 7, 64), (64, 3, 3, 64)]),
}
PRODUCTS = {**TENSOR, **CONVOLUTIONS, "few rows": (_narrow(lambda a, b: a @ b), [(24, 136), (136, 200)])}
SLOW: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "row sums of odd length": (lambda x: x.sum(1), [(37, 129)]),
    "sum of all": (lambda x: x.sum(), [(37, 129)]),
    "long rows": (lambda x: x.softmax(-1), [(4, 4096)]),
    "short rows": (lambda x: x.softmax(-1), [(100, 33)]),
    "many short rows": (lambda x: x.max(1), [(2000, 64)]),
    "layer norm": (lambda x: x.layernorm(), [(8, 1024)]),
    "rms norm, two rows a workgroup": (lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(), [(300, 256)]),
    "rows in place": (lambda x: _in_place(x), [(8, 512)]),
    "product": (lambda a, b: a @ b, [(37, 129), (129, 70)]),
    "product of transposes": (lambda a, b: a.T @ b.T, [(129, 37), (70, 129)]),
    "matrix and vector": (lambda a, b: a @ b, [(64, 2048), (2048,)]),
    "vector and matrix": (lambda a, b: a @ b, [(512,), (512, 64)]),
    "argmax": (lambda x: x.argmax(1), [(37, 129)]),
    "sort": (lambda x: x.sort(1)[0], [(9, 100)]),
    "running sum": (lambda x: x.cumsum(1), [(20, 77)]),
    "convolution": (lambda x, w: x.conv2d(w, padding=1), [(2, 3, 9, 9), (4, 3, 3, 3)]),
    "convolution in blocks": (lambda x, w: x.conv2d(w, padding=1), [(3, 32, 11, 14), (40, 32, 3, 3)]),
    "convolution in blocks, strided": (
        lambda x, w: x.conv2d(w, padding=1, stride=2),
        [(5, 20, 17, 12), (64, 20, 3, 3)],
    ),
    "integer division": (lambda x: (x * 100).cast(dtypes.int32) // 7 + (x * 50).cast(dtypes.int8) % -3, [(37, 29)]),
    "whole numbers as text": (lambda x: (x * 1e3).cast(dtypes.int64).max(0), [(64, 9)]),
    "one element": (lambda x: x + 1, [(1,)]),
    "nothing": (lambda x: x.sum(1), [(3, 0)]),
}


def _in_place(x: Any) -> Any:
    x.assign(x.softmax(-1))
    return x.realize()


@pytest.mark.parametrize("name", QUICK)
def test_a_kernel_gives_what_the_cpu_gives(name: str) -> None:
    function, shapes = QUICK[name]
    same(function, *[numbers(*shape) for shape in shapes])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_kernels(name: str) -> None:
    function, shapes = SLOW[name]
    same(function, *[numbers(*shape) for shape in shapes], tolerance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("table", "width"), [(50, (64,)), (50, (100,)), (1000, ()), (40, (3,)), (20, (5, 40))])
def test_rows_of_a_table_are_added_up_in_order(table: int, width: tuple[int, ...]) -> None:
    places, terms = RNG.integers(0, table, 300).astype(np.int32), numbers(300, *width)
    found = []
    for device in ("CPU", emulate.register()):
        weights = Tensor(np.zeros((table, *width), np.float32), device=device)
        taken = weights[Tensor(places, device=device)] * Tensor(terms, device=device)
        found.append(taken.sum().gradient(weights)[0].numpy())
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.slow
def test_parts_add_up_to_the_product() -> None:
    eager = replace(SM_90, name="eager", launch_ps=0)  # parts pay for short sums, too
    a, b = (Tensor.empty(512, 64, device=emulate.register(eager), dtype=dtypes.bfloat16) for _ in range(2))
    assert len(a.T.matmul(b, dtype="float32").schedule().calls) == 2
    same(
        _narrow(lambda a, b: a.T.matmul(b, dtype="float32") * 2),
        numbers(512, 64),
        numbers(512, 64),
        target=eager,
        tolerance=1e-4,
    )


def _trained(stride: int, pooled: bool = False) -> Callable[..., Any]:
    """The gradients of all weights of a block with norms: windows, single pixels, a shortcut."""

    def normed(x: Any, w: Any) -> Any:
        y = x.conv2d(w, padding=w.shape[-1] // 2, stride=stride)
        y = y.cast(dtypes.float32)
        mean = y.mean((0, 2, 3))
        deviation = (y - mean.reshape(1, -1, 1, 1)).square().mean((0, 2, 3)) + 1e-5
        scale = Tensor.ones(w.shape[0], device=w.device)
        return y.batchnorm(scale, scale * 0.5, mean, deviation.rsqrt()).cast(x.dtype)

    def gradients(x: Any, first: Any, short: Any, second: Any) -> Any:
        weights = (first, short, second)
        y = (normed(x, first) + normed(x, short)).relu()
        if pooled:
            y = y.max_pool2d((3, 3), stride=2, padding=1)
        z = y.conv2d(second)
        found = (z.cast(dtypes.float32).square() * 0.5).sum().gradient(x, *weights)
        return Tensor.cat(*[g.cast(dtypes.float32).reshape(-1) / g.cast(dtypes.float32).abs().max() for g in found])

    return _narrow(gradients)


@pytest.mark.slow
@pytest.mark.parametrize(("side", "stride", "pooled"), [(8, 1, False), (9, 2, False), (10, 1, True)])
def test_convolutions_in_training(side: int, stride: int, pooled: bool) -> None:
    shapes = [(6, 64, side, side), (64, 64, 3, 3), (64, 64, 1, 1), (96, 64, 1, 1)]
    same(_trained(stride, pooled), *[numbers(*shape) for shape in shapes], tolerance=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_matrix_units(name: str) -> None:
    function, shapes = PRODUCTS[name]
    same(function, *[numbers(*shape) for shape in shapes], tolerance=1e-2)


@pytest.mark.slow
def test_float32_by_matrix_units_where_it_is_allowed() -> None:
    with scope(ALLOW_TF32=1):
        same(lambda a, b: (a @ b.T).relu(), numbers(100, 136), numbers(200, 136), tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [d for d in dtypes.all() if not d.is_bool], ids=lambda d: d.name)
def test_conversions_are_the_cpus_bit_for_bit(dtype: Any) -> None:
    values = np.concatenate(
        [numbers(500) * s for s in (1e-3, 1, 300, 1e5, 1e20)] + [np.float32([np.nan, np.inf, -0.0])]
    )
    for source in (dtypes.float32, dtypes.float64, dtypes.int64):
        device = emulate.register()
        bits = dtypes.by_name(f"uint{dtype.bits}")
        made = [
            Tensor(values, device=d).cast(source).cast(dtype).bitcast(bits).numpy() for d in ("CPU", device)
        ]  # fmt: skip
        np.testing.assert_array_equal(made[0], made[1])
        back = [Tensor(made[0], device=d).bitcast(dtype).cast(dtypes.float64).numpy() for d in ("CPU", device)]
        np.testing.assert_array_equal(back[0], back[1])


@pytest.mark.parametrize("opts", [None, "PARALLEL(range 0), THREAD(range 1, 18), THREAD(range 2, 16)"])
def test_kernels_of_users_share_arrays(opts: str | None) -> None:
    x = numbers(160)
    device = emulate.register()
    found = Tensor.custom_kernel(Tensor.empty(160, device=device), Tensor(x, device=device), fn=neighbours, opts=opts)
    np.testing.assert_allclose(found.numpy(), neighbours_of(x), rtol=1e-5, atol=1e-6)


def test_a_softmax_of_16_bits_is_off_by_a_bit_at_most() -> None:
    x = numbers(5, 1000) * 4
    values = [Tensor(x, device=d).cast(dtypes.bfloat16).softmax(-1).bitcast("int16").numpy().astype(int)
              for d in ("CPU", emulate.register())]  # fmt: skip
    assert np.abs(values[0] - values[1]).max() <= 1


def test_a_barrier_that_some_lanes_miss_is_an_error() -> None:
    device = emulate.register()
    text = emulate.cuda.render  # the emulation is what is tested here: a kernel whose lanes part
    try:
        emulate.cuda.render = lambda *args: text(*args).replace(  # type: ignore[assignment]
            "const int t0 = (int)threadIdx.x;", "const int t0 = (int)threadIdx.x; if (t0 == 3) __syncthreads();"
        )
        with pytest.raises(AssertionError, match="waited at different places"):
            (Tensor(numbers(64), device=device) + 3).numpy()
    finally:
        emulate.cuda.render = text  # type: ignore[assignment]


def test_results_of_different_loops_are_computed_by_the_same_lanes() -> None:
    def scaled(x: Any, y: Any) -> Any:
        factor = (x * 3 + 1).contiguous()
        return (y + factor.reshape(2, 64, 1)).realize(factor) + factor.reshape(2, 64, 1)

    same(scaled, numbers(2, 64), numbers(2, 64, 5))


def test_both_factors_may_lie_in_one_buffer() -> None:
    same(lambda h: h[:, 0] @ h[:, 1].transpose(0, 1), numbers(64, 2, 64), tolerance=1e-4)


@pytest.mark.parametrize(("table", "width", "counts"), [(8, 64, (512,)), (5, 32, (300,)), (7, 96, (2, 257))])
def test_rows_of_a_table_are_added_in_their_order(table: int, width: int, counts: tuple[int, ...]) -> None:
    device = emulate.register()
    ids, factors = RNG.integers(0, table, counts).astype(np.int32), numbers(*counts, width)
    weights = Tensor(numbers(table, width), device=device)
    taken = weights[Tensor(ids, device=device)]
    (found,) = (taken * Tensor(factors, device=device)).sum().gradient(weights)
    expected = np.zeros((table, width), np.float32)
    for number, row in zip(ids.reshape(-1), factors.reshape(-1, width), strict=True):
        expected[number] += row
    np.testing.assert_array_equal(found.numpy(), expected)
