"""The registry: names, defaults, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.base.errors import DeviceError
from gradlet.base.settings import scope
from gradlet.runtime.device import Device


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("CPU", "CPU"), ("cpu", "CPU"), ("cpu:0", "CPU"), ("python", "PYTHON"), ("NULL", "NULL"),
        ("null:NVPTX", "NULL:nvptx"), ("NULL:avx2", "NULL:avx2"),
        ("cuda:0", "CUDA"), ("CUDA:1", "CUDA:1"),
    ],
)  # fmt: skip
def test_one_spelling_for_each_device(given: str, canonical: str) -> None:
    assert Device.canonicalize(given) == canonical


@pytest.mark.parametrize("name", ["GPU", "", "CPU:1", "CPU:x"])
def test_unknown_devices_are_refused_with_the_good_names(name: str) -> None:
    with pytest.raises(DeviceError, match="CPU"):
        Device.canonicalize(name)


def test_gpus_are_numbered() -> None:
    with pytest.raises(DeviceError, match="GPUs are numbered; use CUDA, CUDA:1"):
        Device.canonicalize("CUDA:x")


def test_the_default_is_the_cpu_unless_the_setting_says_otherwise() -> None:
    assert Device.DEFAULT == "CPU"
    with scope(DEV="python"):
        assert Device.DEFAULT == "PYTHON"
    with scope(DEV="TPU"), pytest.raises(DeviceError, match="unknown device 'TPU'; use one of: CPU, PYTHON, NULL"):
        _ = Device.DEFAULT


def test_an_assigned_default_wins() -> None:
    try:
        Device.DEFAULT = "null"
        assert Device.DEFAULT == "NULL"
        assert Device.canonicalize(None) == "NULL"
    finally:
        Device.DEFAULT = None
    assert Device.DEFAULT == "CPU"


def test_each_device_is_opened_once() -> None:
    assert Device["CPU"] is Device["cpu:0"]
    assert Device["CPU"].name == "CPU"
    assert Device["NULL:nvptx"] is not Device["NULL"]


def test_the_registry_loads_no_backend() -> None:
    code = (
        "import sys\nfrom gradlet.runtime.device import Device\nDevice.canonicalize('cpu')\n"
        "assert not [m for m in sys.modules if m.startswith(('llvmlite', 'numpy', 'gradlet.device'))]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[2], check=True)


def test_membership() -> None:
    assert "CPU" in Device
    assert "null:nvptx" in Device
    assert "TPU" not in Device
    assert Device.names() == ("CPU", "PYTHON", "NULL", "CUDA")
