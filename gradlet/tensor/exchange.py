"""Memory shared with other libraries: DLPack, addresses, numpy views, downloads.

A tensor over somebody else's memory sees what they write there, and never writes there itself: an assignment gives it
memory of its own. Memory that was handed out is left alone as long as somebody holds it, so what was handed out keeps
its values.
"""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, Final, Self

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError, ExchangeError, ShapeError
from gradlet.device.common.hostmemory import HostAllocator
from gradlet.engine import execute
from gradlet.graph.allocation import COUNTER_NUMBER
from gradlet.ops.arguments import integers, sizes
from gradlet.ops.op import Op
from gradlet.runtime import dlpack
from gradlet.runtime.buffer import Buffer, Lease, bind, new_buffer_node, protect
from gradlet.runtime.device import Device
from gradlet.schedule.boxes import Layout, layout_of
from gradlet.tensor import hostdata, symbolic, writes
from gradlet.tensor.core import in_memory, wrap
from gradlet.tensor.values import Values

# What `__dlpack_device__` says of host memory.
HOST: Final = (dlpack.CPU, 0)


class Exchange(Values):
    """Memory in and out, without a copy where that is possible."""

    __slots__ = ()

    # out
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of the values, which are computed now: read-only, over this tensor's memory.

        Args:
            stream: must be None, as the memory is the host's.
            max_version: the newest version that the consumer reads; without one the capsule has the old form, which
                cannot say that the memory may only be read.
            dl_device: must be the host, (1, 0).
            copy: True asks for memory that nobody else uses, False forbids to make any.

        Raises:
            ExchangeError: another device, a stream, or a copy that is needed and forbidden.
            JitError: inside a jitted function.
        """
        if stream is not None:
            raise ExchangeError(f"__dlpack__: stream must be None for host memory, got {stream!r}")
        if dl_device is not None and tuple(dl_device) != HOST:
            raise ExchangeError(f"__dlpack__: {dlpack.refused_device(*dl_device)}")
        self.__dlpack_device__()
        lease, layout, copied = self._lease("__dlpack__", copy)
        lease.buffer.show()
        step = self.dtype.itemsize
        order = dlpack.row_major(layout.shape)
        strides = [usual if size <= 1 else s for s, usual, size in zip(layout.strides, order, layout.shape)]
        address = lease.buffer.address + layout.start * step if prod(layout.shape) else 0
        memory = dlpack.Strided(address, self.dtype, layout.shape, tuple(strides), copy is not True, lease)
        return dlpack.export(memory, max_version is not None and max_version[0] >= dlpack.MAJOR, copied)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device that holds the memory: (1, 0), the host.

        Raises:
            ExchangeError: the device has no memory that others can read.
        """
        if not uses_host_memory(self.device):
            raise ExchangeError(f"__dlpack__: memory of device {self.device} is not shared; use .to('CPU')")
        return HOST

    def data(self) -> memoryview:
        """The values as a read-only memoryview with this shape: the memory itself where it is in order.

        Raises:
            DTypeError: a type that Python has no name for (bfloat16, 8-bit floats).
            JitError: inside a jitted function.

        >>> Tensor([1, 2]).data().tolist()
        [1, 2]
        """
        if hostdata.numpy_name(self.dtype) != self.dtype.name:
            raise DTypeError(f"data: Python has no {self.dtype.name}; cast to float32 first")
        return memoryview(self.host_view())

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol (from Python 3.12 on): `memoryview(tensor)`."""
        return self.data()

    def host_view(self) -> Any:
        """The values as a read-only numpy array over this tensor's memory, or a copy where it is in no order for that.

        bfloat16 and 8-bit floats come as bit patterns.

        >>> Tensor([1, 2]).host_view().flags.writeable
        False
        """
        execute.refuse_in_capture("reading values", "return the tensor and read it outside")
        if 0 in self.uop.shape or symbolic.is_symbolic(self.uop) or not uses_host_memory(self.device):
            array = self._host_array()
            array.flags.writeable = False
            return array
        lease, layout, _ = self._lease("reading values", None)
        return _numpy_view(lease, self.dtype, layout)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """numpy's protocol: a read-only view of the memory where `copy` allows one, else a new array.

        Raises:
            ExchangeError: `copy` is False and the values need one.
        """
        if copy:
            array = self.numpy()
            return array if dtype is None else array.astype(dtype, copy=False)
        if hostdata.numpy_name(self.dtype) != self.dtype.name:
            if copy is False:
                raise ExchangeError(f"__array__: numpy has no {self.dtype.name}; let it copy, or cast to float32 first")
            array = self.numpy()
        else:
            if copy is False:
                self._lease("__array__", False)
            array = self.host_view()
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ExchangeError(f"__array__: {array.dtype} as {dtype} needs a copy, which copy=False forbids")
        return array.astype(dtype)

    def _lease(self, what: str, copy: bool | None) -> tuple[Lease, Layout, bool]:
        """The memory of the values, how they lie in it, and whether they were copied there for the caller alone.

        Raises:
            ExchangeError: a copy is needed and forbidden.
            JitError: inside a jitted function.
        """
        execute.refuse_in_capture(what, "return the tensor and share it outside")
        symbolic.refuse(self.uop, what)
        if 0 in self.shape:
            nothing = new_buffer_node(self.device, self.dtype, 0)
            return Lease(nothing), Layout(0, self.shape, dlpack.row_major(self.shape)), False
        if copy is not True:
            self.realize()
            found = _in_one_layout(self)
            if found is not None:
                return Lease(found[0]), found[1], False
            if copy is False:
                raise ExchangeError(
                    f"{what}: this view of shape {self.shape} does not lie in memory as it is, and copy=False forbids "
                    "to copy it; use .contiguous() first, or allow the copy"
                )
        # Memory of its own, whatever else has this value: what the consumer writes there nobody else sees.
        own = wrap(new_buffer_node(self.device, self.dtype, prod(self.shape)), self.device).reshape(self.shape)
        found = _in_one_layout(own.assign(self.detach()).realize())
        assert found is not None
        return Lease(found[0]), found[1], True

    # in
    @classmethod
    def from_dlpack(cls, x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Self:
        """The memory of another library's array as a tensor, without a copy where possible.

        The tensor sees what others write into that memory later, as far as it was not computed with before; it never
        writes there: assigning to it gives it memory of its own. The array lives as long as the tensor.

        Args:
            x: an object with `__dlpack__` (numpy, torch, jax, ...) or a capsule.
            device: where the tensor shall be; host memory if None.
            copy: True always copies, False never.

        Raises:
            ExchangeError: memory on another device, elements of other types, a copy that is needed and forbidden.
            JitError: inside a jitted function.

        >>> import numpy as np
        >>> array = np.array([1.0, 2.0], dtype=np.float32)
        >>> x = Tensor.from_dlpack(array)
        >>> array[0] = 5.0
        >>> x.tolist()
        [5.0, 2.0]
        """
        return from_dlpack(x, device=device, copy=copy)

    @classmethod
    def from_blob(
        cls,
        ptr: int,
        shape: Sequence[int] | int,
        *,
        dtype: DType | str | None = None,
        device: str | None = None,
        strides: Sequence[int] | None = None,
        owner: Any = None,
    ) -> Self:
        """Host memory at an address as a tensor, without a copy.

        The memory must stay valid while the tensor, or anything computed from it lazily, lives: pass what keeps it
        alive as `owner`. The tensor sees what is written there, and never writes there itself.

        Args:
            ptr: address of the element with index 0 on every axis; a multiple of the element size.
            shape: sizes of the axes.
            dtype: type of the elements; the default float if None.
            device: a device that computes on host memory.
            strides: distance of neighbours on each axis in elements, row-major if None.
            owner: an object that the tensor keeps alive.

        Raises:
            ArgumentError: no address, or one that is not aligned.
            ShapeError: sizes or strides that are no shape.
            ExchangeError: a device with memory of its own.

        >>> import array
        >>> numbers = array.array("i", [1, 2, 3, 4])
        >>> Tensor.from_blob(numbers.buffer_info()[0], (2, 2), dtype="int32", owner=numbers).tolist()
        [[1, 2], [3, 4]]
        """
        execute.refuse_in_capture("from_blob", "make the tensor outside and pass it as an argument")
        try:
            address = index(ptr)
        except TypeError:
            raise ArgumentError(f"from_blob: ptr must be an address, got {type(ptr).__name__}") from None
        wanted = sizes((shape,) if isinstance(shape, (tuple, list)) else ((shape,),), "from_blob")
        chosen = dtypes.default_float if dtype is None else to_dtype(dtype)
        steps = dlpack.row_major(wanted) if strides is None else integers((tuple(strides),), "from_blob: strides")
        if len(steps) != len(wanted):
            raise ShapeError(f"from_blob: {len(steps)} strides for shape {wanted}; give one an axis, in elements")
        if prod(wanted) and address <= 0:
            raise ArgumentError(f"from_blob: ptr {address} is no address of {prod(wanted)} elements")
        if address % chosen.itemsize:
            raise ArgumentError(
                f"from_blob: ptr {address:#x} is no multiple of {chosen.itemsize}, the size of a {chosen.name}; copy "
                "the bytes with Tensor(data) instead"
            )
        name = Device.canonicalize(device)
        if not uses_host_memory(name):
            raise ExchangeError(
                f"from_blob: device {name} does not compute on host memory; leave device out, use .to()"
            )
        return over_memory(dlpack.Strided(address, chosen, wanted, steps, True, owner), name, False, "from_blob")

    @classmethod
    def from_url(
        cls,
        url: str,
        gunzip: bool = False,
        *,
        device: str | None = None,
        dtype: DType | str | None = None,
        sha256: str | None = None,
        timeout: float = 30.0,
    ) -> Self:
        """The bytes behind a URL (http, https, file), which are kept on disk for the next time.

        Args:
            url: where from.
            gunzip: unpack gzip data.
            device: where the tensor shall be.
            dtype: what the bytes are; uint8 if None.
            sha256: what the hash of the bytes, before unpacking, has to be, in hexadecimal.
            timeout: seconds to wait for an answer.

        Raises:
            DownloadError: nothing could be loaded, less than announced, or other bytes than `sha256` says.
            ArgumentError: no such kind of URL.
            FileFormatError: `gunzip` of data that is no gzip file.

        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "two.bytes")
        >>> _ = path.write_bytes(b"ab")
        >>> Tensor.from_url(path.as_uri()).tolist()
        [97, 98]
        """
        from gradlet.runtime import download

        execute.refuse_in_capture("from_url", "load outside and pass the tensor as an argument")
        content = download.load(url, gunzip, sha256, timeout)
        return cls(content, device=device, dtype=dtype)  # type: ignore[call-arg]

    # the Python array API standard
    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of the Python array API standard whose functions take tensors: `gradlet.array_api`.

        Raises:
            ArgumentError: a version of the standard that is not supported.
        """
        from importlib import import_module

        # By name at run time: the namespace stands above tensors and imports them.
        namespace = import_module("gradlet.array_api")
        if api_version is not None and api_version not in namespace.SUPPORTED_VERSIONS:
            raise ArgumentError(
                f"__array_namespace__: api_version {api_version!r} is not supported; use one of: "
                + ", ".join(namespace.SUPPORTED_VERSIONS)
            )
        return namespace

    def __complex__(self) -> complex:
        return complex(self.item())

    def to_device(self, device: str, /, *, stream: Any = None) -> Self:
        """The same values on another device: the standard's name of `to`.

        Raises:
            DeviceError: no such device.
            ArgumentError: a stream, which no device here has.

        >>> Tensor([1]).to_device("CPU").device
        'CPU'
        """
        if stream is not None:
            raise ArgumentError(f"to_device: stream must be None, got {stream!r}")
        tensor: Any = self
        return tensor.to(device)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Any:
    """The memory of another library's array as a tensor: see `Tensor.from_dlpack`.

    >>> import numpy as np
    >>> from_dlpack(np.array([1, 2])).tolist()
    [1, 2]
    """
    execute.refuse_in_capture("from_dlpack", "make the tensor outside and pass it as an argument")
    name = Device.canonicalize(device)
    home = name if uses_host_memory(name) else "CPU"
    if name != home and copy is False:
        raise ExchangeError(f"from_dlpack: device {name} needs a copy, which copy=False forbids")
    memory = dlpack.consume(_capsule_of(x, copy))
    return over_memory(memory, home, copy, "from_dlpack").to(name)


