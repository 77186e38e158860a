"""gradlet: lazy tensors, one small compiler from tensor to machine code, generated kernels on every device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradlet import array_api, nn
    from gradlet.base.dtype import dtypes
    from gradlet.base.settings import Context
    from gradlet.graph.node import UOp
    from gradlet.runtime.counters import GlobalCounters
    from gradlet.runtime.device import Device
    from gradlet.tensor.derivative import checkpoint, custom_gradient
    from gradlet.tensor.exchange import from_dlpack
    from gradlet.tensor.function import TinyJit, jit
    from gradlet.tensor.tensor import Tensor, Variable

__version__ = "0.1.0"
__all__ = [
    "Context", "Device", "GlobalCounters", "Tensor", "TinyJit", "UOp", "Variable", "array_api", "checkpoint",
    "custom_gradient", "dtypes", "from_dlpack", "jit", "nn",
]  # fmt: skip

# Public name -> module that has it. Loaded on first use, so that importing the package costs next to nothing.
_HOMES = {
    "Context": "gradlet.base.settings",
    "Device": "gradlet.runtime.device",
    "GlobalCounters": "gradlet.runtime.counters",
    "Tensor": "gradlet.tensor.tensor",
    "TinyJit": "gradlet.tensor.function",
    "UOp": "gradlet.graph.node",
    "Variable": "gradlet.tensor.tensor",
    "checkpoint": "gradlet.tensor.derivative",
    "custom_gradient": "gradlet.tensor.derivative",
    "dtypes": "gradlet.base.dtype",
    "from_dlpack": "gradlet.tensor.exchange",
    "jit": "gradlet.tensor.function",
}


def __getattr__(name: str) -> Any:
    if name in ("array_api", "nn"):
        return import_module(f"gradlet.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gradlet' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
