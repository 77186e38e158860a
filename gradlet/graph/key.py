"""Structural keys: equal for graphs that differ only in which buffers, variables and bound values they use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from gradlet.graph.node import UOp, next_stamp, stamp_lock
from gradlet.ops.op import Op

_CONST: Final = Op.CONST
_BUFFER: Final = Op.BUFFER
_VARIABLE: Final = Op.VARIABLE
_BIND: Final = Op.BIND
_DERIVATIVE: Final = Op.DERIVATIVE
_WRITE: Final = Op.WRITE

Key = tuple[Any, ...]


class Structure(NamedTuple):
    """A graph without its leaves, from one walk.

    Attributes:
        key: equal for equal structures.
        leaves: the BUFFER, VARIABLE and BIND nodes in order of discovery.
        writes: the WRITE nodes, each with its number in the key.
        met: whether one of the nodes that the walk was to look out for is part of the graph.
    """

    key: Key
    leaves: tuple[UOp, ...]
    writes: list[tuple[UOp, int]]
    met: bool


def structural_key(roots: Iterable[UOp]) -> tuple[Key, tuple[UOp, ...]]:
    """Key of the graph below `roots`, and its leaves: the BUFFER, VARIABLE and BIND nodes in order of discovery."""
    return structure_of(roots)[:2]


def structure_of(roots: Iterable[UOp], watched: Iterable[UOp] = ()) -> Structure:
    """Structure of the graph below `roots`.

    Two lists of roots have equal keys exactly when one becomes the other by exchanging leaves position by position:
    buffers of the same dtype, size and device, variables of the same dtype and limits (names do not count), bound
    values. A device's table of 0, 1, 2, ... is exchanged with no other buffer. Aliasing counts: `a + a` and `a + b`
    differ. Numbers are given in order of discovery, so they depend on structure alone. The key holds dtype objects: for
    use on disk replace them by their names. `schedule/difference` reads keys.

    Args:
        roots: TENSOR-stage nodes.
        watched: nodes to look out for.
    """
    key: list[Any] = []
    append = key.append
    leaves: list[UOp] = []
    writes: list[tuple[UOp, int]] = []
    stack: list[UOp] = []
    push, pop = stack.append, stack.pop
    with stamp_lock:
        stamp = next_stamp()
        number = 0
        for node in roots:
            if node.stamp != stamp:
                node.stamp = stamp
                node.num = number
                number += 1
                push(node)
            append(node.num)
        append(None)  # ends the list of roots
        while stack:
            node = pop()
            src = node.src
            op = node.op
            if len(src) == 2 and op is not _BIND and op is not _DERIVATIVE:  # nearly all nodes have one source or two
                first, second = src
                if first.stamp != stamp:
                    first.stamp = stamp
                    first.num = number
                    number += 1
                    push(first)
                if second.stamp != stamp:
                    second.stamp = stamp
                    second.num = number
                    number += 1
                    push(second)
                key += (op | 512, node.dtype, node.arg, first.num, second.num)
                continue
            if len(src) == 1 and op is not _DERIVATIVE:
                first = src[0]
                if first.stamp != stamp:
                    first.stamp = stamp
                    first.num = number
                    number += 1
                    push(first)
                key += (op | 256, node.dtype, node.arg, first.num)
                continue
            if src:
                append(op | len(src) << 8)
                append(node.dtype)
                append(node.arg)
                if op is _BIND:
                    leaves.append(node)
                    src = src[:1]
                elif op is _WRITE:
                    writes.append((node, node.num))
                elif op is _DERIVATIVE:
                    key[-1] = None  # the value is what it is, whatever the gradient
                for source in src:
                    if source.stamp != stamp:
                        source.stamp = stamp
                        source.num = number
                        number += 1
                        push(source)
                    append(source.num)
                continue
            append(op)
            append(node.dtype)
            arg = node.arg
            if op is _CONST:
                # Keeps 0.0 from -0.0 and makes NaN equal to itself; the dtype keeps 1 from 1.0 and True.
                append(arg if arg and arg == arg else repr(arg))
            elif op is _BUFFER:
                leaves.append(node)
                which, size, device = arg
                append(size if which else -size)  # the table that counts is like no other
                append(device)
            elif op is _VARIABLE:
                leaves.append(node)
                append(arg.low)
                append(arg.high)
            else:
                append(arg)
        met = False
        for node in watched:
            if node.stamp == stamp:
                met = True
                break
    return Structure(tuple(key), tuple(leaves), writes, met)
