"""The node: immutable, interned `UOp(op, dtype, src, arg)`, created by `mk`, walked without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final
from weakref import ref

from gradlet.base.dtype import DType, as_scalar, dtypes
from gradlet.ops.elementwise import ElementwiseMixin
from gradlet.ops.op import COMPARE, COMMUTATIVE, Op

by_uid: Final = attrgetter("uid")


class _Entry(ref):  # type: ignore[type-arg]
    __slots__ = ("key",)
    key: Any


_tables: Final[list[dict[Any, _Entry]]] = [{} for _ in range(max(Op) + 1)]
_next_uid: int = 0


class UOp(ElementwiseMixin):
    """One operation of the graph. Two nodes with equal fields are the same object: compare with `is`.

    Attributes:
        op: which operation.
        dtype: type of its value (of its element, for addresses).
        src: the nodes it reads, in order.
        arg: the op's typed argument or None.
        uid: creation number; sources always have a smaller one, so sorting by uid is a topological order.
    """

    __slots__ = ("op", "dtype", "src", "arg", "uid", "_shape", "_bounds", "_ranges", "__weakref__")
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    uid: int

    # construction
    @staticmethod
    def const(dtype: DType, value: Any) -> UOp:
        """A constant, exact in `dtype`; for vectors the scalar in every lane."""
        return mk(Op.CONST, dtype, (), as_scalar(value, dtype))

    def coerce(self, value: Any) -> UOp:
        return value if isinstance(value, UOp) else UOp.const(self.dtype, value)

    def alu(self, op: Op, *others: UOp) -> UOp:
        """Apply an element-wise op; constants of commutative binary ops go to the right."""
        src: tuple[UOp, ...] = (self, *others)
        if op in COMMUTATIVE and self.op is Op.CONST and others[0].op is not Op.CONST:
            src = (others[0], self)
        if op in COMPARE:
            dtype = dtypes.bool.vec(self.dtype.count)
        elif op is Op.WHERE:
            dtype = others[0].dtype
        else:
            dtype = self.dtype
        return mk(op, dtype, src, None)

    def cast(self, dtype: DType) -> UOp:
        """Convert values to `dtype` (lane count is kept)."""
        dtype = dtype.vec(self.dtype.count)
        return self if dtype is self.dtype else mk(Op.CAST, dtype, (self,), None)

    def bitcast(self, dtype: DType) -> UOp:
        """Read the same bits as `dtype`."""
        dtype = dtype.vec(self.dtype.count)
        return self if dtype is self.dtype else mk(Op.BITCAST, dtype, (self,), None)

    def where(self, if_true: Any, if_false: Any) -> UOp:
        """`if_true` where this bool is True, else `if_false`; one of them must be a node."""
        like = if_true if isinstance(if_true, UOp) else if_false
        return self.alu(Op.WHERE, like.coerce(if_true), like.coerce(if_false))

    def replace(self, **fields: Any) -> UOp:
        """The node with some of op, dtype, src, arg changed."""
        return mk(
            fields.get("op", self.op), fields.get("dtype", self.dtype), fields.get("src", self.src),
            fields.get("arg", self.arg),
        )  # fmt: skip

    # walking
    def toposort(self) -> list[UOp]:
        """All nodes of the graph below and including this one, sources first."""
        return toposort((self,))

    def substitute(self, replacements: Mapping[UOp, UOp]) -> UOp:
        """The graph with every key replaced by its value (keys inside values are not replaced again)."""
        return substitute((self,), replacements)[0]

    # inferred properties; computed once and kept
    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value; () for scalars and for everything inside a kernel."""
        try:
            return self._shape  # type: ignore[has-type,no-any-return]
        except AttributeError:
            from gradlet.graph import infer

            return infer.shape(self)

    def __repr__(self) -> str:
        from gradlet.graph import text

        return text.one_line(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (mk, (self.op, self.dtype, self.src, self.arg))


def mk(op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
    """The node with these fields: the living one if it exists, else a new one."""
    global _next_uid
    key: Any = (src, arg, dtype)
    if op is Op.CONST:
        key = (repr(arg), type(arg), dtype)  # keeps 0.0 from -0.0 and 1 from True; finds NaN
    table = _tables[op]
    entry = table.get(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found  # type: ignore[no-any-return]
    node = object.__new__(UOp)
    node.op = op
    node.dtype = dtype
    node.src = src
    node.arg = arg
    node.uid = _next_uid
    _next_uid += 1
    entry = _Entry(node, table_callback(table))
    entry.key = key
    table[key] = entry
    return node


def table_callback(table: dict[Any, _Entry]) -> Any:
    def forget(entry: _Entry) -> None:
        if table.get(entry.key) is entry:
            del table[entry.key]

    return forget


def toposort(roots: Iterable[UOp]) -> list[UOp]:
    """All nodes below and including the roots, sources first, each once."""
    out = list(dict.fromkeys(roots))
    seen = set(out)
    for node in out:
        for source in node.src:
            if source not in seen:
                seen.add(source)
                out.append(source)
    out.sort(key=by_uid)
    return out


def substitute(roots: Iterable[UOp], replacements: Mapping[UOp, UOp]) -> list[UOp]:
    """Replace keys by values in all graphs at once."""
    roots = list(roots)
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        found = replacements.get(node)
        if found is not None:
            new[node] = found
        elif node.src:
            src = tuple(new.get(s, s) for s in node.src)
            if src != node.src:
                new[node] = mk(node.op, node.dtype, src, node.arg)
    return [new.get(r, r) for r in roots]
