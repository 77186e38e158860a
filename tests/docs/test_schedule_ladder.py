"""The ladder of docs/schedule-language.md: legal and right on every rung, and all on the page and in the plot."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from gradlet.codegen import pipeline
from gradlet.graph.evaluate import run_linear
from gradlet.ops.op import KernelArg
from gradlet.optimize.actions.language import apply
from gradlet.optimize.opttext import parse_opts
from gradlet.target.target import AVX2, AVX512, NEON, Target

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT: dict[str, Any] = runpy.run_path(str(DOCS / "schedule_language.py"))
PAGE = (DOCS / "schedule-language.md").read_text()
WORDS = [rung.title.partition("(")[0] for rung in SCRIPT["ladder"](AVX2)]


def rows_of(page: str) -> list[str]:
    """The first cells of the ladder's table."""
    part = page.partition(SCRIPT["BEGIN"])[2].partition(SCRIPT["END"])[0]
    return [cell.strip("`") for cell in re.findall(r"^\| (.*?) \| \d", part, re.MULTILINE)]


@pytest.mark.parametrize("target", [AVX2, AVX512, NEON], ids=lambda t: t.name)
def test_each_rung_adds_one_legal_opt(target: Target) -> None:
    rungs = SCRIPT["ladder"](target)
    assert [rung.title.partition("(")[0] for rung in rungs] == WORDS
    for number, rung in enumerate(rungs):
        assert len(rung.opts) == number
        assert rung.opts == rungs[number - 1].opts + parse_opts(rung.title) if number else rung.opts == ()
        assert apply(SCRIPT["product"](), rung.opts, target).arg.opts == rung.opts


@pytest.mark.parametrize("number", range(len(WORDS)), ids=lambda number: f"{number} {WORDS[number]}")
@pytest.mark.parametrize("target", [AVX2, AVX512], ids=lambda t: t.name)
def test_each_rung_computes_the_product(target: Target, number: int) -> None:
    rows = SCRIPT["tile_rows"](target)
    m, k, n = rows + 1, 2, SCRIPT["VECTORS"] * SCRIPT["MAX_PANELS"] * target.vector_bits // 32 * 2
    opts = SCRIPT["ladder"](target, m, k, n)[number].opts
    random = np.random.default_rng(number)
    a, b = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    arrays = [np.full((m, n), np.nan, np.float32), a.copy(), b.copy()]
    program = pipeline.lower(SCRIPT["product"](m, k, n).replace(arg=KernelArg("matmul", opts)), target)
    assert program.opts == opts
    run_linear(program, arrays, {})
    np.testing.assert_allclose(arrays[0].reshape(m, n), a @ b, rtol=1e-4, atol=1e-5)


def test_the_page_has_every_rung_and_the_plot() -> None:
    rows = rows_of(PAGE)
    assert [row.partition("(")[0] for row in rows[: len(WORDS)]] == WORDS
    assert set(rows[len(WORDS) :]) <= {rows[len(WORDS) - 1]}  # the last rung again, on more threads
    opts = parse_opts(", ".join(rows[1 : len(WORDS)]))
    assert apply(SCRIPT["product"](), opts, AVX2).arg.opts == opts
    assert f"]({SCRIPT['PLOT'].name})" in PAGE


def test_the_plot_is_xml_with_a_bar_for_every_rung() -> None:
    names = {node.text for node in ElementTree.parse(SCRIPT["PLOT"]).iter() if node.tag.endswith("text")}
    assert set(rows_of(PAGE)) <= names


def test_new_results_replace_those_of_the_page() -> None:
    results = [SCRIPT["Result"](f"SPLIT(range 0, {n})", n, n * 1e9, 4e9 * n, "a < b & c") for n in (1, 2)]
    page = SCRIPT["written"](PAGE, results)
    assert rows_of(page) == [row.title for row in results]
    assert SCRIPT["written"](page, results) == page
    assert page.partition(SCRIPT["END"])[2] == PAGE.partition(SCRIPT["END"])[2]
    assert "on 2 threads" in "".join(ElementTree.fromstring(SCRIPT["plot"](results)).itertext())
