"""gradlet as a backend of the package onnx: `onnx.backend.base.Backend`, for its conformance cases and other tools."""

from __future__ import annotations

import contextlib
from typing import Any

from gradlet.base.errors import GradletError
from gradlet.onnx.elements import STRING, numpy_type
from gradlet.onnx.runner import OnnxRunner
from gradlet.onnx.values import EMPTY, Array, Map, Value

Backend: Any = object  # without the package this module can be imported, but prepares nothing
BackendRep: Any = object
with contextlib.suppress(ImportError):
    from onnx.backend.base import Backend, BackendRep


def as_numpy(value: Any, runner: OnnxRunner) -> Any:
    """A value in numpy, in its own element type; lists for sequences, dictionaries for maps, None for nothing."""
    if isinstance(value, list):
        return [as_numpy(v, runner) for v in value]
    if value is None or value is EMPTY:
        return None
    if isinstance(value, Map):
        return value.entries
    assert isinstance(value, Value)
    array: Array = value.array()
    return array if value.elem == STRING else array.astype(numpy_type(value.elem), copy=False)


class GradletRep(BackendRep):
    """One prepared model."""

    def __init__(self, runner: OnnxRunner) -> None:
        self.runner = runner

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs in the file's order (or by name)."""
        names = [i.name for i in self.runner.inputs]
        given = inputs if isinstance(inputs, dict) else dict(zip(names, inputs))
        values = self.runner.values(given)
        lazy = [
            v.tensor(self.runner.constant) for v in values if isinstance(v, Value) and not v.known and not v.is_text
        ]
        if lazy:
            lazy[0].realize(*lazy[1:])
        from onnx.backend.base import namedtupledict

        named = namedtupledict("Outputs", [o.name for o in self.runner.outputs])
        return named(*(as_numpy(v, self.runner) for v in values))


class GradletBackend(Backend):
    """Prepares and runs models."""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> GradletRep:
        """A model that is checked and ready to run."""
        return GradletRep(OnnxRunner(model, device))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """A model prepared and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether everything that the model asks for is supported."""
        try:
            OnnxRunner(model, device)
        except GradletError:
            return False
        return True

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device."""
        from gradlet.runtime.device import Device

        try:
            Device[device.split(":")[0]]
        except GradletError:
            return False
        return True


prepare = GradletBackend.prepare
run_model = GradletBackend.run_model
supports_device = GradletBackend.supports_device
