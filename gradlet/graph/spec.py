"""The rules of each stage: which ops occur, what their sources, dtypes, shapes and arguments must be.

`check(node, stage)` raises SpecError that names the node and the rule it breaks. One small function checks one op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any, Final

from gradlet.base.dtype import as_scalar, dtypes
from gradlet.base.errors import SpecError
from gradlet.graph.bounds import bounds
from gradlet.graph.launch import broken_launch_rule
from gradlet.graph.node import UOp, toposort
from gradlet.graph.program import LinearProgram
from gradlet.graph.text import one_line
from gradlet.ops.op import (
    ELEMENTWISE,
    MOVEMENT,
    OP_INFO,
    SCALAR_LEAVES,
    AxisKind,
    BufferArg,
    GatherArg,
    LaunchArg,
    Op,
    ScatterArg,
    Stage,
    VariableArg,
    batch_axes,
)

Check = Callable[[UOp, Stage], None]

REDUCERS: Final = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.MIN})
SCANS: Final = REDUCERS | {Op.MULADD}
# A range of these kinds is closed by a REDUCE; expanding turns some of its iterations into copies or lanes.
CLOSED_KINDS: Final = frozenset({AxisKind.REDUCE, AxisKind.UNROLL, AxisKind.VECTOR, AxisKind.THREAD, AxisKind.TENSOR})


class _BrokenRuleError(Exception):
    """A rule is broken; `check` adds the node and the stage."""


def check(roots: UOp | Iterable[UOp], stage: Stage, gone: frozenset[Op] = frozenset()) -> None:
    """Check every node of a graph.

    Args:
        roots: one node or several.
        stage: whose rules apply.
        gone: ops that earlier passes have removed for good.

    Raises:
        SpecError: names the first bad node, sources before users, and the rule.
    """
    for node in toposort((roots,) if isinstance(roots, UOp) else roots):
        check_node(node, stage, gone)


def check_node(node: UOp, stage: Stage, gone: frozenset[Op] = frozenset()) -> None:
    """Check one node, taking its sources as good.

    Raises:
        SpecError: names the node and the rule.
    """
    try:
        _check_form(node, stage, gone)
        special = _CHECKS.get(node.op)
        if special is not None:
            special(node, stage)
    except _BrokenRuleError as broken:
        raise SpecError(f"stage {stage.name}: {broken}\n  in {one_line(node)}") from None


def check_program(program: LinearProgram) -> None:
    """Check a linear program: its nodes, that sources come before users, that loops nest and are not left early.

    Raises:
        SpecError: names the node and the rule.
    """
    seen: set[UOp] = set()
    loops: list[UOp] = []
    closed: set[UOp] = set()
    for node in program.uops:
        check_node(node, Stage.LINEAR)
        try:
            _need(node not in seen, "a node stands in the program twice")
            for source in node.src[:1] if node.op is Op.ACC else node.src:  # an ACC stands before its loops
                _need(source in seen, f"its source {one_line(source)} does not stand before it")
                _need(source not in closed, f"it uses range {source.arg} after the loop's END")
            if node.op is Op.RANGE:
                loops.append(node)
            elif node.op is Op.END:
                _need(bool(loops) and loops[-1] is node.src[0], "END does not close the innermost loop")
                closed.add(loops.pop())
        except _BrokenRuleError as broken:
            raise SpecError(f"program {program.name}: {broken}\n  in {one_line(node)}") from None
        seen.add(node)
    if loops:
        raise SpecError(f"program {program.name}: a loop has no END\n  in {one_line(loops[-1])}")


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise _BrokenRuleError(rule)


def _check_form(node: UOp, stage: Stage, gone: frozenset[Op]) -> None:
    info = OP_INFO[node.op]
    _need(node.op not in gone, f"{node.op.name} was removed by an earlier pass and is back")
    _need(stage in info.stages, f"{node.op.name} does not occur at this stage")
    if info.arity is not None:
        _need(len(node.src) == info.arity, f"{node.op.name} has {info.arity} sources, here {len(node.src)}")
    if info.arg is None:
        _need(node.arg is None, f"{node.op.name} takes no arg")
    elif info.arg is not object and not (node.op in (Op.GATHER, Op.STORE) and node.arg is None):
        is_launch = node.op is Op.SINK and stage is Stage.KERNEL and type(node.arg) is LaunchArg
        _need(is_launch or type(node.arg) is info.arg, f"the arg of {node.op.name} is a {info.arg.__name__}")
    if stage is Stage.TENSOR:
        _need(node.dtype.count == 1, "there are no vectors at this stage")


# leaves
def _const(node: UOp, stage: Stage) -> None:
    _need(node.dtype.kind != "v", "a constant has a value")
    exact = as_scalar(node.arg, node.dtype)
    _need(type(exact) is type(node.arg), f"a constant of {node.dtype.name} is a Python {type(exact).__name__}")
    _need(exact == node.arg or exact != exact, f"the value is not exact in {node.dtype.name}: write {exact!r}")


def _buffer(node: UOp, stage: Stage) -> None:
    arg: BufferArg = node.arg
    _need(arg.size >= 0, "the size is negative")
    _need(node.dtype.kind not in "vx", f"memory cannot hold {node.dtype.name}")


def _variable(node: UOp, stage: Stage) -> None:
    arg: VariableArg = node.arg
    _need(node.dtype.is_int, "a variable is an integer")
    _need(arg.low <= arg.high, "its bounds are empty")


def _bind(node: UOp, stage: Stage) -> None:
    variable, value = node.src
    _need(variable.op is Op.VARIABLE and value.op is Op.CONST, "the sources are a VARIABLE and a CONST")
    _need(node.dtype is variable.dtype is value.dtype, "variable, value and result have one dtype")
    _need(variable.arg.low <= value.arg <= variable.arg.high, "the value lies outside the variable's bounds")


# movement
def _same_dtype(node: UOp, stage: Stage) -> None:
    _need(node.dtype is node.src[0].dtype, f"the dtype is that of the source, {node.src[0].dtype.name}")


def _axis_list(axes: tuple[int, ...], rank: int, sort: bool) -> None:
    _need(all(0 <= a < rank for a in axes), f"an axis lies outside 0..{rank - 1}")
    _need(len(set(axes)) == len(axes), "an axis occurs twice")
    _need(not sort or list(axes) == sorted(axes), "axes are sorted")


def _reshape(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _need(all(s >= 0 for s in node.arg.shape), "a size is negative")
    old, new = prod(node.src[0].shape), prod(node.arg.shape)
    _need(old == new, f"the source {node.src[0].shape} has {old} elements, the result {node.arg.shape} has {new}")


def _expand(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    old, new = node.src[0].shape, node.arg.shape
    _need(len(old) == len(new), f"EXPAND keeps the rank, {old} to {new}")
    _need(all(a == b or (a == 1 and b >= 0) for a, b in zip(old, new, strict=True)),
          f"only axes of size 1 expand, {old} to {new}")  # fmt: skip


def _permute(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _need(sorted(node.arg.axes) == list(range(len(node.src[0].shape))), "the axes are not a permutation")


def _an_entry_an_axis(entries: tuple[Any, ...], node: UOp) -> None:
    rank = len(node.src[0].shape)
    _need(len(entries) == rank, f"the arg has {len(entries)} entries for {rank} axes")


def _pad(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _an_entry_an_axis(node.arg.pads, node)
    _need(all(before >= 0 and after >= 0 for before, after in node.arg.pads), "padding is negative")


def _shrink(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _an_entry_an_axis(node.arg.bounds, node)
    for (low, high), size in zip(node.arg.bounds, node.src[0].shape, strict=True):
        _need(0 <= low <= high <= size, f"the interval [{low}, {high}) lies outside an axis of size {size}")


def _flip(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _axis_list(node.arg.axes, len(node.src[0].shape), False)


def _stride(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _an_entry_an_axis(node.arg.steps, node)
    _need(all(step > 0 for step in node.arg.steps), "a step is not positive")


def _window_axes(node: UOp, stage: Stage) -> tuple[int, int]:
    _same_dtype(node, stage)
    shape = node.src[0].shape
    arg = node.arg
    _axis_list((arg.axis, arg.window_axis), len(shape), False)
    _need(arg.stride > 0 and arg.dilation > 0 and arg.size >= 0, "stride and dilation are positive")
    return shape[arg.axis], shape[arg.window_axis]


def _window(node: UOp, stage: Stage) -> None:
    size, window = _window_axes(node, stage)
    arg = node.arg
    if arg.size and window:
        last = (arg.size - 1) * arg.stride + (window - 1) * arg.dilation
        _need(last < size, f"the last window reads element {last} of an axis of size {size}")


def _unwindow(node: UOp, stage: Stage) -> None:
    _window_axes(node, stage)


# tensor operations
def _reducer(op: Op, node: UOp) -> None:
    _need(op in REDUCERS, f"{op.name} does not reduce; use one of {', '.join(sorted(o.name for o in REDUCERS))}")
    _need(op is not Op.ADD or not node.dtype.is_bool, "bools are not added; use MAX or cast to an integer")


def _reduce_axes(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _axis_list(node.arg.axes, len(node.src[0].shape), True)
    _reducer(node.arg.op, node)
    limited = node.arg.limited
    _axis_list(limited, len(node.src[0].shape), True)
    _need(set(limited) <= set(node.arg.axes), "only axes that are reduced are limited")
    _need(len(node.src) == 1 + len(limited), f"{len(limited)} limited axes need as many sizes")
    for axis, size in zip(limited, node.src[1:], strict=True):
        _size(size, node.src[0].shape[axis])


def _size(size: UOp, largest: int) -> None:
    _need(size.dtype is dtypes.index and size.shape == (), "a size is a single number of dtype index")
    low, high = bounds(size)
    _need(0 <= low and high <= largest, f"a size in [{low}, {high}] on an axis of size {largest}")


def _limit(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _axis_list((node.arg.axis,), len(node.shape), False)
    _size(node.src[1], node.shape[node.arg.axis])


def _gather(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    table, index = node.src
    _need(index.dtype.is_int, f"the index is an integer, not {index.dtype.name}")
    _batch(node.arg, table, index)


def _batch(arg: GatherArg | ScatterArg | None, table: UOp, index: UOp) -> None:
    batch = batch_axes(arg)
    _need(len(table.shape) > batch >= 0, f"behind {batch} shared axes the table {table.shape} has no axis to index")
    _need(table.shape[:batch] == index.shape[:batch], f"{table.shape} and {index.shape} do not share {batch} axes")


def _scatter(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    target, index, values = node.src
    _need(index.dtype.is_int, f"the index is an integer, not {index.dtype.name}")
    _need(values.dtype is target.dtype, f"values of {values.dtype.name} go into {target.dtype.name}")
    _batch(node.arg, target, index)
    wanted = index.shape + target.shape[1 + node.arg.batch :]
    _need(values.shape == wanted or values.op in SCALAR_LEAVES, f"values have shape {values.shape}, not {wanted}")
    if node.arg.op is not None:
        _reducer(node.arg.op, node)


def _scan(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    op, axis, _ = node.arg
    _need(op in SCANS, f"{op.name} has no running combination; use one of {', '.join(sorted(o.name for o in SCANS))}")
    _need(len(node.src) == (3 if op is Op.MULADD else 2), "the sources are the values, a start and for MULADD factors")
    source, start, *factors = node.src
    _axis_list((axis,), len(source.shape), False)
    _need(all(s.dtype is node.dtype for s in node.src), "values, start and factors have one dtype")
    _need(op not in (Op.ADD, Op.MUL, Op.MULADD) or not node.dtype.is_bool, "bools are not added; cast to an integer")
    row = source.shape[:axis] + source.shape[axis + 1 :]
    _need(start.shape == row or start.op in SCALAR_LEAVES, f"the start has shape {start.shape}, not {row}")
    for factor in factors:
        fits = factor.shape == source.shape or factor.op in SCALAR_LEAVES
        _need(fits, f"factors have shape {factor.shape}, not {source.shape}")


def _merge(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    shape = node.src[0].shape
    _need(len(shape) >= 2, f"the source has rows, not shape {shape}")
    few = shape[-1] == 1 and shape[-2] in (2, 4, 8, 16) and not node.arg.half
    _need(shape[-2] == 2 or few, f"two rows are merged, or up to 16 elements; the source has shape {shape}")
    _need(node.dtype.is_int, f"integers are merged, not {node.dtype.name}")


def _largest(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    shape = node.src[0].shape
    _need(len(shape) > 0, "there is no axis to look along")
    _need(node.dtype.is_int, f"integers are ordered, not {node.dtype.name}")
    _need(0 <= node.arg.taken <= shape[-1], f"{node.arg.taken} of {shape[-1]} are taken")


def _write(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    base, view, value = node.src
    _need(value.dtype is base.dtype, f"a value of {value.dtype.name} goes into {base.dtype.name}")
    _need(value.shape == view.shape or value.op in SCALAR_LEAVES,
          f"the value has shape {value.shape}, the view {view.shape}")  # fmt: skip
    while view is not base:
        _need(view.op in MOVEMENT, f"the view reaches {view.op.name} before the base; only movement ops lie between")
        view = view.src[0]


# element-wise
def _elementwise_shapes(node: UOp) -> None:
    shapes = {s.shape for s in node.src if s.op not in SCALAR_LEAVES}
    _need(len(shapes) <= 1, f"operands have shapes {sorted(shapes)}: expand them to one shape")


def _operands(node: UOp, stage: Stage, kinds: str, result_is_bool: bool = False) -> None:
    """All operands have one dtype of the kinds; so has the result, unless it is bool."""
    first = node.src[0].dtype
    for source in node.src[1:]:
        _need(source.dtype is first, f"operands have dtypes {first!r} and {source.dtype!r}: cast one of them")
    _need(first.kind in kinds, f"{node.op.name} does not take {first.name}")
    wanted = dtypes.bool.vec(first.count) if result_is_bool else first
    _need(node.dtype is wanted, f"the result has dtype {wanted!r}")
    if stage is Stage.TENSOR:
        _elementwise_shapes(node)


def _of_kinds(kinds: str, result_is_bool: bool = False) -> Check:
    return lambda node, stage: _operands(node, stage, kinds, result_is_bool)


def _cast(node: UOp, stage: Stage) -> None:
    source = node.src[0].dtype
    _need("v" not in (source.kind, node.dtype.kind), "void has no value to convert")
    _need(source.count == node.dtype.count, "the lane count changes")


def _bitcast(node: UOp, stage: Stage) -> None:
    _cast(node, stage)
    source = node.src[0].dtype
    _need(source.itemsize == node.dtype.itemsize, f"{source.name} and {node.dtype.name} differ in size")


def _where(node: UOp, stage: Stage) -> None:
    condition, if_true, if_false = node.src
    _need(condition.dtype is dtypes.bool.vec(node.dtype.count), "the condition is a bool for each lane of the result")
    _need(if_true.dtype is if_false.dtype, f"branches have dtypes {if_true.dtype!r} and {if_false.dtype!r}")
    _need(node.dtype is if_true.dtype, "the result has the dtype of the branches")
    if stage is Stage.TENSOR:
        _elementwise_shapes(node)


# kernels
def _param(node: UOp, stage: Stage) -> None:
    _need(node.arg.slot >= 0 and node.arg.size >= 0, "slot or size is negative")
    _need(node.dtype.count == 1 and node.dtype.kind not in "vx", f"memory cannot hold {node.dtype!r}")


def _local(node: UOp, stage: Stage) -> None:
    _need(node.arg.number >= 0 and node.arg.size > 0, "the number is negative or the array empty")
    _need(node.dtype.count == 1 and node.dtype.kind not in "vx", f"memory cannot hold {node.dtype!r}")


def _after(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    local = node.src[0]
    _need(local.op is Op.LOCAL, "the first source is a LOCAL")
    for source in node.src[1:]:
        _need(source.op in (Op.STORE, Op.RANGE), f"{source.op.name} is neither a STORE nor a range")
        if source.op is Op.STORE:
            _need(source.src[0].src[0] is local, "a STORE goes elsewhere than into the array")


def _range(node: UOp, stage: Stage) -> None:
    _need(node.dtype.is_int and node.dtype.count == 1, "a range is a scalar integer")
    _need(bool(node.src) and node.src[0].dtype is node.dtype, "the first source is the size, of the range's dtype")
    _need(len(node.src) == 1 or stage is Stage.LINEAR, "only programs of lanes say which iterations do nothing")
    _need(all(s.dtype is dtypes.bool for s in node.src[1:]), "guards are bool")


def _index(node: UOp, stage: Stage) -> None:
    _need(2 <= len(node.src) <= 3, "INDEX has a parameter, an element number and perhaps a guard")
    param, element = node.src[:2]
    memory = (Op.PARAM, Op.LOCAL, Op.AFTER) if stage is Stage.KERNEL else (Op.PARAM, Op.LOCAL)
    _need(param.op in memory, f"the first source is one of {', '.join(op.name for op in memory)}")
    _need(element.dtype.is_int, f"the element number is an integer, not {element.dtype.name}")
    _need(node.dtype is param.dtype, "the dtype is that of the parameter's elements")
    if len(node.src) > 2:
        _need(node.src[2].dtype.is_bool, f"the guard is bool, not {node.src[2].dtype.name}")


def _access(index: UOp, lanes: int) -> None:
    _need(index.op is Op.INDEX, "the first source is an INDEX")
    _need(index.src[1].dtype.count in (1, lanes), f"the element number has {index.src[1].dtype.count} lanes of {lanes}")
    if len(index.src) > 2:
        _need(index.src[2].dtype.count in (1, lanes), f"the guard has {index.src[2].dtype.count} lanes of {lanes}")


def _load(node: UOp, stage: Stage) -> None:
    _need(1 <= len(node.src) <= 2, "LOAD has an INDEX and perhaps a value for a false guard")
    index = node.src[0]
    _access(index, node.dtype.count)
    _need(node.dtype.scalar is index.dtype, f"the memory holds {index.dtype.name}")
    guarded = len(index.src) > 2
    _need(guarded == (len(node.src) > 1), "a guarded LOAD, and only that, has a value for a false guard")
    if guarded:
        _need(node.src[1].dtype is node.dtype, "the value for a false guard has the LOAD's dtype")


def _store(node: UOp, stage: Stage) -> None:
    index, value = node.src
    _access(index, value.dtype.count)
    _need(value.dtype.scalar is index.dtype, f"a value of {value.dtype.name} goes into memory of {index.dtype.name}")
    _void(node, stage)
    if stage is Stage.KERNEL and index.src[0].op is not Op.LOCAL:  # a copy may be one for each part of a sum
        open_reduce = [r.arg.number for r in node.ranges if r.arg.kind is AxisKind.REDUCE]
        _need(not open_reduce, f"no REDUCE closes ranges {open_reduce}")


def _reduce(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _reducer(node.arg.op, node)
    _need(len(node.src) > 1, "it closes no range")
    for source in node.src[1:]:
        _need(source.op is Op.RANGE, f"{source.op.name} is not a range")
        _need(source.arg.kind in CLOSED_KINDS, f"a range of kind {source.arg.kind.name} is not closed by a REDUCE")
    _need(len(set(node.src[1:])) == len(node.src) - 1, "it closes a range twice")


def _sink(node: UOp, stage: Stage) -> None:
    _void(node, stage)
    if type(node.arg) is LaunchArg:
        if (broken := broken_launch_rule(node)) is not None:
            raise _BrokenRuleError(broken)
        return
    if stage is Stage.TENSOR or (stage is Stage.KERNEL and node.src and node.src[0].op is Op.SINK):
        return  # the roots, or the kernels, of one schedule
    for source in node.src:
        _need(source.op is Op.STORE, f"{source.op.name} is not a STORE")
    if stage is Stage.KERNEL:
        ranges = [n for n in node.toposort() if n.op is Op.RANGE]
        numbers = [r.arg.number for r in ranges]
        _need(len(set(numbers)) == len(numbers), f"two ranges have one number: {sorted(numbers)}")


def _void(node: UOp, stage: Stage) -> None:
    _need(node.dtype is dtypes.void, f"{node.op.name} has no value: its dtype is void")


# vectors
def _vectorize(node: UOp, stage: Stage) -> None:
    count = node.dtype.count
    _need(count > 1, "the result is a vector")
    _need(len(node.src) in (1, count), f"{len(node.src)} sources for {count} lanes")
    for source in node.src:
        _need(source.dtype is node.dtype.scalar, f"a lane has dtype {source.dtype!r}")


def _extract(node: UOp, stage: Stage) -> None:
    source = node.src[0].dtype
    _need(node.dtype is source.scalar, "the result is a scalar of the vector's type")
    _need(0 <= node.arg.lane < source.count, f"there is no lane {node.arg.lane} of {source.count}")


def _shuffle(node: UOp, stage: Stage) -> None:
    _need(1 <= len(node.src) <= 2, "SHUFFLE has one vector or two")
    source = node.src[0].dtype
    _need(all(s.dtype is source for s in node.src), "both vectors have one type")
    _need(node.dtype is source.scalar.vec(len(node.arg.picks)), "the result has a lane of the sources' type a pick")
    lanes = source.count * len(node.src)
    _need(all(0 <= pick < lanes for pick in node.arg.picks), f"the sources have {lanes} lanes")


def _prefix(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _reducer(node.arg.op, node)
    lane = node.src[1]
    _need(lane.op is Op.RANGE and lane.arg.kind is AxisKind.VECTOR, "lanes are combined along a VECTOR range")


def _lookup(node: UOp, stage: Stage) -> None:
    table, index = node.src
    _need(table.dtype.count > 1, "the table is a vector")
    _need(index.dtype.scalar is dtypes.int32, "numbers of lanes are int32")
    _need(node.dtype is table.dtype.scalar.vec(index.dtype.count), "the result has a lane of the table a number")


def _prefetch(node: UOp, stage: Stage) -> None:
    _need(node.dtype is node.src[0].dtype, "the dtype is that of the value")
    _need(node.src[1].op is Op.INDEX and len(node.src[1].src) == 2, "the address is an INDEX without a guard")
    _need(1 <= node.arg.level <= 3, "the caches are numbered 1 to 3")


def _reduce_lanes(node: UOp, stage: Stage) -> None:
    source = node.src[0].dtype
    _need(source.count > 1, "the source is a vector")
    _need(node.dtype is source.scalar, "the result is a scalar of the vector's type")
    _reducer(node.arg.op, node)


# linear programs
def _acc(node: UOp, stage: Stage) -> None:
    _need(len(node.src) > 0, "ACC has an initial value")
    _same_dtype(node, stage)
    for source in node.src[1:]:
        _need(source.op is Op.RANGE, f"{source.op.name} is not a range")


def _update(node: UOp, stage: Stage) -> None:
    acc, value = node.src
    _need(acc.op is Op.ACC, f"{acc.op.name} is not an accumulator")
    _need(value.dtype is acc.dtype, f"a value of {value.dtype!r} goes into an accumulator of {acc.dtype!r}")


def _end(node: UOp, stage: Stage) -> None:
    _need(node.src[0].op is Op.RANGE, f"{node.src[0].op.name} is not a range")
    _void(node, stage)


def _carry(node: UOp, stage: Stage) -> None:
    _same_dtype(node, stage)
    _need(len(node.src) > 2, "CARRY has a start, a row number and ranges")
    for source in node.src[2:]:
        ordered = source.op is Op.RANGE and source.arg.kind is AxisKind.ORDERED
        _need(ordered, "what is carried goes through ORDERED ranges")


def _next(node: UOp, stage: Stage) -> None:
    carry, value, result = node.src
    _need(carry.op is Op.CARRY, f"{carry.op.name} is not a CARRY")
    _need(value.dtype is carry.dtype, f"a value of {value.dtype!r} is carried as {carry.dtype!r}")
    _need(node.dtype is result.dtype, "the dtype is that of the result")


def _special(node: UOp, stage: Stage) -> None:
    _need(node.dtype.is_int, "the register is an integer")
    _need(node.arg.size > 0, "the size is not positive")


def _dot(node: UOp, stage: Stage) -> None:
    _operands(node, stage, "i", False)
    _need(node.dtype.scalar is dtypes.int32, "words have 32 bits")


def _pick(node: UOp, stage: Stage) -> None:
    vector, lane = node.src
    _need(node.dtype is vector.dtype.scalar, "one lane has the scalar type")
    _need(lane.dtype.is_int and lane.dtype.count == 1, "the lane's number is an integer")


def _custom(node: UOp, stage: Stage) -> None:
    arg = node.arg
    _need(arg.kernel.op is Op.SINK, "the kernel is a SINK")
    _need(node.dtype is arg.types[arg.output], "the dtype is that of the result it stands for")
    _need(len(arg.shapes) == len(arg.types) == len(arg.whole), "every result has a shape, a type, and is whole or not")
    _need(all(0 <= n < len(arg.shapes) + len(node.src) for n in arg.slots), "a parameter is no result and no source")


def _wgmma(node: UOp, stage: Stage) -> None:
    memory = (Op.LOCAL, Op.AFTER) if stage is Stage.KERNEL else (Op.LOCAL,)
    _need(all(s.op in memory for s in node.src[:2]), "the factors are arrays")
    _need(node.dtype is node.src[4].dtype, "the result has the type of what it starts from")


def _box(node: UOp, stage: Stage) -> None:
    _need(node.src[0].op is Op.PARAM, "a box is a part of memory")
    _need(len(node.src) == 1 + len(node.arg.sizes), "there is a coordinate for every axis")


_FLOAT_FUNCTIONS: Final = (Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS)
_CHECKS: Final[dict[Op, Check]] = {
    Op.CONST: _const, Op.BUFFER: _buffer, Op.VARIABLE: _variable, Op.BIND: _bind,
    Op.RESHAPE: _reshape, Op.EXPAND: _expand, Op.PERMUTE: _permute, Op.PAD: _pad, Op.SHRINK: _shrink,
    Op.FLIP: _flip, Op.STRIDE: _stride, Op.WINDOW: _window, Op.UNWINDOW: _unwindow,
    Op.REDUCE_AXES: _reduce_axes, Op.LIMIT: _limit, Op.GATHER: _gather, Op.SCATTER: _scatter,
    Op.SCAN: _scan, Op.MERGE: _merge, Op.LARGEST: _largest, Op.CARRY: _carry, Op.NEXT: _next,
    Op.CONTIGUOUS: _same_dtype, Op.COPY: _same_dtype, Op.DETACH: _same_dtype,
    Op.DERIVATIVE: _same_dtype, Op.WRITE: _write,
    Op.CAST: _cast, Op.BITCAST: _bitcast,
    **dict.fromkeys((*_FLOAT_FUNCTIONS, Op.TRUNC, Op.FDIV, Op.POW), _of_kinds("f")),
    **dict.fromkeys((Op.ADD, Op.MULADD), _of_kinds("uixf")),
    **dict.fromkeys((Op.MUL, Op.MAX, Op.MIN), _of_kinds("buixf")),
    **dict.fromkeys((Op.IDIV, Op.MOD, Op.SHL, Op.SHR), _of_kinds("uix")),
    **dict.fromkeys((Op.AND, Op.OR, Op.XOR), _of_kinds("buix")),
    **dict.fromkeys((Op.CMPLT, Op.CMPEQ, Op.CMPNE), _of_kinds("buixf", result_is_bool=True)),
    Op.WHERE: _where, Op.DOT: _dot, Op.DOT16: _dot,
    Op.PARAM: _param, Op.RANGE: _range, Op.INDEX: _index, Op.LOAD: _load, Op.STORE: _store, Op.REDUCE: _reduce,
    Op.SHUFFLE: _shuffle, Op.LOOKUP: _lookup, Op.PREFIX: _prefix, Op.PREFETCH: _prefetch,
    Op.LOCAL: _local, Op.AFTER: _after,
    Op.SINK: _sink, Op.VECTORIZE: _vectorize, Op.EXTRACT: _extract, Op.REDUCE_LANES: _reduce_lanes,
    Op.ACC: _acc, Op.UPDATE: _update, Op.END: _end, Op.SPECIAL: _special,
    Op.ACROSS: _same_dtype, Op.BARRIER: _void, Op.COPY_ASYNC: _void, Op.COMMIT: _void, Op.WAIT: _void,
    Op.PASS_ON: _void, Op.COPY_BOX: _void, Op.STORE_BOX: _void, Op.BOX: _box,
    Op.CUSTOM: _custom, Op.PICK: _pick, Op.WGMMA: _wgmma,
}  # fmt: skip

UNCHECKED: Final = frozenset(ELEMENTWISE - _CHECKS.keys())
assert not UNCHECKED, f"element-wise ops without a rule: {UNCHECKED}"
