"""Deep and wide programs (field case A33), and programs that run for long: nothing recurses, nothing is kept."""

import gc

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, nn


def test_chain_of_50000_adds():
    x = Tensor([1.0, 2.0]).realize()
    y = x
    for _ in range(50_000):
        y = y + 1
    assert y.tolist() == [50_001.0, 50_002.0]


@pytest.mark.slow
def test_stack_of_6000_tensors():
    stacked = Tensor.stack(*[Tensor([float(i)]) for i in range(6000)])
    np.testing.assert_array_equal(stacked.numpy()[:, 0], np.arange(6000, dtype=np.float32))


def test_cat_of_1000_tensors():
    pieces = [np.full((1 + i % 3, 2), i, np.float32) for i in range(1000)]
    np.testing.assert_array_equal(Tensor.cat(*[Tensor(p) for p in pieces]).numpy(), np.concatenate(pieces))


def test_cat_of_1000_lazy_tensors():
    x = Tensor([[1.0]]).realize()
    joined = Tensor.cat(*[x * i for i in range(1000)], dim=1)
    np.testing.assert_array_equal(joined.numpy(), np.arange(1000, dtype=np.float32)[None])


def test_objects_and_memory_flat_over_200_steps():
    Tensor.manual_seed(0)
    model = [nn.Linear(8, 16), nn.Linear(16, 4)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.01, momentum=0.9)

    def step(number: int) -> None:
        generator = np.random.default_rng(number)
        x = Tensor(generator.standard_normal((5, 8)).astype(np.float32))
        y = Tensor(generator.integers(0, 4, 5).astype(np.int32))
        with Tensor.train():
            optimizer.zero_grad()
            loss = model[1](model[0](x).relu()).sparse_categorical_crossentropy(y)
            loss.backward()
            optimizer.step()
            loss.item()

    for number in range(20):
        step(number)
    gc.collect()
    objects, memory = len(gc.get_objects()), GlobalCounters.mem_used
    gc.disable()  # nothing may rely on the collector
    try:
        for number in range(200):
            step(number)
        assert GlobalCounters.mem_used == memory
        assert len(gc.get_objects()) - objects < 100
    finally:
        gc.enable()
