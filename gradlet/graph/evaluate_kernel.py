"""Reference evaluator of the KERNEL stage: every RANGE is an axis of numpy arrays, a kernel runs in large blocks.

An array has one axis a range of the kernel (size 1 where the node does not depend on it) and a last axis for the lanes
of vectors. Blocks keep every array below `BLOCK` elements: output ranges are cut first, then the ranges of a reduce.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from gradlet.base.errors import CompilerError
from gradlet.graph import numeric
from gradlet.graph.bounds import bounds as bounds_of_size
from gradlet.graph.node import UOp, by_uid, toposort
from gradlet.graph.numeric import Array
from gradlet.ops.op import ELEMENTWISE, AxisKind, Op

BLOCK = 1 << 20

Interval = tuple[int, int]
_CARRY: Final = 1 << Op.CARRY


class Address(NamedTuple):
    """Value of an INDEX: which array, which elements, and where the access happens; of an AFTER, the arrays."""

    param: UOp
    element: Array
    gate: Array | None
    filled: Array | None = None


class Filling(NamedTuple):
    """Arrays that the stores of an AFTER read as well as fill, one for each point of the ranges around them."""

    after: UOp
    arrays: Array


@dataclass
class Kernel:
    """What stays the same while one kernel runs."""

    arrays: list[Array]
    variables: Mapping[UOp, int]
    axes: dict[UOp, int]
    open_ranges: dict[UOp, frozenset[UOp]]
    extents: dict[UOp, Interval] = field(default_factory=dict)
    snapshots: dict[int, Array] = field(default_factory=dict)
    insides: dict[UOp, list[UOp]] = field(default_factory=dict)
    carried: dict[UOp, Array] = field(default_factory=dict)  # CARRY -> what it is in this iteration, after the first
    following: dict[UOp, Array] = field(default_factory=dict)  # CARRY -> what it will be in the next iteration
    filling: dict[UOp, Filling] = field(default_factory=dict)  # LOCAL -> its arrays while stores fill it block by block

    @property
    def lanes(self) -> int:
        """The axis of vector lanes."""
        return len(self.axes)

    def volume(self, node: UOp, extents: Mapping[UOp, Interval]) -> int:
        """Elements of the node's array when the ranges run over `extents`."""
        return node.dtype.count * math.prod(extents[r][1] - extents[r][0] for r in self.open_ranges[node])


def run_kernel(sink: UOp, arrays: Sequence[Array], variables: Mapping[UOp, int] | None = None) -> None:
    """Run a kernel; arrays are changed in place.

    Stores with the same ranges run together, all loads before all stores, group after group in the order of the SINK.
    ORDERED ranges run one iteration after another, loads seeing what earlier iterations stored.

    Args:
        sink: the kernel.
        arrays: memory by PARAM slot, contiguous; bfloat16 as uint16 bit patterns.
        variables: values of the kernel's VARIABLE nodes.
    """
    kernel = prepare(sink, arrays, variables or {})
    run_prepared(sink, kernel)


def prepare(sink: UOp, arrays: Sequence[Array], variables: Mapping[UOp, int]) -> Kernel:
    """What a kernel needs to run, all its ranges at full size; arguments as for `run_kernel`."""
    flat: list[Array] = []
    for slot, array in enumerate(arrays):
        if not array.flags.c_contiguous:
            raise CompilerError(f"array of slot {slot} is not contiguous")
        flat.append(array.reshape(-1))
    order = toposort((sink,))
    open_ranges = ranges_of(order)
    ranges = sorted((n for n in order if n.op is Op.RANGE), key=lambda n: n.arg.number)
    kernel = Kernel(flat, variables, {r: i for i, r in enumerate(ranges)}, open_ranges)
    filled = {r for n in order if n.op is Op.AFTER for r in n.src if r.op is Op.RANGE}
    for bound in ranges:
        if open_ranges[bound.src[0]]:
            if bound.arg.kind is not AxisKind.ORDERED or bound not in filled:
                raise CompilerError(f"the size of range {bound.arg.number} depends on another range")
            kernel.extents[bound] = (0, int(bounds_of_size(bound.src[0])[1]))
            continue
        size = compute(kernel, [bound.src[0]], {}, {})[bound.src[0]]
        kernel.extents[bound] = (0, int(size.item()))
    return kernel


