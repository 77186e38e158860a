"""Random sequences of jitted calls and of what happens between them, against numpy: nothing is ever stale."""

import random

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.tensor import fastcall

SIZE = 6


def whole_numbers(generator):
    return np.array([generator.randrange(-8, 9) for _ in range(SIZE)], np.float32)


class Model:
    """Weights that are written in place, given new memory, and read."""

    def __init__(self, truth):
        self.weight, self.count, self.cache = [Tensor(v) for v in truth.values()]
        self.scale = 2.0

    @jit
    def read(self, x):
        return (x * self.scale + self.weight).reshape(2, 3), self.cache + 1

    @jit
    def write(self, x):
        self.count.assign(self.count + 1)
        self.cache[1:4] = x[:3] + self.count[:3]
        return x + self.count

    @jit
    def move(self, x, y):
        self.weight.assign((self.weight + x).flip(0) * 0.5)
        return {"sum": x + y, "inner": ((x - y).realize() * self.weight).realize()}


class Mirror:
    """The same in numpy."""

    def __init__(self, generator):
        self.truth = {name: whole_numbers(generator) for name in ("weight", "count", "cache")}
        self.model = Model(self.truth)

    def read_truth(self, x):
        truth = self.truth
        return [(x * np.float32(self.model.scale) + truth["weight"]).reshape(2, 3), truth["cache"] + 1]

    def write_truth(self, x):
        truth = self.truth
        truth["count"] = truth["count"] + 1
        truth["cache"] = truth["cache"].copy()
        truth["cache"][1:4] = x[:3] + truth["count"][:3]
        return [x + truth["count"]]

    def move_truth(self, x, y):
        self.truth["weight"] = (self.truth["weight"] + x)[::-1] * np.float32(0.5)
        return [x + y, (x - y) * self.truth["weight"]]


def run(seed, steps):
    generator = random.Random(seed)
    mirror = Mirror(generator)
    model = mirror.model
    held = []  # tensors or arrays, and what they have to be

    def argument():
        flat = [(t, v) for t, v in held if isinstance(t, Tensor) and v.shape == (SIZE,)]
        kind = generator.randrange(6)
        if kind <= 1 and flat:
            return generator.choice(flat)
        value = whole_numbers(generator)
        if kind == 2:
            return Tensor(np.stack([value, value + 1]))[0], value
        if kind == 3:
            return Tensor(value) * 0.5 + 1, value * np.float32(0.5) + 1  # lazy
        if kind == 4:
            return model.count, mirror.truth["count"]
        return Tensor(value), value

    for _ in range(steps):
        action = generator.randrange(12)
        if action <= 7:
            x, truth = argument()
            if action <= 3:
                results, wanted = model.read(x), mirror.read_truth(truth)
            elif action <= 5 and x is not model.count:
                results, wanted = [model.write(x)], mirror.write_truth(truth)
            elif x is not model.count:
                y, other = argument() if generator.random() < 0.6 else (x, truth)
                results, wanted = list(model.move(x, y).values()), mirror.move_truth(truth, other)
            else:
                continue
            for result, value in zip(results, wanted, strict=True):
                if generator.random() < 0.5:
                    held.append((result, value))
                elif generator.random() < 0.3:
                    held.append((result.numpy(), value))
                elif generator.random() < 0.3 and value.shape == (SIZE,):
                    held.append((result * 2 + model.weight, value * 2 + mirror.truth["weight"]))
            del results, result, x
        elif action == 8:
            model.scale = generator.choice([2.0, 3.0])
        elif action == 9 and held:
            place = generator.randrange(len(held))
            tensor, value = held[place]
            if isinstance(tensor, Tensor) and tensor.is_realized:
                tensor.assign(tensor + 1)
                if generator.random() < 0.5:
                    tensor.realize()
                held[place] = tensor, value + 1
            del tensor
        elif action == 10:
            value = whole_numbers(generator)
            name = generator.choice(["weight", "cache"])
            getattr(model, name).assign(Tensor(value))
            mirror.truth[name] = value
        elif action == 11:
            held.append((model.weight * 3, mirror.truth["weight"] * 3))  # lazy: sees what is there now
        while len(held) > 6:
            tensor, value = held.pop(generator.randrange(len(held)))
            found = tensor.numpy() if isinstance(tensor, Tensor) else tensor
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)
            del tensor, found
    for tensor, value in held:
        np.testing.assert_allclose(
            tensor.numpy() if isinstance(tensor, Tensor) else tensor, value, rtol=1e-4, atol=1e-4
        )
    for name, value in mirror.truth.items():
        np.testing.assert_allclose(getattr(model, name).numpy(), value, rtol=1e-4, atol=1e-4)


class Counter:
    count = 0


@pytest.fixture
def short(monkeypatch):
    counter = Counter()
    call = fastcall.FastCall.call

    def counting(self, args, kwargs):
        result = call(self, args, kwargs)
        counter.count += result is not fastcall.MISSED
        return result

    monkeypatch.setattr(fastcall.FastCall, "call", counting)
    return counter


@pytest.mark.parametrize("seed", range(2))
def test_random_sequences(seed, short):
    run(seed, 80)
    assert short.count > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_sequences(seed, short):
    run(seed, 300)
    assert short.count > 20