def uses_host_memory(device: str) -> bool:
    """Whether a device computes on memory of the process."""
    return isinstance(Device[device].allocator, HostAllocator)


def shares_memory(value: Any) -> bool:
    """Whether a foreign array offers its memory; numpy's own arrays, masked ones too, are read in another way."""
    numpy = sys.modules.get("numpy")
    return hasattr(value, "__dlpack__") and not (numpy is not None and isinstance(value, numpy.ndarray))


def from_foreign(value: Any, device: str | None, copy: bool) -> Any:
    """A tensor of a foreign array (torch, jax, ...): of the values it has now, or over its memory.

    None where the array does not give its memory; it may be readable in another way then.
    """
    if getattr(value, "requires_grad", False) is True and hasattr(value, "detach"):
        value = value.detach()
    if _is_negated(value):
        value = value.resolve_neg()
    name = Device.canonicalize(device)
    home = name if uses_host_memory(name) else "CPU"
    try:
        memory = dlpack.consume(_capsule_of(value, None))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    execute.refuse_in_capture("making a tensor from host data", "make it outside and pass it as an argument")
    return over_memory(memory, home, True if copy else None, "Tensor").to(name)


def _is_negated(value: Any) -> bool:
    """Whether an array is a view of torch that negates what it reads, which its capsule would not say."""
    found = getattr(value, "is_neg", None)
    return callable(found) and found() is True


