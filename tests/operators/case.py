"""One operator case: the same function in gradlet and torch, on the same inputs, values and gradients compared."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import GradientError

torch = pytest.importorskip("torch")

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SIGNED = ("int8", "int16", "int32", "int64")
# torch computes little in wide unsigned types; there the oracle is torch in int64, compared after the conversion back.
TORCH_INTS = ("int8", "uint8", "int16", "int32", "int64")

# rtol, atol of values; gradients get ten times as much.
TOLERANCE = {
    "float64": (1e-6, 1e-7), "float32": (2e-5, 2e-6), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2),
}  # fmt: skip


@dataclass(frozen=True)
class In:
    """How one input is made.

    Attributes:
        shape: sizes.
        low, high: range of random values (integers: both included).
        values: these values instead of random ones.
        layout: "plain"; or a view of other memory: "transposed", "sliced", "strided", "flipped", "expanded".
        dtype: this type whatever the case runs in.
        step: round random values to multiples of this, which makes ties.
        grad: whether a gradient with respect to it is compared.
    """

    shape: tuple[int, ...] = ()
    low: float = -2.0
    high: float = 2.0
    values: Any = None
    layout: str = "plain"
    dtype: str | None = None
    step: float = 0.0
    grad: bool = True


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes:
        name: unique name.
        ours, theirs: the function of gradlet tensors and of torch tensors; both may return a tuple.
        inputs: sets of inputs; the case runs on each.
        dtypes: the types it runs in.
        grad: whether gradients are compared.
        scale: factor on the tolerance.
        same_dtype: whether the result types must agree.
        heavy: takes seconds to compile; in the fast run it is checked on the first device in its first type only.
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: Sequence[Sequence[In]]
    dtypes: Sequence[str] = ("float32",)
    grad: bool = True
    scale: float = 1.0
    same_dtype: bool = True
    heavy: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def numpy_input(spec: In, dtype: str, seed: int) -> np.ndarray:
    """The values of an input, in numpy, contiguous. bfloat16 values are float32 numbers that it can hold."""
    kind = spec.dtype or dtype
    if spec.values is not None:
        array = np.array(spec.values)
        return _round(array.astype(_numpy_name(kind)), kind)
    rng = np.random.default_rng(seed)
    if kind == "bool":
        return rng.random(spec.shape) < 0.5
    if "int" in kind:
        low = max(int(np.ceil(spec.low)), 0 if kind.startswith("u") else -(2**62))
        return rng.integers(low, int(spec.high) + 1, spec.shape).astype(kind)
    array = rng.uniform(spec.low, spec.high, spec.shape)
    if spec.step:
        array = np.round(array / spec.step) * spec.step
    return _round(array.astype(_numpy_name(kind)), kind)


def _numpy_name(kind: str) -> str:
    return "float32" if kind == "bfloat16" else kind


def _round(array: np.ndarray, kind: str) -> np.ndarray:
    if kind != "bfloat16":
        return array
    return torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16).to(torch.float32).numpy()


def laid_out(array: np.ndarray, layout: str) -> tuple[np.ndarray, Callable[[Any], Any]]:
    """Memory that holds the array in this layout, and the view of it that shows the array."""
    if array.ndim == 0 or layout == "plain":
        return array, lambda x: x
    if layout == "transposed":
        axes = tuple(range(array.ndim))[::-1]
        return np.ascontiguousarray(array.transpose(axes)), lambda x: x.permute(axes)
    if layout == "sliced":
        memory = np.pad(array, [(1, 2)] * array.ndim)
        box = tuple(slice(1, 1 + size) for size in array.shape)
        return memory, lambda x: x[box]
    if layout == "strided":
        memory = np.repeat(array, 2, axis=-1)
        return memory, lambda x: x[..., ::2]
    if layout == "flipped":
        return np.ascontiguousarray(np.flip(array, 0)), lambda x: x.flip(0)
    if layout == "expanded":
        return array[:1].copy(), lambda x: x.expand(*array.shape)
    raise AssertionError(layout)


@dataclass
class Prepared:
    """An input on both sides: the leaves that gradients are asked for, and the views that the functions get."""

    ours: Tensor
    our_view: Tensor
    theirs: Any
    their_view: Any
    wants_grad: bool


def prepare(spec: In, dtype: str, device: str, seed: int, grad: bool) -> Prepared:
    """The same input for gradlet and torch."""
    kind = spec.dtype or dtype
    array = numpy_input(spec, dtype, seed)
    if spec.layout == "expanded" and array.size:
        array = np.broadcast_to(array[:1], array.shape)
    memory, view = laid_out(array, spec.layout)
    ours = Tensor(memory, device=device, dtype=kind).realize()
    theirs = torch.from_numpy(np.array(memory)).to(getattr(torch, kind))
    wants = grad and spec.grad and theirs.is_floating_point()
    if wants:
        theirs.requires_grad_(True)
    return Prepared(ours, view(ours), theirs, view(theirs), wants)


def as_numpy(value: Any) -> np.ndarray:
    """Either side's result as numpy; bfloat16 as float32."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (bool, int, float)):
        return np.array(value)
    value = value.detach()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def close(ours: Any, theirs: Any, kind: str, scale: float, what: str) -> None:
    """Equal shapes, and values within the tolerance of the type."""
    mine, other = as_numpy(ours), as_numpy(theirs)
    assert mine.shape == other.shape, f"{what}: shape {mine.shape}, torch has {other.shape}"
    if other.dtype.kind == "f":
        rtol, atol = TOLERANCE[kind if kind in TOLERANCE else "float32"]
        np.testing.assert_allclose(
            mine.astype(np.float64), other.astype(np.float64), rtol * scale, atol * scale, err_msg=what
        )
    else:
        np.testing.assert_array_equal(mine, other, err_msg=what)


