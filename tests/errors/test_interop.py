"""Mistakes in sharing memory, addresses, downloads, digests and the array API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradlet.array_api as xp
from gradlet import Tensor, Variable, from_dlpack, jit
from gradlet.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ExchangeError,
    IndexingError,
    JitError,
    ShapeError,
)  # fmt: skip
from gradlet.runtime import dlpack
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
I32 = Tensor([1, 2, 3])
BYTES = Tensor([1, 2, 3], dtype="uint8")
MISALIGNED = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32)


class Elsewhere:
    """An array on a device that is not the host."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 3

    def __dlpack__(self, **arguments: Any) -> Any:
        raise AssertionError("asked for memory that cannot be read")


class Negated(Elsewhere):
    """A view on the host that negates what it reads."""

    def __init__(self) -> None:
        super().__init__(1)

    def is_neg(self) -> bool:
        return True


def capsule(**changes: int) -> Any:
    """A capsule of two float32 numbers with other entries in its struct."""
    made = Tensor([1.0, 2.0]).realize().__dlpack__(max_version=(1, 0))
    managed = dlpack._ManagedVersioned.from_address(dlpack._pointer_of(made, b"dltensor_versioned"))
    for name, value in changes.items():
        target = managed
        *path, last = name.split("__")
        for part in path:
            target = getattr(target, part)
        setattr(target, last, value)
    return made


def used() -> Any:
    made = capsule()
    Tensor.from_dlpack(made)
    return made


def symbolic() -> Any:
    return Tensor.arange(6)[: Variable("n", 1, 6).bind(3)]


