"""Any chain of operations gives the same values wherever it is computed: in between, all at once, on either device.

Programs of exact operations work on small whole numbers, so all ways have to agree to the bit, orders of equal elements
included. Programs of smooth operations agree within rounding. Every value on the way stays alive and is compared too:
nothing may be overwritten that somebody still sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradlet import Tensor
from gradlet.base.errors import ArgumentError

# An operation gets the value so far and a number that chooses its arguments; None where it does not fit the shape.
Operation = Callable[[Tensor, int], Tensor | None]
MOST = 600  # elements; what would grow further is left out


def axis_of(x: Tensor, n: int) -> int:
    return n % max(x.ndim, 1)


def small(x: Tensor) -> Tensor:
    """Whole numbers that stay small, so that float32 holds all sums of them."""
    return x.clamp(-9, 9)


def index_along(x: Tensor, n: int, count: int) -> Tensor:
    """Some positions of an axis, negative ones and repetitions among them."""
    size = x.shape[axis_of(x, n)]
    return (Tensor.arange(count, device=x.device) * (n % 7 + 1) + n) % (2 * size) - size


def take_rows(x: Tensor, n: int) -> Tensor:
    index: list[Any] = [slice(None)] * x.ndim
    index[axis_of(x, n)] = index_along(x, n, n % 4 + 1)
    return x[tuple(index)]


def take_box(x: Tensor, n: int) -> Tensor:
    steps = (1, 2, -1, -2)
    return x[tuple(slice(None, None, steps[(n >> 2 * axis) % 4]) for axis in range(x.ndim))]


def where_mask(x: Tensor, n: int) -> Tensor:
    y = x * 1
    y[y > n % 5] = float(n % 3)
    return y


def write_rows(x: Tensor, n: int) -> Tensor:
    y = x + 0
    index: list[Any] = [slice(None)] * x.ndim
    index[axis_of(x, n)] = index_along(x, n, 3)
    y[tuple(index)] = small(y.sum())
    return y


def write_box(x: Tensor, n: int) -> Tensor:
    y = x.contiguous()
    part = tuple(slice(n % 2, None, n % 3 + 1) for _ in range(x.ndim))
    y[part] = y[part] * 2
    return small(y)


def write_view(x: Tensor, n: int) -> Tensor:
    y = x * 2
    row = y.transpose(0, n % x.ndim).select(0, -1)
    row += 1
    return small(y)


def change(x: Tensor, n: int) -> Tensor | None:
    """The value itself is written; what was built from it before keeps what it saw. Repeated elements refuse."""
    try:
        x[..., : n % 2 + 1] = float(n % 5)
    except ArgumentError:
        return None
    return x + 0


def join(x: Tensor, n: int) -> Tensor:
    return x.cat(small(x * 2), dim=axis_of(x, n))


def sort(x: Tensor, n: int) -> Tensor:
    values, places = x.sort(axis_of(x, n), n % 2 == 1)
    return values * 2 - places


def scatter(x: Tensor, n: int) -> Tensor:
    axis = axis_of(x, n)
    index = (x.cast("int32") + n) % x.shape[axis]
    return small(x.scatter_reduce(axis, index, x, ("sum", "amax", "amin")[n % 3], n % 2 == 0))


def product(x: Tensor, n: int) -> Tensor | None:
    return small(x @ x.transpose(-1, -2)) if x.ndim > 1 and x.shape[-1] < 12 and x.shape[-2] < 12 else None


def pad(x: Tensor, n: int) -> Tensor:
    sides = [(0, 0)] * x.ndim
    sides[axis_of(x, n)] = (n % 3, -(n % 2))
    return x.pad(sides, value=float(n % 4))


def grow(x: Tensor, n: int) -> Tensor | None:
    return x.unsqueeze(n % (x.ndim + 1)).expand([-1 if a != n % (x.ndim + 1) else 2 for a in range(x.ndim + 1)])


def windows(x: Tensor, n: int) -> Tensor:
    axis = axis_of(x, n)
    return x.unfold(axis, min(x.shape[axis], n % 3 + 1), 1)


EXACT: dict[str, Operation] = {
    "add": lambda x, n: x + n % 5,
    "multiply": lambda x, n: small(x * (n % 5 - 2)),
    "compare": lambda x, n: (x > n % 4).where(x, -x),
    "maximum": lambda x, n: x.maximum(x.flip(axis_of(x, n)) - 1),
    "integers": lambda x, n: ((x.cast("int32") << n % 3) ^ n % 8).cast("float32").clamp(-9, 9),
    "narrow": lambda x, n: (x.cast("int8") * 50).cast("float32").clamp(-9, 9),
    "divide": lambda x, n: x.cast("int32").floordiv(n % 4 - 1).cast("float32"),
    "flatten": lambda x, n: x.flatten(),
    "split-axis": lambda x, n: x.unflatten(0, (2, -1)) if x.shape[0] % 2 == 0 else None,
    "permute": lambda x, n: x.movedim(0, axis_of(x, n)),
    "flip": lambda x, n: x.flip(axis_of(x, n)),
    "grow": grow,
    "pad": pad,
    "reflect": lambda x, n: x.pad((n % x.shape[-1], 0), mode="reflect"),
    "windows": windows,
    "diagonal": lambda x, n: x.diagonal(n % 2) if x.ndim > 1 and x.shape[1] > 1 else None,
    "triangle": lambda x, n: x.tril(n % 3 - 1) if x.ndim > 1 else None,
    "roll": lambda x, n: x.roll(n, axis_of(x, n)),
    "repeat": lambda x, n: x.repeat_interleave(2, axis_of(x, n)),
    "join": join,
    "stack": lambda x, n: x.stack(-x, dim=n % (x.ndim + 1)),
    "chunk": lambda x, n: x.chunk(2, axis_of(x, n))[-1],
    "sum": lambda x, n: small(x.sum(axis_of(x, n), keepdim=n % 2 == 0)) if x.ndim > 1 else small(x - x.sum()),
    "largest": lambda x, n: x.max(axis_of(x, n)) if x.ndim > 1 else x - x.max(),
    "place": lambda x, n: x.argmax(axis_of(x, n)).cast("float32") if x.ndim > 1 else x + x.argmin(),
    "running-sum": lambda x, n: small(x.cumsum(axis_of(x, n))),
    "running-largest": lambda x, n: x.cummax(axis_of(x, n))[0],
    "sort": sort,
    "top": lambda x, n: x.topk(min(2, x.shape[-1]))[0],
    "product": product,
    "rows": take_rows,
    "box": take_box,
    "gather": lambda x, n: x.gather(axis_of(x, n), (x.cast("int32") + n) % x.shape[axis_of(x, n)]),
    "scatter": scatter,
    "masked": lambda x, n: x.masked_select(x > n % 3 - 2),
    "write-mask": where_mask,
    "write-rows": write_rows,
    "write-box": write_box,
    "write-view": write_view,
    "change": change,
}
SMOOTH: dict[str, Operation] = {
    "exp": lambda x, n: x.clamp(-4, 4).exp() * 0.1,
    "sin": lambda x, n: (x * (n % 3 + 0.5)).sin(),
    "tanh": lambda x, n: x.tanh() + x * 0.25,
    "divide": lambda x, n: x / (x * x + 1.5),
    "softmax": lambda x, n: x.softmax(axis_of(x, n)),
    "log-sum": lambda x, n: x.logsumexp(axis_of(x, n), keepdim=True) - x * 0.5,
    "mean": lambda x, n: x - x.mean(axis_of(x, n), keepdim=True),
    "spread": lambda x, n: x / (x.var(axis_of(x, n), keepdim=True, correction=0) + 1.0).sqrt(),
    "product": lambda x, n: (x @ x.transpose(-1, -2)) * 0.1 if x.ndim > 1 and max(x.shape[-2:]) < 20 else None,
    "running-sum": lambda x, n: x.cumsum(axis_of(x, n)) * 0.2,
    **{name: EXACT[name] for name in ("flatten", "permute", "flip", "grow", "pad", "join", "rows", "box", "windows")},
    "sum": lambda x, n: x.sum(axis_of(x, n)) * 0.2 if x.ndim > 1 else x - x.sum() * 0.1,
    "write": lambda x, n: write_smooth(x, n),
}


def write_smooth(x: Tensor, n: int) -> Tensor:
    y = x * 0.5
    y[..., n % 2 :: 2] = x[..., n % 2 :: 2].exp().clamp(0, 3)
    return y


def start(number: int, device: str) -> Tensor:
    """A small tensor of whole numbers."""
    shape = ((6,), (3, 4), (2, 3, 4), (4, 4), (1, 5))[number % 5]
    return Tensor(np.random.default_rng(number).integers(-4, 5, shape).astype(np.float32), device=device)


def run(
    table: dict[str, Operation], first: int, program: Sequence[tuple[str, int]], realized: int, device: str
) -> list[np.ndarray]:
    """All values of a program, computed at once at the end but for those whose bit in `realized` is set."""
    values = [start(first, device)]
    for step, (name, number) in enumerate(program):
        result = table[name](values[-1], number)
        if result is None or not 0 < result.numel() <= MOST or not result.ndim:
            continue
        if realized >> step & 1:
            result.realize()
        values.append(result)
    return [value.numpy() for value in reversed(values)]


def programs(table: dict[str, Operation]) -> Any:
    return st.lists(st.tuples(st.sampled_from(sorted(table)), st.integers(0, 4095)), min_size=2, max_size=9)


def agree(table: dict[str, Operation], first: int, program: list[tuple[str, int]], realized: int, exact: bool) -> None:
    """At once, computed in between, and on the reference device."""
    wanted = run(table, first, program, 0, "PYTHON")
    ways = [("all in between", -1, "PYTHON"), ("some in between", realized, "CPU"), ("at once", 0, "CPU")]
    for way, bits, device in ways:
        found = run(table, first, program, bits, device)
        assert len(found) == len(wanted), way
        for position, (own, other) in enumerate(zip(found, wanted)):
            what = f"{way}, value {len(found) - position - 1} of {program}"
            assert own.dtype == other.dtype and own.shape == other.shape, what
            if exact:
                np.testing.assert_array_equal(own, other, err_msg=what)
            else:
                np.testing.assert_allclose(own, other, rtol=2e-4, atol=2e-4, err_msg=what)


FEW = settings(max_examples=6, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=300, suppress_health_check=list(HealthCheck))


@FEW
@given(st.integers(0, 99), programs(EXACT), st.integers(0, 511))
def test_exact_programs(first: int, program: list[tuple[str, int]], realized: int) -> None:
    agree(EXACT, first, program, realized, True)


@FEW
@given(st.integers(0, 99), programs(SMOOTH), st.integers(0, 511))
def test_smooth_programs(first: int, program: list[tuple[str, int]], realized: int) -> None:
    agree(SMOOTH, first, program, realized, False)


@pytest.mark.slow
@MANY
@given(st.integers(0, 99), programs(EXACT), st.integers(0, 511))
def test_many_exact_programs(first: int, program: list[tuple[str, int]], realized: int) -> None:
    agree(EXACT, first, program, realized, True)


@pytest.mark.slow
@MANY
@given(st.integers(0, 99), programs(SMOOTH), st.integers(0, 511))
def test_many_smooth_programs(first: int, program: list[tuple[str, int]], realized: int) -> None:
    agree(SMOOTH, first, program, realized, False)


@pytest.mark.parametrize("name", EXACT)
def test_every_exact_operation_takes_part(name: str) -> None:
    """None is always left out, and each alone agrees."""
    assert any(EXACT[name](start(first, "PYTHON"), number) is not None for first in range(5) for number in (0, 3))
    agree(EXACT, 6, [(name, 5), (name, 2)], 1, True)
