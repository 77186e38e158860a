"""Axis atoms: which loops of different nodes are the same loop. Decides sharing and prices, never values.

Every axis of every node is a list of atoms, outermost first. Element-wise ops unite the atoms of their operands,
reshapes split atoms at common divisors, expansion and guarded movement make new ones. Two atoms of one node are never
united: they are different loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gradlet.graph.node import UOp
from gradlet.ops.op import ELEMENTWISE, MOVEMENT, SCALAR_LEAVES, Op, batch_axes

Loop = tuple[int, int]  # atom and size
Dims = tuple[tuple[int, ...], ...]
_GATHER: Final = Op.GATHER


class Axes:
    """Atoms of every node of a graph."""

    def __init__(self, order: Sequence[UOp]) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, tuple[int, int]] = {}
        self._dims: dict[UOp, Dims] = {}
        self._loops: dict[UOp, tuple[tuple[Loop, ...], ...]] = {}
        self._flat: dict[tuple[tuple[Loop, ...], ...], tuple[Loop, ...]] = {}
        self._shared: dict[Dims, tuple[tuple[Loop, ...], ...]] = {}
        self._apart: list[set[int]] = []  # atoms that occur together with an atom in some node
        self._renamed = contraction_operands(order)
        for node in order:
            if node.op not in SCALAR_LEAVES:
                before = len(self._parent)
                dims = self._infer(node)
                renamed = self._renamed.get(node)
                if renamed:
                    dims = tuple([self._fresh((n,))[0] if a in renamed else dims[a] for a, n in enumerate(node.shape)])
                self._dims[node] = dims
                if len(self._parent) > before or node.op is _GATHER:
                    self._keep_apart(dims)

    # questions
    def dims(self, node: UOp) -> tuple[tuple[Loop, ...], ...]:
        """The loops of every axis of a node, outermost first; axes of size 1 have none."""
        found = self._loops.get(node)
        if found is None:
            dims = self._dims.get(node)
            if dims is None:  # a scalar, or a node made later: every axis on its own
                dims = self._dims[node] = self._fresh(node.shape)
            found = self._shared.get(dims)
            if found is None:
                found = tuple([tuple([(a, self._size[a]) for a in self._resolve(axis)]) for axis in dims])
                self._shared[dims] = found
            self._loops[node] = found
        return found

    def axis(self, node: UOp, axis: int) -> tuple[Loop, ...]:
        """The loops of one axis."""
        return self.dims(node)[axis]

    def loops(self, node: UOp) -> tuple[Loop, ...]:
        """All loops of a node in the order of its axes."""
        dims = self.dims(node)
        found = self._flat.get(dims)
        if found is None:
            found = self._flat[dims] = tuple([loop for axis in dims for loop in axis])
        return found

    # atoms
    def _new(self, size: int) -> int:
        self._parent.append(len(self._parent))
        self._size.append(size)
        self._apart.append(set())
        return len(self._parent) - 1

    def _keep_apart(self, dims: Dims) -> None:
        """Note that these atoms are loops of one node."""
        atoms = [a for axis in dims for a in self._resolve(axis)]
        for position, one in enumerate(atoms):
            for other in atoms[:position]:
                if one != other:
                    self._apart[one].add(other)
                    self._apart[other].add(one)

    def _join(self, a: int, b: int) -> None:
        """Unite two atoms of one size, unless some node has both."""
        apart_a, apart_b = self._apart[a], self._apart[b]
        if len(apart_b) > len(apart_a):
            a, b, apart_a, apart_b = b, a, apart_b, apart_a
        if any(self._find(x) == a for x in apart_b):
            return
        self._parent[b] = a
        apart_a |= apart_b

    def _fresh(self, shape: Sequence[int]) -> Dims:
        return tuple([(self._new(size),) if size != 1 else () for size in shape])

    def _find(self, atom: int) -> int:
        parent = self._parent
        while parent[atom] != atom:
            parent[atom] = parent[parent[atom]]
            atom = parent[atom]
        return atom

    def _resolve(self, atoms: Sequence[int]) -> list[int]:
        parent, parts_of = self._parent, self._parts
        for atom in atoms:
            if parent[atom] != atom or atom in parts_of:
                break
        else:
            return list(atoms)
        result: list[int] = []
        stack = list(reversed(atoms))
        while stack:
            atom = self._find(stack.pop())
            parts = parts_of.get(atom)
            if parts is None:
                result.append(atom)
            else:
                stack.append(parts[1])
                stack.append(parts[0])
        return result

    def _split(self, atom: int, outer: int) -> tuple[int, int]:
        parts = self._parts[atom] = (self._new(outer), self._new(self._size[atom] // outer))
        for part in parts:
            self._apart[part] |= self._apart[atom]
            for other in self._apart[atom]:
                self._apart[self._find(other)].add(part)
        self._apart[parts[0]].add(parts[1])
        self._apart[parts[1]].add(parts[0])
        return parts

    def _unite(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Make two lists of atoms of the same total size the same, as far as their sizes divide."""
        left, right = self._resolve(first)[::-1], self._resolve(second)[::-1]
        while left and right:
            a, b = left.pop(), right.pop()
            if a == b:
                continue
            size_a, size_b = self._size[a], self._size[b]
            if size_a == size_b:
                self._join(a, b)
            elif size_b and size_a % size_b == 0:
                outer, inner = self._split(a, size_b)
                self._join(outer, b)
                left.append(inner)
            elif size_a and size_b % size_a == 0:
                outer, inner = self._split(b, size_a)
                self._join(a, outer)
                right.append(inner)
            else:
                return

    def _unite_nodes(self, first: Dims, second: Dims) -> None:
        """Unite axis by axis, except where that would make two axes of one node the same loop (x + x.T)."""
        if first == second or len(first) != len(second):
            return
        resolve = self._resolve
        left: list[list[int]] = []  # what the axes are at the moment
        right: list[list[int]] = []
        for axis, (one, other) in enumerate(zip(first, second, strict=True)):
            if one == other:
                continue
            if not left:
                left, right = [resolve(atoms) for atoms in first], [resolve(atoms) for atoms in second]
            if left[axis] == right[axis]:
                continue
            mine = {a for k, atoms in enumerate(left) if k != axis for a in atoms}
            its = {a for k, atoms in enumerate(right) if k != axis for a in atoms}
            if mine.isdisjoint(right[axis]) and its.isdisjoint(left[axis]):
                self._unite(one, other)
                left = []

    # inference
    def _infer(self, node: UOp) -> Dims:
        op = node.op
        if op in ELEMENTWISE:
            found: Dims | None = None
            for source in node.src:
                if source.op in SCALAR_LEAVES:
                    continue
                dims = self._dims[source]
                if found is None or len(dims) > len(found):
                    found = dims
                elif dims is not found:
                    self._unite_nodes(found, dims)
            return found if found is not None else ()
        rule = _RULES.get(op)
        if rule is not None:
            return rule(self, node)
        if op is Op.BUFFER:
            return self._fresh(node.shape)
        return self.source_dims(node)

    def source_dims(self, node: UOp) -> Dims:
        """Dims of the first source."""
        source = node.src[0]
        return self._dims[source] if source.op not in SCALAR_LEAVES else ()

    def _reshape(self, node: UOp) -> Dims:
        source = node.src[0]
        if source.op is Op.BUFFER or source.op in SCALAR_LEAVES or 0 in node.shape:
            return self._fresh(node.shape)
        atoms = [a for axis in self._dims[source] for a in self._resolve(axis)][::-1]
        result: list[tuple[int, ...]] = []
        for position, size in enumerate(node.shape):
            taken: list[int] = []
            while size != 1:
                atom = atoms.pop()
                have = self._size[atom]
                if size % have == 0:
                    taken.append(atom)
                    size //= have
                elif have % size == 0:
                    outer, inner = self._split(atom, size)
                    taken.append(outer)
                    atoms.append(inner)
                    size = 1
                else:
                    return (*result, *self._fresh(node.shape[position:]))
            result.append(tuple(taken))
        return tuple(result)

    def _expand(self, node: UOp) -> Dims:
        dims = self.source_dims(node)
        old = node.src[0].shape
        return tuple(
            [
                atoms if have == want else (self._new(want),)
                for atoms, have, want in zip(dims, old, node.shape, strict=True)
            ]
        )

    def _permute(self, node: UOp) -> Dims:
        dims = self._dims[node.src[0]]
        return tuple([dims[axis] for axis in node.arg.axes])

    def _guarded(self, node: UOp) -> Dims:
        """PAD, SHRINK, STRIDE: axes that keep their size keep their atoms."""
        dims, old = self.source_dims(node), node.src[0].shape
        return tuple(
            [
                atoms if have == want else ((self._new(want),) if want != 1 else ())
                for atoms, have, want in zip(dims, old, node.shape, strict=True)
            ]
        )

    def _flip(self, node: UOp) -> Dims:
        dims = self._dims[node.src[0]]
        return tuple(
            [(self._new(size),) if a in node.arg.axes and size != 1 else dims[a] for a, size in enumerate(node.shape)]
        )

    def _window(self, node: UOp) -> Dims:
        result = list(self._dims[node.src[0]])
        result[node.arg.axis] = (self._new(node.arg.size),) if node.arg.size != 1 else ()
        return tuple(result)

    def _reduce(self, node: UOp) -> Dims:
        dims = self._dims[node.src[0]]
        return tuple([atoms for axis, atoms in enumerate(dims) if axis not in node.arg.axes])

    def _gather(self, node: UOp) -> Dims:
        table, index = node.src
        batch = batch_axes(node.arg)
        rows = self._dims[table][1 + batch :] if table.op not in SCALAR_LEAVES else ()
        if batch:
            self._unite_nodes(self._dims[table][:batch], self._dims[index][:batch])
        if index.op in SCALAR_LEAVES:
            return rows
        # Positions that picked another axis of the table before are there already: here they are a loop of their own.
        taken = {a for atoms in rows for a in self._resolve(atoms)}
        picked = [
            atoms if taken.isdisjoint(self._resolve(atoms)) else self._fresh((size,))[0]
            for atoms, size in zip(self._dims[index], index.shape, strict=True)
        ]
        return (*picked, *rows)

    def _scatter(self, node: UOp) -> Dims:
        target, index, rows = node.src
        if rows.op not in SCALAR_LEAVES:
            its = self._dims[index] if index.op not in SCALAR_LEAVES else ()
            self._unite_nodes((*its, *self._dims[target][1 + node.arg.batch :]), self._dims[rows])
        if node.arg.batch:
            self._unite_nodes(self._dims[target][: node.arg.batch], self._dims[index][: node.arg.batch])
        return self._dims[target]

    def _scan(self, node: UOp) -> Dims:
        _, start, *factors = node.src
        dims = self.source_dims(node)
        row = (*dims[: node.arg.axis], *dims[node.arg.axis + 1 :])
        if start.op not in SCALAR_LEAVES:
            self._unite_nodes(row, self._dims[start])
        for factor in factors:
            if factor.op not in SCALAR_LEAVES:
                self._unite_nodes(dims, self._dims[factor])
        return dims

    def _rows(self, node: UOp) -> Dims:
        """MERGE and LARGEST: the last axis is a new one."""
        rows = self.source_dims(node)[: len(node.shape) - 1]
        return (*rows, *self._fresh(node.shape[-1:]))

    def _custom(self, node: UOp) -> Dims:
        """Nobody here knows which elements its kernel reads."""
        return self._fresh(node.shape)

    def _write(self, node: UOp) -> Dims:
        _, view, value = node.src
        if value.op not in SCALAR_LEAVES:
            self._unite_nodes(self._dims[view], self._dims[value])
        return self._dims[node.src[0]]


