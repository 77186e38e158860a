"""Checkpoints that torch wrote, zip files and the older kind, read without torch.

Both are pickles with the tensors' memory beside them. A pickle is a program: here it can build tensors and plain
containers and nothing else; whatever else it names is refused by that name, before it does anything.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import FileFormatError
from gradlet.io.files import host_tensor, path_text, short
from gradlet.tensor.tensor import Tensor

ZIP_MAGIC: Final = b"PK\x03\x04"
LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
LEGACY_START: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # that number, as a pickle
LEGACY_VERSION: Final = 1001
MAX_AXES: Final = 64

STORAGES: Final[dict[str, DType]] = {
    "DoubleStorage": dtypes.float64,
    "FloatStorage": dtypes.float32,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "LongStorage": dtypes.int64,
    "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16,
    "CharStorage": dtypes.int8,
    "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool,
    "UntypedStorage": dtypes.uint8,
}
TORCH_DTYPES: Final[dict[str, DType]] = {
    "float64": dtypes.float64, "float32": dtypes.float32, "float16": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int64": dtypes.int64, "int32": dtypes.int32, "int16": dtypes.int16, "int8": dtypes.int8, "uint8": dtypes.uint8,
    "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64, "bool": dtypes.bool,
    "float8_e4m3fn": dtypes.float8_e4m3fn, "float8_e5m2": dtypes.float8_e5m2,
}  # fmt: skip


class _Kind(NamedTuple):
    """A class of torch that a pickle may name, and which does nothing."""

    name: str
    dtype: DType | None = None


class _Storage(NamedTuple):
    """Memory that tensors are views of."""

    key: str
    dtype: DType
    size: int
    data: memoryview | None


def load(path: str | os.PathLike[str]) -> Any:
    """What a checkpoint holds: usually a dict of tensors, or containers of them. Tensors are read on first use.

    Raises:
        FileFormatError: truncated or inconsistent, or the pickle names something that is neither tensor nor container.
        ArgumentError: `path` is no path.
        OSError: the file cannot be opened.
    """
    where = path_text(path)
    with open(where, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise FileFormatError(f"{where}: the file is empty")
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return _load_zip(memory, where) if memory[:4] == ZIP_MAGIC else _load_legacy(memory, where)


# zip files
def _load_zip(memory: memoryview, where: str) -> Any:
    try:
        with zipfile.ZipFile(io.BytesIO(memory)) as archive:
            members = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise FileFormatError(f"{where}: no zip file that can be read ({error}); truncated?") from None
    found = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(found) != 1:
        raise FileFormatError(f"{where}: a checkpoint has one data.pkl, this zip file has {len(found)}")
    prefix = found[0][: -len("data.pkl")]

    def member(name: str) -> memoryview:
        info = members.get(prefix + name)
        if info is None:
            raise FileFormatError(f"{where}: there is no {prefix + name!r} in the zip file")
        return _member(memory, info, where)

    if prefix + "byteorder" in members and bytes(member("byteorder")).strip() != b"little":
        raise FileFormatError(f"{where}: its numbers have their highest bytes first, which is not read")

    def storage(key: str, dtype: DType, size: int) -> _Storage:
        data = member(f"data/{key}")
        _check_size(f"{where}: storage {key!r}", size, dtype, len(data))
        return _Storage(key, dtype, size, data[: size * dtype.itemsize])

    return _Unpickler(io.BytesIO(member("data.pkl")), where, storage).run()


def _member(memory: memoryview, info: zipfile.ZipInfo, where: str) -> memoryview:
    """The bytes of a member as they lie in the file."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise FileFormatError(f"{where}: {info.filename!r} is compressed or encrypted, which torch's files never are")
    header = memory[info.header_offset : info.header_offset + 30]
    if len(header) < 30 or header[:4] != ZIP_MAGIC:
        raise FileFormatError(f"{where}: {info.filename!r} has no header where the zip file says")
    begin = info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if begin + info.file_size > len(memory):
        raise FileFormatError(f"{where}: {info.filename!r} reaches past the end; file truncated?")
    return memory[begin : begin + info.file_size]