MISTAKES: list[Row] = [
    # DLPack out
    (lambda: X.__dlpack__(stream=1), ExchangeError, "__dlpack__: stream must be None for host memory, got 1"),
    (lambda: X.__dlpack__(dl_device=(2, 0)), ExchangeError, "on device CUDA:0, and only host memory is shared; move"),
    (lambda: Tensor.empty(2, device="NULL").__dlpack__(), ExchangeError, r"memory of device NULL is not shared; use ."),
    (lambda: Tensor.arange(3).__dlpack__(copy=False), ExchangeError, r"__dlpack__: this view of shape \(3,\) does not"),
    (lambda: symbolic().__dlpack__(), ShapeError, "__dlpack__: shape .*known only at launch"),
    (lambda: np.asarray(X, dtype=np.int32, copy=False), ExchangeError, "float32 as .*int32.* needs a copy"),
    (lambda: np.asarray(X.cast("bfloat16"), copy=False), ExchangeError, "numpy has no bfloat16; let it copy"),
    (lambda: X.cast("float8_e5m2").data(), DTypeError, "data: Python has no float8_e5m2; cast"),
    # DLPack in
    (lambda: from_dlpack([1, 2]), ExchangeError, "from_dlpack: list is no DLPack capsule and has no __dlpack__; use T"),
    (lambda: Tensor.from_dlpack(used()), ExchangeError, "this capsule was consumed already; ask its producer for a ne"),
    (lambda: Tensor.from_dlpack(Elsewhere(2)), ExchangeError, r"on device CUDA:3, and only host .*\(.cpu\(\) in torch"),
    (lambda: Tensor.from_dlpack(Elsewhere(99)), ExchangeError, "on device kind 99:3"),
    (lambda: Tensor.from_dlpack(capsule(memory__device__kind=8)), ExchangeError, "on device Metal:0"),
    (lambda: Tensor.from_dlpack(capsule(version__major=2)), ExchangeError, r"speaks DLPack 2\.1, this reads 1\.x"),
    (lambda: Tensor.from_dlpack(capsule(memory__dtype__code=5, memory__dtype__bits=64)), ExchangeError, "complex64 ca"),
    (lambda: Tensor.from_dlpack(capsule(memory__dtype__lanes=4)), ExchangeError, "float32 in vectors of 4 cannot beco"),
    (lambda: Tensor.from_dlpack(MISALIGNED, copy=False), ExchangeError, "no multiple of 4, the size of a float32"),
    (lambda: Tensor.from_dlpack(MISALIGNED, device="foo"), DeviceError, "unknown device 'foo'"),
    (lambda: Tensor.from_dlpack(np.zeros(2), device="NULL", copy=False), ExchangeError, "device NULL needs a copy"),
    (lambda: Tensor(np.zeros(2, complex)), DTypeError, "arrays of complex128 cannot become a tensor"),
    # memory by address
    (lambda: Tensor.from_blob(0, 2), ArgumentError, "from_blob: ptr 0 is no address of 2 elements"),
    (lambda: Tensor.from_blob(-8, 2), ArgumentError, "from_blob: ptr -8 is no address"),
    (lambda: Tensor.from_blob("a", 2), ArgumentError, "from_blob: ptr must be an address, got str"),
    (lambda: Tensor.from_blob(4098, 2), ArgumentError, "from_blob: ptr 0x1002 is no multiple of 4, the size of a floa"),
    (lambda: Tensor.from_blob(4096, (2, -1)), ShapeError, "from_blob: a size may not be negative"),
    (lambda: Tensor.from_blob(4096, (2, 2), strides=(1,)), ShapeError, r"from_blob: 1 strides for shape \(2, 2\)"),
    (lambda: Tensor.from_blob(4096, 2, dtype="foo"), DTypeError, "unknown data type 'foo'"),
    (lambda: Tensor.from_blob(4096, 2, device="NULL"), ExchangeError, "NULL does not compute on host memory"),
    # downloads: tests/runtime/test_download.py has those that need a server
    (lambda: Tensor.from_url(3), ArgumentError, "from_url: url must be text, got int"),
    (lambda: Tensor.from_url("nowhere"), ArgumentError, "'nowhere' is no URL that can be loaded; use http://"),
    # digests
    (lambda: X.keccak(), DTypeError, "keccak: the bytes must be uint8, got dtypes.float32; use bitcast"),
    (lambda: Tensor(1, dtype="uint8").keccak(), ShapeError, r"keccak: a tensor without axes is no byte string; use re"),
    (lambda: BYTES.keccak("md5"), ArgumentError, "keccak: cfg 'md5' is no function; use one of sha3_224"),
    (lambda: BYTES.keccak((7, 6)), ArgumentError, r"keccak: cfg \(7, 6\) must be a rate of 8 to 192 bytes"),
    (lambda: BYTES.keccak((136, 0)), ArgumentError, "and a suffix of 1 to 127"),
    # the array object and namespace
    (lambda: X.__array_namespace__(api_version="1999.12"), ArgumentError, "api_version '1999.12' is not supported; us"),
    (lambda: X.to_device("foo"), DeviceError, "unknown device 'foo'"),
    (lambda: X.to_device("CPU", stream=1), ArgumentError, "to_device: stream must be None, got 1"),
    (lambda: complex(X), ShapeError, "4 elements, not 1"),
    (lambda: xp.astype(X, "foo"), DTypeError, "unknown data type 'foo'"),
    (lambda: xp.add(I32, 2.5), DTypeError, "add: the number 2.5 beside dtypes.int32 has no common type .* use asarray"),
    (lambda: xp.add(I32, Tensor([1, 2])), ShapeError, r"add: shapes \(3,\) and \(2,\) do not broadcast"),
    (lambda: xp.sum([1, 2]), DTypeError, "sum: x must be a Tensor, got list; use asarray"),
    (lambda: xp.concat([I32, [1]]), DTypeError, "concat: every element must be a Tensor, got list"),
    (lambda: xp.expand_dims(I32, axis=4), IndexingError, "out of range"),
    (lambda: xp.linalg.cholesky(I32), DTypeError, "cholesky: real floating arrays only, got dtypes.int32"),
    (lambda: xp.linalg.inv(Tensor([1.0])), ShapeError, r"inv: shape \(1,\) is no matrix"),
    (lambda: from_dlpack(np.ma.array([1, 2], mask=[0, 1])), ExchangeError, "from_dlpack: a masked array would lose i"),
    (lambda: Tensor.from_dlpack(Negated()), ExchangeError, r"this view negates what it reads, .* use resolve_neg\(\)"),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


INSIDE: list[tuple[Any, str]] = [
    (lambda x: x.__dlpack__(), "__dlpack__ inside a jitted function"),
    (lambda x: np.asarray(x), "reading values inside a jitted function"),
    (lambda x: x.data(), "reading values inside a jitted function"),
    (lambda x: Tensor.from_dlpack(np.zeros(2)), "from_dlpack inside a jitted function .*outside"),
    (lambda x: Tensor.from_blob(4096, 2), "from_blob inside a jitted function"),
    (lambda x: Tensor.from_url("file:///x"), "from_url inside a jitted function"),
]


@pytest.mark.parametrize("row", INSIDE, ids=range(len(INSIDE)))
def test_inside_a_jitted_function(row: tuple[Any, str]) -> None:
    call, message = row
    step = jit(lambda x: (call(x), x)[1])
    with pytest.raises(JitError, match=message):
        step(X)


def test_a_refused_capsule_is_let_go() -> None:
    before = len(dlpack._exported)
    for changes in ({"memory__device__kind": 2}, {"memory__dtype__lanes": 2}, {"version__major": 9}):
        with pytest.raises(ExchangeError):
            Tensor.from_dlpack(capsule(**changes))
    assert len(dlpack._exported) == before


def test_they_are_buffer_errors_too() -> None:
    # What the standard of the array API asks of a producer that cannot.
    with pytest.raises(BufferError):
        X.__dlpack__(dl_device=(2, 0))
