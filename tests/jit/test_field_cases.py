"""The cases of jits that went wrong in the field (A9 to A18): which tests have each of them."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor, Variable, jit

# Every case, what went wrong, and its tests: "module:function", modules of this folder by their short names.
CASES = {
    "A9": (
        "two results share one buffer",
        ["test_jit:test_results_of_earlier_calls_keep_their_values", "aliases:test_comparing_two_results",
         "aliases:test_results_of_many_calls_are_kept_or_dropped"],
    ),
    "A10": (
        "a ring buffer, large, fed back; a slice of it as second result",
        ["aliases:test_ring_buffer_large", "test_replaced:test_a_ring_buffer"],
    ),
    "A11": ("a second session with a fresh input", ["test_jit:test_two_sessions_with_fed_back_output"]),
    "A12": (
        "numbers, closed-over values and branches frozen",
        ["values:test_ints_branches_and_keywords", "test_jit:test_python_values_are_guards",
         "test_jit:test_closed_over_python_value_is_a_guard"],
    ),
    "A13": ("the capture of another instance", ["test_jit:test_methods_capture_per_instance"]),
    "A14": (
        "the same random numbers at every replay",
        ["test_jit:test_random_advances_and_seed_repeats", "test_jit:test_dropout_differs_between_replays",
         "tracing:test_random_numbers_advance_and_agree_with_plain_calls"],
    ),
    "A15": (
        "errors late, or that say nothing",
        ["tracing:test_reading_values_is_refused_at_the_first_call", "tracing:test_the_error_names_the_line",
         "tracing:test_nested_jits_with_state_of_the_inner_one", "test_jit:test_same_tensor_twice_then_two",
         "test_jit:test_constant_input", "aliases:test_nothing_returned_and_nothing_done"],
    ),
    "A16": ("overlapping views of one buffer at the second call", ["test_jit:test_overlapping_inputs_with_mutation"]),
    "A17": ("two variables exchanged; the shape at capture", ["test_field_cases:test_two_variables_in_any_order"]),
    "A18": (
        "slice assigns behind pickling",
        ["test_field_cases:test_pickled_in_a_fresh_process", "test_field_cases:test_many_large_tensors_load_at_once"],
    ),
}  # fmt: skip


def test_every_case_has_its_tests() -> None:
    assert list(CASES) == [f"A{number}" for number in range(9, 19)]
    for case, (_, tests) in CASES.items():
        assert tests, case
        for name in tests:
            module, _, function = name.partition(":")
            folder = "tests.jit" if module.startswith("test_") else "tests.jit.footguns"
            found = importlib.import_module(f"{folder}.{module if module.startswith('test_') else f'test_{module}'}")
            assert callable(getattr(found, function)), (case, name)


@pytest.mark.parametrize("names", [("i", "j"), ("j", "i"), ("b", "a"), ("a", "b")])
def test_two_variables_in_any_order(names: tuple[str, str]) -> None:
    first, second = Variable(names[0], 1, 6), Variable(names[1], 1, 6)
    x = np.arange(36, dtype=np.float32).reshape(6, 6)
    a, b = Tensor(x), Tensor(x[::-1].copy())

    @jit
    def products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a @ b.T, a * 2

    kept = []
    for i, j in itertools.product((2, 5), (3, 4)):
        kept.append((i, j, products(a[: first.bind(i)], b[: second.bind(j)])))
        assert tuple(size.value for size in kept[-1][2][0].shape) == (i, j)
    for i, j, (product, double) in kept:
        np.testing.assert_array_equal(product.numpy(), x[:i] @ x[::-1][:j].T)
        np.testing.assert_array_equal(double.numpy(), x[:i] * 2)
    assert len(products.captures) == 1


MODULE = """
from gradlet import Tensor, jit

@jit
def shifted(x, row):
    x[1:3] = x[0:2] * 2
    x[0] = row
    return x.sum(0)

class Layer:
    def __init__(self):
        self.weight, self.state = Tensor([1.0, 2.0]), Tensor([0.0, 0.0])

    @jit
    def step(self, x):
        self.state = self.state + x * self.weight
        return self.state * 1
"""


def test_pickled_in_a_fresh_process(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(MODULE)
    use = (
        "x = Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])\n"
        "for n in range(4): print(shifted(x, Tensor([float(n), 1.0])).tolist(), x.tolist(), "
        "layer.step(Tensor([float(n), 2.0])).tolist())\n"
    ).replace("\\\n", "\n")
    save = (
        "import pickle, kept; from kept import *; layer = Layer()\n"
        "shifted(Tensor([[0.0] * 2] * 3), Tensor([1.0, 1.0]))\n"
        "for _ in range(3): layer.step(Tensor([1.0, 1.0]))\n"
        "pickle.dump((shifted, layer), open('saved', 'wb'))\n" + use
    )
    load = "import pickle; from gradlet import Tensor\nshifted, layer = pickle.load(open('saved', 'rb'))\n" + use
    found = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        )
        for program in (save, load)
    ]  # fmt: skip
    assert [run.returncode for run in found] == [0, 0], found[0].stderr + found[1].stderr
    assert found[0].stdout == found[1].stdout and found[0].stdout.count("\n") == 4


def test_many_large_tensors_load_at_once() -> None:
    """One copy a tensor, in few kernels: none."""
    import pickle

    from gradlet.runtime.counters import GlobalCounters

    weights = {f"w{n}": Tensor(np.full(1 << 15, n, np.float32)) for n in range(40)}
    data = pickle.dumps(weights)
    kernels = GlobalCounters.kernels
    loaded = pickle.loads(data)
    Tensor.realize(*loaded.values())
    assert GlobalCounters.kernels == kernels
    assert all(loaded[name].numpy()[-1] == weights[name].numpy()[-1] for name in weights)
