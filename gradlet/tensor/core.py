"""The lazy tensor: one graph node, type promotion, broadcasting, and the hooks that the operation mixins need."""

# The constructor `wrap` makes whatever class is public: it is Any to the type checker.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self
from weakref import ref

from gradlet.base.dtype import DType, dtypes, promote, to_dtype
from gradlet.base.errors import DeviceError, DTypeError
from gradlet.base.symint import Size
from gradlet.engine import execute
from gradlet.graph.allocation import counter_node
from gradlet.graph.extents import HAS_LIMIT, extents, fill
from gradlet.graph.node import UOp, mk
from gradlet.ops.arguments import Shape, broadcast_shapes, has_size, largest_sizes
from gradlet.ops.composed import ComposedMixin
from gradlet.ops.create import COUNTER
from gradlet.ops.op import (
    GatherArg,
    LargestArg,
    MergeArg,
    Op,
    ReduceAxesArg,
    ScanArg,
    ScatterArg,
    ShapeArg,
    ShrinkArg,
    WindowArg,
    identity_element,
)
from gradlet.runtime.buffer import Buffer, bind, buffer_of, new_buffer_node, protect
from gradlet.runtime.device import Device
from gradlet.tensor import hostdata, random_state, signs, symbolic, writes
from gradlet.tensor.nodes import distinct, no_leaf, node_cast, number_node, place_of, spread, type_for_number

_CONST: Final = Op.CONST
_RESHAPE: Final = Op.RESHAPE
_EXPAND: Final = Op.EXPAND
_CAST: Final = Op.CAST
_ADD: Final = Op.ADD
_MUL: Final = Op.MUL
_FDIV: Final = Op.FDIV
_POW: Final = Op.POW
_WHERE: Final = Op.WHERE
_CMPLT: Final = Op.CMPLT
_CMPNE: Final = Op.CMPNE
_BOOL: Final = dtypes.bool
_BITS: Final = 1 << Op.AND | 1 << Op.OR | 1 << Op.XOR | 1 << Op.SHL | 1 << Op.SHR
_FLOAT_UNARY: Final = frozenset({Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS})
_COPIES: Final = frozenset({Op.PAD, Op.WINDOW, Op.UNWINDOW})
_IN_PLACE: Final = 1 << Op.WRITE | 1 << Op.SCATTER

_new: Final = object.__new__
_live: Final[set[ref[Any]]] = set()
_live_add: Final = _live.add
_live_discard: Final = _live.discard
_counters: Final[dict[str, Any]] = {}
_tables: Final[dict[tuple[tuple[int, ...], DType, str], Any]] = {}
_class: Any = None


