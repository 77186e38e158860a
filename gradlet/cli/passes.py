"""`gradlet passes`: every pass of the compiler in the order they run, with what each needs and guarantees."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Iterator

from gradlet.graph.passes import Pass, Pipeline
from gradlet.graph.rewrite import RuleSet

# Where pass lists stand, in the order of data.
MODULES = ("gradlet.schedule.pipeline", "gradlet.codegen.pipeline")
WIDTH = 118


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--rules` also lists the rules of every rule set."""
    parser.add_argument("--rules", action="store_true", help="also list the rules of each rule set")


def run(arguments: argparse.Namespace) -> int:
    """Print both lists."""
    for pipeline in pipelines():
        print(f"{pipeline.name} ({len(pipeline.passes)} passes)")
        for number, row in enumerate(pipeline.passes, 1):
            print("\n".join(describe(number, row, arguments.rules)))
        print()
    return 0


def pipelines() -> Iterator[Pipeline]:
    """Every pass list of the compiler, in the order of data."""
    for name in MODULES:
        found = [v for v in vars(importlib.import_module(name)).values() if isinstance(v, Pipeline)]
        yield from dict.fromkeys(found)


def describe(number: int, row: Pass, with_rules: bool) -> Iterator[str]:
    """One pass in a few lines."""
    stages = row.requires.name if row.requires is row.ensures else f"{row.requires.name} -> {row.ensures.name}"
    gone = f"  gone: {', '.join(sorted(op.name for op in row.gone))}" if row.gone else ""
    yield f"  {number:2d}. {row.name}  [{stages}]{gone}"
    yield from textwrap.wrap(row.doc, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    if with_rules and isinstance(row.run, RuleSet):
        yield f"      rules of {row.run.name!r}, guarantee: {row.run.guarantee}"
        for rule in row.run.rules:
            yield f"        {rule.name or rule}"
