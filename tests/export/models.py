"""Models that the tests export: a network of convolutions, a decoder with its cache, steps of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gradlet import Tensor, Variable, dtypes, jit, nn
from gradlet.cli.demo import Network

CONTEXT, WIDTH, HEADS, WORDS = 16, 32, 4, 48


class Model(NamedTuple):
    """A jitted function, and the arguments of any number of calls in a row."""

    step: Any
    arguments: Callable[[int], dict[str, Any]]
    exported: Any = None  # the jitted function, where `step` is one around it
    trains: bool = False

    def export(self, path: Any, **arguments: Any) -> None:
        """Write it."""
        with Tensor.train(self.trains):
            (self.exported or self.step).export(path, **arguments)

    def export_c(self, folder: Any, name: str, embed: bool, **arguments: Any) -> None:
        """Write it as C."""
        with Tensor.train(self.trains):
            (self.exported or self.step).export_c(folder, name=name, embed=embed, **arguments)


def convolutions() -> Model:
    """The network of `gradlet demo`, for two images."""
    Tensor.manual_seed(1)
    network = Network()

    @jit
    def classify(images: Tensor) -> Tensor:
        return network(images)

    return Model(classify, lambda call: {"images": Tensor(_numbers(call, 2, 1, 8, 8))})


class Block:
    """A block of a decoder: attention over a cache that grows, then two layers."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        shape = (2, 1, HEADS, CONTEXT, WIDTH // HEADS)
        self.cache = Tensor.zeros(*shape).contiguous().realize()

    def __call__(self, x: Tensor, position: Any) -> Tensor:
        parts = self.qkv(self.norm1(x)).reshape(1, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        self.cache[:, :, :, position : position + 1] = parts[1:]
        keys, values = self.cache[0, :, :, : position + 1], self.cache[1, :, :, : position + 1]
        scores = (parts[0] @ keys.transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5
        x = x + self.out((scores.softmax(-1) @ values).transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.down(self.up(self.norm2(x)).gelu())


def decoder() -> Model:
    """One step of decoding in the shape of GPT-2: a token and its position give scores of the next one."""
    Tensor.manual_seed(2)
    words, places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
    blocks, norm = [Block(), Block()], nn.LayerNorm(WIDTH)
    n = Variable("position", 0, CONTEXT - 1)

    @jit
    def decode(token: Tensor, position: Any) -> Tensor:
        x = words(token) + places.weight[position : position + 1].reshape(1, 1, WIDTH)
        for block in blocks:
            x = block(x, position)
        return norm(x) @ words.weight.transpose(0, 1)

    def arguments(call: int) -> dict[str, Any]:
        token = Tensor([[(7 * call + 3) % WORDS]], dtype=dtypes.int32)
        return {"token": token, "position": n.bind(call)}

    return Model(decode, arguments)


def training() -> Model:
    """A step of training: weights, moments of the optimizer and statistics of a normalisation are state."""
    Tensor.manual_seed(3)
    first, norm, second = nn.Linear(6, 16), nn.BatchNorm(16), nn.Linear(16, 4)
    parameters = [t for layer in (first, norm, second) for t in nn.state.get_parameters(layer)]
    optimizer = nn.optim.AdamW(parameters, 0.01)

    @jit
    def step(x: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        hidden = norm(first(x).reshape(8, 16, 1, 1)).reshape(8, 16).relu().dropout(0.25)
        loss = second(hidden).sparse_categorical_crossentropy(labels)
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    def trained(**arguments: Any) -> Tensor:
        with Tensor.train():
            return step(**arguments)

    def arguments(call: int) -> dict[str, Any]:
        labels = np.arange(call, call + 8, dtype=np.int32) % 4
        return {"x": Tensor(_numbers(call, 8, 6)), "labels": Tensor(labels)}

    with Tensor.train():
        for call in (100, 101):  # gradients and moments exist from here on
            step(**arguments(call))
    return Model(trained, arguments, step, True)


def recurrent() -> Model:
    """An LSTM cell whose hidden values are state that gets new memory at every call."""
    Tensor.manual_seed(4)
    cell = nn.LSTMCell(5, 7)
    hidden = [Tensor.zeros(3, 7).contiguous().realize() for _ in range(2)]

    @jit
    def step(x: Tensor) -> Tensor:
        h, c = cell(x, (hidden[0], hidden[1]))
        hidden[0].assign(h)
        hidden[1].assign(c)
        return h.sum(0)

    return Model(step, lambda call: {"x": Tensor(_numbers(call, 3, 5))})


MODELS: dict[str, Callable[[], Model]] = {
    "convolutions": convolutions, "decoder": decoder, "training": training, "recurrent": recurrent,
}  # fmt: skip


def _numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