def run_prepared(sink: UOp, kernel: Kernel) -> None:
    """Run all stores while the ranges run over `kernel.extents`."""
    with np.errstate(all="ignore"):
        for group in _store_groups(sink, kernel.open_ranges):
            _run_group(kernel, group)


def ranges_of(order: Sequence[UOp]) -> dict[UOp, frozenset[UOp]]:
    """The open ranges of every node of a topological order: those of its sources less what a REDUCE closes."""
    none: frozenset[UOp] = frozenset()
    result: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        if node.op is Op.RANGE:
            result[node] = frozenset((node,)) | result[node.src[0]]
        elif node.op is Op.REDUCE:
            result[node] = result[node.src[0]] - frozenset(node.src[1:])
        elif node.op is Op.AFTER:
            result[node] = none.union(*[result[s] for s in node.src]) - frozenset(node.src[1:])
        else:
            result[node] = none.union(*[result[s] for s in node.src]) if node.src else none
    return result


def _store_groups(sink: UOp, open_ranges: Mapping[UOp, frozenset[UOp]]) -> list[list[UOp]]:
    """Stores that run together: those that share their ORDERED ranges, or else all their ranges."""
    groups: dict[frozenset[UOp], list[UOp]] = {}
    for store in sink.src:
        if store.op is not Op.STORE:
            raise CompilerError(f"SINK: source {store.op.name} is no STORE")
        ordered = frozenset(r for r in open_ranges[store] if r.arg.kind is AxisKind.ORDERED)
        groups.setdefault(ordered or open_ranges[store], []).append(store)
    return list(groups.values())


def _run_group(kernel: Kernel, stores: list[UOp]) -> None:
    ordered = [r for r in kernel.axes if r.arg.kind is AxisKind.ORDERED and r in kernel.open_ranges[stores[0]]]
    kernel.following.clear()
    written = {store.src[0].src[0].arg.slot for store in stores}
    order = toposort(stores)
    live = _reads_written(order, written)
    kernel.snapshots.clear()
    if not ordered:
        # Blocks must not see each other's stores: an in-place kernel loads everything before it stores.
        read = {n.src[0].src[0].arg.slot for n in order if n.op is Op.LOAD and n.src[0].src[0].op is Op.PARAM}
        kernel.snapshots.update({slot: kernel.arrays[slot].copy() for slot in written & read})
        _run_blocks(kernel, stores, kernel.extents, {})
        return
    fixed = [n for n in order if n not in live and not kernel.open_ranges[n].intersection(ordered)]
    small = [n for n in fixed if n.op is not Op.STORE and kernel.volume(n, kernel.extents) <= BLOCK]
    known = compute(kernel, small, kernel.extents, {}, keep=True)
    for point in itertools.product(*[range(*kernel.extents[r]) for r in ordered]):
        extents = dict(kernel.extents)
        extents.update({r: (i, i + 1) for r, i in zip(ordered, point, strict=True)})
        kernel.carried.update(kernel.following)
        # Stores of one iteration with different ranges run one after another.
        for _, together in itertools.groupby(stores, key=lambda s: kernel.open_ranges[s]):
            _run_blocks(kernel, list(together), extents, known)


def _reads_written(order: Sequence[UOp], written: set[int]) -> set[UOp]:
    """Nodes whose value may change while the stores run."""
    live: set[UOp] = set()
    for node in order:
        loads = node.op is Op.LOAD and (p := node.src[0].src[0]).op is Op.PARAM and p.arg.slot in written
        if loads or any(s in live for s in node.src):
            live.add(node)
    return live


def _run_blocks(kernel: Kernel, stores: list[UOp], extents: Mapping[UOp, Interval], known: Mapping[UOp, Array]) -> None:
    outputs = sorted(kernel.open_ranges[stores[0]], key=lambda r: kernel.axes[r])
    # Cutting an output range changes how often known values are used, not the values: those must span all of it.
    cut = [r for r in outputs if not any(r in kernel.open_ranges[n] for n in known)]
    if any(store.mask & _CARRY for store in stores):
        cut = []  # what is carried spans all rows
    for block in blocks(kernel, toposort(stores), cut, extents):
        needed = [s for store in stores for s in (store.src[0], store.src[1])]
        values = compute(kernel, needed, block, known)
        for store in stores:
            _store(kernel, store, values[store.src[0]], values[store.src[1]])


