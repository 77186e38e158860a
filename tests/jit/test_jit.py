"""The jit's contract, from the outside: right on every call, or a JitError on the first wrong one."""

import gc
from itertools import count

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, TinyJit, Variable, dtypes, jit, nn
from gradlet.base.errors import JitError
from gradlet.ops.op import MOVEMENT


def array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_results_match_on_every_call():
    @jit
    def function(x, y):
        return (x @ y).relu().realize()

    for step in range(5):
        x, y = array(4, 5, seed=step), array(5, 3, seed=step + 100)
        np.testing.assert_allclose(function(Tensor(x), Tensor(y)).numpy(), np.maximum(x @ y, 0), rtol=1e-5, atol=1e-6)


def test_second_call_replays_without_tracing():
    traced = count()  # not a plain value, so not a guard

    @jit
    def function(x):
        next(traced)
        return x + 1

    for step in range(4):
        assert function(Tensor([float(step)])).tolist() == [step + 1]
    assert next(traced) == 1
    assert len(function.kernels) == 1


def test_result_needs_no_realize():
    @TinyJit
    def function(x):
        return x * 3

    assert [function(Tensor([n])).tolist() for n in (1, 2, 3)] == [[3], [6], [9]]


def test_results_of_earlier_calls_keep_their_values():
    @jit
    def function(x):
        return x * 2

    results = [function(Tensor([float(n)])) for n in range(5)]
    assert [r.item() for r in results] == [0, 2, 4, 6, 8]


def test_output_fed_back_as_input():
    """Ring buffer (field case A10): output becomes the next input."""
    size = 1 << 12

    @jit
    def push(buffer, new):
        return buffer[new.shape[0] :].cat(new)

    expected = np.arange(size, dtype=np.int32)
    buffer = Tensor(expected)
    for step in range(10):
        new = np.full(7, step, dtype=np.int32)
        expected = np.concatenate([expected[7:], new])
        buffer = push(buffer, Tensor(new))
        np.testing.assert_array_equal(buffer.numpy(), expected)


def test_two_sessions_with_fed_back_output():
    """Field case A11: a second session starts with a fresh input."""

    @jit
    def step(x):
        return ((x + 1).contiguous() * 2).contiguous()

    for start in (1.0, 10.0, 100.0):
        x, expected = Tensor([start]), start
        for _ in range(3):
            x, expected = step(x), (expected + 1) * 2
            assert x.item() == expected


def test_python_values_are_guards():
    @jit
    def function(x, n, flag=True):
        return x + n if flag else x - n

    for n in range(5):
        assert function(Tensor([1.0]), n).item() == 1 + n
        assert function(Tensor([1.0]), n, flag=False).item() == 1 - n


def test_too_many_values_name_the_argument():
    @jit
    def function(x, n):
        return x + n

    with pytest.raises(JitError, match="argument 1"):
        for n in range(100):
            function(Tensor([1.0]), n)


def test_closed_over_python_value_is_a_guard():
    factor = 2

    @jit
    def function(x):
        return x * factor

    assert function(Tensor([3])).item() == 6
    assert function(Tensor([3])).item() == 6
    factor = 5
    assert function(Tensor([3])).item() == 15


def test_attribute_of_closed_over_object_is_a_guard():
    class Settings:
        rate = 0.5

    settings = Settings()
    settings.rate = 0.5

    @jit
    def function(x):
        return x * settings.rate

    assert function(Tensor([4.0])).item() == 2.0
    settings.rate = 0.25
    assert function(Tensor([4.0])).item() == 1.0


def test_methods_capture_per_instance():
    """Field case A13."""

    class Layer:
        def __init__(self, weight):
            self.weight = Tensor([weight])

        @jit
        def __call__(self, x):
            return x * self.weight

    two, three = Layer(2.0), Layer(3.0)
    for n in range(3):
        assert two(Tensor([float(n)])).item() == 2 * n
        assert three(Tensor([float(n)])).item() == 3 * n


def test_closed_over_tensor_is_tracked():
    weight = Tensor([2.0]).realize()

    @jit
    def function(x):
        return x * weight

    assert function(Tensor([3.0])).item() == 6
    weight.assign(Tensor([10.0])).realize()
    assert function(Tensor([3.0])).item() == 30
    weight.assign(Tensor([11.0]))
    assert function(Tensor([3.0])).item() == 33


