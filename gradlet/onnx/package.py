"""The package onnx, which parses files: found when it is needed, so that gradlet can be imported without it."""

from __future__ import annotations

from types import ModuleType

from gradlet.base.errors import MissingExtraError


def onnx_package() -> ModuleType:
    """The package onnx.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import onnx
        import onnx.defs
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise MissingExtraError("ONNX models need the package onnx: pip install 'gradlet[onnx]'") from None
    return onnx