def blocks(
    kernel: Kernel, nodes: Sequence[UOp], cut: Sequence[UOp], extents: Mapping[UOp, Interval]
) -> Iterator[dict[UOp, Interval]]:
    """Cut ranges (outermost first) until no node's array has more than BLOCK elements; yield every block."""
    step = {r: extents[r][1] - extents[r][0] for r in cut}
    trial = dict(extents)
    for node in nodes:
        for r in cut:
            volume = kernel.volume(node, trial)
            if volume <= BLOCK:
                break
            if r in kernel.open_ranges[node]:
                step[r] = max(1, step[r] * BLOCK // volume)
                trial[r] = (0, step[r])
    starts = [range(extents[r][0], extents[r][1], max(1, step[r])) for r in cut]
    for point in itertools.product(*starts):
        block = dict(extents)
        for r, begin in zip(cut, point, strict=True):
            block[r] = (begin, min(begin + step[r], extents[r][1]))
        yield block


def compute(
    kernel: Kernel,
    targets: Sequence[UOp],
    extents: Mapping[UOp, Interval],
    known: Mapping[UOp, Any],
    keep: bool = False,
) -> dict[UOp, Any]:
    """Values of the targets while the ranges run over `extents`; `known` are values already computed.

    A REDUCE too large for one block computes what is inside of it by itself, part by part.
    """
    uses: dict[UOp, list[UOp]] = {}
    pending = [t for t in dict.fromkeys(targets) if t not in known]
    seen = set(pending)
    for node in pending:
        uses[node] = _outside(kernel, node) if _is_large(kernel, node, extents) else list(node.src)
        for source in uses[node]:
            if source not in seen and source not in known:
                seen.add(source)
                pending.append(source)
    pending.sort(key=by_uid)
    last_use = {source: node for node in pending for source in uses[node]}
    keeping = seen if keep else set(targets)
    values: dict[UOp, Any] = dict(known)
    for node in pending:
        if _is_large(kernel, node, extents):
            large = _large_reduce if node.op is Op.REDUCE else _filled_in_order
            values[node] = large(kernel, node, extents, values)
        else:
            values[node] = _value(kernel, node, extents, values)
        for source in uses[node]:
            if last_use[source] is node and source not in keeping and source not in known:
                values.pop(source, None)
    return values


def _is_large(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval]) -> bool:
    if node.op is Op.AFTER:
        return _runs_in_order(node)
    return node.op is Op.REDUCE and any(kernel.volume(n, extents) > BLOCK for n in _inside(kernel, node))


def _runs_in_order(after: UOp) -> bool:
    """Whether the stores of an AFTER read what they stored in an iteration before."""
    return any(r.op is Op.RANGE and r.arg.kind is AxisKind.ORDERED for r in after.src)


def _inside(kernel: Kernel, reduce: UOp) -> list[UOp]:
    """The nodes below a REDUCE that depend on the ranges it closes, and its value; of an AFTER, its stores."""
    inside = kernel.insides.get(reduce)
    if inside is None:
        closed = frozenset(reduce.src[1:])
        inside = [reduce.src[0]] if reduce.op is Op.REDUCE else [s for s in reduce.src if s.op is Op.STORE]
        seen = set(inside)
        live = _reads_local(reduce) if reduce.op is Op.AFTER else frozenset()
        for node in inside:
            for source in node.src:
                if source not in seen and (kernel.open_ranges[source] & closed or source in live):
                    seen.add(source)
                    inside.append(source)
        kernel.insides[reduce] = inside
    return inside


def _reads_local(after: UOp) -> frozenset[UOp]:
    """What depends on the array of an AFTER as it is while it is being filled."""
    live: set[UOp] = set()
    for node in toposort((after,)):
        filling = node.op is Op.LOAD and node.src[0].src[0] is after.src[0]
        if node is not after and (filling or not live.isdisjoint(node.src)):
            live.add(node)
    return frozenset(live)


def _outside(kernel: Kernel, reduce: UOp) -> list[UOp]:
    """What the inside of a REDUCE reads from outside."""
    inside = set(_inside(kernel, reduce))
    return list({s: None for node in inside for s in node.src if s not in inside})


