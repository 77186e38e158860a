"""`gradlet bench`: how to measure gradlet beside its peers; the benchmarks live in the repository."""

from __future__ import annotations

import argparse
from pathlib import Path

TEXT = """\
Benchmarks live in the folder benchmarks/ of the repository. Peers (torch, tinygrad) have an environment of their own:

    python3 -m venv peers && peers/bin/pip install torch tinygrad numpy
    python benchmarks/run_all.py --peers peers/bin/python

That writes benchmarks/RESULTS.md. One part alone, quickly:

    python benchmarks/ops.py --peers peers/bin/python --only matmul_512,softmax --rounds 5
    python benchmarks/steps.py --peers peers/bin/python
    python benchmarks/overheads.py --peers peers/bin/python
    python benchmarks/graph_core.py

Leave --peers out to measure gradlet alone."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`bench` takes none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the commands."""
    print(TEXT)
    if not (Path.cwd() / "benchmarks" / "run_all.py").exists():
        print("\nThis folder has no benchmarks/: run them from the root of a clone of the repository.")
    return 0
