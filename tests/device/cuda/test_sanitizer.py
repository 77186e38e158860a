"""On a GPU: `compute-sanitizer` finds nothing in a kernel of every kind, and every kind is right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.cuda import every_kind
from tests.device.cuda.test_repeats import _has_gpu

TOOL = shutil.which("compute-sanitizer") or next(
    iter(str(p) for p in [Path("/usr/local/cuda/bin/compute-sanitizer")] if p.exists()), None
)
ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not _has_gpu(), reason="no NVIDIA GPU with its packages")]


@pytest.mark.parametrize("name", every_kind.KINDS)
def test_a_kernel_of_every_kind_is_right(name: str) -> None:
    assert every_kind.KINDS[name]() < every_kind.TOLERANCE


@pytest.mark.skipif(TOOL is None, reason="there is no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_nothing_is_found(tool: str) -> None:
    command = [str(TOOL), "--tool", tool, sys.executable, "-m", "tests.device.cuda.every_kind"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert f"{list(every_kind.KINDS)[-1]}: " in said, said[-3000:]  # it ran to its end
    assert "WRONG" not in said
    if tool == "initcheck":
        # It does not see what the copy engine stores, and takes such results for memory that nobody wrote when the
        # host reads them; that they are written is what `every_kind` compares. Kernels must read none.
        assert not re.search(r"Uninitialized __\w+__ memory read", said), said[:3000]
    else:
        assert re.search(r"SUMMARY: 0 (errors|hazards)", said), said[:3000]