def _large_reduce(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: dict[UOp, Any]) -> Array:
    ranges = sorted(node.src[1:], key=lambda r: kernel.axes[r])
    # What depends on a closed range is computed anew for each part, even if it is known for the whole range.
    closed = frozenset(ranges)
    outer = {n: v for n, v in values.items() if not kernel.open_ranges[n] & closed}
    total: Array | None = None
    for block in blocks(kernel, _inside(kernel, node), ranges, extents):
        value = compute(kernel, [node.src[0]], block, outer)[node.src[0]]
        total = _reduce_part(kernel, node, value, block, total)
    if total is None:
        empty: Array = _value(kernel, node, extents, compute(kernel, [node.src[0]], extents, outer))
        return empty
    return numeric.finish(total, node.dtype)


def _reduce_part(
    kernel: Kernel, node: UOp, value: Array, extents: Mapping[UOp, Interval], total: Array | None = None
) -> Array:
    shape = list(value.shape)
    for r in node.src[1:]:
        shape[kernel.axes[r]] = extents[r][1] - extents[r][0]
    axes = tuple(kernel.axes[r] for r in node.src[1:])
    whole = np.broadcast_to(value, shape)
    if total is not None:
        return numeric.following(node.arg.op, node.dtype, total, whole, axes)
    return numeric.partial(node.arg.op, node.dtype, whole, axes, True)


def _value(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: Mapping[UOp, Any]) -> Any:
    op = node.op
    if op in ELEMENTWISE:
        return numeric.apply(op, node.dtype, [values[s] for s in node.src], node.src[0].dtype)
    if op is Op.CONST:
        return numeric.constant(node.arg, node.dtype).reshape((1,) * (kernel.lanes + 1))
    if op is Op.RANGE:
        shape = [1] * (kernel.lanes + 1)
        shape[kernel.axes[node]] = -1
        return np.arange(*extents[node], dtype=np.int64).reshape(shape)
    if op is Op.VARIABLE:
        if node not in kernel.variables:
            raise CompilerError(f"no value given for variable {node.arg.name}")
        return numeric.constant(kernel.variables[node], node.dtype).reshape((1,) * (kernel.lanes + 1))
    if op is Op.PARAM or op is Op.LOCAL:
        return node
    if op is Op.STORE:
        return values[node.src[0]], values[node.src[1]]
    if op is Op.AFTER:
        return _filled(kernel, node, extents, values)
    if op is Op.LOAD and node.src[0].src[0].op is Op.AFTER:
        return _load_local(kernel, node, extents, values)
    if op is Op.INDEX:
        gate = values[node.src[2]] if len(node.src) > 2 else None
        return Address(
            node.src[0], values[node.src[1]], gate, values[node.src[0]] if node.src[0].op is Op.AFTER else None
        )
    if op is Op.LOAD and node.src[0].src[0].op is Op.LOCAL:
        return _load_filling(kernel, node, extents, values)
    if op is Op.LOAD:
        return _load(kernel, node, values[node.src[0]], values[node.src[1]] if len(node.src) > 1 else None)
    if op is Op.REDUCE:
        return numeric.finish(_reduce_part(kernel, node, values[node.src[0]], extents), node.dtype)
    if op is Op.CARRY:
        first = all(extents[r][0] == 0 for r in node.src[2:])
        return values[node.src[0]] if first else kernel.carried[node]
    if op is Op.NEXT:
        kernel.following[node.src[0]] = values[node.src[1]]
        return values[node.src[2]]
    if op is Op.VECTORIZE:
        return vectorize([values[s] for s in node.src], node.dtype.count)
    if op is Op.EXTRACT:
        return lanes(values[node.src[0]], node.src[0].dtype.count)[..., node.arg.lane : node.arg.lane + 1]
    if op is Op.SHUFFLE:
        return shuffle([values[s] for s in node.src], node.src[0].dtype.count, node.arg.picks)
    if op is Op.PREFIX:
        lane, value = node.src[1], values[node.src[0]]
        shape, axis = list(value.shape), kernel.axes[lane]
        shape[axis] = extents[lane][1] - extents[lane][0]
        return numeric.prefix(node.arg.op, node.dtype, np.broadcast_to(value, shape), axis, node.arg.exclusive)
    if op is Op.LOOKUP:
        return lookup(lanes(values[node.src[0]], node.src[0].dtype.count), values[node.src[1]])
    if op is Op.PREFETCH:
        return values[node.src[0]]
    if op is Op.REDUCE_LANES:
        value = lanes(values[node.src[0]], node.src[0].dtype.count)
        return numeric.finish(numeric.partial(node.arg.op, node.dtype, value, (-1,), True), node.dtype)
    raise CompilerError(f"{op.name} does not occur inside a kernel")


