"""Random indices and random programs of views, writes and readers, against models in numpy and torch.

For every index that numpy takes: what is read, what a write leaves, and both gradients. Numpy's own indexing of the
numbers of the elements is the model: it says which element each place shows, and which value is the last for each.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import GradientError, JitError

torch = pytest.importorskip("torch")

Part = Any
Generator = np.random.Generator


def gradient(loss: Tensor, target: Tensor) -> np.ndarray:
    """Zeros where nothing depends on the target."""
    try:
        return loss.gradient(target)[0].numpy()
    except GradientError:
        return np.zeros(target.shape, np.float32)


def random_slice(rng: Generator, size: int) -> slice:
    """Any bounds, inside the axis or not, and any step."""
    bounds = [None if rng.random() < 0.4 else int(rng.integers(-size - 2, size + 3)) for _ in range(2)]
    return slice(*bounds, None if rng.random() < 0.5 else int(rng.choice([1, 2, 3, 5, -1, -2, -3])))


def random_index(rng: Generator, shape: tuple[int, ...]) -> list[Part]:
    """Parts of every kind; index arrays broadcast together most of the time."""
    parts: list[Part] = []
    common = tuple(int(v) for v in rng.integers(1, 4, int(rng.integers(1, 3))))
    last, axis = int(rng.integers(0, len(shape) + 1)), 0
    while axis < len(shape):
        size, kind = shape[axis], rng.random()
        if Ellipsis not in [p for p in parts if not isinstance(p, np.ndarray)]:
            if rng.random() < 0.12:
                parts.append(Ellipsis)
                axis += int(rng.integers(0, len(shape) - axis + 1))
                continue
            if axis >= last and rng.random() < 0.4:
                break
        if rng.random() < 0.1:
            parts.append(None)
        elif kind < 0.25 and size:
            parts.append(int(rng.integers(-size, size)))
            axis += 1
        elif kind < 0.6 or not size:
            parts.append(random_slice(rng, size))
            axis += 1
        elif kind < 0.75:
            axes = min(int(rng.integers(1, 3)), len(shape) - axis)
            parts.append(rng.random(shape[axis : axis + axes]) < 0.5)
            axis += axes
        else:
            ones = tuple(1 if rng.random() < 0.2 else v for v in common)[int(rng.random() < 0.2) :]
            parts.append(rng.integers(-size, size, ones) if ones else int(rng.integers(-size, size)))
            axis += 1
    return parts


def in_two_steps(parts: list[Part], ndim: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """For numpy: integers first, as torch has it (numpy lets them move the axes of index arrays to the front)."""
    named = sum(
        p.ndim if isinstance(p, np.ndarray) and p.dtype == bool else p is not None and p is not Ellipsis for p in parts
    )
    first: list[Part] = []
    rest: list[Part] = []
    for part in parts:
        if isinstance(part, int):
            first.append(part)
        elif not (part is Ellipsis and named == ndim):
            rest.append(part)
            masked = part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1
            first += [] if part is None else [Ellipsis] if part is Ellipsis else [slice(None)] * masked
    return tuple(first), tuple(rest)


def spelled(rng: Generator, parts: list[Part], device: str) -> Any:
    """The index for us: arrays as they are, as lists, or as tensors, computed or not."""
    spellings: list[Callable[[np.ndarray], Any]] = [
        lambda p: p,
        lambda p: p.tolist(),
        lambda p: Tensor(p, device=device),
        lambda p: Tensor(p.astype(np.int32), device=device).ne(0) if p.dtype == bool else Tensor(p, device=device) + 0,
    ]
    found = [spellings[int(rng.integers(4))](p) if isinstance(p, np.ndarray) else p for p in parts]
    return found[0] if len(found) == 1 and rng.random() < 0.5 else tuple(found)


def check_index(seed: int, device: str) -> None:
    """One random index: read, write, and both gradients."""
    rng = np.random.default_rng(seed)
    low = 0 if rng.random() < 0.1 else 1
    shape = tuple(int(v) for v in rng.integers(low, 6, int(rng.integers(1, 5))))
    parts = random_index(rng, shape)
    first, rest = in_two_steps(parts, len(shape))
    x = rng.standard_normal(shape).astype(np.float32)
    places = np.arange(x.size).reshape(shape)
    try:
        picked = np.asarray(places[first][rest])
    except IndexError:  # index arrays that do not broadcast
        return
    index = spelled(rng, parts, device)
    what = f"seed {seed}, shape {shape}, index {parts}"

    source = Tensor(x, device=device).realize()
    read = source[index]
    assert read.shape == picked.shape, what
    weight = rng.standard_normal(picked.shape).astype(np.float32)
    expected = np.zeros(x.size, np.float32)
    np.add.at(expected, picked.reshape(-1), weight.reshape(-1))
    found = gradient((read * Tensor(weight, device=device)).sum(), source)
    np.testing.assert_allclose(found, expected.reshape(shape), rtol=1e-5, atol=1e-5, err_msg=f"{what}: read gradient")
    np.testing.assert_array_equal(read.numpy(), x.reshape(-1)[picked], err_msg=f"{what}: read")

    # A value that broadcasts: some axes of size 1, some missing.
    sizes = [1 if rng.random() < 0.2 else size for size in picked.shape]
    sizes = sizes[int(rng.integers(0, len(sizes) + 1)) if rng.random() < 0.3 else 0 :]
    v = rng.standard_normal(sizes).astype(np.float32)
    number = np.broadcast_to(np.arange(v.size).reshape(v.shape), picked.shape)
    winner = np.full(x.size, -1)
    winner[picked.reshape(-1)] = number.reshape(-1)  # numpy keeps the last one
    written, value = source * 1.0 if rng.random() < 0.5 else source.contiguous(), Tensor(v, device=device).realize()
    before = written * 1.0
    written[index] = value
    weight = rng.standard_normal(shape).astype(np.float32)
    loss = (written * Tensor(weight, device=device)).sum()
    kept = np.where(winner < 0, weight.reshape(-1), 0).reshape(shape)
    expected = np.zeros(v.size, np.float32)
    np.add.at(expected, winner[winner >= 0], weight.reshape(-1)[winner >= 0])
    np.testing.assert_allclose(gradient(loss, source), kept, rtol=1e-5, atol=1e-5, err_msg=f"{what}: kept gradient")
    found = gradient(loss, value)
    np.testing.assert_allclose(
        found, expected.reshape(v.shape), rtol=1e-5, atol=1e-5, err_msg=f"{what}: value gradient"
    )
    result = np.where(winner < 0, x.reshape(-1), np.append(v, np.float32(0)).reshape(-1)[winner]).reshape(shape)
    np.testing.assert_array_equal(written.numpy(), result, err_msg=f"{what}: written")
    np.testing.assert_array_equal(before.numpy(), x, err_msg=f"{what}: a reader from before")
    np.testing.assert_array_equal(source.numpy(), x, err_msg=f"{what}: what it was made from")


@pytest.mark.parametrize("block", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3)]])
def test_random_indices(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        check_index(seed, "PYTHON")
    for seed in range(1000 + 5 * block, 1000 + 5 * block + 5):
        check_index(seed, "CPU")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_indices(block: int) -> None:
    for seed in range(2000 + 100 * block, 2000 + 100 * block + 100):
        check_index(seed, "CPU" if seed % 3 == 0 else "PYTHON")


def test_lists_are_constants_inside_a_jitted_function() -> None:
    @jit
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        y[[1, 0]] = x[[0, -1]] * 2
        return x[:, [0, 2, -1]].realize(), y.realize()

    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)
        columns, written = function(Tensor(x).realize())
        np.testing.assert_array_equal(columns.numpy(), x[:, [0, 2, -1]])
        np.testing.assert_array_equal(written.numpy(), np.stack([x[-1] * 2, x[0] * 2, x[2]]))
    with pytest.raises(JitError, match="host data inside a jitted function"):
        jit(lambda x: x[list(range(40))])(Tensor(np.zeros(50)).realize())


# programs
@dataclass(eq=False)
class Held:
    """A tensor of the program, its model, and for a view what it was taken from and which elements it shows."""

    tensor: Tensor | None
    model: Any
    parent: Held | None = None
    shows: Any = None


def random_view(rng: Generator, shape: tuple[int, ...]) -> tuple[str, Callable[[Any], Any], Callable[[Any], Any]]:
    """A view of ours, and the same of numpy's."""
    ndim = len(shape)
    views: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
        ("flatten", lambda t: t.flatten(), lambda p: p.reshape(-1)),
        ("squeeze", lambda t: t.squeeze(), lambda p: p.squeeze()),
        ("unsqueeze", lambda t: t.unsqueeze(ndim), lambda p: p[..., None]),
    ]
    if ndim:
        steps = [random_slice(rng, size) for size in shape]
        box = tuple(slice(s.start, s.stop, abs(s.step or 1)) for s in steps)  # what runs backwards is no view
        cut = (shape[0] + 1) // 2
        order = tuple(int(v) for v in rng.permutation(ndim))
        views += [
            (f"{box}", lambda t: t[box], lambda p: p[box]),
            (f"permute {order}", lambda t: t.permute(order), lambda p: p.transpose(order)),
            ("split", lambda t: t.split(max(cut, 1))[0], lambda p: p[:cut]),
        ]
        if shape[0]:
            views.append(("select", lambda t: t.select(0, -1), lambda p: p[-1]))
        if ndim > 1:
            views.append(("diagonal", lambda t: t.diagonal(), lambda p: p.diagonal()))
    return views[int(rng.integers(len(views)))]


