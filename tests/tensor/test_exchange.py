"""Memory shared with numpy, torch and jax: no copies, values that stay, owners that live, writes that go elsewhere."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet
from gradlet import Tensor, dtypes, jit
from gradlet.base.errors import DTypeError, ExchangeError
from gradlet.runtime import dlpack
from gradlet.runtime.buffer import protected

ROOT = Path(__file__).resolve().parents[2]
START = np.arange(6, dtype=np.float32).reshape(2, 3)
NUMPY_TYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


# from numpy and to numpy
@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_every_type_both_ways(dtype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    x = Tensor.from_dlpack(array, copy=False)
    assert (x.shape, x.dtype.name) == ((2, 3), dtype)
    back = np.from_dlpack(x)
    assert back.dtype == array.dtype
    assert address(back) == address(array) == address(np.asarray(x))
    np.testing.assert_array_equal(back, array)


CUBE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
LAYOUTS: dict[str, np.ndarray] = {
    "transposed": CUBE.T, "backwards": CUBE[::-1, :, ::-2], "rows": CUBE[:, 1:, 1:3], "steps": np.arange(10)[::3],
    "one axis": CUBE[:, 1], "overlapping": np.lib.stride_tricks.sliding_window_view(np.arange(9), 4),
    "repeated": np.broadcast_to(np.arange(3), (2, 3)), "number": np.array(5), "ones": CUBE[:1, :1, ::3],
    "permuted part": CUBE.transpose(2, 0, 1)[1:, :, ::2], "empty": np.zeros((0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_taken_without_a_copy(name: str) -> None:
    array = LAYOUTS[name]
    x = Tensor.from_dlpack(array, copy=False)
    assert x.shape == array.shape
    np.testing.assert_array_equal(x.numpy(), array)
    np.testing.assert_array_equal((x * 2).numpy(), array * 2)
    if array.size:
        again = np.from_dlpack(x)
        assert address(again) == address(array)
        assert [s for s, n in zip(again.strides, again.shape, strict=True) if n > 1] == [
            s for s, n in zip(array.strides, array.shape, strict=True) if n > 1
        ]


def test_views_leave_without_a_copy() -> None:
    x = Tensor(CUBE).realize()
    base = address(np.from_dlpack(x))
    for ours, theirs in ((x.T, CUBE.T), (x[1], CUBE[1]), (x[:, ::-1, 1::2], CUBE[:, ::-1, 1::2])):
        # flip is a value of its own once computed, so only the numbers are compared for it
        np.testing.assert_array_equal(np.from_dlpack(ours), theirs)
    assert address(np.from_dlpack(x[1])) == base + 48
    assert address(np.asarray(x.T)) == base


def test_what_was_handed_out_is_read_only_and_keeps_its_values() -> None:
    x = Tensor(START).realize()
    for view in (np.from_dlpack(x), np.asarray(x), np.asarray(x.data())):
        assert not view.flags.writeable
    first, second, third = np.from_dlpack(x), np.asarray(x), x.data()
    x += 1
    x[0, 0] = 9
    x.realize()
    for view in (first, second, np.asarray(third)):
        np.testing.assert_array_equal(view, START)
    assert x.tolist() == [[9, 2, 3], [4, 5, 6]]


def test_memory_is_written_again_when_nobody_holds_it() -> None:
    x = Tensor(START).realize()
    view = np.asarray(x)
    where = address(view)
    assert len(protected()) >= 1
    del view
    gc.collect()
    x += 1
    x.realize()
    assert address(np.asarray(x)) == where


def test_many_threads_may_look_at_once() -> None:
    x = Tensor(START).realize()
    before = len(protected())
    held = np.asarray(x)

    def look() -> None:
        for _ in range(200):
            np.asarray(x)
            protected()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(protected()) == before + 1
    del held
    assert len(protected()) == before


def test_a_copy_is_the_consumers_own() -> None:
    x = Tensor(START).realize()
    own = np.from_dlpack(x, copy=True)
    assert own.flags.writeable
    own[:] = 7
    np.testing.assert_array_equal(x.numpy(), START)
    constant = np.from_dlpack(Tensor.ones(2, 3), copy=True)
    constant[:] = 5
    assert Tensor.ones(2, 3).tolist() == [[1.0] * 3] * 2


def test_tables_that_others_read_are_not_handed_out() -> None:
    theirs = np.from_dlpack(Tensor.arange(4))
    raw = (ctypes.c_int32 * 4).from_address(address(theirs))
    raw[0] = 77
    assert Tensor.arange(4).tolist() == [0, 1, 2, 3]


# in
def test_foreign_writes_are_seen_and_ours_go_elsewhere() -> None:
    array = START.copy()
    for x in (Tensor.from_dlpack(array), Tensor(array, copy=False), Tensor.from_numpy(array, copy=False)):
        array[:] = START
        lazy = x * 10
        array[0, 0] = 5
        assert x.tolist()[0] == [5, 1, 2]
        assert lazy.tolist()[0] == [50, 10, 20]
        x += 1
        x[1] = 0
        x.realize()
        assert array.tolist() == [[5, 1, 2], [3, 4, 5]]
        assert x.tolist() == [[6, 2, 3], [0, 0, 0]]
        array[:] = -1
        assert x.tolist() == [[6, 2, 3], [0, 0, 0]]


def test_read_only_arrays() -> None:
    array = START.copy()
    array.flags.writeable = False
    x = Tensor.from_dlpack(array)
    x += 1
    np.testing.assert_array_equal(x.numpy(), START + 1)
    np.testing.assert_array_equal(array, START)


def test_views_of_foreign_memory_are_written_elsewhere_too() -> None:
    array = CUBE.copy()
    x = Tensor.from_dlpack(array.transpose(2, 0, 1)[1:, :, ::2])
    expected = array.transpose(2, 0, 1)[1:, :, ::2].copy()
    x[0] = 5
    expected[0] = 5
    np.testing.assert_array_equal(x.numpy(), expected)
    np.testing.assert_array_equal(array, CUBE)


def test_the_owner_lives_as_long_as_the_tensor() -> None:
    class Owned(np.ndarray):
        pass

    array = np.zeros(1000, np.float32).view(Owned)
    array[:] = 3
    alive = weakref.ref(array)
    x = Tensor.from_dlpack(array)
    lazy = x + 1
    del array, x
    gc.collect()
    assert alive() is not None
    assert lazy.sum().item() == 4000
    lazy.realize()
    del lazy
    gc.collect()
    assert alive() is None


def test_copies_on_request() -> None:
    array = START.copy()
    for made in (Tensor.from_dlpack(array, copy=True), Tensor.from_dlpack(array.T, copy=True), Tensor(array)):
        before = made.tolist()
        array += 1
        assert made.tolist() == before


def test_memory_between_elements_is_copied() -> None:
    raw = bytearray(25)
    array = np.frombuffer(raw, np.uint8)[1:].view(np.float32)
    array[:] = 2
    x = Tensor.from_dlpack(array)
    assert x.tolist() == [2.0] * 6
    array[:] = 3
    assert x.tolist() == [2.0] * 6


def test_a_mask_is_never_lost() -> None:
    class Masked(np.ma.MaskedArray):  # type: ignore[type-arg]
        """Of another package."""

    with pytest.raises(DTypeError, match="would lose its mask"):
        Tensor(Masked([1.0, 2.0], mask=[True, False]))
    with pytest.raises(ExchangeError, match="would lose its mask"):
        Tensor.from_dlpack(Masked([1.0, 2.0], mask=[True, False]))


def test_devices() -> None:
    array = START.copy()
    x = Tensor.from_dlpack(array, device="PYTHON", copy=False)
    assert x.device == "PYTHON"
    assert address(np.from_dlpack(x)) == address(array)
    assert x.__dlpack_device__() == (1, 0)
    assert gradlet.from_dlpack(array).tolist() == START.tolist()


# capsules
def names(capsule: object) -> bytes:
    return dlpack._name_of(capsule)  # type: ignore[no-any-return]


def test_capsules_of_both_forms() -> None:
    x = Tensor(START).realize()
    old, new = x.__dlpack__(), x.__dlpack__(max_version=(1, 0))
    assert (names(old), names(new)) == (b"dltensor", b"dltensor_versioned")
    assert dlpack.consume(new).read_only
    again = Tensor.from_dlpack(old)
    assert (names(old), names(new)) == (b"used_dltensor", b"used_dltensor_versioned")
    np.testing.assert_array_equal(again.numpy(), START)


def test_nothing_is_kept_when_capsules_die() -> None:
    before = len(dlpack._exported)
    x = Tensor(START).realize()
    unused = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]
    arrays = [np.from_dlpack(x) for _ in range(3)]
    assert len(dlpack._exported) == before + 5
    del unused
    assert len(dlpack._exported) == before + 3
    del arrays
    assert len(dlpack._exported) == before
    again = Tensor.from_dlpack(x.__dlpack__())
    assert len(dlpack._exported) == before + 1
    del again
    gc.collect()
    assert len(dlpack._exported) == before


def test_strides_may_be_left_out() -> None:
    x = Tensor(START).realize()
    capsule = x.__dlpack__()
    managed = dlpack._Managed.from_address(dlpack._pointer_of(capsule, b"dltensor"))
    managed.memory.strides = None
    managed.memory.byte_offset = 4
    managed.memory.data -= 4
    np.testing.assert_array_equal(Tensor.from_dlpack(capsule).numpy(), START)


def test_bfloat16_and_floats_of_8_bits_between_tensors() -> None:
    for dtype in (dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2):
        x = Tensor([1.0, -1.5, 2.0], dtype=dtype).realize()
        y = Tensor.from_dlpack(x)
        assert (y.dtype, y.tolist()) == (dtype, [1.0, -1.5, 2.0])


def test_jitted_functions_leave_shared_memory_alone() -> None:
    @jit
    def step(x: Tensor) -> Tensor:
        x += 1
        return (x * 2).realize()

    for _ in range(4):
        x = Tensor(START).realize()
        view = np.asarray(x)
        np.testing.assert_array_equal(step(x).numpy(), (START + 1) * 2)
        np.testing.assert_array_equal(view, START)
        np.testing.assert_array_equal(x.numpy(), START + 1)
        array = START.copy()
        y = Tensor.from_dlpack(array)
        step(y)
        np.testing.assert_array_equal(array, START)
        np.testing.assert_array_equal(y.numpy(), START + 1)
        del view


# __array__ and data
def test_array_protocol() -> None:
    x = Tensor(START).realize()
    assert address(np.asarray(x)) == address(np.asarray(x, copy=False))
    copied = np.array(x)
    assert copied.flags.writeable
    assert address(copied) != address(np.asarray(x))
    np.testing.assert_array_equal(np.asarray(x, dtype=np.int64), START.astype(np.int64))
    np.testing.assert_array_equal(np.asarray(x + 1), START + 1)
    np.testing.assert_array_equal(np.asarray(Tensor.zeros(2, 0)), np.zeros((2, 0)))
    np.testing.assert_array_equal(np.asarray(Tensor([1.5], dtype="bfloat16")), [1.5])
    np.testing.assert_array_equal(np.add(START, np.asarray(x)), START * 2)


def test_data_is_the_memory_itself() -> None:
    x = Tensor(START).realize()
    view = x.data()
    assert view.readonly
    assert (view.shape, view.format) == ((2, 3), "f")
    assert address(np.asarray(view)) == address(np.asarray(x))
    assert x.T.data().tolist() == START.T.tolist()
    assert (x + 1).data().tolist() == (START + 1).tolist()


# torch
def test_torch_both_ways() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6.0).reshape(2, 3)
    ours = Tensor.from_dlpack(theirs)
    theirs[0, 0] = 7
    assert ours.tolist()[0] == [7, 1, 2]
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr()
    ours += 1
    ours.realize()
    assert theirs.tolist()[0] == [7, 1, 2]
    for name in ("bfloat16", "bool", "float8_e4m3fn", "float8_e5m2", "int8", "float64", "uint16"):
        values = torch.tensor([1.0, 0.0, 1.0]).to(getattr(torch, name))
        again = torch.from_dlpack(Tensor.from_dlpack(values))
        assert (again.dtype, again.data_ptr()) == (values.dtype, values.data_ptr())
        assert Tensor(values).tolist() == [1, 0, 1]


def test_tensors_of_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    for theirs in (
        base, base.T, base[:, ::2], base.clone().requires_grad_(), base.bfloat16()[1:], base > 3, torch.tensor(2.5),
        torch.zeros(0, 3), base[0].expand(2, 4), torch.nn.Parameter(base),
    ):  # fmt: skip
        ours = Tensor(theirs)
        assert ours.shape == tuple(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).partition(".")[2]
        assert ours.tolist() == theirs.tolist()
    ours = Tensor(base)
    base[0, 0] = 99
    assert ours.tolist()[0][0] == 0
    assert Tensor(base, dtype="int8", device="PYTHON").dtype is dtypes.int8
    assert (Tensor([[1.0]]) + base).tolist() == (base + 1).tolist()


def test_torch_operands_and_what_cannot_be_read() -> None:
    torch = pytest.importorskip("torch")
    trained = torch.tensor([1.0, 2.0], requires_grad=True)
    assert (Tensor([1.0, 2.0]) + trained).tolist() == [2, 4]
    assert (Tensor([1.0, 2.0]) * trained.detach().bfloat16()).tolist() == [1, 4]
    negated = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # a view that negates what it reads
    assert Tensor(negated).tolist() == [-2, 4]
    with pytest.raises(ExchangeError, match="negates what it reads"):
        Tensor.from_dlpack(negated)
    with pytest.raises(DTypeError, match="Tensor does not give its values: .*to_dense"):
        Tensor(torch.zeros(2, 2).to_sparse())


def test_memory_may_outlive_our_tensor_in_another_thread() -> None:
    torch = pytest.importorskip("torch")
    before = len(dlpack._exported)
    held = [torch.from_dlpack(Tensor(START).realize())]
    gc.collect()
    assert held[0].tolist() == START.tolist()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(dlpack._exported) == before


def test_the_end_of_the_process_is_quiet() -> None:
    code = (
        "import builtins, numpy as np; from gradlet import Tensor\n"
        "x = Tensor([1.0, 2.0]).realize()\n"
        "builtins.kept = [np.from_dlpack(x), x.__dlpack__(), Tensor.from_dlpack(np.zeros(3)), np.asarray(x)]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_jax_both_ways() -> None:
    jax = pytest.importorskip("jax")
    theirs = jax.numpy.arange(6.0).reshape(2, 3)
    ours = Tensor.from_dlpack(theirs)
    assert address(np.asarray(ours)) == theirs.unsafe_buffer_pointer()
    ours += 1
    ours.realize()
    assert theirs.tolist() == START.tolist()
    back = jax.numpy.from_dlpack(Tensor(START).realize())
    assert back.tolist() == START.tolist()
    assert Tensor(theirs.astype(jax.numpy.bfloat16)).dtype is dtypes.bfloat16


# memory by address
def test_from_blob() -> None:
    numbers = (ctypes.c_int32 * 6)(*range(6))
    x = Tensor.from_blob(ctypes.addressof(numbers), (2, 3), dtype="int32", owner=numbers)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    numbers[0] = 9
    assert x.tolist()[0] == [9, 1, 2]
    assert Tensor.from_blob(ctypes.addressof(numbers), 6, dtype=dtypes.int32).sum().item() == 24
    columns = Tensor.from_blob(ctypes.addressof(numbers), (3, 2), dtype="int32", strides=(1, 3), owner=numbers)
    assert columns.tolist() == [[9, 3], [1, 4], [2, 5]]
    x += 1
    x.realize()
    assert list(numbers) == [9, 1, 2, 3, 4, 5]
    assert Tensor.from_blob(ctypes.addressof(numbers), (0, 3)).shape == (0, 3)
    assert Tensor.from_blob(ctypes.addressof(numbers), (), dtype="int32", device="PYTHON").item() == 9