def lanes(value: Array, count: int) -> Array:
    """All lanes written out; a broadcast vector is held as one lane."""
    return np.broadcast_to(value, (*value.shape[:-1], count)) if value.shape[-1] != count else value


def shuffle(sources: Sequence[Array], count: int, picks: Sequence[int]) -> Array:
    """Lanes of the vectors, counted through, in the order of `picks`."""
    whole = np.broadcast_arrays(*[lanes(source, count) for source in sources])
    return np.concatenate(whole, axis=-1)[..., list(picks)]


def lookup(table: Array, index: Array) -> Array:
    """The lanes of a vector with these numbers; any lane where there is none of a number."""
    whole = np.broadcast_to(table, (*np.broadcast_shapes(table.shape[:-1], index.shape[:-1]), table.shape[-1]))
    places = np.broadcast_to(np.clip(index, 0, table.shape[-1] - 1), (*whole.shape[:-1], index.shape[-1]))
    return np.take_along_axis(whole, places.astype(np.int64), axis=-1)


def vectorize(sources: Sequence[Array], count: int) -> Array:
    """Lanes from scalars; one source is a broadcast."""
    if len(sources) == 1:
        return sources[0]
    return np.concatenate(np.broadcast_arrays(*sources), axis=-1)


def elements(address: Address, count: int) -> tuple[Array, Array | None]:
    """Element numbers of an access of `count` lanes, and its gate; numbers are made harmless where the gate is false.

    Raises:
        CompilerError: an element outside the parameter.
    """
    element = address.element
    if count > 1 and element.shape[-1] == 1:
        element = element + np.arange(count)
    param = address.param
    size = (param.src[0] if param.op is Op.AFTER else param).arg.size
    outside = (element < 0) | (element >= size)
    if address.gate is not None:
        outside = outside & address.gate
    if outside.any():
        wrong = np.broadcast_to(element, outside.shape)[outside].reshape(-1)[0]
        raise CompilerError(f"access to element {wrong} of {_memory_name(address.param)}, which has {size}")
    if address.gate is not None:
        element = np.where(address.gate, element, 0)
    return element, address.gate


def _memory_name(param: UOp) -> str:
    return f"parameter {param.arg.slot}" if param.op is Op.PARAM else "an array of the core"


def empty_local(local: UOp) -> Array:
    """The elements of a LOCAL before anything is stored: ones that show when they are read."""
    storage = np.dtype(numeric.storage_type(local.dtype))
    return np.full(local.arg.size * storage.itemsize, 0xA5 if storage != np.bool_ else 1, np.uint8).view(storage)


def _open_axes(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval]) -> tuple[Array, int]:
    """For each point of the node's ranges, its number among them, and how many there are: every one has its array."""
    number = np.zeros((1,) * (kernel.lanes + 1), np.int64)
    count = 1
    for r in sorted(kernel.open_ranges[node], key=lambda r: kernel.axes[r]):
        length = extents[r][1] - extents[r][0]
        shape = [1] * (kernel.lanes + 1)
        shape[kernel.axes[r]] = -1
        number = number * length + np.arange(length).reshape(shape)
        count *= length
    return number, count


def _filled(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: Mapping[UOp, Any]) -> Array:
    """The arrays of an AFTER, one a point of its ranges, side by side."""
    _, count = _open_axes(kernel, node, extents)
    filled: Array = np.tile(empty_local(node.src[0]), count)
    _fill(kernel, node, extents, values, filled)
    return filled


def _filled_in_order(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: dict[UOp, Any]) -> Array:
    """The arrays of an AFTER whose stores add to them, iteration after iteration of its ORDERED ranges."""
    local = node.src[0]
    _, count = _open_axes(kernel, node, extents)
    filled: Array = np.tile(empty_local(local), count)
    ordered = sorted([r for r in node.src[1:] if r.op is Op.RANGE and r.arg.kind is AxisKind.ORDERED],
                     key=lambda r: kernel.axes[r])  # fmt: skip
    needed = [part for s in node.src[1:] if s.op is Op.STORE for part in s.src]
    # Where the size of a range depends on others, not all of those run through all of it.
    uneven = [r for r in ordered if kernel.open_ranges[r.src[0]]]
    needed += [r.src[0] for r in uneven]
    outer = {n: v for n, v in values.items() if kernel.open_ranges[n].isdisjoint(node.src[1:])}
    kernel.filling[local] = Filling(node, filled)
    for point in itertools.product(*[range(*extents[r]) for r in ordered]):
        block = {**extents, **{r: (i, i + 1) for r, i in zip(ordered, point, strict=True)}}
        parts = compute(kernel, needed, block, outer)
        stores = {s: (parts[s.src[0]], parts[s.src[1]]) for s in node.src[1:] if s.op is Op.STORE}
        runs = [parts[r.src[0]] > block[r][0] for r in uneven]
        _fill(kernel, node, block, stores, filled, runs)
    del kernel.filling[local]
    return filled