def _check_size(what: str, size: int, dtype: DType, room: int) -> None:
    if not isinstance(size, int) or size < 0 or size * dtype.itemsize > room:
        raise FileFormatError(f"{what}: {short(size)} elements of {dtype.name} do not fit into {room} bytes")


# the older kind: pickles one after another, then the storages
def _load_legacy(memory: memoryview, where: str) -> Any:
    if memory[: len(LEGACY_START)] != LEGACY_START:
        raise FileFormatError(f"{where}: begins with {bytes(memory[:8])!r}; not a checkpoint of torch")
    stream = io.BytesIO(memory)
    sizes: dict[str, tuple[DType, int]] = {}

    def noted(key: str, dtype: DType, size: int) -> _Storage:
        known = sizes.setdefault(key, (dtype, size))
        if known[1] * known[0].itemsize != size * dtype.itemsize:
            raise FileFormatError(f"{where}: storage {key!r} has two sizes")
        return _Storage(key, dtype, size, None)

    _, version, system = (_Unpickler(stream, where, noted).run() for _ in range(3))
    if version != LEGACY_VERSION:
        raise FileFormatError(f"{where}: version {short(version)} of the format; {LEGACY_VERSION} is read")
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise FileFormatError(f"{where}: its numbers have their highest bytes first, which is not read")
    begin = stream.tell()
    # The storages come last, so that the first time only their names are learned.
    _Unpickler(stream, where, noted).run()
    keys = _Unpickler(stream, where, noted).run()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise FileFormatError(f"{where}: the list of storages is {short(keys)}")
    data: dict[str, memoryview] = {}
    at = stream.tell()
    for key in keys:
        if key not in sizes:
            raise FileFormatError(f"{where}: storage {short(key)!r} belongs to no tensor")
        dtype, size = sizes[key]
        room = len(memory) - at - 8
        _check_size(f"{where}: storage {key!r}", size, dtype, max(room, 0))
        written = int.from_bytes(memory[at : at + 8], "little")
        # It is counted in elements of the type with which it was written.
        at += 8
        if written != size:
            raise FileFormatError(f"{where}: storage {key!r} has {written} elements, its tensors say {size}")
        data[key] = memory[at : at + size * dtype.itemsize]
        at += size * dtype.itemsize

    def storage(key: str, dtype: DType, size: int) -> _Storage:
        if key not in data:
            raise FileFormatError(f"{where}: storage {short(key)!r} is missing")
        return _Storage(key, dtype, size, data[key])

    stream.seek(begin)
    return _Unpickler(stream, where, storage).run()


