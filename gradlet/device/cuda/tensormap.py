"""Tensor maps: what the copy engine has to know about memory that it moves as boxes."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType
from gradlet.base.errors import DeviceError
from gradlet.device.cuda.driver import Gpu
from gradlet.ops.op import BoxArg

SIZE: Final = 128  # bytes of a map; twice what it has to be aligned to
LINE: Final = 128  # bytes
KEPT: Final = 256  # maps of a kernel, for as many places of its arguments
KINDS: Final = {"float16": "FLOAT16", "bfloat16": "BFLOAT16", "float32": "FLOAT32"}  # others as integers of their size


class Box(NamedTuple):
    """What a map says, in words that can be kept on disk.

    Attributes:
        argument: which of the buffers it is about.
        kind: the type of an element, as the driver calls it.
        sizes: elements along each axis, the fastest first.
        strides: bytes of a step along each axis but the first.
        box: elements along each axis of what is moved.
        apart: how far these are from one another.
    """

    argument: int
    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    apart: tuple[int, ...]


def box(argument: int, dtype: DType, arg: BoxArg) -> Box:
    """The words for a BOX of a kernel."""
    kind = "TFLOAT32" if arg.rounded else KINDS.get(dtype.name, f"UINT{8 * dtype.itemsize}")
    apart = arg.apart or (1,) * len(arg.box)
    return Box(argument, kind, arg.sizes, tuple([s * dtype.itemsize for s in arg.strides[1:]]), arg.box, apart)


def frozen(value: Any) -> Any:
    """A tuple again, of what was a list on disk."""
    return tuple(value) if isinstance(value, list) else value


def fetched(box: Box) -> int:
    """Bytes that the second cache fetches at a time: with rows that begin inside of lines, more would be in vain."""
    return 256 if all(stride % LINE == 0 for stride in box.strides) else LINE


def encode(gpu: Gpu, box: Box, address: int) -> bytes:
    """The map of a buffer at an address.

    Raises:
        DeviceError: the driver refuses it, as for an address that is no multiple of 16.
    """
    if address % 16:
        raise DeviceError(f"the copy engine needs memory at multiples of 16 bytes, this begins at {address:#x}")
    api = gpu.api
    wide, narrow = api.cuuint64_t, api.cuuint32_t
    gpu.activate()
    found = gpu.call(
        "cuTensorMapEncodeTiled", getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{box.kind}"),
        len(box.sizes), address, [wide(s) for s in box.sizes], [wide(s) for s in box.strides],
        [narrow(s * apart) for s, apart in zip(box.box, box.apart, strict=True)], [narrow(s) for s in box.apart],
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, api.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        getattr(api.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{fetched(box)}B"),
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    return ctypes.string_at(int(found.getPtr()), SIZE)
