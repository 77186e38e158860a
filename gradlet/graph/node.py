"""The node: immutable, interned `UOp(op, dtype, src, arg)`, created by `mk`, walked without recursion."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from itertools import count
from operator import attrgetter
from threading import Lock
from typing import Any, Final
from weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

from gradlet.base.dtype import DType, as_scalar, dtypes
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.graph import infer
from gradlet.ops.arguments import integer
from gradlet.ops.elementwise import ElementwiseMixin
from gradlet.ops.movement import MovementMixin
from gradlet.ops.op import COMMUTATIVE, COMPARE, Op, VariableArg

by_uid: Final = attrgetter("uid")

# `kind` is the op's number, except that the constants 0 and 1 have their own, and that a node of two sources whose
# second is a constant has a bit set: so `x + 0`, `x * 1` and `(x * c) + y` are decided by looking up a signature.
KIND_ZERO: Final = 126
KIND_ONE: Final = 127
KIND_CONST_RIGHT: Final = 128
SIG_SAME: Final = 1 << 24

# Members of an enum are slow to reach through their class; the hot functions use these.
_CONST: Final = Op.CONST
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_IDIV: Final = Op.IDIV
_MOD: Final = Op.MOD
_CMPLT: Final = Op.CMPLT
_WHERE: Final = Op.WHERE
_BOOL: Final = dtypes.bool


class _Entry(ref):  # type: ignore[type-arg]
    """A weak reference to a node that knows its key, so that one callback per op can remove it."""

    __slots__ = ("key",)
    key: Any


class UOp(ElementwiseMixin, MovementMixin):
    """One operation of the graph. Two nodes with equal fields are the same object: compare with `is`.

    Attributes:
        op: which operation.
        dtype: type of its value (of its element, for addresses).
        src: the nodes it reads, in order.
        arg: the op's typed argument or None.
        uid: creation number; sources always have a smaller one, so sorting by uid is a topological order.
            It depends on history: never use it for keys, names or the order of emitted code.
        mask: bit `op` is set for every op in the subtree.
        kind: the op's number, KIND_ZERO or KIND_ONE for the constants 0 and 1, KIND_CONST_RIGHT added for `x op c`.
        sig: op | kind of the first source << 8 | kind of the second source << 16, and SIG_SAME if they are one node.
        stable: bit set for every rule set that is known to change nothing in the subtree.
        stamp, num: scratch of the traversal in progress.
    """

    __slots__ = (
        "op", "dtype", "src", "arg", "uid", "mask", "kind", "sig", "stable", "stamp", "num",
        "_shape", "_bounds", "_factor", "_ranges", "_open", "_extents", "_memory", "__weakref__",
    )  # fmt: skip
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    uid: int
    mask: int
    kind: int
    sig: int
    stable: int
    stamp: int
    num: int
    # Inferred once and kept; unset until asked for.
    _shape: tuple[int, ...]
    _factor: int
    # Of kernels, where most nodes are asked: None until then.
    _bounds: tuple[Any, Any]
    _ranges: tuple[UOp, ...] | None
    _open: frozenset[UOp] | None  # `_ranges` as a set
    _extents: tuple[UOp | None, ...]
    _memory: Any  # of a BUFFER: what it stands for, see runtime/buffer; unset until somebody needs it

    # construction
    @staticmethod
    def const(dtype: DType, value: Any) -> UOp:
        """A constant, exact in `dtype`; for vectors the scalar in every lane."""
        if value.__class__ is int and dtype.kind == "x":
            return mk(_CONST, dtype, (), value)
        return mk(_CONST, dtype, (), as_scalar(value, dtype))

    @staticmethod
    def variable(name: str, low: int, high: int) -> UOp:
        """An integer between `low` and `high` (both included) that is given at launch.

        Raises:
            ArgumentError: an empty range.
        """
        if not low <= high:
            raise ArgumentError(f"variable {name!r}: the range [{low}, {high}] is empty")
        return mk(Op.VARIABLE, dtypes.index, (), VariableArg(name, low, high))

    def bind(self, value: int) -> UOp:
        """This variable with a value.

        Raises:
            ArgumentError: not a variable, or a value outside its range.
        """
        if self.op is not Op.VARIABLE:
            raise ArgumentError(f"bind: {self.op.name} is no variable; make one with Variable(name, low, high)")
        value = integer(value, "bind", "value")
        if not self.arg.low <= value <= self.arg.high:
            raise ArgumentError(f"bind: {value} is outside [{self.arg.low}, {self.arg.high}] of {self.arg.name!r}")
        return mk(Op.BIND, dtypes.index, (self, UOp.const(dtypes.index, value)), None)

    def move(self, op: Op, arg: Any) -> UOp:
        """Apply a movement op."""
        return mk(op, self.dtype, (self,), arg)

    def coerce(self, value: Any) -> UOp:
        """A Python scalar as a constant of this node's dtype; nodes pass unchanged.

        Raises:
            DTypeError: a fraction for an integer node.
        """
        if value.__class__ is UOp:
            return value
        if value.__class__ is int and self.dtype.kind == "x":
            return mk(_CONST, self.dtype, (), value)
        if isinstance(value, float) and self.dtype.kind != "f" and not value.is_integer():
            raise DTypeError(f"constant {value!r} does not fit a node of type {self.dtype.name}; cast the node first")
        return UOp.const(self.dtype, value)

    def alu(self, op: Op, *others: UOp) -> UOp:
        """Apply an element-wise op."""
        if op in COMPARE:
            dtype = _BOOL.vec(self.dtype.count)
        elif op is _WHERE:
            dtype = others[0].dtype
        else:
            dtype = self.dtype
        return mk(op, dtype, (self, *others), None)

    # The frequent operators go to `mk` directly.
    def add(self, x: Any, reverse: bool = False, alpha: float = 1) -> UOp:
        """`self + alpha * x`, element by element."""
        if reverse or alpha != 1:
            return super().add(x, reverse, alpha)
        return mk(_ADD, self.dtype, (self, x if x.__class__ is UOp else self.coerce(x)), None)

    def mul(self, x: Any, reverse: bool = False) -> UOp:
        """`self * x`, element by element."""
        if reverse:
            return super().mul(x, reverse)
        return mk(_MUL, self.dtype, (self, x if x.__class__ is UOp else self.coerce(x)), None)

    def sub(self, x: Any, reverse: bool = False, alpha: float = 1) -> UOp:
        """`self - alpha * x`, element by element."""
        if reverse or alpha != 1:
            return super().sub(x, reverse, alpha)
        return mk(_ADD, self.dtype, (self, self.coerce(x).neg()), None)

    def neg(self) -> UOp:
        """`-self`; a constant is negated at once."""
        if self.op is _CONST:
            return UOp.const(self.dtype, -self.arg)
        return mk(_MUL, self.dtype, (self, UOp.const(self.dtype, -1)), None)

    def __add__(self, other: Any) -> UOp:
        return mk(_ADD, self.dtype, (self, other if other.__class__ is UOp else self.coerce(other)), None)

    def __mul__(self, other: Any) -> UOp:
        return mk(_MUL, self.dtype, (self, other if other.__class__ is UOp else self.coerce(other)), None)

    def __floordiv__(self, other: Any) -> UOp:
        return mk(_IDIV, self.dtype, (self, other if other.__class__ is UOp else self.coerce(other)), None)

    def __mod__(self, other: Any) -> UOp:
        return mk(_MOD, self.dtype, (self, other if other.__class__ is UOp else self.coerce(other)), None)

    def __lt__(self, other: Any) -> UOp:
        dtype = self.dtype
        other = other if other.__class__ is UOp else self.coerce(other)
        return mk(_CMPLT, _BOOL if dtype.count == 1 else _BOOL.vec(dtype.count), (self, other), None)

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
        if_true, if_false = like.coerce(if_true), like.coerce(if_false)
        return mk(_WHERE, like.dtype, (self, if_true, if_false), None)

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
            return self._shape
        except AttributeError:
            return infer.infer_shape(self)

    @property
    def ranges(self) -> tuple[UOp, ...]:
        """The RANGE nodes this value depends on and no REDUCE has closed, ordered by their number."""
        found = self._ranges
        return infer.ranges(self) if found is None else found

    def __repr__(self) -> str:
        sources = ", ".join(s.op.name if s.op is not _CONST else repr(s.arg) for s in self.src[:8])
        more = f", ... {len(self.src)} in all" if len(self.src) > 8 else ""
        arg = "" if self.arg is None else f" {self.arg!r}"
        return f"{self.op.name}[{self.dtype!r}]({sources}{more}){arg}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (_flatten(self),))


_new: Final = object.__new__
_next_uid: Final = count(1).__next__  # one C call: atomic between threads
_tables: Final[list[dict[Any, _Entry]]] = [{} for _ in range(KIND_ZERO)]


def _make_forget(table: dict[Any, _Entry]) -> Any:
    remove = _remove_dead_weakref  # names of the module may be gone when the interpreter ends, and nodes with it

    def forget(entry: _Entry) -> None:
        # The key may already belong to a younger node, and another thread may be giving it to one now: the look and
        # the removal are one step, as in the standard library's WeakValueDictionary, whose helper this is.
        remove(table, entry.key)

    return forget


# What `mk` needs of each op: its table, its bit, the callback of the table's entries.
_per_op: Final[list[tuple[dict[Any, _Entry], int, Any]]] = [
    (table, 1 << number, _make_forget(table)) for number, table in enumerate(_tables)
]


def count_nodes(op: Op) -> int:
    """How many nodes of an op are alive."""
    return len(_tables[op])


def mk(op: Op, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
    """The node with these fields: the living one if it exists, else a new one.

    A constant first source of a commutative op moves to the right, so that rules need one order only.
    """
    key: Any
    if op is _CONST:
        # Keeps 0.0 from -0.0 and 1 from 1.0 and True; finds NaN, which is not equal to itself.
        key = (arg if arg and arg == arg else repr(arg), arg.__class__, dtype)
    else:
        key = (src, arg, dtype)
    table, mask, forget = _per_op[op]
    entry = table.get(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found  # type: ignore[no-any-return]
    count = len(src)
    if count == 2:
        first, second = src
        if first.op is _CONST and op in COMMUTATIVE and second.op is not _CONST:
            return mk(op, dtype, (second, first), arg)
        mask |= first.mask | second.mask
        sig = op | first.kind << 8 | second.kind << 16
        if first is second:
            sig |= SIG_SAME
        kind: int = op | KIND_CONST_RIGHT if second.op is _CONST else op
    elif count == 1:
        first = src[0]
        mask |= first.mask
        sig = op | first.kind << 8
        kind = op
    elif count == 0:
        sig = op
        kind = op
        if op is _CONST:
            if not arg:
                kind = KIND_ZERO
            elif arg == 1:
                kind = KIND_ONE
    else:
        for source in src:
            mask |= source.mask
        first, second = src[0], src[1]
        sig = op | first.kind << 8 | second.kind << 16
        if first is second:
            sig |= SIG_SAME
        kind = op
    node = _new(UOp)
    node.op = op
    node.dtype = dtype
    node.src = src
    node.arg = arg
    node.uid = _next_uid()
    node.mask = mask
    node.kind = kind
    node.sig = sig
    node.stable = 0
    node.stamp = 0
    node._open = node._ranges = None
    node._bounds = None  # type: ignore[assignment]  # readers know that it is there
    new = _Entry(node, forget)
    new.key = key
    entry = table.setdefault(key, new)
    while entry is not new:
        # Another thread was faster, or the old node died and its callback has yet to run.
        found = entry()
        if found is not None:
            return found  # type: ignore[no-any-return]
        _remove_dead_weakref(table, key)
        entry = table.setdefault(key, new)
    return node


# Stamps are one scratch slot of all nodes: a traversal collects under this lock and calls nothing meanwhile.
stamp_lock: Final = Lock()
next_stamp: Final = count(1).__next__


def toposort(roots: Iterable[UOp]) -> list[UOp]:
    """All nodes below and including the roots, sources first, each once."""
    out: list[UOp] = []
    keep = out.append
    with stamp_lock:
        stamp = next_stamp()
        stack: list[UOp] = []
        push, pop = stack.append, stack.pop
        for node in roots:
            if node.stamp != stamp:
                node.stamp = stamp
                push(node)
        # Down the first sources at once, the others later: that is nearly the order of creation backwards, so
        # neighbours in memory are visited together and the reversed list is almost sorted.
        while stack:
            following: UOp | None = pop()
            while following is not None:
                keep(following)
                src = following.src
                following = None
                for source in src:
                    if source.stamp != stamp:
                        source.stamp = stamp
                        if following is None:
                            following = source
                        else:
                            push(source)
    out.reverse()
    out.sort(key=by_uid)
    return out


def substitute(roots: Iterable[UOp], replacements: Mapping[UOp, UOp]) -> list[UOp]:
    """Replace keys by values in all graphs at once; keys inside values are not replaced again."""
    roots = list(roots)
    new: dict[UOp, UOp] = {}
    for node in toposort(roots):
        found = replacements.get(node)
        if found is not None:
            new[node] = found
            continue
        for source in node.src:
            if source in new:
                new[node] = mk(node.op, node.dtype, tuple([new.get(s, s) for s in node.src]), node.arg)
                break
    return [new.get(r, r) for r in roots]


def _flatten(root: UOp) -> list[tuple[Op, DType, tuple[int, ...], Any]]:
    """The graph as a list of fields, sources as positions in the list: pickles without recursion on depth."""
    nodes = toposort((root,))
    number = {node: position for position, node in enumerate(nodes)}
    return [(n.op, n.dtype, tuple([number[s] for s in n.src]), n.arg) for n in nodes]


def _unpickle(rows: list[tuple[Op, DType, tuple[int, ...], Any]]) -> UOp:
    nodes: list[UOp] = []
    for op, dtype, sources, arg in rows:
        nodes.append(mk(op, dtype, tuple([nodes[s] for s in sources]), arg))
    return nodes[-1]


class no_gc:
    """Run a block without Python's cyclic garbage collector.

    Graphs are acyclic and freed by reference counts; the collector would only walk them again and again. What a block
    leaves behind counts as old where it is much, so that the next look at what is young does not walk all of it.
    """

    __slots__ = ("_enabled",)
    MUCH: Final = 20_000  # objects; the collector looks at those that are young once there are 700

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            if gc.get_count()[0] > no_gc.MUCH and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, whatever was young
            gc.enable()
