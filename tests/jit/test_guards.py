"""What a jitted function reads from outside is a guard: a change captures again."""

import types

import numpy as np

from gradlet import Tensor, jit

RATE = 2.0


def scaled(x):
    return x * RATE


def test_globals_of_called_functions_are_guards(monkeypatch):
    @jit
    def function(x):
        return scaled(x)

    assert function(Tensor([1.0])).item() == 2
    assert function(Tensor([1.0])).item() == 2
    monkeypatch.setitem(globals(), "RATE", 7.0)
    assert function(Tensor([1.0])).item() == 7


def test_class_attributes_and_defaults_are_guards():
    class Config:
        rate = 2.0

    def inner(x, factor=Config):
        return x * factor.rate

    function = jit(lambda x: inner(x))
    assert function(Tensor([1.0])).item() == 2
    Config.rate = 3.0
    assert function(Tensor([1.0])).item() == 3


def test_numpy_scalar_is_a_guard():
    rate = np.float32(2)

    @jit
    def function(x):
        return x * float(rate)

    assert function(Tensor([1.0])).item() == 2
    rate = np.float32(3)
    assert function(Tensor([1.0])).item() == 3


def test_module_attributes_base_classes_and_sets_are_guards():
    settings = types.ModuleType("settings")
    settings.rate = 2.0

    class Base:
        rate = 2.0

    class Config(Base):
        pass

    chosen = {1}
    functions = [
        jit(lambda x: x * settings.rate),
        jit(lambda x: x * Config.rate),
        jit(lambda x: x * (2.0 if 1 in chosen else 3.0)),
    ]
    x = Tensor([1.0])
    for _ in range(2):
        assert [f(x).item() for f in functions] == [2, 2, 2]
    settings.rate = Base.rate = 3.0
    chosen.clear()
    assert [f(x).item() for f in functions] == [3, 3, 3]
    Config.rate = 4.0
    assert functions[1](x).item() == 4
