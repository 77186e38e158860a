"""The page of the schedule language: every word has a section, what it shows is legal and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradlet.base.errors import ArgumentError
from gradlet.ops.opt import OptKind, Tail
from gradlet.optimize.actions.language import apply
from gradlet.optimize.opttext import parse_opts
from gradlet.target.target import AVX2, NVPTX
from tests.codegen import kernels

PAGE = (Path(__file__).parents[2] / "docs" / "schedule-language.md").read_text()
OPTS = re.findall(r"```opts\n(.*?)```", PAGE, re.DOTALL)
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


OF_GPUS = ("TENSORIZE", "SPECIALIZE", "PERSISTENT", "TILE_ORDER", "EPILOGUE")  # tests/codegen/test_roles.py
NOT_OF_PRODUCTS = ("STREAM", "LOOKUP", "ONLINE", "ROTATE", "FEED", "SCAN", "DEAL", *OF_GPUS)  # words for other kernels


def test_every_word_and_tail_is_explained() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(OptKind.__members__)
    assert all(f"`{tail}`" in PAGE for tail in Tail.__members__)


@pytest.mark.parametrize("number", range(len(OPTS)))
def test_opts_are_legal_on_the_product(number: int) -> None:
    opts = parse_opts(OPTS[number])
    target = NVPTX if any(o.kind is OptKind.THREAD for o in opts) else AVX2
    size = 1024 if len(opts) > 1 else 64
    try:
        assert apply(kernels.matmul(size, size, size).sink, opts, target).arg.opts == opts
    except ArgumentError as error:
        assert any(word in OPTS[number] for word in NOT_OF_PRODUCTS), error


@pytest.mark.parametrize("number", range(len(CODE)))
def test_code_runs(number: int) -> None:
    exec(CODE[number], {})
