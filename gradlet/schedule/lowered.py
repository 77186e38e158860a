"""A lowered kernel: its parameters, variables and ranges numbered without gaps, and its name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from gradlet.graph.bounds import bounds
from gradlet.graph.node import UOp, mk, substitute, toposort
from gradlet.ops.op import AxisKind, KernelArg, Op, ParamArg, RangeArg, VariableArg
from gradlet.schedule.indexing import INDEX

_LOAD: Final = Op.LOAD


class Lowered(NamedTuple):
    """One kernel.

    Attributes:
        ast: its SINK.
        buffers: the BUFFER nodes by slot.
        written: the slots it stores to.
        variables: the original VARIABLE nodes in order.
        reads_written: whether it may load from memory that it stores to.
    """

    ast: UOp
    buffers: tuple[UOp, ...]
    written: tuple[int, ...]
    variables: tuple[UOp, ...]
    reads_written: bool = True


def finish(sink: UOp, buffers: list[UOp], variables: list[UOp], last: Collection[int] = ()) -> Lowered:
    """Drop parameters and variables that simplification removed, number ranges without gaps, name the kernel.

    Ranges whose number is in `last` come after all others.
    """
    found: dict[Op, list[UOp]] = {Op.PARAM: [], Op.RANGE: [], Op.VARIABLE: []}
    loaded: set[UOp] = set()
    for node in toposort((sink,)):
        if node.op in found:
            found[node.op].append(node)
        elif node.op is _LOAD:
            loaded.add(node.src[0].src[0])
    stored = {s.src[0].src[0] for s in sink.src}
    params, ranges, names = found.values()
    params.sort(key=lambda n: n.arg.slot)
    ranges.sort(key=lambda n: (n.arg.number in last, n.arg.number))
    names.sort(key=lambda n: int(n.arg.name[1:]))
    new: dict[UOp, UOp] = {}
    for slot, param in enumerate(params):
        if param.arg.slot != slot:
            new[param] = mk(Op.PARAM, param.dtype, (), ParamArg(slot, param.arg.size))
    for number, name in enumerate(names):
        if name.arg.name != f"v{number}":
            new[name] = mk(Op.VARIABLE, name.dtype, (), VariableArg(f"v{number}", name.arg.low, name.arg.high))
    counts = substitute([loop.src[0] for loop in ranges], new) if new else [loop.src[0] for loop in ranges]
    for number, (loop, count) in enumerate(zip(ranges, counts, strict=True)):
        if loop.arg.number != number or count is not loop.src[0]:
            new[loop] = mk(Op.RANGE, INDEX, (count,), RangeArg(number, loop.arg.kind))
    if new:
        sink = sink.substitute(new)
    sink = sink.replace(arg=KernelArg(kernel_name(ranges)))
    written = tuple(sorted({s.src[0].src[0].arg.slot for s in sink.src}))
    return Lowered(
        sink,
        tuple([buffers[p.arg.slot] for p in params]),
        written,
        tuple([variables[int(n.arg.name[1:])] for n in names]),
        reads_written=not loaded.isdisjoint(stored),
    )


def kernel_name(ranges: Sequence[UOp]) -> str:
    """`r_64_1024`: the sizes of the loops; `r` when one is reduced, `s` when one is ordered, else `e`."""
    kinds = {r.arg.kind for r in ranges}
    letter = "s" if AxisKind.ORDERED in kinds else "r" if AxisKind.REDUCE in kinds else "e"
    return "_".join([letter, *[_size_name(r.src[0]) for r in ranges]]) if ranges else f"{letter}_1"


def _size_name(size: UOp) -> str:
    return str(size.arg) if size.op is Op.CONST else f"n{bounds(size)[1]}"
