"""DLPack: memory handed to other array libraries, and taken from them, without a copy (structs of the standard 1.x).

A producer gives a capsule with a pointer to a struct that describes memory on a device, and a function to call when the
consumer needs it no more. Renaming the capsule says that it was consumed. Two forms exist: the old one, and a versioned
one with flags.

Source: https://dmlc.github.io/dlpack/latest/
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import ExchangeError

# Kinds of devices. Pinned memory of GPUs (CUDA, ROCm) is host memory too.
CPU: Final = 1
HOST_KINDS: Final = frozenset({CPU, 3, 11})
DEVICE_NAMES: Final = {
    1: "CPU", 2: "CUDA", 3: "pinned CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 11: "pinned ROCm",
    13: "managed CUDA", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon",
}  # fmt: skip
MAJOR: Final = 1
MINOR: Final = 1
READ_ONLY: Final = 1
IS_COPIED: Final = 2

# Type -> (code, bits).
_CODES: Final = {
    "bool": (6, 8), "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64), "int8": (0, 8),
    "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "float16": (2, 16), "float32": (2, 32), "float64": (2, 64),
    "bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
}  # fmt: skip
_TYPES: Final = {code: name for name, code in _CODES.items()}
_KINDS: Final = ("int", "uint", "float", "handle", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3")


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Memory(ctypes.Structure):
    """The standard's `DLTensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """The standard's `DLManagedTensor`."""

    _fields_ = [("memory", _Memory), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _ManagedVersioned(ctypes.Structure):
    """The standard's `DLManagedTensorVersioned`."""

    _fields_ = [
        ("version", _Version), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64),
        ("memory", _Memory),
    ]  # fmt: skip


# Capsules keep pointers to their names, so these live as long as the process.
_OLD: Final = ctypes.create_string_buffer(b"dltensor")
_OLD_USED: Final = ctypes.create_string_buffer(b"used_dltensor")
_VERSIONED: Final = ctypes.create_string_buffer(b"dltensor_versioned")
_VERSIONED_USED: Final = ctypes.create_string_buffer(b"used_dltensor_versioned")

_api: Final = ctypes.pythonapi
_CapsuleDestructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", _api))
# For a capsule that is being destroyed: an object that nobody may take hold of any more.
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))


class Strided(NamedTuple):
    """Host memory as a strided array.

    Attributes:
        address: of the element with index 0 on every axis.
        strides: distances of neighbours in elements.
        read_only: the producer asks not to write.
        owner: keeps the memory alive.
    """

    address: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    read_only: bool
    owner: object


# What was exported, by address of its struct: the struct, its arrays, and the object that keeps the memory alive.
_exported: Final[dict[int, tuple[Any, ...]]] = {}


def _forget(address: int) -> None:
    _exported.pop(address, None)


def _capsule_died(capsule: int) -> None:
    """Nobody consumed it: the consumer would have renamed it."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is_valid_at(capsule, name):
            _forget(_pointer_at(capsule, name))


# Consumers call these from any thread, also after this module is gone: they are never freed.
_forget_callback: Final = _Deleter(_forget)
_died_callback: Final = _CapsuleDestructor(_capsule_died)
_api.Py_IncRef(ctypes.py_object(_forget_callback))
_api.Py_IncRef(ctypes.py_object(_died_callback))


def export(memory: Strided, versioned: bool, copied: bool = False) -> object:
    """A capsule for memory; its owner is let go when the consumer, or the capsule that nobody consumed, is.

    Raises:
        ExchangeError: a type that the standard has no code for.
    """
    code = _CODES.get(memory.dtype.name)
    if code is None:
        raise ExchangeError(f"DLPack has no code for {memory.dtype}; cast it first")
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    axes = ctypes.c_int64 * max(len(memory.shape), 1)
    shape, strides = axes(*memory.shape), axes(*memory.strides)
    inner = managed.memory
    inner.data = memory.address or None
    inner.device = _Device(CPU, 0)
    inner.ndim = len(memory.shape)
    inner.dtype = _Type(*code, 1)
    inner.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    inner.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    inner.byte_offset = 0
    managed.deleter = ctypes.cast(_forget_callback, ctypes.c_void_p).value
    if versioned:
        managed.version = _Version(MAJOR, MINOR)
        managed.flags = (READ_ONLY if memory.read_only else 0) | (IS_COPIED if copied else 0)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, memory.owner)
    name = _VERSIONED if versioned else _OLD
    return _new_capsule(address, ctypes.addressof(name), ctypes.cast(_died_callback, ctypes.c_void_p).value)


class _Foreign:
    """Memory of another library: tells it when nobody needs it any more."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self) -> None:
        if self._deleter and not sys.is_finalizing():
            _Deleter(self._deleter)(self._address)


def consume(capsule: object) -> Strided:
    """The memory of a capsule, which is consumed thereby.

    Raises:
        ExchangeError: no DLPack capsule, one that was consumed before, of a newer standard, on a device that is not the
            host, or with elements that tensors do not have.
    """
    kind = type(capsule).__name__
    name = _name_of(capsule) if kind == "PyCapsule" else None
    if name in (_OLD_USED.value, _VERSIONED_USED.value):
        raise ExchangeError("from_dlpack: this capsule was consumed already; ask its producer for a new one")
    if name not in (_OLD.value, _VERSIONED.value):
        raise ExchangeError(f"from_dlpack: {kind} is no DLPack capsule and has no __dlpack__; use Tensor(data)")
    versioned = name == _VERSIONED.value
    address = _pointer_of(capsule, name)
    managed: Any = (_ManagedVersioned if versioned else _Managed).from_address(address)
    if versioned and managed.version.major > MAJOR:
        # The rest of the struct may look different: all that may be done is to let it go.
        raise ExchangeError(
            f"from_dlpack: the producer speaks DLPack {managed.version.major}.{managed.version.minor}, this reads "
            f"{MAJOR}.x; ask it for max_version=({MAJOR}, {MINOR})"
        )
    _rename(capsule, ctypes.addressof(_VERSIONED_USED if versioned else _OLD_USED))
    owner = _Foreign(address, managed.deleter)
    inner = managed.memory
    if inner.device.kind not in HOST_KINDS:
        raise ExchangeError(f"from_dlpack: {refused_device(inner.device.kind, inner.device.number)}")
    shape = tuple([int(inner.shape[i]) for i in range(inner.ndim)])
    strides = row_major(shape) if not inner.strides else tuple([int(inner.strides[i]) for i in range(inner.ndim)])
    dtype = _type_of(inner.dtype)
    start = (inner.data or 0) + int(inner.byte_offset)
    read_only = bool(versioned and managed.flags & READ_ONLY)
    return Strided(start, dtype, shape, strides, read_only, owner)


def refused_device(kind: int, number: int) -> str:
    """Why memory on this device cannot be taken, and what to do."""
    name = DEVICE_NAMES.get(kind, f"kind {kind}")
    return (
        f"the memory is on device {name}:{number}, and only host memory is shared; move it to the CPU first "
        "(.cpu() in torch, jax.device_put in jax)"
    )


def _type_of(found: _Type) -> DType:
    name = _TYPES.get((found.code, found.bits))
    if name is None or found.lanes != 1:
        kind = _KINDS[found.code] if found.code < len(_KINDS) else f"code {found.code} "
        lanes = f" in vectors of {found.lanes}" if found.lanes != 1 else ""
        raise ExchangeError(
            f"from_dlpack: elements of type {kind}{found.bits}{lanes} cannot become a tensor; convert them first to "
            f"one of: {', '.join(_CODES)}"
        )
    return dtypes.by_name(name)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of memory in order."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
