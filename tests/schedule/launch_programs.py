"""Random programs for the launch tests, and a search that takes almost every merge that is legal.

Prices decide which of many legal launches is made, and on small shapes nearly always the same few. Here chance decides:
which kernels stay apart, which way two launches are merged, where the loops of a region are cut.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import pytest

from gradlet import Tensor, Variable
from gradlet.graph.node import UOp
from gradlet.schedule import columns, emit, launches, regions
from gradlet.schedule.fuse import Search
from gradlet.schedule.launches import Draft, LaunchSearch
from gradlet.schedule.regions import Planner
from gradlet.target.target import AVX2, Target

ROWS = (1, 2, 3, 4, 6, 8)


# programs
class Program:
    """A few results over shared values; most of them matrices of the same two sizes, so that loops are shared.

    In float64 another order of additions cannot be mistaken for wrong values, however badly conditioned they are.
    """

    def __init__(self, seed: int, dtype: str = "float64") -> None:
        self.random = random.Random(seed)
        self.dtype = dtype
        self.n = self.random.choice(ROWS)
        self.m = self.random.choice((*ROWS, 5, 7))
        self.values = [Tensor.empty(self.n, self.m, dtype=dtype) for _ in range(2)]
        self.square = Tensor.empty(self.m, self.m, dtype=dtype)
        self.mixed = Tensor.empty(self.n, self.m, dtype=self.random.choice(["int32", "bool", "int8", "float32"]))
        self.bases = [Tensor.empty(self.n, self.m, dtype=dtype) for _ in range(2)]
        self.results: list[Tensor] = []
        self.variables = 0
        kinds = [name for name in dir(self) if name.startswith("op_")]
        chosen = self.random.sample(kinds, self.random.randint(3, len(kinds)))
        names = [self.random.choice(chosen) for _ in range(self.random.randint(3, 12))]
        if self.random.random() < 0.3:
            self.equal_layers(names[:4])
        else:
            self.layer(names)
        self.results += self.random.sample(self.values[-6:], self.random.randint(1, 3))
        self.results += self.bases

    def layer(self, names: Sequence[str]) -> None:
        """One operation after another."""
        for name in names:
            made = getattr(self, name)(self.pick())
            if prod(made.shape) <= 600:
                self.values.append(self.fit(made))

    def equal_layers(self, names: Sequence[str]) -> None:
        """The same operations three times."""
        seed = self.random.random()
        for _ in range(3):
            self.random.seed(seed)
            self.values = self.values[-2:]
            self.layer(names)

    @property
    def roots(self) -> list[UOp]:
        """The nodes of the results."""
        return list(dict.fromkeys([t.uop for t in self.results]))

    def pick(self) -> Tensor:
        """A value made not long ago."""
        return self.random.choice(self.values[-4:])

    def fit(self, x: Tensor) -> Tensor:
        """Some form of `x` in the common shape."""
        x = x.cast(self.dtype)
        if x.shape == (self.n, self.m):
            return x
        if x.ndim == 2 and x.shape == (self.m, self.n):
            return x.T
        if prod(x.shape) == self.n * self.m:
            return x.reshape(self.n, self.m)
        if x.shape == (self.n,):
            return x.reshape(self.n, 1).expand(self.n, self.m)
        if x.shape == (self.m,):
            return x.reshape(1, self.m).expand(self.n, self.m)
        if x.ndim == 2:
            rows, cols = x.shape
            if rows >= self.n and cols >= self.m:
                return x[: self.n, cols - self.m :]
            x = x.sum(self.random.choice((0, 1)))
            return self.fit(x) if x.shape[0] in (self.n, self.m) else x.max().reshape(1, 1).expand(self.n, self.m)
        return x.sum().reshape(1, 1).expand(self.n, self.m)

    def some_axis(self) -> int:
        """0 or 1."""
        return self.random.randrange(2)

    def index(self, size: int) -> Tensor:
        """Indices made inside the program."""
        kind = self.random.randrange(5)
        if kind == 0:
            return Tensor.empty(size, dtype="int32")
        if kind == 1:
            return Tensor.arange(size).flip(0)
        if kind == 2 and size == self.m:
            return (self.pick()[0] * 3).int() % size
        if kind == 3 and size == self.n:
            return self.pick().sum(1).int() % size
        return (self.pick()[0, :1].expand(size) * 2).int() % max(1, size)

    # what is done
    def op_unary(self, x: Tensor) -> Tensor:
        return self.random.choice([lambda v: v.relu(), lambda v: v * 0.5 + 1, lambda v: v.tanh(), lambda v: v.abs()])(x)

    def op_binary(self, x: Tensor) -> Tensor:
        y = self.pick()
        return self.random.choice([lambda: x + y, lambda: x * y * 0.3, lambda: (x < y).where(x, y)])()

    def op_sum(self, x: Tensor) -> Tensor:
        return x.sum(self.some_axis()) * 0.2

    def op_extreme(self, x: Tensor) -> Tensor:
        axis = self.some_axis()
        return x.max(axis) if self.random.random() < 0.5 else x.min(axis)

    def op_centre(self, x: Tensor) -> Tensor:
        return x - x.mean(self.some_axis(), keepdim=True)

    def op_softmax(self, x: Tensor) -> Tensor:
        return x.softmax(self.some_axis())

    def op_norm(self, x: Tensor) -> Tensor:
        return x.layernorm(self.some_axis())

    def op_matmul(self, x: Tensor) -> Tensor:
        return (x @ self.square).tanh() if self.random.random() < 0.5 else x @ self.square

    def op_outer(self, x: Tensor) -> Tensor:
        y = self.pick()
        return x @ y.T @ x * 0.05 if self.random.random() < 0.5 else x @ (y.T @ y) * 0.05

    def op_heads(self, x: Tensor) -> Tensor:
        """Attention of two heads, of every row to every other one."""
        if self.m % 2:
            return x
        first, second, third = (t.reshape(self.n, 2, self.m // 2).permute(1, 0, 2) for t in (x, self.pick(), x * 2))
        weights = (first @ second.permute(0, 2, 1)).softmax(2)
        if self.random.random() < 0.3:
            weights = weights.tril()
        return (weights @ third).permute(1, 0, 2).reshape(self.n, self.m)

    def op_groups(self, x: Tensor) -> Tensor:
        """Every group of rows less its mean."""
        count = self.random.choice([d for d in (1, 2, 3) if self.n % d == 0])
        groups = x.reshape(count, self.n // count, self.m)
        return (groups - groups.mean((1, 2), keepdim=True)).reshape(self.n, self.m)

    def op_weights(self, x: Tensor) -> Tensor:
        made = x.T @ self.pick() * 0.1
        self.results.append(made)
        return x @ made

    def op_two_views(self, x: Tensor) -> Tensor:
        kind = self.random.randrange(6)
        if kind == 0 and self.n == self.m:
            return x + x.T
        if kind == 1 and self.n > 1:
            return (x[:-1] + x[1:]).pad(((0, 1), (0, 0)))
        if kind == 2 and self.m > 1:
            return (x[:, :-1] * x[:, 1:]).pad(((0, 0), (1, 0)))
        if kind == 3:
            return x + x.flip(self.some_axis())
        if kind == 4:
            return x - x.roll(1, self.some_axis())
        return x * x.sum(1, keepdim=True) + x.sum(0, keepdim=True)

    def op_move(self, x: Tensor) -> Tensor:
        kind = self.random.randrange(6)
        if kind == 0:
            return x.flip(self.some_axis())
        if kind == 1:
            return x.T.contiguous() if self.random.random() < 0.5 else x.T
        if kind == 2:
            return x.reshape(-1).flip(0)
        if kind == 3:
            return x[::2].repeat(2, 1)[: self.n] if self.n % 2 == 0 else x
        if kind == 4:
            return x.pad(((1, 0), (0, 2)))[: self.n, 2:]
        return x.reshape(self.m, self.n).T if self.random.random() < 0.5 else x.reshape(self.m, self.n)

    def op_keep(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def op_window(self, x: Tensor) -> Tensor:
        if self.n < 3 or self.m < 3:
            return x
        image = x.reshape(1, 1, self.n, self.m)
        if self.random.random() < 0.5:
            return image.pad((1, 1, 1, 1)).conv2d(self.square[:3, :3].reshape(1, 1, 3, 3)).reshape(self.n, self.m)
        return image.max_pool2d(2, 1).reshape(self.n - 1, self.m - 1).pad(((0, 1), (0, 1)))

    def op_gather(self, x: Tensor) -> Tensor:
        if self.random.random() < 0.5:
            return x[self.index(self.n)]
        return x.T[self.index(self.m)].T

    def op_along(self, x: Tensor) -> Tensor:
        return x.gather(1, x.argsort(1))

    def op_scatter(self, x: Tensor) -> Tensor:
        index = self.index(self.m).reshape(1, self.m).expand(self.n, self.m)
        return Tensor.zeros(self.n, self.m, dtype=self.dtype).scatter_reduce(1, index.clip(0, self.m - 1), x, "sum")

    def op_scan(self, x: Tensor) -> Tensor:
        return x.cumsum(self.some_axis()) * 0.2 if self.random.random() < 0.7 else x.cummax(self.some_axis())[0]

    def op_order(self, x: Tensor) -> Tensor:
        if self.random.random() < 0.5:
            return x.sort(1)[0]
        values, positions = x.topk(min(2, self.m), 1)
        return values.sum(1) + positions.sum(1).cast(self.dtype)

    def op_types(self, x: Tensor) -> Tensor:
        y = self.mixed
        kind = self.random.randrange(4)
        if kind == 0:
            return x.half().cast(self.dtype) + y.cast(self.dtype)
        if kind == 1:
            return (x > 0).sum(self.some_axis())
        if kind == 2:
            return y.int().sum(self.some_axis())
        return y.bool().where(x, 0.5)

    def op_write(self, x: Tensor) -> Tensor:
        """One of the bases is read, changed in place, and read again."""
        which = self.random.randrange(len(self.bases))
        base = self.bases[which]
        old = base * 2
        if self.random.random() < 0.5:
            self.results.append(old)
        low = self.random.randrange(self.n)
        left = self.random.randrange(self.m)
        kind = self.random.randrange(7)
        if kind == 0:
            base.assign(x + base)
        elif kind == 1:
            base[low:] = x[: self.n - low]
        elif kind == 2:
            base[:, left:] = x[:, left:] + old[:, left:]
        elif kind == 3:
            base[low] = x[0]
        elif kind == 4:
            base[:, ::2] = x[:, ::2].flip(0)
        elif kind == 5:
            base.assign(x.flip(self.some_axis()))
        else:
            base[low:, left:] = 3
        return base + old if self.random.random() < 0.5 else base * 0.5

    def op_small(self, x: Tensor) -> Tensor:
        """A value of one element that others need."""
        return x * (x.sum() * 0.01 + x.max())

    def op_gradient(self, x: Tensor) -> Tensor:
        """What a norm or a product owes to its operand, with the sums for weights."""
        kind = self.random.randrange(3)
        if kind == 0:
            made = x.layernorm(1) * self.square[0].reshape(1, self.m)
        elif kind == 1:
            made = (x @ self.square).relu()
        else:
            made = x.softmax(1)
        first, second = made.gradient(x, self.square, gradient=self.pick()) if kind != 2 else (None, None)
        if first is None or second is None:
            (first,) = made.gradient(x, gradient=self.pick())
            return first
        self.results.append(second)
        return first

    def op_conv_gradient(self, x: Tensor) -> Tensor:
        if self.n < 3 or self.m < 3:
            return x
        image, taps = x.reshape(1, 1, self.n, self.m), self.square[:3, :3].reshape(1, 1, 3, 3)
        made = image.pad((1, 1, 1, 1)).conv2d(taps)
        first, second = made.gradient(image, taps, gradient=self.pick().reshape(1, 1, self.n, self.m))
        self.results.append(second)
        return first.reshape(self.n, self.m)

    def op_variable(self, x: Tensor) -> Tensor:
        """Positions and sizes that are known only at launch."""
        self.variables += 1
        low = self.random.randrange(self.n)
        position = Variable(f"p{self.variables}", 0, self.n - 1).bind(low)
        kind = self.random.randrange(5)
        if kind == 0:
            return x * x[position].reshape(1, self.m)
        if kind == 1:
            return x + x[: position + 1].sum(0).reshape(1, self.m)
        if kind == 2:
            return x - x[: position + 1].max(0).reshape(1, self.m)
        base = self.random.choice(self.bases)
        old = base * 2
        base[position] = x[0]
        if kind == 3:
            return base + x
        self.results.append(old)
        return base + old[: position + 1].sum(0).reshape(1, self.m)

    def op_zero(self, x: Tensor) -> Tensor:
        return x + x[:, :0].sum(1, keepdim=True)

    def op_apart(self, x: Tensor) -> Tensor:
        """A small kernel of its own."""
        self.results.append(Tensor.empty(self.random.choice((1, 3, 5))) + 1)
        return x


# the search
@contextmanager
def any_launch(seed: int, counts: dict[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Chance in the place of prices. Counts the launches that could not be lowered as they were decided."""
    chance = random.Random(seed)
    counts = counts if counts is not None else {}
    ways, merge_all, emit_launch = LaunchSearch.ways, Search.merge_all, emit.Emitter.emit_launch
    legal = chance.choice((1.0, 1.0, 0.7, 0.4))
    merging = chance.choice((0.0, 0.3, 0.7, 1.0))

    def any_way(self: LaunchSearch, a: Draft, b: Draft) -> dict[str, Draft | None]:
        found = {name: draft for name, draft in ways(self, a, b).items() if draft is not None}
        if not found or chance.random() > legal:
            return {}
        name = chance.choice(sorted(found))
        counts[name] = counts.get(name, 0) + 1
        return {name: found[name]}

    def some_merges(self: Search) -> None:
        self.heap = [entry for entry in self.heap if chance.random() < merging]
        merge_all(self)

    def counted(self: emit.Emitter, launch: launches.Launch) -> bool:
        done = emit_launch(self, launch)
        key = "launches" if done else "apart: " + self.apart[len(self.calls)]
        counts[key] = counts.get(key, 0) + 1
        return done

    def any_plan(self: Planner, time: int, count: int) -> int:
        return chance.randrange(1 << 30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaunchSearch, "ways", any_way)
        patch.setattr(LaunchSearch, "pays", lambda self, gain: True)
        patch.setattr(Search, "merge_all", some_merges)
        patch.setattr(Planner, "with_waiting", any_plan)
        patch.setattr(emit.Emitter, "emit_launch", counted)
        patch.setattr(regions, "MIN_LANES", 1)
        patch.setattr(launches, "SMALL_LAUNCHES", chance.choice((0, 1000)))
        patch.setattr(launches, "MAX_BODIES", chance.choice((3, 16)))
        patch.setattr(columns, "MIN_ROWS", chance.choice((2, 256)))
        patch.setattr(columns, "CHUNKS", 2)
        patch.setattr(columns, "MIN_COLUMNS", 1)
        yield counts


def odd_target(seed: int) -> Callable[[str], Target]:
    """A machine on which other things are cheap."""
    chance = random.Random(seed)
    target = replace(
        AVX2,
        l2_bytes=chance.choice((64, 4096, 1 << 20)),
        scratch_bytes=chance.choice((64, 1 << 19, 1 << 19)),
        launch_ps=chance.choice((2_000_000, 1 << 40)),
        cores=chance.choice((1, 2, 4, 7)),
    )
    return lambda device: target
