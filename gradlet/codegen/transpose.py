"""Register transposes: neighbours in memory that are loaded into lanes of neighbouring vectors are loaded as vectors.

Where lanes run along one axis and copies along another, contiguous one, each copy gathers a lane from every row:

    v0 = a[0], b[0], c[0], d[0]        a = a[0..3], ...        (a load a row)
    v1 = a[1], b[1], c[1], d[1]   ->   v0, v1, v2, v3 = the columns of a, b, c, d
    ...

Rows are loaded in pieces of 128 bits, so that every exchange stays inside such a piece: one cheap instruction on
every vector unit. Of wider vectors each piece holds other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, ShuffleArg
from gradlet.optimize.analysis import affine, kernel_order
from gradlet.optimize.tiles import PIECE_BYTES

# Members of an enum are slow to reach through their class.
_CONST: Final = Op.CONST
_INDEX: Final = Op.INDEX
_LOAD: Final = Op.LOAD
_SHUFFLE: Final = Op.SHUFFLE
_VECTORIZE: Final = Op.VECTORIZE


class _Lanes(NamedTuple):
    """What a vector's lanes load: memory, the terms of each lane's element number, how far each is from lane 0."""

    param: UOp
    terms: tuple[frozenset[tuple[UOp, int]], ...]
    distances: tuple[int, ...]


def transpose_in_registers(sink: UOp) -> UOp:
    """Vectors whose lanes are gathered from rows side by side become columns of those rows."""
    order = kernel_order(sink)
    found: dict[_Lanes, dict[int, UOp]] = {}
    twice: set[_Lanes] = set()
    for node in order:
        if node.op is _VECTORIZE and all(s.op is _LOAD for s in node.src) and not _is_broadcast(node):
            gathered = _lanes(node)
            if gathered is not None:
                vectors = found.setdefault(gathered[0], {})
                if vectors.setdefault(gathered[1], node) is not node:  # the same elements under another guard
                    twice.add(gathered[0])
    new: dict[UOp, UOp] = {}
    for lanes, vectors in found.items():
        width = PIECE_BYTES // lanes.param.dtype.itemsize
        if lanes in twice or width < 2 or len(lanes.terms) % width:
            continue
        for first in _runs(vectors, width):
            group = [vectors[first + i] for i in range(width)]
            new.update(zip(group, _columns(_rows(group, width), width)))
    return sink.substitute(new) if new else sink


class Gather(NamedTuple):
    """A vector whose lanes are elements of `param` as far apart from each other, lane 0 at `rest + constant`."""

    param: UOp
    rest: UOp | None
    factor: int
    dtype: DType
    constant: int

    def load(self, lane: int, dtype: DType) -> UOp:
        """A load that begins with the element of one lane."""
        element = UOp.const(dtypes.index, self.constant + self.factor * lane)
        if self.rest is not None:
            element = self.rest + element if element.arg else self.rest
        return mk(_LOAD, dtype, (mk(_INDEX, self.dtype.scalar, (self.param, element)),))


def gathered(vectors: Mapping[UOp, Gather]) -> dict[UOp, UOp]:
    """What stands for each of these vectors: a column of rows, or its lanes loaded one by one."""
    found: dict[Gather, dict[int, UOp]] = {}
    for node, gather in vectors.items():
        found.setdefault(gather._replace(constant=0), {})[gather.constant] = node
    new: dict[UOp, UOp] = {}
    for lanes, alike in found.items():
        scalar, count = lanes.dtype.scalar, lanes.dtype.count
        width = PIECE_BYTES // scalar.itemsize
        if width >= 2 and not count % width:
            for first in _runs(alike, width):
                begin = lanes._replace(constant=first)
                rows = [begin.load(lane, scalar.vec(width)) for lane in range(count)]
                new.update(zip([alike[first + i] for i in range(width)], _columns(rows, width)))
        for constant, node in alike.items():
            if node not in new:
                alone = lanes._replace(constant=constant)
                new[node] = mk(_VECTORIZE, lanes.dtype, tuple([alone.load(i, scalar) for i in range(count)]))
    return new


def _runs(constants: Collection[int], width: int) -> Iterator[int]:
    """Where `width` numbers in a row begin, one run after another."""
    end = None
    for first in sorted(constants):
        if (end is None or first >= end) and all(first + i in constants for i in range(1, width)):
            yield first
            end = first + width


def has_columns(constants: Collection[int], scalar: DType) -> bool:
    """Whether vectors that begin so many elements apart, lane for lane, are columns of the same rows."""
    width = PIECE_BYTES // scalar.itemsize
    return width >= 2 and any(True for _ in _runs(constants, width))


def _is_broadcast(node: UOp) -> bool:
    """Whether all lanes are one element: a broadcast from memory is one instruction, and needs no exchange."""
    return all(s is node.src[0] for s in node.src)


def _lanes(node: UOp) -> tuple[_Lanes, int] | None:
    """The loads behind a vector, and the constant in the element number of lane 0; None for bools.

    A guard has to be one of the whole vector, and zero what stands for a guarded element.
    """
    param = node.src[0].src[0].src[0]
    if node.dtype.scalar.is_bool:
        return None
    forms = []
    for load in node.src:
        index = load.src[0]
        if index.src[0] is not param or index.src[2:] != node.src[0].src[0].src[2:]:
            return None
        if len(load.src) > 1 and (load.src[1].op is not _CONST or load.src[1].arg):
            return None
        forms.append(affine(index.src[1]))
    first = forms[0].constant
    terms = tuple([frozenset(form.terms.items()) for form in forms])
    return _Lanes(param, terms, tuple([form.constant - first for form in forms])), first


def _rows(group: list[UOp], width: int) -> list[UOp]:
    """For vectors of neighbouring elements in memory the loads of `width` elements a lane."""
    dtype = group[0].dtype.scalar
    gates = [node.src[0].src[0].src[2:] for node in group]
    rows = []
    for load in group[0].src:
        if any(gates):
            true = UOp.const(dtypes.bool, True)
            gate = mk(_VECTORIZE, dtypes.bool.vec(width), tuple([g[0] if g else true for g in gates]))
            index = mk(_INDEX, load.src[0].dtype, (*load.src[0].src[:2], gate))
            rows.append(mk(_LOAD, dtype.vec(width), (index, UOp.const(dtype.vec(width), 0))))
        else:
            rows.append(mk(_LOAD, dtype.vec(width), load.src))
    return rows


def _columns(rows: list[UOp], width: int) -> list[UOp]:
    """The `width` columns of rows of so many elements, as vectors."""
    dtype, count = rows[0].dtype.scalar, len(rows)
    # Row i of every piece: lanes i, i + width, ...
    vectors = [_joined(rows[i::width]) for i in range(width)]
    low = _interleaving(count, width, 0)
    high = _interleaving(count, width, width // 2)
    half = width // 2
    for _ in range(width.bit_length() - 1):
        pairs = [(vectors[i], vectors[i + half]) for i in range(half)]
        vectors = [mk(_SHUFFLE, dtype.vec(count), pair, picks) for pair in pairs for picks in (low, high)]
    return vectors


def _joined(parts: list[UOp]) -> UOp:
    """Vectors one behind another."""
    while len(parts) > 1:
        parts = [_pair(parts[i], parts[i + 1]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def _pair(first: UOp, second: UOp) -> UOp:
    count = first.dtype.count + second.dtype.count
    return mk(_SHUFFLE, first.dtype.scalar.vec(count), (first, second), ShuffleArg(tuple(range(count))))


def _interleaving(count: int, width: int, begin: int) -> ShuffleArg:
    """Half of each piece of two vectors, element by element."""
    picks: list[int] = []
    for piece in range(0, count, width):
        for i in range(piece + begin, piece + begin + width // 2):
            picks += (i, count + i)
    return ShuffleArg(tuple(picks))
