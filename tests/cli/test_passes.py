"""`gradlet passes` prints every pass of both lists in order."""

from __future__ import annotations

import argparse

import pytest

from gradlet.cli import passes


def test_both_lists_are_found_in_the_order_of_data() -> None:
    names = [p.name for p in passes.pipelines()]
    assert len(names) >= 2
    assert len(names) == len(set(names))


@pytest.mark.parametrize("rules", [False, True])
def test_every_pass_is_printed_in_order(capsys: pytest.CaptureFixture[str], rules: bool) -> None:
    assert passes.run(argparse.Namespace(rules=rules)) == 0
    text = capsys.readouterr().out
    position = 0
    for pipeline in passes.pipelines():
        position = text.index(f"{pipeline.name} ({len(pipeline.passes)} passes)", position)
        for row in pipeline.passes:
            position = text.index(f". {row.name}  [", position)
    assert ("guarantee:" in text) == rules


def test_every_pass_says_why_it_exists() -> None:
    assert [row.name for p in passes.pipelines() for row in p.passes if len(row.doc) < 15] == []