class LazyTensor(ComposedMixin):
    """A value described by a graph node. `Tensor` is the only class that is made; it registers itself as public."""

    __slots__ = ("uop", "grad", "is_param", "_place", "_view", "__weakref__")
    uop: UOp
    grad: Any
    is_param: bool
    # Device of the data; None for a value that any device can make.
    _place: str | None
    # For a view: the tensor it was taken from, and how. Writing into the view writes into that tensor.
    _view: writes.Link | None
    training: ClassVar[bool] = False
    # False for tensors whose value a jitted replay does not know any more.
    has_value: ClassVar[bool] = True

    # numpy leaves `array + tensor` to us.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init_subclass__(cls, public: bool = False) -> None:
        global _class
        if public:
            _class = cls

    # from and to the graph
    @staticmethod
    def of_node(node: UOp) -> Any:
        """The tensor of a graph node."""
        return wrap(node, place_of(node))

    @staticmethod
    def all_live() -> list[Any]:
        """Every tensor alive."""
        return [t for r in list(_live) if (t := r()) is not None and t.has_value]

    # properties
    @property
    def shape(self) -> Shape:
        """Sizes of the axes.

        >>> Tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        node = self.uop
        return symbolic.shape_of(node) if node.mask & HAS_LIMIT else node.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements.

        >>> Tensor([1.5]).dtype
        dtypes.float32
        """
        return self.uop.dtype

    @property
    def device(self) -> str:
        """Where the value is computed.

        >>> Tensor([1.5], device="CPU").device
        'CPU'
        """
        return Device.DEFAULT if self._place is None else self._place

    @property
    def place(self) -> str | None:
        """Device that holds the data; None for a value that any device can make."""
        return self._place

    @property
    def is_realized(self) -> bool:
        """Whether the value is in memory.

        >>> Tensor([1.5]).is_realized, (Tensor([1.5]) + 1).is_realized
        (True, False)
        """
        return writes.strip(self.uop)[0].op is Op.BUFFER

    def element_size(self) -> int:
        """Bytes of one element.

        >>> Tensor([1.5]).element_size()
        4
        """
        return self.dtype.itemsize

    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> Tensor.zeros(2, 3).nbytes()
        24
        """
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floats.

        >>> Tensor([1]).is_floating_point()
        False
        """
        return self.dtype.is_float

    # hooks of the mixins
    def coerce(self, value: Any) -> Self:
        """A number as a constant that fits this tensor; arrays become tensors, tensors pass.

        Raises:
            DTypeError: something that is no number.
        """
        kind = value.__class__
        if kind is _class:
            return value
        dtype = self.uop.dtype
        if kind is float:
            if dtype.kind != "f":
                dtype = dtypes.default_float
            elif dtype.itemsize == 1:
                dtype = type_for_number(value, dtype)
        elif kind is int:
            if dtype.kind != "f" or dtype.itemsize == 1:
                dtype = type_for_number(value, dtype)
        elif kind is not bool:
            return coerce_other(self, value)
        return wrap(number_node(value, dtype), None)

    def alu(self, op: Op, *others: Any) -> Self:
        """Apply an element-wise op after type promotion and broadcasting.

        Raises:
            ShapeError: shapes that do not broadcast.
            DTypeError: types that the op does not take.
            DeviceError: operands on different devices.
        """
        if not others:
            return self._unary(op)
        if op is _WHERE:
            return self._where(*others)
        other: Any = others[0]
        a, b = self.uop, other.uop
        place = self._place
        if other._place is not place:
            place = common_place(self, other, op)
        dtype = a.dtype
        if b.dtype is not dtype:
            if signs.is_needed(op, dtype, b.dtype):
                return signs.compare(op, self, other)  # type: ignore[no-any-return]
            dtype = promote(dtype, b.dtype, op.name.lower())
            a, b = node_cast(a, dtype), node_cast(b, dtype)
        if dtype.kind == "f":
            if _BITS >> op & 1:
                raise DTypeError(f"{op.name.lower()}: bits of {dtype} are not defined; cast to an integer or bitcast")
        elif dtype is _BOOL and (op is _ADD or op is _MUL):
            op = Op.OR if op is _ADD else Op.AND
        elif op is _FDIV or op is _POW:
            dtype = dtypes.default_float
            a, b = node_cast(a, dtype), node_cast(b, dtype)
        shape, right = a.shape, b.shape
        if (a.mask | b.mask) & HAS_LIMIT:
            symbolic.check_sizes((a, b), op)
        if shape != right and b.op is not _CONST:
            left, shape = shape, right if a.op is _CONST else broadcast_shapes((shape, right), op.name.lower())
            a, b = spread(a, left, shape), spread(b, right, shape)
        node = mk(op, _BOOL if _CMPLT <= op <= _CMPNE else dtype, (a, b), None)
        node._shape = shape  # known here; inferring it again would cost as much as the rest
        return wrap(node, place)

    def _unary(self, op: Op) -> Self:
        node = self.uop
        if node.dtype.kind != "f":
            if op is Op.TRUNC:
                return self.as_value()
            if op in _FLOAT_UNARY:
                node = node_cast(node, dtypes.default_float)
        result = mk(op, node.dtype, (node,), None)
        result._shape = node.shape
        return wrap(result, self._place)

    def _where(self, if_true: Any, if_false: Any) -> Self:
        condition = self if self.uop.dtype is _BOOL else self.ne(0)
        place = common_place(self, if_true, Op.WHERE)
        if if_false._place is not place:
            place = common_place(if_false, if_true if if_true._place is not None else self, Op.WHERE)
        dtype = promote(if_true.dtype, if_false.dtype, "where")
        nodes = (condition.uop, node_cast(if_true.uop, dtype), node_cast(if_false.uop, dtype))
        symbolic.check_sizes(nodes, Op.WHERE)
        shapes = [n.shape for n in nodes]
        shape = broadcast_shapes(shapes, "where")
        src = tuple([spread(n, s, shape) for n, s in zip(nodes, shapes)])
        node = mk(_WHERE, dtype, src, None)
        node._shape = shape
        return wrap(node, place)

    def where(self, x: Any, y: Any) -> Self:
        """`x` where this is True (not zero), else `y`; all three broadcast.

        Raises:
            ShapeError: shapes that do not broadcast.

        >>> (Tensor([1, 5]) > 2).where(Tensor([10, 20]), 0).tolist()
        [0, 20]
        """
        if isinstance(x, LazyTensor):
            return self._where(x, x.coerce(y))
        if isinstance(y, LazyTensor):
            return self._where(y.coerce(x), y)
        kinds = [dtypes.of(v) for v in (x, y) if isinstance(v, (bool, int, float))]
        if len(kinds) < 2:
            return self._where(self.coerce(x), self.coerce(y))
        dtype = promote(kinds[0], kinds[1], "where")
        return self._where(wrap(UOp.const(dtype, x), None), wrap(UOp.const(dtype, y), None))

    def move(self, op: Op, arg: Any) -> Self:
        """Apply a movement op; the result is a view through which this tensor can be written."""
        node = self.uop
        if node.mask & HAS_LIMIT:
            result = self._move_sizes(op, arg)
            if symbolic.is_symbolic(node) or symbolic.is_symbolic(result.uop):
                return result
        else:
            moved = mk(op, node.dtype, (node,), arg)
            if op is _RESHAPE or op is _EXPAND:
                moved._shape = arg.shape
            result = wrap(moved, self._place)
        if op not in _COPIES:
            view = self._view
            if view is not None and not writes.is_attached(view):
                view = self._view = None
            result._view = writes.Link(ref(self), op, arg, view)
        return result

    def _move_sizes(self, op: Op, arg: Any) -> Self:
        """A movement op on a value that may have sizes known only at launch; it is not written through."""
        node = self.uop
        shape = arg.shape if isinstance(arg, ShapeArg) else None
        if shape is not None:
            arg = ShapeArg(largest_sizes(shape))
        elif isinstance(arg, ShrinkArg):
            arg = ShrinkArg(tuple([largest_sizes(interval) for interval in arg.bounds]))  # type: ignore[misc]
        elif isinstance(arg, WindowArg):
            arg = WindowArg(arg.axis, arg.window_axis, arg.stride, arg.dilation, *largest_sizes((arg.size,)))
        node = mk(op, node.dtype, (node,), arg)
        extents(node)
        return wrap(node if shape is None else symbolic.with_shape(node, shape), self._place)

    def with_sizes(self, shape: tuple[Any, ...]) -> Self:
        """Expanded to a shape with sizes that are known only at launch."""
        node, whole = self.uop, largest_sizes(shape)
        if node.shape != whole:
            node = mk(_EXPAND, node.dtype, (no_leaf(node),), ShapeArg(whole))
        return wrap(symbolic.with_shape(node, shape), self._place)

    def whole_axes(self, axes: Sequence[int]) -> Self:
        """Axes whose size is known only at launch as ones of the largest size, with zeros past their own."""
        node = self.uop
        keep = tuple([None if axis in axes else size for axis, size in enumerate(extents(node))])
        return wrap(fill(node, keep), self._place)

    def flip(self, *axis: Any) -> Self:
        """Let axes run backwards. The result is a value of its own, not a view.

        Raises:
            IndexingError: no such axis.
            ArgumentError: an axis given twice.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        result = super().flip(*axis)
        if result is self:
            return wrap(self.uop, self._place)
        result._view = None
        return result

    def reduce_axes(self, op: Op, axes: Shape) -> Self:
        """Combine over axes, which the result lacks."""
        node = self.uop
        return wrap(mk(Op.REDUCE_AXES, node.dtype, (no_leaf(node),), ReduceAxesArg(op, axes)), self._place)

    def constant_like(self, value: Any, shape: Shape | None = None, dtype: DType | None = None) -> Self:
        """The same value everywhere."""
        chosen = self.uop.dtype if dtype is None else dtype
        return self.constant(value, self.shape if shape is None else shape, chosen, self._place, False)

    @classmethod
    def constant(cls, value: Any, shape: Shape, dtype: DType, device: str | None, own: bool) -> Self:
        """The same value everywhere; with `own` a float result is distinct from every other, for gradients."""
        if has_size(shape):
            whole = cls.constant(value, largest_sizes(shape), dtype, device, own)
            return wrap(symbolic.with_shape(whole.uop, shape), whole._place)
        node = UOp.const(dtype, value)
        if own and dtype.kind == "f":
            node = distinct(node)
        place = foreign(device)
        if place is not None:
            node = computed_on(place, spread(node, (), (), True))
        return wrap(spread(node, (), shape, True), place)

    @classmethod
    def counter(cls, size: int, device: str | None) -> Self:
        """0, 1, ... size - 1 as int32, for size <= COUNTER: the beginning of a table that is made once a device."""
        name = Device.DEFAULT if device is None else Device.canonicalize(device)
        table = _counters.get(name)
        if table is None:
            node = counter_node(name, COUNTER)
            buffer_of(node).copyin(hostdata.pack(range(COUNTER), dtypes.int32))
            table = _counters[name] = wrap(node, name)
        return table.shrink(((0, size),))

    @classmethod
    def fixed_table(cls, values: tuple[int, ...], dtype: DType, device: str | None) -> Self:
        """Numbers that are always the same, in memory that is filled once a device; also inside a jitted function."""
        name = Device.DEFAULT if device is None else Device.canonicalize(device)
        key = (values, dtype, name)
        table = _tables.get(key)
        if table is None:
            table = _tables[key] = in_memory(hostdata.pack(values, dtype), dtype, (len(values),), name, True)
        return table

    @classmethod
    def next_draw(cls) -> tuple[Self, Self, Self]:
        """Key words and number of the next random draw, as uint32 tensors without axes; takes the draw."""
        low, high, number = random_state.next_draw()
        return tuple(wrap(node_cast(n, dtypes.uint32), None) for n in (low, high, number))

    def same_dtype(self, others: Sequence[Any], what: str = "promotion") -> tuple[Self, ...]:
        """This and the others in their common type, checked to lie on one device."""
        parts = [self, *[self.coerce(o) for o in others]]
        dtype, place = self.dtype, self
        for part in parts[1:]:
            dtype = promote(dtype, part.dtype, what)
            common_place(place, part, what)
            place = part if place._place is None else place
        return tuple([p.cast(dtype) for p in parts])

    # types
    def cast(self, dtype: DType | str) -> Self:
        """Convert the values to another type: floats to integers truncate and saturate, NaN gives 0.

        Raises:
            DTypeError: no such type.

        >>> Tensor([1.7, -1.7]).cast("int32").tolist()
        [1, -1]
        """
        node = self.uop
        return self if dtype is node.dtype else wrap(node_cast(node, to_dtype(dtype)), self._place)

    # arithmetic that depends on the type
    def neg(self) -> Self:
        """`-self`; unsigned integers wrap, a bool becomes an integer.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        node = self.uop
        if node.dtype is _BOOL:
            node = node_cast(node, dtypes.default_int)
        if node.op is _CONST:
            return wrap(UOp.const(node.dtype, -node.arg), self._place)
        result = mk(_MUL, node.dtype, (node, number_node(-1, node.dtype)), None)
        result._shape = node.shape
        return wrap(result, self._place)

    def bitwise_not(self) -> Self:
        """All bits flipped; logical not for bool.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        flipped = UOp.const(self.dtype, True if self.dtype is _BOOL else -1)
        return self.alu(Op.XOR, wrap(flipped, None))

    def floordiv(self, other: Any) -> Self:
        """Division rounded down; an integer divided by zero is 0. See `float_divmod` for floats.

        >>> Tensor([7, -7]).floordiv(2).tolist()
        [3, -4]
        """
        divisor = self.coerce(other)
        if self.dtype.is_float or divisor.dtype.is_float:
            return self.float_divmod(divisor)[0]
        return self._integers().alu(Op.IDIV, divisor._integers())

    def mod(self, x: Any, reverse: bool = False) -> Self:
        """Remainder with the sign of the divisor; an integer modulo zero is 0. See `float_divmod` for floats.

        >>> Tensor([7, -7]).mod(3).tolist()
        [1, 2]
        """
        divisor = self.coerce(x)
        if reverse:
            return divisor.mod(self)
        if self.dtype.is_float or divisor.dtype.is_float:
            return self.float_divmod(divisor)[1]
        return self._integers().alu(Op.MOD, divisor._integers())

    def _integers(self) -> Self:
        return self.cast(dtypes.default_int) if self.dtype is _BOOL else self

    def __eq__(self, other: object) -> Any:
        return self.eq(other) if is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if is_operand(other) else NotImplemented

    def gather_rows(self, index: Any, batch: int = 0) -> Self:
        """Rows by number along the first axis behind `batch` shared ones; 0 outside."""
        place = common_place(self, index, Op.GATHER)
        if self.shape[batch] == 0 or 0 in index.shape:
            return self.constant(0, index.shape + self.shape[batch + 1 :], self.dtype, place, False)
        arg = GatherArg(batch) if batch else None
        return wrap(symbolic.checked(mk(Op.GATHER, self.dtype, (no_leaf(self.uop), no_leaf(index.uop)), arg)), place)

    def scatter_rows(self, index: Any, values: Any, op: Op | None, batch: int = 0) -> Self:
        """Rows along the first axis behind `batch` shared ones updated in index order."""
        place = common_place(self, index, Op.SCATTER)
        place = common_place(self if self._place is not None else index, values, Op.SCATTER)
        nodes = tuple([no_leaf(n) for n in (self.uop, index.uop, values.uop)])
        return wrap(symbolic.checked(mk(Op.SCATTER, self.dtype, nodes, ScatterArg(op, batch))), place)

    def running(self, op: Op, axis: int, exclusive: bool = False, factor: Any = None) -> Self:
        """Running combination along an axis; MULADD: what came before times `factor`, plus this."""
        start = UOp.const(self.dtype, 0 if op is Op.MULADD else identity_element(op, self.dtype))
        nodes = [no_leaf(self.uop), start] if factor is None else [no_leaf(self.uop), start, no_leaf(factor.uop)]
        place = self._place if factor is None else common_place(self, factor, Op.SCAN)
        return wrap(symbolic.checked(mk(Op.SCAN, self.dtype, tuple(nodes), ScanArg(op, axis, exclusive))), place)

    def merge_pairs(self, half: bool = False) -> Self:
        """Pairs of rows in descending order, axes [..., 2, n], as one row each."""
        return wrap(symbolic.checked(mk(Op.MERGE, self.dtype, (no_leaf(self.uop),), MergeArg(half))), self._place)

    def largest(self, count: int) -> Self:
        """The largest distinct values along the last axis, descending."""
        return wrap(symbolic.checked(mk(Op.LARGEST, self.dtype, (no_leaf(self.uop),), LargestArg(count))), self._place)


def wrap(node: UOp, place: str | None) -> Any:
    """A tensor of this node, whose data is on `place`."""
    tensor = _new(_class)
    tensor.uop = node
    tensor.grad = None
    tensor.is_param = False
    tensor._place = place
    tensor._view = None
    _live_add(ref(tensor, _live_discard))
    return tensor


def adopt(tensor: LazyTensor, source: LazyTensor) -> None:
    """Make a new, empty tensor object hold the value of another."""
    tensor.uop = source.uop
    tensor.grad = None
    tensor.is_param = False
    tensor._place = source._place
    tensor._view = None
    _live_add(ref(tensor, _live_discard))


def is_operand(value: Any) -> bool:
    """Whether arithmetic with this value means something."""
    return isinstance(value, (LazyTensor, bool, int, float, UOp, Size)) or hasattr(value, "__array__")


def coerce_other(like: LazyTensor, value: Any) -> Any:
    """The rarer operands: arrays, numpy scalars, graph nodes, subclasses of Python numbers."""
    if isinstance(value, LazyTensor):
        return value
    if isinstance(value, Size):
        value = symbolic.size_node(value)
    if isinstance(value, UOp):
        own = like.uop.dtype
        dtype = own if own.kind == "f" or own is dtypes.uint64 else promote(own, dtypes.int32)
        return wrap(node_cast(value, dtype) if value.dtype.kind == "x" else value, None)
    if isinstance(value, (bool, int, float)):
        return like.coerce(
            bool(value) if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
        )
    if hasattr(value, "__array__"):
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            return like.coerce(value.item())
        return _class(value, like._place)
    raise DTypeError(f"an operand of type {type(value).__name__} is no number or tensor; make it a Tensor first")


def common_place(first: Any, second: Any, op: Op | str) -> str | None:
    """The device of both operands of an op, or of a method by its name.

    Raises:
        DeviceError: they are on different ones.
    """
    a, b = first._place, second._place
    if a == b or b is None:
        return a
    if a is None:
        return b
    name = op if isinstance(op, str) else op.name.lower()
    raise DeviceError(f"{name}: operands are on {a} and {b}; move one with .to({a!r})")


def foreign(device: str | None) -> str | None:
    """The device if it is not the default one, on which constants are computed by themselves."""
    if device is None:
        return None
    name = Device.canonicalize(device)
    return None if name == Device.DEFAULT else name


def zero_on(place: str) -> Any:
    """An int32 zero without axes that lives on a device: what is added to it is computed there."""
    return _class.counter(1, place).reshape(())


def computed_on(place: str, node: UOp) -> UOp:
    """A value that any device can make, made on this one: what is added to a value on a device is computed there."""
    there = spread(zero_on(place).cast(node.dtype).uop, (), node.shape, True)
    return mk(Op.XOR if node.dtype is _BOOL else _ADD, node.dtype, (there, node), None)


def in_memory(memory: Any, dtype: DType, shape: Shape, device: str, copy: bool) -> Any:
    """A tensor in new memory that holds these bytes, or over the given memory itself."""
    size = 1
    for extent in shape:
        size *= extent
    node = new_buffer_node(device, dtype, size)
    if copy or size == 0:
        buffer_of(node).copyin(memory)
    else:
        bind(node, Buffer.over(device, dtype, size, memory))
        protect(node)
    return wrap(mk(_RESHAPE, dtype, (node,), ShapeArg(shape)) if shape != (size,) else node, device)


def from_host(data: hostdata.HostData, device: str | None, copy: bool) -> Any:
    """A tensor of host data.

    Raises:
        JitError: inside a jitted function.
    """
    execute.refuse_in_capture("making a tensor from host data", "make it outside and pass it as an argument", once=True)
    return in_memory(data.memory, data.dtype, data.shape, Device.canonicalize(device), copy)
