"""tinygrad's side of `graph_core.py`: the same graphs and rules in its nodes, timed the same way."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import count
from typing import Any

os.environ["SPEC"] = "0"

import graph_workloads as work
from graph_timing import Times, fresh, timed
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad.uop.symbolic import sym

FLOAT = dtypes.float32
# Constants over a rule's number of holes are named by these.
CONSTANTS = "cde"


def variable(name: str, low: int, high: int) -> Any:
    """An integer with limits."""
    return UOp.variable(name, low, high)


_epoch = count()


def leaves(epoch: int) -> Callable[[int], Any]:
    """Float leaves that no earlier graph has used."""
    return lambda number: UOp(Ops.NOOP, FLOAT, (), (epoch, number))


def constant(value: float) -> Any:
    """A float constant."""
    return UOp.const(value, FLOAT)


def matcher(rules: list[Any]) -> PatternMatcher:
    """The rules as patterns."""
    rows = []
    for names, left, right in rules:
        holes = {n: UPat.cvar(n) if n in CONSTANTS else UPat.var(n) for n in names}
        if names == "cd":  # our templates fold constants, here the rule has to
            right = add_constants if right(2, 3) == 5 else multiply_constants
        rows.append((left(**holes), right))
    return PatternMatcher(rows)


def add_constants(c: Any, d: Any) -> Any:
    """c + d as one constant."""
    return c.const_like(c.arg + d.arg)


def multiply_constants(c: Any, d: Any) -> Any:
    """c * d as one constant."""
    return c.const_like(c.arg * d.arg)


def measure() -> Times:
    """All rows, in microseconds."""
    gc.disable()
    times: Times = {}
    x = leaves(next(_epoch))(0)

    def create() -> None:
        node = x
        offset = leaves(next(_epoch))(0)
        for _ in range(5_000):
            node = node + offset

    times["create by a + b"] = timed(create, 3) / 5_000

    big = work.layers(leaves(next(_epoch)), constant)
    nodes = list(big.toposort())

    def copy() -> None:
        epoch = next(_epoch)
        new: dict[Any, Any] = {}
        for node in big.toposort():
            arg = (epoch, node.arg[1]) if node.op is Ops.NOOP else node.arg
            new[node] = UOp(node.op, node.dtype, tuple([new[s] for s in node.src]), arg)

    times["copy a graph"] = timed(copy, 2) / len(nodes)
    times["toposort"] = timed(lambda: big.toposort(), 3) / len(nodes)

    rules = matcher(work.RULES)
    simple = graph_rewrite(big, rules)
    size = len(simple.toposort())
    times["nodes of (b)"] = len(nodes)
    times["nodes of (b), result"] = size
    times["first pass of (b)"] = fresh(lambda: work.layers(leaves(next(_epoch)), constant),
                                       lambda g: graph_rewrite(g, rules), 2) / len(nodes)  # fmt: skip
    times["miss-only pass by walking"] = timed(lambda: graph_rewrite(simple, rules), 2) / size
    times["root already stable"] = times["miss-only pass by walking"] * size
    passes = [matcher(work.RULES[i::12]) for i in range(12)]

    def twelve() -> None:
        for rows in passes:
            graph_rewrite(simple, rows)

    times["12 passes without a hit"] = timed(twelve, 1) / size
    times["structural key"] = fresh(lambda: work.layers(leaves(next(_epoch)), constant, 8), lambda g: g.key, 1) / (
        len(nodes) / 4
    )

    roots = work.index_expressions(variable)
    sample = UOp(Ops.SINK, dtypes.void, tuple(roots[::7][:60]))
    count_before = len(sample.toposort())
    result = graph_rewrite(sample, sym)
    times["(a) 60 expressions, nodes"] = count_before
    times["(a) 60 expressions, nodes left"] = len(result.toposort())
    times["(a) 60 expressions"] = timed(lambda: graph_rewrite(sample, sym), 1) / count_before
    return times