# the pickle
class _Unpickler(pickle.Unpickler):
    """Builds tensors and containers; everything else that a pickle names is refused."""

    def __init__(self, stream: io.BytesIO, where: str, storage: Callable[[str, DType, int], _Storage]) -> None:
        super().__init__(stream, encoding="utf-8")
        self._where, self._storage = where, storage
        self._known: dict[str, _Storage] = {}
        self._bases: dict[tuple[str, DType], Tensor] = {}

    def run(self) -> Any:
        try:
            return self.load()
        except FileFormatError:
            raise
        except RecursionError:
            raise FileFormatError(f"{self._where}: the pickle is nested too deep") from None
        except Exception as error:  # whatever a damaged program of a pickle runs into
            raise FileFormatError(
                f"{self._where}: the pickle is damaged ({type(error).__name__}: {short(str(error))}); truncated?"
            ) from None

    def find_class(self, module: str, name: str) -> Any:
        if module in ("collections", "builtins", "__builtin__"):
            plain = {"OrderedDict": OrderedDict, "set": set, "frozenset": frozenset}.get(name)
            if plain is not None:
                return plain
        if module == "torch._utils":
            build = {
                "_rebuild_tensor": self._view,
                "_rebuild_tensor_v2": self._view,
                "_rebuild_tensor_v3": self._typed_view,
                "_rebuild_parameter": self._parameter,
            }.get(name)
            if build is not None:
                return build
        if module == "torch._tensor" and name == "_rebuild_from_type_v2":
            return self._with_type
        if module == "torch" and name == "Size":
            return _size
        if module in ("torch", "torch.storage") and name in STORAGES:
            return _Kind(name, STORAGES[name])
        if module == "torch" and name in TORCH_DTYPES:
            return TORCH_DTYPES[name]
        if (module, name) in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter")):
            return _Kind(name)
        if module.startswith("__torch__"):
            raise FileFormatError(f"{self._where}: a TorchScript program ({module}.{name}), which is not run")
        raise FileFormatError(
            f"{self._where}: the pickle names {short(f'{module}.{name}')}, which is neither a tensor nor a container; "
            "it was not run. Save the state_dict() alone"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
            raise FileFormatError(f"{self._where}: {short(pid)} is no storage")
        kind, key, _, size = pid[1:5]
        if len(pid) == 6 and pid[5] is not None:
            raise FileFormatError(f"{self._where}: storage {short(key)!r} is a view of another one, which is not read")
        if not isinstance(kind, _Kind) or kind.dtype is None or not isinstance(key, str) or type(size) is not int:
            raise FileFormatError(f"{self._where}: storage {short(key)!r} has no known type or size")
        if size < 0 or size * kind.dtype.itemsize >= 2**63:
            raise FileFormatError(f"{self._where}: storage {key!r} has the impossible size {size}")
        if key not in self._known:
            self._known[key] = self._storage(key, kind.dtype, size)
        return self._known[key]

    def _view(
        self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any = None, hooks: Any = None, meta: Any = None
    ) -> Tensor | None:
        if not isinstance(storage, _Storage):
            raise FileFormatError(f"{self._where}: a tensor without a storage")
        return self._tensor(storage, storage.dtype, offset, shape, strides)

    def _typed_view(
        self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, kind: Any, meta: Any = None
    ) -> Tensor | None:
        if not isinstance(storage, _Storage) or not isinstance(kind, DType):
            raise FileFormatError(f"{self._where}: a tensor without a storage or type")
        return self._tensor(storage, kind, offset, shape, strides)

    def _parameter(self, data: Any, grad: Any = None, hooks: Any = None) -> Any:
        if data is not None and not isinstance(data, Tensor):
            raise FileFormatError(f"{self._where}: a parameter of {short(data)}, which is no tensor")
        return data

    def _with_type(self, build: Any, kind: Any, arguments: Any, state: Any) -> Any:
        if not isinstance(kind, _Kind) or build not in (self._view, self._typed_view, self._parameter):
            raise FileFormatError(f"{self._where}: a tensor of the unknown class {short(kind)}")
        return build(*arguments)

    def _tensor(self, storage: _Storage, dtype: DType, offset: Any, shape: Any, strides: Any) -> Tensor | None:
        where = f"{self._where}: a tensor of storage {storage.key!r}"
        numbers = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers) or len(shape) != len(strides):
            raise FileFormatError(f"{where} has shape {short(shape)}, strides {short(strides)}, offset {short(offset)}")
        if len(shape) > MAX_AXES:
            raise FileFormatError(f"{where} has {len(shape)} axes; at most {MAX_AXES} are read")
        room = storage.size * storage.dtype.itemsize // dtype.itemsize
        count = 1
        for size in shape:
            count *= size
        last = offset + sum((size - 1) * step for size, step in zip(shape, strides)) if count else -1
        if count >= 2**63 or last >= room:
            raise FileFormatError(f"{where} has shape {short(shape)} and reaches element {last} of {room}")
        if storage.data is None:
            return None  # the first time through, where sizes are learned
        if not count:
            return Tensor.zeros(*shape, dtype=dtype)
        key = storage.key, dtype
        if key not in self._bases:
            self._bases[key] = host_tensor(storage.data[: room * dtype.itemsize], dtype)
        base = self._bases[key]
        if _is_row_major(shape, strides):
            return base[offset : offset + count].reshape(*shape)
        return base.as_strided(shape, strides, offset)


def _size(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(values)


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
