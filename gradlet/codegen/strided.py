"""Lanes a few elements apart: neighbours are loaded as vectors, and the wanted ones picked out of them.

A load for each lane and an insertion for each would cost twice as many instructions as lanes; `factor` whole loads and
shuffles cost a few. The last of these ends at the last wanted element, so nothing past it is touched, and what a guard
forbids is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import LaneArg, Op, ShuffleArg
from gradlet.optimize.analysis import MOST_APART, affine


def strided_load(
    dtype: DType, param: UOp, element: Callable[[int], UOp], factor: int, count: int, gate: UOp | None
) -> UOp | None:
    """The vector of elements `0, factor, 2 * factor, ...`; zero where the gate is false. None where it does not pay.

    Args:
        dtype: of one element.
        param: the memory.
        element: the element number so many elements after the first.
        factor: how far lanes are apart.
        count: lanes.
        gate: a vector that says which lanes may be loaded.
    """
    if not 2 <= factor <= MOST_APART or count < 4:
        return None
    last = factor * (count - 1)
    starts = [min(n * count, last - (count - 1)) for n in range(factor)]
    places = []
    for lane in range(count):
        which = next(n for n, start in enumerate(starts) if start <= factor * lane < start + count)
        places.append((which, factor * lane - starts[which]))
    vectors: list[UOp] = []
    for which, start in enumerate(starts):
        guard: tuple[UOp, ...] = ()
        if gate is not None:
            wanted = {place: lane for lane, (n, place) in enumerate(places) if n == which}
            guard = (_moved(gate, [wanted.get(place) for place in range(count)]),)
        address = mk(Op.INDEX, dtype, (param, element(start), *guard))
        otherwise = (UOp.const(dtype.vec(count), 0),) if guard else ()
        vectors.append(mk(Op.LOAD, dtype.vec(count), (address, *otherwise)))
    return _woven(vectors, places)


def _woven(vectors: list[UOp], places: list[tuple[int, int]]) -> UOp:
    """The vector whose lanes are these (number of a vector, place in it), by a tree of shuffles of two at a time."""
    while True:
        pairs = [vectors[i : i + 2] for i in range(0, len(vectors), 2)]
        whole = len(pairs) == 1
        joined: list[UOp] = []
        for number, pair in enumerate(pairs):
            if len(pair) == 1:
                joined += pair
                continue
            count = pair[0].dtype.count
            # A lane of the result that comes from elsewhere takes what stands there already.
            picks = [lane % count for lane in range(len(places))]
            for lane, (which, place) in enumerate(places):
                if which // 2 == number:
                    picks[lane] = which % 2 * count + place
            joined.append(mk(Op.SHUFFLE, pair[0].dtype.scalar.vec(len(places)), tuple(pair), ShuffleArg(tuple(picks))))
        if whole:
            return joined[0]
        alone = len(vectors) - 1 if len(vectors) % 2 else None
        places = [(which // 2, place if which == alone else lane) for lane, (which, place) in enumerate(places)]
        vectors = joined


def _moved(gate: UOp, lanes: Sequence[int | None]) -> UOp:
    """A vector of bools with these lanes of another one, and false where there is None."""
    if gate.op is Op.VECTORIZE or gate.op is Op.CONST:
        no = UOp.const(dtypes.bool, False)
        return mk(Op.VECTORIZE, dtypes.bool.vec(len(lanes)), tuple([no if i is None else pick(gate, i) for i in lanes]))
    picks = tuple([gate.dtype.count if lane is None else lane for lane in lanes])
    return mk(Op.SHUFFLE, dtypes.bool.vec(len(lanes)), (gate, UOp.const(gate.dtype, False)), ShuffleArg(picks))


def _gathered(gate: UOp, places: Sequence[int], width: int) -> UOp:
    """Of each place of a load whether one of the lanes that want it may have it."""
    if _is_pattern(gate):
        same = mk(Op.VECTORIZE, dtypes.bool.vec(width), (gate.src[1].src[0],) * width)
        return _gathered(gate.src[0], places, width) & same
    wanted = [[lane for lane, at in enumerate(places) if at == place] for place in range(width)]
    if gate.op is Op.VECTORIZE and all(s.op is Op.CONST for s in gate.src):
        known = [UOp.const(dtypes.bool, any(gate.src[lane].arg for lane in lanes)) for lanes in wanted]
        return mk(Op.VECTORIZE, dtypes.bool.vec(width), tuple(known))
    allowed: UOp | None = None
    for number in range(max(map(len, wanted))):
        layer = _moved(
            gate, [(lanes[number] if number < len(lanes) else lanes[0]) if lanes else None for lanes in wanted]
        )
        allowed = layer if allowed is None else allowed | layer
    assert allowed is not None
    return allowed


def _is_pattern(gate: UOp) -> bool:
    """Whether a guard is what `common_gate` makes."""
    if gate.op is not Op.AND or any(s.op is not Op.VECTORIZE for s in gate.src):
        return False
    pattern, condition = gate.src
    return all(s.op is Op.CONST for s in pattern.src) and len(set(condition.src)) == 1


def common_gate(lanes: Sequence[UOp]) -> UOp | None:
    """Guards of lanes that are one condition or false, as a pattern and the condition; None where they are not."""
    conditions = {lane for lane in lanes if lane.op is not Op.CONST}
    if len(conditions) != 1 or any(lane.op is Op.CONST and lane.arg for lane in lanes):
        return None
    vector = dtypes.bool.vec(len(lanes))
    pattern = tuple([UOp.const(dtypes.bool, lane.op is not Op.CONST) for lane in lanes])
    return mk(Op.VECTORIZE, vector, pattern) & mk(Op.VECTORIZE, vector, tuple(conditions) * len(lanes))


def near_load(dtype: DType, param: UOp, elements: Sequence[UOp], gate: UOp | None) -> UOp | None:
    """The vector of these elements, one load and a shuffle; None where they do not lie within a vector of each other.

    Args:
        dtype: of one element.
        param: the memory.
        elements: the element number of every lane.
        gate: a vector that says which lanes may be loaded.
    """
    count = len(elements)
    forms = [affine(element) for element in elements]
    if any(form.terms != forms[0].terms for form in forms[1:]):
        return None
    constants = [form.constant for form in forms]
    low, high = min(constants), max(constants)
    places = [constant - low for constant in constants]
    width = high - low + 1
    if width > count or width < 2:
        return None
    guard: tuple[UOp, ...] = ()
    if gate is not None:
        width = min(count, 1 << (width - 1).bit_length())  # what is masked may reach further; odd vectors are cut up
        guard = (_gathered(gate, places, width),)
    address = mk(Op.INDEX, dtype, (param, elements[constants.index(low)], *guard))
    zeros = UOp.const(dtype.vec(width), 0)
    loaded = mk(Op.LOAD, dtype.vec(width), (address, zeros) if guard else (address,))
    if gate is not None and _is_pattern(gate):
        # Where the condition is false zeros have been loaded.
        picks = tuple([place if lane.arg else width for place, lane in zip(places, gate.src[0].src, strict=True)])
        return mk(Op.SHUFFLE, dtype.vec(count), (loaded, zeros), ShuffleArg(picks))
    spread = mk(Op.SHUFFLE, dtype.vec(count), (loaded,), ShuffleArg(tuple(places)))
    if gate is None:
        return spread
    # A lane that may not be loaded shares its element, perhaps, with one that may.
    return mk(Op.WHERE, dtype.vec(count), (gate, spread, UOp.const(dtype.vec(count), 0)))


def pick(vector: UOp, lane: int) -> UOp:
    """One lane of a vector."""
    if vector.op is Op.VECTORIZE:
        return vector.src[lane]
    if vector.op is Op.CONST:
        return UOp.const(vector.dtype.scalar, vector.arg)
    return mk(Op.EXTRACT, vector.dtype.scalar, (vector,), LaneArg(lane))
