"""Field cases of memory shared with other libraries."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import weakref

import numpy as np

from gradlet import Tensor
from gradlet.runtime import dlpack


class Memory:
    """Memory that says when it goes."""

    def __init__(self, numbers: list[float]) -> None:
        self.block = (ctypes.c_float * len(numbers))(*numbers)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.block)


def test_memory_given_by_address_lives_as_long_as_anything_made_from_it() -> None:
    memory = Memory([1.0, 2.0, 3.0, 4.0])
    alive = weakref.ref(memory)
    x = Tensor.from_blob(memory.address, (2, 2), owner=memory)
    view, lazy, shared = x.T[1], x * 2, np.asarray(x)
    del memory, x
    gc.collect()
    assert alive() is not None
    assert (view.tolist(), lazy.tolist(), shared.tolist()) == ([2, 4], [[2, 4], [6, 8]], [[1, 2], [3, 4]])
    del view
    gc.collect()
    assert alive() is not None, "numpy still looks at it"
    del shared
    gc.collect()
    assert alive() is None, "the lazy value was computed: nothing needs the memory"
    assert lazy.tolist() == [[2, 4], [6, 8]]


def test_memory_given_by_address_is_read_when_a_value_is_computed_and_never_written() -> None:
    memory = Memory([1.0, 2.0])
    x = Tensor.from_blob(memory.address, 2, owner=memory)
    lazy = x + 1
    memory.block[0] = 10.0
    assert lazy.tolist() == [11, 3]
    x.assign(Tensor([7.0, 8.0])).realize()
    assert list(memory.block) == [10.0, 2.0]
    assert x.tolist() == [7, 8]


def test_an_export_keeps_its_values_through_every_kind_of_write() -> None:
    start = np.arange(4, dtype=np.float32)
    writes = {
        "assign": lambda x: x.assign(Tensor(start * 2)),
        "slice": lambda x: x.__setitem__(slice(1, 3), 9.0),
        "in place": lambda x: x.__iadd__(1),
        "through a view": lambda x: x[1:].assign(Tensor([7.0, 7.0, 7.0])),
        "by index": lambda x: x.__setitem__(Tensor([0, 3]), Tensor([5.0, 6.0])),
        "flipped on itself": lambda x: x.assign(x.flip(0)),
    }
    for name, write in writes.items():
        x = Tensor(start).realize()
        exported = np.from_dlpack(x)
        write(x)
        x.realize()
        np.testing.assert_array_equal(exported, start, err_msg=name)
        assert x.tolist() != start.tolist(), name


def test_training_with_exported_weights() -> None:
    weight = Tensor([1.0, 2.0]).realize()
    history = []
    for _ in range(4):
        history.append(np.asarray(weight))
        weight -= weight * 0.5
        weight.realize()
    assert [h.tolist() for h in history] == [[1, 2], [0.5, 1], [0.25, 0.5], [0.125, 0.25]]


def test_no_memory_is_kept_after_many_exchanges() -> None:
    before = len(dlpack._exported)
    array = np.zeros(1000, np.float32)
    references = [weakref.ref(array)]
    for _ in range(50):
        x = Tensor.from_dlpack(array)
        array = np.from_dlpack(x)
        references.append(weakref.ref(array))
    assert len(dlpack._exported) == before + 50
    del x, array
    gc.collect()
    assert len(dlpack._exported) == before
    assert [r for r in references if r() is not None] == []


def test_a_graph_that_is_deep_is_copied_and_pickled() -> None:
    x = Tensor([1.0])
    for _ in range(1500):  # deeper than Python's recursion goes
        x = x + 1
    assert copy.deepcopy(x).item() == 1501
    assert pickle.loads(pickle.dumps(x)).item() == 1501