_RULES: Final[dict[Op, Callable[[Axes, UOp], Dims]]] = {
    Op.RESHAPE: Axes._reshape,
    Op.EXPAND: Axes._expand,
    Op.PERMUTE: Axes._permute,
    Op.PAD: Axes._guarded,
    Op.SHRINK: Axes._guarded,
    Op.STRIDE: Axes._guarded,
    Op.FLIP: Axes._flip,
    Op.WINDOW: Axes._window,
    Op.UNWINDOW: Axes._window,
    Op.REDUCE_AXES: Axes._reduce,
    Op.GATHER: Axes._gather,
    Op.SCATTER: Axes._scatter,
    Op.SCAN: Axes._scan,
    Op.MERGE: Axes._rows,
    Op.LARGEST: Axes._rows,
    Op.WRITE: Axes._write,
    Op.CUSTOM: Axes._custom,
}

# How many nodes below a reduce are looked at for operands of a contraction.
_LOOK: Final = 8
_REDUCE: Final = Op.REDUCE_AXES


def contraction_operands(order: Sequence[UOp]) -> dict[UOp, frozenset[int]]:
    """Repeated operands of products that are summed, with the summed axes.

    The loop that a matmul closes is one of its own, not the loop of the axis that the operand was computed with:
    otherwise `x + matmul(x, w)` would make the closed and the kept loop the same.
    """
    found: dict[UOp, frozenset[int]] = {}
    for node in order:
        if node.op is not _REDUCE or node.src[0].op not in ELEMENTWISE:
            continue
        axes = frozenset(node.arg.axes)
        level = [node.src[0]]
        for step in level:
            for source in step.src:
                if source.op in ELEMENTWISE and len(level) < _LOOK:
                    level.append(source)
                elif source.op in MOVEMENT and _repeats(source):
                    found[source] = found.get(source, frozenset()) | axes
    return found


def _repeats(node: UOp) -> bool:
    while node.op in MOVEMENT:
        if node.op is Op.EXPAND:
            return True
        node = node.src[0]
    return False
