"""What a jitted function reads from outside is a guard: a change captures again."""

import importlib
import types

import numpy as np

from gradlet import Tensor, jit
from gradlet.tensor.guards import Guards

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


def test_guards_are_the_same_until_something_changes():
    class Config:
        rate = 2.0

    class Layer:
        def __init__(self):
            self.weight, self.steps = Tensor([1.0]), [1, {"a": 2.0}]

    layer, config, factor = Layer(), Config(), 3.0

    def called(x, more=Config):
        return x * RATE + more.rate

    def function(x):
        return called(x) * layer.weight * layer.steps[1]["a"] * factor + config.rate + layer.steps[0]

    def set_factor(value):
        nonlocal factor
        factor = value

    guards = Guards(("", function))
    assert guards.unchanged(function)
    changes = [
        (lambda: set_factor(4.0), lambda: set_factor(3.0)),
        (lambda: layer.steps.append(5), lambda: layer.steps.pop()),
        (lambda: layer.steps[1].update(a=3.0), lambda: layer.steps[1].update(a=2.0)),
        (lambda: layer.steps[1].update(b=3.0), lambda: layer.steps[1].pop("b")),
        (lambda: setattr(Config, "rate", 3.0), lambda: setattr(Config, "rate", 2.0)),
        (lambda: setattr(config, "rate", 3.0), lambda: delattr(config, "rate")),
        (lambda: globals().update(RATE=9.0), lambda: globals().update(RATE=2.0)),
        (lambda: setattr(called, "__defaults__", (Layer,)), lambda: setattr(called, "__defaults__", (Config,))),
        (lambda: setattr(layer, "weight", Tensor([1.0])), lambda: None),
    ]
    for change, back in changes:
        change()
        assert not guards.unchanged(function)
        back()
        guards = Guards(("", function))
        assert guards.unchanged(function)


def test_an_object_in_the_place_of_another_is_noticed():
    """Also where it lies at the address of the one before."""

    class Holder:
        pass

    holder = Holder()

    def function(x):
        return x * holder.weight

    for _ in range(200):
        holder.weight = Tensor([1.0])
        guards = Guards(("", function))
        assert guards.unchanged(function)
        del holder.weight
        holder.weight = Tensor([2.0])
        assert not guards.unchanged(function)


def test_modules_of_a_package_that_name_each_other(tmp_path, monkeypatch):
    """Each holds the package, which holds each of them: the walk ends, and what they hold counts."""
    package = tmp_path / "ring_of_modules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(
        "import ring_of_modules.one, ring_of_modules.two\nfactor = 2.0\n"
        "def compute(x): return x * ring_of_modules.one.factor + ring_of_modules.two.term\n"
    )
    (package / "two.py").write_text("import ring_of_modules.one, ring_of_modules.two\nterm = 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    one, two = (importlib.import_module(f"ring_of_modules.{name}") for name in ("one", "two"))
    function = jit(one.compute)
    assert [function(Tensor([3.0])).item() for _ in range(3)] == [7.0] * 3
    one.factor = 3.0
    two.term = 2.0
    assert function(Tensor([3.0])).item() == 11.0
    assert len(function.captures) == 2