def check_program(seed: int, device: str) -> None:
    """Views, writes through them, readers and realisations, in any order; then all values, and the gradient."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(v) for v in rng.integers(1, 5, int(rng.integers(1, 4))))
    x = rng.integers(-4, 5, shape).astype(np.float32)
    leaf, base = torch.tensor(x, requires_grad=True), Tensor(x, device=device).realize()
    differentiable = rng.random() < 0.7  # what was realised has no gradient
    begin = (lambda t: t.contiguous(), lambda t: t * 2, lambda t: t + 1)[int(rng.integers(3))]
    held = [Held(begin(base) if differentiable else base, begin(leaf) if differentiable else leaf * 1)]
    steps = [f"seed {seed}, shape {shape}"]
    for _ in range(int(rng.integers(3, 10))):
        one, kind = held[int(rng.integers(len(held)))], rng.random()
        steps.append(f"{held.index(one)}")
        if kind < 0.35:
            name, ours, theirs = random_view(rng, tuple(one.model.shape))
            view = ours(one.tensor)
            if view is not one.tensor:
                shows = torch.tensor(np.array(theirs(np.arange(one.model.numel()).reshape(tuple(one.model.shape)))))
                held.append(Held(view, one.model.flatten()[shows], one, shows))
                steps.append(name)
        elif kind < 0.45:
            held.append(Held(one.tensor * 3 + 1, one.model * 3 + 1))
            steps.append("read")
        elif kind < 0.55 and not differentiable:
            one.tensor.realize()
            steps.append("realize")
        elif kind < 0.6 and one.parent is not None and not any(other.parent is one for other in held):
            one.tensor = None
            held.remove(one)
            gc.collect()
            steps.append("drop")
        elif one.model.numel():
            steps.append(write(rng, one, held, device))
    what = ", ".join(steps)
    for one in held:
        assert one.tensor.shape == tuple(one.model.shape), what
    if differentiable:
        weights = [rng.integers(-3, 4, tuple(one.model.shape)).astype(np.float32) for one in held]
        ours = sum(((one.tensor * Tensor(w, device=device)).sum() for one, w in zip(held, weights)), (base * 0).sum())
        theirs = sum((one.model * torch.tensor(w)).sum() for one, w in zip(held, weights))
        expected = torch.autograd.grad(theirs, leaf, allow_unused=True)[0]
        expected = np.zeros(shape) if expected is None else expected.numpy()
        np.testing.assert_array_equal(gradient(ours, base), expected, err_msg=f"{what}: gradient")
    for number in rng.permutation(len(held)):
        expected = held[number].model.detach().numpy()
        np.testing.assert_array_equal(held[number].tensor.numpy(), expected, err_msg=f"{what}: value {number}")


def write(rng: Generator, one: Held, held: list[Held], device: str) -> str:
    """Change a tensor in one of the ways there are, and the models of what it was taken from."""
    tensor, shape = one.tensor, tuple(one.model.shape)
    numbers = np.arange(one.model.numel()).reshape(shape)
    other = held[int(rng.integers(len(held)))]
    kind = int(rng.integers(6 if shape else 3))
    if kind == 0 and other.model.shape == one.model.shape:
        tensor.assign(other.tensor)
        return changed(one, numbers, other.model, f"assign {held.index(other)}")
    if kind < 2:
        tensor += 2
        return changed(one, numbers, one.model + 2, "+= 2")
    if kind == 2:
        tensor *= 3
        return changed(one, numbers, one.model * 3, "*= 3")
    index: Any = tuple(random_slice(rng, size) for size in shape)
    if kind == 4:
        index = rng.integers(-shape[0], shape[0], 3).tolist()
    elif kind == 5:
        index = rng.random(shape) < 0.5
    places = np.array(numbers[index])
    if not places.size:
        return "nothing"
    spelled_index = Tensor(index, device=device) if kind == 5 and rng.random() < 0.5 else index
    source = other.model.reshape(()) if other.model.numel() == 1 else other.model
    try:
        model = torch.broadcast_to(source, places.shape)
    except RuntimeError:  # it does not fit
        tensor[spelled_index] = 7.0
        return changed(one, places, torch.full(places.shape, 7.0), f"[{index}] = 7")
    tensor[spelled_index] = other.tensor
    return changed(one, places, model, f"[{index}] = {held.index(other)}")


def changed(one: Held, places: np.ndarray, value: Any, what: str) -> str:
    """The models after a write: the tensor that lies deepest has the new values, all above it show them."""
    last = {int(place): number for number, place in enumerate(places.reshape(-1))}
    chain = [one]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    root = chain[-1]
    shown = [torch.arange(root.model.numel()).reshape(root.model.shape)]
    for view in chain[-2::-1]:
        shown.append(shown[-1].flatten()[view.shows])
    at = shown[-1].flatten()[torch.tensor(list(last))]
    new = root.model.flatten().index_put((at,), value.flatten()[torch.tensor(list(last.values()))])
    for view, elements in zip(reversed(chain), shown, strict=True):
        view.model = new[elements.flatten()].reshape(elements.shape)
    return what


@pytest.mark.parametrize("block", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)]])
def test_random_programs_of_views_and_writes(block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        check_program(seed, "PYTHON")
    for seed in range(1000 + 5 * block, 1000 + 5 * block + 5):
        check_program(seed, "CPU")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs_of_views_and_writes(block: int) -> None:
    for seed in range(2000 + 100 * block, 2000 + 100 * block + 100):
        check_program(seed, "CPU" if seed % 3 == 0 else "PYTHON")


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_one_index_on_two_axes(device: str) -> None:
    """The loops of both axes have the same positions, and are different loops all the same."""
    x = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
    places = np.array([2, 0, 3])
    source, index = Tensor(x, device=device).realize(), Tensor(places, device=device).realize()
    picked, expected = source[:, :, index][index], x[:, :, places][places]
    for axis in range(3):
        np.testing.assert_array_equal(picked.cumsum(axis).numpy(), expected.cumsum(axis))
        np.testing.assert_array_equal(picked.sum(axis).numpy(), expected.sum(axis))
        np.testing.assert_array_equal(picked.sort(axis, descending=True)[0].numpy(), -np.sort(-expected, axis))
        written, part = source[:, :, index][index], [slice(None)] * 3
        part[axis] = [2, 0]  # type: ignore[call-overload]
        written[tuple(part)] = 7.0
        model = expected.copy()
        model[tuple(part)] = 7.0
        np.testing.assert_array_equal(written.numpy(), model)