def test_state_written_inside_advances():
    total = Tensor([0.0]).realize()

    @jit
    def add(x):
        total.assign(total + x)
        return total * 1

    seen = [add(Tensor([float(n)])).item() for n in range(1, 6)]
    assert seen == [1, 3, 6, 10, 15]
    assert total.item() == 15


def test_state_returned_directly_keeps_old_results():
    total = Tensor([0.0]).realize()

    @jit
    def add(x):
        total.assign(total + x)
        return total

    results = [add(Tensor([1.0])) for _ in range(4)]
    assert [r.item() for r in results] == [1, 2, 3, 4]


def test_lazy_reader_outside_sees_the_old_state():
    state = Tensor([1.0]).realize()

    @jit
    def double():
        state.assign(state * 2)

    double()
    double()
    reader = state + 100  # lazy: built on the value 4
    double()
    assert reader.item() == 104
    assert state.item() == 8


def test_view_of_state_outside_keeps_its_value():
    state = Tensor([1.0, 2.0]).realize()

    @jit
    def double():
        state.assign(state * 2)

    double()
    view = state.reshape(2, 1)
    double()
    assert view.tolist() == [[2], [4]]
    assert state.tolist() == [4, 8]


def test_random_advances_and_seed_repeats():
    """Field case A14."""

    @jit
    def draw():
        return Tensor.rand(8)

    Tensor.manual_seed(7)
    first = [draw().tolist() for _ in range(5)]
    assert len({tuple(f) for f in first}) == 5
    Tensor.manual_seed(7)
    assert [draw().tolist() for _ in range(5)] == first
    Tensor.manual_seed(7)
    assert [Tensor.rand(8).tolist() for _ in range(5)] == first


def test_dropout_differs_between_replays():
    @jit
    def drop(x):
        return x.dropout(0.5)

    with Tensor.train():
        masks = {tuple(drop(Tensor.ones(64).contiguous()).tolist()) for _ in range(4)}
    assert len(masks) == 4


def test_reading_inside_raises_on_first_call():
    @jit
    def function(x):
        return x * x.sum().item()

    with pytest.raises(JitError, match="reading values"):
        function(Tensor([1.0, 2.0]))


@pytest.mark.parametrize("read", ["numpy", "tolist", "item", "data"])
def test_every_read_inside_raises(read):
    @jit
    def function(x):
        getattr(x + 1, read)()
        return x

    with pytest.raises(JitError):
        function(Tensor([1.0]))
    assert (Tensor([1.0]) + 1).item() == 2  # the failed capture left nothing behind


def test_host_data_inside_raises():
    @jit
    def function(x):
        return x + Tensor(array(3))

    with pytest.raises(JitError, match="argument"):
        function(Tensor([1.0, 2.0, 3.0]))


def test_unnoticed_argument_kind_raises():
    @jit
    def function(x):
        return Tensor([1.0]) + 1

    with pytest.raises(JitError, match="argument 0"):
        function(array(3))


def test_same_tensor_twice_then_two():
    @jit
    def function(x, y):
        return x + y * 10

    same = Tensor([1.0])
    assert function(same, same).item() == 11
    assert function(same, same).item() == 11
    assert function(Tensor([1.0]), Tensor([2.0])).item() == 21
    assert function(same, same).item() == 11


def test_overlapping_inputs_with_mutation():
    """Field case A16: the second call passes overlapping views."""

    @jit
    def function(x, y):
        x.assign(x * 2)
        return x + y

    def ones(size):
        return Tensor.ones(size).contiguous().realize()

    for _ in range(3):
        x, y = ones(4), ones(4)
        assert function(x, y).tolist() == [3, 3, 3, 3]
        assert x.tolist() == [2, 2, 2, 2]
        assert y.tolist() == [1, 1, 1, 1]
        assert function(x, x).tolist() == [8, 8, 8, 8]
        assert x.tolist() == [4, 4, 4, 4]
    base = ones(8)
    with pytest.raises(JitError, match="argument 0 is a view"):
        function(base[:4], base[2:6])


def test_written_argument_leaves_other_readers_alone():
    @jit
    def double(x):
        x.assign(x * 2)

    for start in (1.0, 2.0, 3.0):
        x = Tensor([start]).realize()
        reader = x + 100
        alias = x.reshape(1, 1)
        double(x)
        assert (x.item(), reader.item(), alias.item()) == (2 * start, 100 + start, start)