def check(case: Case, dtype: str, device: str) -> None:
    """Run a case on one device in one type, on all its inputs."""
    for number, specs in enumerate(case.inputs):
        what = f"{case.name} inputs {number}: {[(s.shape, s.layout) for s in specs]}"
        seed = zlib.crc32(f"{case.name}/{number}".encode())
        parts = [prepare(s, dtype, device, seed + i, case.grad) for i, s in enumerate(specs)]
        mine = outputs(case.ours(*[p.our_view for p in parts]))
        other = outputs(case.theirs(*[p.their_view for p in parts]))
        assert len(mine) == len(other), what
        for ours, theirs in zip(mine, other, strict=True):
            if case.same_dtype and isinstance(ours, Tensor):
                assert ours.dtype.name == str(theirs.dtype).removeprefix("torch."), what
            close(ours, theirs, dtype, case.scale, what)
        if case.grad:
            check_gradients(case, parts, mine, other, dtype, seed, what)


def gradient_or_zeros(loss: Tensor, target: Tensor) -> Tensor:
    """Where nothing depends on the target, torch has zeros and gradlet says so."""
    try:
        return loss.gradient(target)[0]
    except GradientError:
        return target.zeros_like()


def check_gradients(
    case: Case, parts: list[Prepared], mine: list[Any], other: list[Any], dtype: str, seed: int, what: str
) -> None:
    """Gradients of a weighted sum of the outputs, so that no part of the result is ignored."""
    wanted = [p for p in parts if p.wants_grad]
    floats = [
        (a, b)
        for a, b in zip(mine, other, strict=True)
        if isinstance(a, Tensor) and b.is_floating_point() and b.requires_grad
    ]
    if not wanted or not floats:
        return
    our_loss, their_loss = None, None
    for position, (ours, theirs) in enumerate(floats):
        # The functions are called again: reading a value above realised it, and a realised value has no past.
        weight = numpy_input(In(tuple(theirs.shape), -1.0, 1.0), "float32", seed + 100 + position)
        kind = str(theirs.dtype).removeprefix("torch.")
        theirs_part = (theirs * torch.from_numpy(weight).to(theirs.dtype)).sum()
        ours = outputs(case.ours(*[p.our_view for p in parts]))[[id(a) for a in mine].index(id(ours))]
        ours_part = (ours * Tensor(weight, device=ours.device, dtype=kind)).sum()
        our_loss = ours_part if our_loss is None else our_loss + ours_part
        their_loss = theirs_part if their_loss is None else their_loss + theirs_part
    if any(p.ours.numel() == 0 for p in wanted) and 0 in [b.numel() for _, b in floats]:
        return
    their_loss.backward()
    found = [gradient_or_zeros(our_loss, p.ours) for p in wanted]
    found[0].realize(*found[1:])
    for position, (part, gradient) in enumerate(zip(wanted, found, strict=True)):
        expected = part.theirs.grad if part.theirs.grad is not None else torch.zeros_like(part.theirs)
        assert gradient.dtype.name == dtype or part.ours.dtype is gradient.dtype, what
        close(gradient, expected, dtype, case.scale * 10, f"{what}: gradient {position}")
