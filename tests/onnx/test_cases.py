"""The conformance cases of the package onnx on the CPU device: those that do not pass are the table of docs/onnx.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
sys.path.insert(0, str(Path(__file__).parent))
from oracle import DATA, read_case, run_case

from gradlet.runtime import download

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"
PARTS = 12
LEAST = 1750
SETS = {"simple": 1e-7, "pytorch-operator": 1e-5, "pytorch-converted": 1e-5}


def listed() -> dict[str, str]:
    """The rows of the page: a case that is expected to fail, and why."""
    return dict(re.findall(r"^\| `(test_\w+)` \| (.+?) \|$", PAGE.read_text(), re.MULTILINE))


def listed_today() -> dict[str, str]:
    """Those of the cases that the installed package generates."""
    text = PAGE.read_text().split("| case of 1.12 |")[0]
    return dict(re.findall(r"^\| `(test_\w+)` \| (.+?) \|$", text, re.MULTILINE))


@cache
def node_cases() -> list[Any]:
    """All cases that the package generates: seconds, so only the slow tests ask."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_model_tests(kind="node")


def needs_pillow(name: str) -> bool:
    return name.startswith("test_image_decoder") and find_spec("PIL") is None


def failures(cases: list[Any]) -> dict[str, str]:
    """The cases that fail, and how."""
    found = {}
    for case in cases:
        try:
            wrong = run_case(case.model, case.data_sets, case.rtol, case.atol)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found[case.name] = wrong
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_exactly_the_listed_node_cases_fail(part: int) -> None:
    cases = [c for c in node_cases()[part::PARTS] if not needs_pillow(c.name)]
    found = failures(cases)
    expected = {c.name for c in cases} & set(listed_today())
    unexpected = {name: how for name, how in found.items() if name not in expected}
    assert unexpected == {}
    assert expected - set(found) == set(), "these pass now: take them off the page"


@pytest.mark.slow
def test_the_page_lists_cases_that_exist_and_few_of_them() -> None:
    names = {c.name for c in node_cases()}
    assert set(listed_today()) <= names
    assert len(names) - len(listed_today()) >= LEAST


# Cases of an older version, which Debian ships as files.
@cache
def debian() -> Path:
    """The folder of the package's data; skips the test where it cannot be had."""
    target = download.folder() / "packages" / "libonnx-testdata-1.12.0-2"
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            fetch = ["apt-get", "download", "-q", "libonnx-testdata"]
            if which("apt-get") is None or which("dpkg-deb") is None:
                pytest.skip("needs a Debian system")
            done = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, check=False)
            found = list(Path(folder).glob("libonnx-testdata_1.12.0-2_*.deb"))
            if done.returncode or not found:
                pytest.skip(f"libonnx-testdata 1.12.0-2 cannot be fetched: {done.stderr[-200:]}")
            subprocess.run(["dpkg-deb", "-x", str(found[0]), f"{folder}/x"], check=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{folder}/x", target)
    return target / "usr" / "share" / "libonnx-testdata" / "data"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_exactly_the_listed_cases_of_debian_fail(part: int) -> None:
    folders = sorted(p for p in debian().glob("*/test_*") if (p / "model.onnx").exists())[part::4]
    assert folders
    found = {}
    for folder in folders:
        try:
            wrong = run_case(*read_case(folder), atol=SETS.get(folder.parent.name, 1e-7))
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            found[folder.name] = wrong
    expected = {f.name for f in folders} & set(listed())
    assert {name: how for name, how in found.items() if name not in expected} == {}


# A sample of the file cases for every run, and all of them when asked.
QUICK = (
    "simple/test_sequence_model1", "simple/test_sequence_model4", "simple/test_expand_shape_model2",
    "simple/test_shrink", "simple/test_gradient_of_add_and_mul",
    "simple/test_strnorm_model_monday_casesensintive_lower",
    "pytorch-operator/test_operator_conv", "pytorch-operator/test_operator_basic",
    "pytorch-operator/test_operator_pad", "pytorch-converted/test_GLU", "pytorch-converted/test_MaxPool2d",
    "pytorch-converted/test_Softmax",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_a_file_case_gives_what_it_holds(name: str) -> None:
    assert run_case(*read_case(DATA / name), atol=SETS[name.split("/")[0]]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETS)
def test_every_file_case_gives_what_it_holds(kind: str) -> None:
    folders = sorted((DATA / kind).glob("test_*"))
    assert folders
    wrong = {f.name: run_case(*read_case(f), atol=SETS[kind]) for f in folders}
    assert {name: how for name, how in wrong.items() if how} == {}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((DATA / "light").glob("*.onnx")), ids=lambda p: p.stem)
def test_light_networks_give_what_they_hold(path: Path) -> None:
    import numpy as np
    from onnx import numpy_helper

    from gradlet.onnx.runner import OnnxRunner

    expected = onnx.TensorProto()
    expected.ParseFromString((path.parent / f"{path.stem}_output_0.pb").read_bytes())
    runner = OnnxRunner(path)
    shape = tuple(int(s) for s in runner.inputs[0].shape)
    got = runner({runner.inputs[0].name: np.ones(shape, np.float32)})
    wanted = numpy_helper.to_array(expected)
    np.testing.assert_allclose(next(iter(got.values())).numpy(), wanted, rtol=1e-3, atol=1e-5)