def test_shapes_and_dtypes_capture_anew():
    @jit
    def function(x):
        return x.sum()

    assert function(Tensor([1.0, 2.0])).item() == 3
    assert function(Tensor([1.0, 2.0, 3.0])).item() == 6
    assert function(Tensor([1, 2, 3])).item() == 6
    assert function(Tensor([[1, 2], [3, 4]])).item() == 10
    assert function(Tensor([1.0, 2.0])).item() == 3


def test_views_as_inputs():
    @jit
    def function(x):
        return x * 2

    x = Tensor(array(4, 6))
    for step in range(3):
        np.testing.assert_allclose(function(x.T[step]).numpy(), x.numpy().T[step] * 2, rtol=1e-6)
        np.testing.assert_allclose(function(x[step]).numpy(), x.numpy()[step] * 2, rtol=1e-6)


def test_constant_input():
    @jit
    def function(x):
        return x + 1

    for value in (1.0, 2.0, 3.0):
        assert function(Tensor.full((2,), value)).tolist() == [value + 1] * 2


def test_containers_in_and_out():
    @jit
    def function(pair, extra=None):
        return {"sum": pair[0] + pair[1], "rest": [extra["k"] * 2, pair[0]]}

    for step in range(3):
        a, b, c = (Tensor([float(step + i)]) for i in range(3))
        out = function([a, b], extra={"k": c})
        assert out["sum"].item() == 2 * step + 1
        assert out["rest"][0].item() == 2 * (step + 2)
        assert out["rest"][1].item() == step


def test_nested_jit_is_inlined():
    @jit
    def inner(x):
        return x + 1

    @jit
    def outer(x):
        return inner(x) * 2

    assert [outer(Tensor([float(n)])).item() for n in range(4)] == [2, 4, 6, 8]


def test_bound_variable_changes_between_calls():
    variable = Variable("scale", 1, 100)

    @jit
    def function(x, n):
        return x * n

    for n in (2, 3, 50):
        assert function(Tensor([2]), variable.bind(n)).item() == 2 * n
    assert len(function.captures) == 1


def test_training_mode_is_a_guard():
    @jit
    def function(x):
        return x.dropout(0.9)

    x = Tensor.ones(100).contiguous()
    assert function(x).tolist() == [1] * 100
    with Tensor.train():
        assert function(x).tolist() != [1] * 100
    assert function(x).tolist() == [1] * 100


def test_training_step_matches_without_jit():
    def make():
        Tensor.manual_seed(3)
        model = [nn.Linear(4, 8), nn.Linear(8, 2)]
        return model, nn.optim.Adam(nn.state.get_parameters(model), lr=0.01)

    def step_of(model, optimizer):
        def step(x, y):
            with Tensor.train():
                optimizer.zero_grad()
                loss = (model[1](model[0](x).relu()) - y).square().mean()
                loss.backward()
                optimizer.step()
                return loss

        return step

    plain, jitted = make(), make()
    plain_step, jit_step = step_of(*plain), jit(step_of(*jitted))
    for number in range(6):
        x, y = array(16, 4, seed=number), array(16, 2, seed=50 + number)
        a = plain_step(Tensor(x), Tensor(y)).item()
        b = jit_step(Tensor(x), Tensor(y)).item()
        np.testing.assert_allclose(a, b, rtol=1e-5)
    for p, q in zip(nn.state.get_parameters(plain[0]), nn.state.get_parameters(jitted[0]), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-6)


def test_gradient_left_behind_is_refused_after_replay():
    weight = Tensor([2.0]).realize()

    @jit
    def step(x):
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad * 1

    for n in range(1, 5):
        assert step(Tensor([float(n)])).item() == n
    with pytest.raises(JitError, match="return it"):
        weight.grad.item()


def test_state_made_at_first_call():
    """Lazily created state is found at the second call."""
    store = {}

    def step(x):
        if "sum" not in store:
            store["sum"] = Tensor.zeros(1).contiguous().realize()
        store["sum"].assign(store["sum"] + x)
        return store["sum"] * 1

    jitted = jit(step)
    assert [jitted(Tensor([float(n)])).item() for n in range(1, 6)] == [1, 3, 6, 10, 15]


