"""What the namespace can do, for those who ask before they call."""

from __future__ import annotations

from typing import Any

from gradlet.array_api.datatypes import isdtype
from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import DeviceError
from gradlet.runtime.device import Device

NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
)  # fmt: skip


class ArrayNamespaceInfo:
    """The inspection functions of the standard."""

    def capabilities(self) -> dict[str, Any]:
        """Optional parts of the standard that exist, and the most axes an array may have (no limit)."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        """The device that arrays are made on when none is named."""
        return Device.DEFAULT

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The types that are used when none is named. There are no complex ones."""
        return {
            "real floating": dtypes.default_float, "integral": dtypes.default_int, "indexing": dtypes.default_int,
        }  # fmt: skip

    def devices(self) -> list[str]:
        """All devices that compute on this machine."""
        return [name for name in Device.names() if name != "NULL" and _opens(name)]

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, DType]:
        """The types of the standard by name, of one kind or of all."""
        found = {name: dtypes.by_name(name) for name in NAMES}
        return found if kind is None else {name: dtype for name, dtype in found.items() if isdtype(dtype, kind)}


def _opens(name: str) -> bool:
    """Whether this machine has the device."""
    try:
        Device[name]
    except DeviceError:
        return False
    return True


def __array_namespace_info__() -> ArrayNamespaceInfo:  # noqa: N807 (the standard's name)
    """What the namespace can do."""
    return ArrayNamespaceInfo()