def _capsule_of(x: Any, copy: bool | None) -> Any:
    """The capsule of an array, after its device was looked at."""
    if not hasattr(x, "__dlpack__"):
        return x
    if hasattr(x, "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        if int(kind) not in dlpack.HOST_KINDS:
            raise ExchangeError(f"from_dlpack: {dlpack.refused_device(int(kind), int(number))}")
    if hasattr(x, "mask") and hasattr(x, "filled"):
        raise ExchangeError(
            "from_dlpack: a masked array would lose its mask; choose what stands there with .filled(value)"
        )
    if _is_negated(x):
        raise ExchangeError(
            "from_dlpack: this view negates what it reads, so its memory is not its value; use resolve_neg()"
        )
    # A copy is made here, so that what nobody else uses can be written.
    asked = {} if copy is None else {"copy": False}
    for arguments in ({"max_version": (dlpack.MAJOR, dlpack.MINOR), **asked}, {"max_version": (1, 0)}, {}):
        try:
            return x.__dlpack__(**arguments)
        except TypeError:
            if not arguments:
                raise
    raise AssertionError


def over_memory(memory: dlpack.Strided, device: str, copy: bool | None, what: str) -> Any:
    """A tensor over strided memory, or a copy of it: when asked for, or because elements do not lie on their size.

    Raises:
        ExchangeError: a copy is needed and forbidden.
    """
    dtype, shape = memory.dtype, memory.shape
    if 0 in shape:
        return in_memory(b"", dtype, shape, device, True)
    first = sum(min(0, s * (n - 1)) for s, n in zip(memory.strides, shape, strict=True))
    last = sum(max(0, s * (n - 1)) for s, n in zip(memory.strides, shape, strict=True))
    extent, address = last - first + 1, memory.address + first * dtype.itemsize
    aligned = address % dtype.itemsize == 0
    if not aligned and copy is False:
        raise ExchangeError(
            f"{what}: address {address:#x} is no multiple of {dtype.itemsize}, the size of a {dtype.name}, so the "
            "elements have to be copied, which copy=False forbids"
        )
    node = new_buffer_node(device, dtype, extent)
    dense = extent == prod(shape)
    if not aligned or (copy and dense):
        buffer = Buffer(device, dtype, extent)
        buffer.copyin(Device[device].allocator.view(address, buffer.nbytes, memory.owner))
        bind(node, buffer)
    else:
        bind(node, Buffer.at(device, dtype, extent, address, memory.owner))
        protect(node)
    result = _strided(wrap(node, device), shape, memory.strides)
    result._view = None  # the flat memory below is no tensor of the user's
    return result.contiguous().realize() if copy and not dense else result


def _strided(flat: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """Memory seen with these strides: axes of size 1 and of stride 0 aside, the widest stride is the outermost loop."""
    walked = [a for a, size in enumerate(shape) if size > 1 and strides[a]]
    walked.sort(key=lambda a: (-abs(strides[a]), a))
    # How many elements the axes from each on reach over.
    reaches = [1]
    for axis in reversed(walked):
        reaches.append(reaches[-1] + abs(strides[axis]) * (shape[axis] - 1))
    reaches.reverse()
    result = flat
    for position, axis in enumerate(walked):
        step, size, inner = abs(strides[axis]), shape[axis], reaches[position + 1]
        done = result.shape[:position]
        if step == inner:
            result = result.reshape(*done, size, inner)
        elif inner == 1:
            result = result.take_every(*[1] * position, step).unsqueeze(-1)
        else:
            result = result.unsqueeze(-1).expand(*result.shape, inner).window(position, position + 1, step)
    result = result.squeeze(-1) if walked else result.reshape(())
    backwards = [position for position, axis in enumerate(walked) if strides[axis] < 0]
    if backwards:
        result = result.flip(*backwards)
    order = sorted(walked)
    result = result.permute(*[walked.index(axis) for axis in order]) if len(order) > 1 else result
    return result.reshape(*[size if a in walked else 1 for a, size in enumerate(shape)]).expand(*shape)


def _in_one_layout(tensor: Any) -> tuple[Any, Layout] | None:
    """The BUFFER node of a computed tensor and how its elements lie there; None where they do not, or are not its own.

    A table that others read too is never handed out.
    """
    base, _ = writes.strip(tensor.uop)
    if base.op is not Op.BUFFER or base.arg.number == COUNTER_NUMBER:
        return None
    layout = layout_of(tensor.uop, base)
    return None if layout is None else (base, layout)


def _numpy_view(lease: Lease, dtype: DType, layout: Layout) -> Any:
    """Memory as a read-only numpy array of a layout."""
    import numpy as np

    kind = np.dtype(hostdata.numpy_name(dtype))
    strides = tuple([step * kind.itemsize for step in layout.strides])
    return np.ndarray(layout.shape, kind, lease.view(), layout.start * kind.itemsize, strides)