def test_replacing_a_weight_by_another_tensor_object():
    class Model:
        def __init__(self):
            self.weight = Tensor([1.0]).realize()

    model = Model()

    @jit
    def function(x):
        return x * model.weight

    assert function(Tensor([2.0])).item() == 2
    assert function(Tensor([2.0])).item() == 2
    model.weight = Tensor([5.0]).realize()
    assert function(Tensor([2.0])).item() == 10


def test_reset_captures_again():
    @jit
    def function(x):
        return x + 1

    function(Tensor([1.0]))
    function.reset()
    assert function.kernels == []
    assert function(Tensor([1.0])).item() == 2


def test_exception_inside_leaves_jit_usable():
    fail = [True]

    @jit
    def function(x):
        if fail[0]:
            raise ValueError("mine")
        return x + 1

    with pytest.raises(ValueError, match="mine"):
        function(Tensor([1.0]))
    fail[0] = False
    assert function(Tensor([1.0])).item() == 2


def test_memory_and_objects_flat_over_replays():
    state = Tensor.zeros(100).contiguous().realize()

    @jit
    def step(x):
        state.assign(state + x)
        return state.sum()

    x = Tensor.ones(100).contiguous().realize()
    for _ in range(5):
        step(x)
    gc.collect()
    before, used = len(gc.get_objects()), GlobalCounters.mem_used
    for _ in range(100):
        step(x)
    gc.collect()
    assert GlobalCounters.mem_used == used
    assert len(gc.get_objects()) - before < 50  # fewer are what earlier tests left behind


def test_empty_and_scalar_inputs():
    @jit
    def function(x):
        return x * 2

    for _ in range(3):
        assert function(Tensor(np.zeros((0, 3), np.float32))).shape == (0, 3)
        assert function(Tensor(2.5)).item() == 5
        assert function(Tensor([True])).dtype in (dtypes.int32, dtypes.int64)


def test_not_a_function():
    with pytest.raises(JitError, match="takes a function"):
        jit(3)


def test_lazy_closed_over_state():
    state = Tensor.zeros(2)  # lazy: has no memory yet

    @jit
    def add(x):
        state.assign(state + x)
        return state * 1

    assert [add(Tensor([float(n), 1.0])).tolist() for n in range(1, 5)] == [[1, 1], [3, 2], [6, 3], [10, 4]]


def test_lazy_closed_over_constant_assigned_later():
    table = Tensor.arange(3)

    @jit
    def function(x):
        return x + table

    assert function(Tensor([1, 1, 1])).tolist() == [1, 2, 3]
    assert function(Tensor([1, 1, 1])).tolist() == [1, 2, 3]
    table.assign(Tensor([10, 20, 30]))
    assert function(Tensor([1, 1, 1])).tolist() == [11, 21, 31]


def test_cache_that_grows_by_writes_is_replayed():
    """The view that a write leaves behind must not become longer with every call: each would capture again."""
    cache = Tensor.zeros(2, 8, 4).contiguous().realize()
    position = Variable("position", 0, 7)
    traced = count()

    @jit
    def append(x, at):
        next(traced)
        cache[:, at : at + 1] = x
        return cache.sum().realize()

    for step in range(6):
        result = append(Tensor.full((2, 1, 4), float(step + 1)), position.bind(step))
        assert result.item() == 8 * sum(range(1, step + 2))
    assert next(traced) <= 2
    chain, node = 0, cache.uop
    while node.op in MOVEMENT:
        chain, node = chain + 1, node.src[0]
    assert chain <= 1


def test_kernels_are_a_list_that_says_what_each_does():
    weight = Tensor(array(8, 8))

    @jit
    def function(x):
        return ((x @ weight).realize() + 1).sum(0)

    assert function.kernels == []
    for _ in range(3):
        function(Tensor(array(4, 8)))
    first, *others = function.kernels
    assert first.device == "CPU" and "64 x float32" in first.reads and first.writes == ("32 x float32",)
    assert f"{first.name} on CPU: reads " in str(first) and first.opts and not first.once
    assert [kernel.name for kernel in (first, *others)] == [c.kernel.name for c in function._latest.program.calls]
    explained = function.explain()
    assert str(first) in explained and "temporary memory 128 B (at least 128 B" in explained