def _load_filling(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: Mapping[UOp, Any]) -> Array:
    """A load from an array by the stores that fill it."""
    local = node.src[0].src[0]
    if local not in kernel.filling:
        raise CompilerError("an array of the core is read before anything is stored there")
    after, filled = kernel.filling[local]
    element, gate = elements(values[node.src[0]], node.dtype.count)
    number, _ = _open_axes(kernel, after, extents)
    value = numeric.load(filled[number * local.arg.size + element], node.dtype)
    return value if gate is None else np.asarray(np.where(gate, value, values[node.src[1]]))


def _fill(
    kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: Mapping[UOp, Any], filled: Array,
    runs: Sequence[Array] = (),
) -> None:  # fmt: skip
    """Store what an AFTER stores, where all of `runs` hold."""
    local = node.src[0]
    number, _ = _open_axes(kernel, node, extents)
    for store in node.src[1:]:
        if store.op is not Op.STORE:
            continue
        address, value = values[store]
        dtype = store.src[1].dtype
        element, gate = elements(address, dtype.count)
        for one in runs:
            gate = one if gate is None else gate & one
        stored = numeric.store(value, dtype)
        place = number * local.arg.size + element
        shape = np.broadcast_shapes(place.shape, stored.shape, gate.shape if gate is not None else ())
        chosen = np.broadcast_to(True if gate is None else gate, shape)
        filled[np.broadcast_to(place, shape)[chosen]] = np.broadcast_to(stored, shape)[chosen]


def _load_local(kernel: Kernel, node: UOp, extents: Mapping[UOp, Interval], values: Mapping[UOp, Any]) -> Array:
    after = node.src[0].src[0]
    element, gate = elements(values[node.src[0]], node.dtype.count)
    number, _ = _open_axes(kernel, after, extents)
    filled = values[node.src[0]].filled
    value = numeric.load(filled[number * after.src[0].arg.size + element], node.dtype)
    return value if gate is None else np.asarray(np.where(gate, value, values[node.src[1]]))


def _memory(kernel: Kernel, param: UOp, snapshot: bool) -> Array:
    slot = param.arg.slot
    if slot >= len(kernel.arrays):
        raise CompilerError(f"no array given for parameter {slot}")
    array = kernel.snapshots.get(slot, kernel.arrays[slot]) if snapshot else kernel.arrays[slot]
    storage = np.dtype(numeric.storage_type(param.dtype))
    # Memory that is reused may be larger than this parameter, and of another type.
    used = array.view(np.uint8)[: param.arg.size * storage.itemsize]
    return np.asarray(used.view(storage))


def _load(kernel: Kernel, node: UOp, address: Address, otherwise: Array | None) -> Array:
    element, gate = elements(address, node.dtype.count)
    memory = _memory(kernel, address.param, True)
    if gate is not None and memory.size == 0:
        memory = np.zeros(1, memory.dtype)
    value = numeric.load(memory[element], node.dtype)
    if gate is None:
        return value
    if otherwise is None:
        raise CompilerError("LOAD of a guarded INDEX has no value for a false guard")
    return np.asarray(np.where(gate, value, otherwise))


def _store(kernel: Kernel, node: UOp, address: Address, value: Array) -> None:
    element, gate = elements(address, node.src[1].dtype.count)
    stored = numeric.store(value, node.src[1].dtype)
    memory = _memory(kernel, address.param, False)
    shape = np.broadcast_shapes(element.shape, stored.shape, gate.shape if gate is not None else ())
    element, stored = np.broadcast_to(element, shape), np.broadcast_to(stored, shape)
    if gate is None:
        memory[element] = stored
    else:
        chosen = np.broadcast_to(gate, shape)
        memory[element[chosen]] = stored[chosen]
