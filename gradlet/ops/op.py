"""The `Op` enum, one `OpInfo` row each, and the typed argument of every op that has one.

Arguments are named tuples of ints, strings, ops and other interned values: hashing and comparing them stays in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

from gradlet.base.dtype import DType
from gradlet.base.settings import STRICT_FLOAT
from gradlet.ops.lanearguments import BarrierArg as BarrierArg
from gradlet.ops.lanearguments import BoxArg as BoxArg
from gradlet.ops.lanearguments import CopyArg as CopyArg
from gradlet.ops.lanearguments import RingArg as RingArg
from gradlet.ops.lanearguments import SpecialArg as SpecialArg
from gradlet.ops.lanearguments import TurnArg as TurnArg
from gradlet.ops.lanearguments import WaitArg as WaitArg
from gradlet.ops.lanearguments import WgmmaArg as WgmmaArg
from gradlet.ops.opt import Opt


class Op(IntEnum):
    """Every operation of the one graph, from Tensor to instruction. The order of groups is the order of stages."""

    # leaves
    CONST = 1
    BUFFER = 2
    VARIABLE = 3
    BIND = 4
    # movement: no arithmetic, only a map of indices
    RESHAPE = 5
    EXPAND = 6
    PERMUTE = 7
    PAD = 8
    SHRINK = 9
    FLIP = 10
    STRIDE = 11
    WINDOW = 12
    UNWINDOW = 13
    # tensor operations with their own iteration
    REDUCE_AXES = 14
    GATHER = 15
    SCATTER = 16
    # placement and effects
    CONTIGUOUS = 17
    COPY = 18
    DETACH = 19
    WRITE = 20
    # element-wise, unary
    CAST = 21
    BITCAST = 22
    SQRT = 23
    EXP = 24
    EXP2 = 25
    LOG = 26
    LOG2 = 27
    SIN = 28
    TRUNC = 29
    COS = 69
    # element-wise, binary
    ADD = 30
    MUL = 31
    FDIV = 32
    IDIV = 33
    MOD = 34
    MAX = 35
    MIN = 36
    POW = 37
    AND = 38
    OR = 39
    XOR = 40
    SHL = 41
    SHR = 42
    CMPLT = 43
    CMPEQ = 44
    CMPNE = 45
    # element-wise, ternary
    WHERE = 46
    MULADD = 47
    DOT = 75
    DOT16 = 90
    LOOKUP = 91
    PREFIX = 92
    # kernel: ranges, memory
    PARAM = 48
    RANGE = 49
    INDEX = 50
    LOAD = 51
    STORE = 52
    REDUCE = 53
    SINK = 54
    # vectors
    VECTORIZE = 55
    EXTRACT = 56
    REDUCE_LANES = 57
    SHUFFLE = 70
    # memory hints
    PREFETCH = 71
    # linear program
    ACC = 58
    UPDATE = 59
    END = 60
    SPECIAL = 61
    ACROSS = 100
    BARRIER = 101
    PICK = 102
    WGMMA = 103
    COPY_ASYNC = 104
    COMMIT = 105
    WAIT = 106
    BOX = 107
    RING = 108
    TURN = 109
    PASS_ON = 115
    COPY_BOX = 116
    STORE_BOX = 117
    # tensor operations whose iterations depend on one another
    SCAN = 62
    MERGE = 63
    LARGEST = 64
    # kernel: values carried from one iteration to the next
    CARRY = 65
    NEXT = 66
    # an axis whose size is known only at launch
    LIMIT = 67
    # a value with a gradient of its own
    DERIVATIVE = 68
    # a kernel that the caller wrote
    CUSTOM = 72
    # kernel: copies near the core
    LOCAL = 80
    AFTER = 81


class AxisKind(IntEnum):
    """What a RANGE is: free, closed by a reduce, sequential, or how the schedule runs it."""

    LOOP = 0  # an output loop; iterations are independent
    REDUCE = 1  # closed by a REDUCE
    ORDERED = 2  # iterations run one after another, in order (scatter)
    PARALLEL = 3  # split over threads (CPU; at most one a kernel) or workgroups (GPU)
    THREAD = 4  # lanes of a workgroup (GPU only)
    UNROLL = 5  # replaced by copies of its body
    VECTOR = 6  # replaced by vector lanes
    TENSOR = 7  # summed by a matrix unit (a reduce range)
    WALK = 8  # the blocks of a GPU's grid that one workgroup computes one after another
    ROLE = 9  # lanes of a workgroup that have a program of their own


class ShapeArg(NamedTuple):
    """RESHAPE and EXPAND: the new shape."""

    shape: tuple[int, ...]


class AxesArg(NamedTuple):
    """PERMUTE: the source axis of each result axis. FLIP: the axes that run backwards."""

    axes: tuple[int, ...]


class PadArg(NamedTuple):
    """PAD: zeros (False) added before and after, an entry an axis; entries are >= 0."""

    pads: tuple[tuple[int, int], ...]


class ShrinkArg(NamedTuple):
    """SHRINK: the kept half-open interval of each axis."""

    bounds: tuple[tuple[int, int], ...]


class StrideArg(NamedTuple):
    """STRIDE: result[i] = source[i * step], a positive step an axis; result size is ceil(size / step)."""

    steps: tuple[int, ...]


class WindowArg(NamedTuple):
    """WINDOW and UNWINDOW: two axes tied by position.

    WINDOW:   result[.., o, .., k, ..] = source[.., o * stride + k * dilation, .., k, ..]
    UNWINDOW: result[.., i, .., k, ..] = source[.., (i - k * dilation) / stride, .., k, ..] where that is an integer
              inside the source, else 0: the adjoint of WINDOW.
    `size` is the result's size on `axis`; `window_axis` (another axis, any order) keeps its size.
    """

    axis: int
    window_axis: int
    stride: int
    dilation: int
    size: int


class ReduceAxesArg(NamedTuple):
    """REDUCE_AXES: combine with ADD, MUL, MAX or MIN over `axes` (sorted), which the result lacks.

    Of the axes in `limited` (sorted, some of `axes`) only the first positions count: how many says a source for each.
    """

    op: Op
    axes: tuple[int, ...]
    limited: tuple[int, ...] = ()


class LimitArg(NamedTuple):
    """LIMIT: the axis whose size is a variable; `filled`: it is whole again, with zeros past that size."""

    axis: int
    filled: bool = False


class ReduceArg(NamedTuple):
    """REDUCE (over its range sources) and REDUCE_LANES: the combining op."""

    op: Op


class PrefixArg(NamedTuple):
    """PREFIX: the combining op, and whether each lane leaves out its own value."""

    op: Op
    exclusive: bool = False


class ScatterArg(NamedTuple):
    """SCATTER: how a value meets what is there: ADD, MUL, MAX, MIN, or None to replace (the last one in order wins).

    `batch` leading axes are shared by target, index and values: every batch element has its own rows.
    """

    op: Op | None
    batch: int = 0


class GatherArg(NamedTuple):
    """GATHER (or no arg, for 0): how many leading axes table, index and result share."""

    batch: int


class ScanArg(NamedTuple):
    """SCAN: ADD, MUL, MAX, MIN or MULADD along an axis; exclusive leaves out an element's own value."""

    op: Op
    axis: int
    exclusive: bool = False


class MergeArg(NamedTuple):
    """MERGE: whether only the larger half of each pair of rows is kept."""

    half: bool = False


class LargestArg(NamedTuple):
    """LARGEST: how many values are taken."""

    taken: int


class BufferArg(NamedTuple):
    """BUFFER: realised memory of `size` elements. `number` makes each allocation its own node."""

    number: int
    size: int
    device: str


class DerivativeArg(NamedTuple):
    """DERIVATIVE: the rule, gradient of the node -> gradient of each input (None: it has none).

    Without a rule the derivative is the ordinary one, of the value computed once more from the inputs. With
    `takes_inputs` the rule is called with the inputs behind the gradient.
    """

    name: str
    rule: Callable[..., Sequence[Any]] | None
    takes_inputs: bool = False


class DeviceArg(NamedTuple):
    """COPY: the device to copy to."""

    device: str


class CustomArg(NamedTuple):
    """CUSTOM: a kernel that was written by hand, and which of its results this is.

    Attributes:
        kernel: the SINK of the KERNEL stage.
        slots: for each PARAM slot the number of its array: the results first, then the sources of the node.
        output: the number of this result.
        shapes: the shape of every result.
        types: the element type of every result.
        whole: for every result whether the kernel is known to store each of its elements; the others begin as zeros.
        device: where the kernel runs.
    """

    kernel: Any
    slots: tuple[int, ...]
    output: int
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[DType, ...]
    whole: tuple[bool, ...]
    device: str


class VariableArg(NamedTuple):
    """VARIABLE: a named integer known to lie in [low, high], given at launch."""

    name: str
    low: int
    high: int


class ParamArg(NamedTuple):
    """PARAM: kernel argument number `slot`, a pointer to `size` elements."""

    slot: int
    size: int


class LocalArg(NamedTuple):
    """LOCAL: its number inside the kernel, how many elements it has, whether every lane of a GPU has its own.

    A private array is registers: a lane reads only what it has stored itself, at places that are constants.
    """

    number: int
    size: int
    private: bool = False


class RangeArg(NamedTuple):
    """RANGE: its number inside the kernel and what kind it is."""

    number: int
    kind: AxisKind


class LaneArg(NamedTuple):
    """EXTRACT: which lane."""

    lane: int


class ShuffleArg(NamedTuple):
    """SHUFFLE: which lane of the sources, counted through, each lane of the result is."""

    picks: tuple[int, ...]


class StoreArg(NamedTuple):
    """STORE: whether it goes past the caches (a hint, kept only where it fills aligned vectors)."""

    stream: bool = False


class PrefetchArg(NamedTuple):
    """PREFETCH: the nearest cache to bring a line to, 1 to 3."""

    level: int = 1


class AccArg(NamedTuple):
    """ACC: number of the accumulator inside the kernel."""

    number: int


class AcrossArg(NamedTuple):
    """ACROSS: the combining op, how many lanes of the workgroup take part, and how far apart they are."""

    op: Op
    lanes: int
    stride: int = 1


class KernelArg(NamedTuple):
    """SINK: the kernel's name and its schedule; `opts` is None until the heuristic or search has chosen."""

    name: str
    opts: tuple[Opt, ...] | None = None


class BodyUse(NamedTuple):
    """One run of a body inside a launch.

    `body` is which source of the launch's SINK. `slots` has for each PARAM slot of the body the launch's buffer slot,
    or -1 - k for scratch array k. `variables` has for each variable of the body (v0, v1, ...) the number of the
    launch's variable.
    """

    body: int
    slots: tuple[int, ...]
    variables: tuple[int, ...] = ()


# One use is an ordinary kernel. Several are a region: every body has one PARALLEL range, of one size, the blocks; for
# each block, in any order and on any core, the bodies run one after another on one core.
LaunchSegment: TypeAlias = tuple[BodyUse, ...]
# Segments of a stage are independent. A stage begins when the one before has ended everywhere.
LaunchStage: TypeAlias = tuple[LaunchSegment, ...]


class LaunchArg(NamedTuple):
    """SINK of bodies: several kernels in one launch, its stages in order.

    `scratch` has the bytes of each scratch array. A core has its own; it holds values from one body to the next of the
    same block and nothing when a block begins.
    """

    name: str
    stages: tuple[LaunchStage, ...]
    scratch: tuple[int, ...] = ()


class Stage(IntEnum):
    """Where in the pipeline a graph is; each has its own spec."""

    TENSOR = 0
    KERNEL = 1
    LINEAR = 2


T, K, L = Stage.TENSOR, Stage.KERNEL, Stage.LINEAR
ANY: Final = (T, K, L)


class OpInfo(NamedTuple):
    """What the rest of the compiler may ask about an op."""

    arity: int | None  # sources; None when it varies
    stages: tuple[Stage, ...]
    arg: type | None
    doc: str
    commutative: bool = False
    associative: bool = False


OP_INFO: Final[dict[Op, OpInfo]] = {
    Op.CONST: OpInfo(0, ANY, object, "a Python scalar, exact in its dtype; has shape () and broadcasts to any shape"),
    Op.BUFFER: OpInfo(0, (T,), BufferArg, "realised memory, shape (size,)"),
    Op.VARIABLE: OpInfo(0, ANY, VariableArg, "an integer given at launch; shape (), broadcasts"),
    Op.BIND: OpInfo(2, (T,), None, "(variable, const): the variable with this launch's value; shape (), broadcasts"),
    Op.RESHAPE: OpInfo(1, (T,), ShapeArg, "same elements in row-major order under a new shape"),
    Op.EXPAND: OpInfo(1, (T,), ShapeArg, "axes of size 1 repeated; rank does not change"),
    Op.PERMUTE: OpInfo(1, (T,), AxesArg, "axes reordered"),
    Op.PAD: OpInfo(1, (T,), PadArg, "zeros around"),
    Op.SHRINK: OpInfo(1, (T,), ShrinkArg, "a box of the source"),
    Op.FLIP: OpInfo(1, (T,), AxesArg, "axes run backwards"),
    Op.STRIDE: OpInfo(1, (T,), StrideArg, "every step-th element"),
    Op.WINDOW: OpInfo(1, (T,), WindowArg, "sliding windows (convolution, pooling)"),
    Op.UNWINDOW: OpInfo(1, (T,), WindowArg, "adjoint of WINDOW"),
    Op.REDUCE_AXES: OpInfo(None, (T,), ReduceAxesArg, "(source, *sizes): combine over axes; of a limited axis only "
                           "the first positions, as many as its size says"),
    Op.LIMIT: OpInfo(2, (T,), LimitArg, "(source, size): an axis has a size that is known at launch; the shape has "
                     "the largest it may be, and what lies past the size means nothing; filled: it is 0"),
    Op.GATHER: OpInfo(2, (T,), GatherArg, "(table [*B, N, *rest], index [*B, *I]) -> [*B, *I, *rest]; an index outside "
                      "[0, N) gives 0"),
    Op.SCATTER: OpInfo(3, (T,), ScatterArg, "(target [*B, N, *rest], index [*B, *I], values [*B, *I, *rest]) -> target "
                       "updated row by row in index order; an index outside [0, N) is skipped"),
    Op.SCAN: OpInfo(None, (T,), ScanArg, "(source, start[, factor]): running combination along an axis, beginning with "
                    "start (a scalar, or a value a row); MULADD: what came before times factor, plus source"),
    Op.MERGE: OpInfo(1, (T,), MergeArg, "[*rest, 2, n], rows in descending order -> [*rest, 2 n], both in one order; "
                    "a few rows of one element each are put in order at once"),
    Op.LARGEST: OpInfo(1, (T,), LargestArg, "the largest distinct values along the last axis, descending; those that "
                       "do not exist are the least of the type; the greatest of the type is never taken"),
    Op.CONTIGUOUS: OpInfo(1, (T,), None, "materialise here"),
    Op.COPY: OpInfo(1, (T,), DeviceArg, "same values on another device"),
    Op.DETACH: OpInfo(1, (T,), None, "same values, no gradient"),
    Op.CUSTOM: OpInfo(None, (T,), CustomArg, "(*arrays): one result of a kernel that the caller wrote over them"),
    Op.DERIVATIVE: OpInfo(None, (T,), DerivativeArg, "(value, *inputs): the value, with a gradient of its own"),
    Op.WRITE: OpInfo(3, (T,), None, "(base, view of base by movement ops, value shaped like view) -> base after the "
                     "write; in place when nothing else needs the old values"),
    Op.CAST: OpInfo(1, ANY, None, "convert the value to dtype; float to int truncates and saturates, NaN gives 0"),
    Op.BITCAST: OpInfo(1, ANY, None, "same bits read as dtype of the same size"),
    Op.SQRT: OpInfo(1, ANY, None, "square root"),
    Op.EXP: OpInfo(1, ANY, None, "e**x"),
    Op.EXP2: OpInfo(1, ANY, None, "2**x"),
    Op.LOG: OpInfo(1, ANY, None, "natural logarithm"),
    Op.LOG2: OpInfo(1, ANY, None, "base 2 logarithm"),
    Op.SIN: OpInfo(1, ANY, None, "sine of radians"),
    Op.COS: OpInfo(1, ANY, None, "cosine of radians"),
    Op.TRUNC: OpInfo(1, ANY, None, "round toward zero"),
    Op.ADD: OpInfo(2, ANY, None, "x + y", True, True),
    Op.MUL: OpInfo(2, ANY, None, "x * y", True, True),
    Op.FDIV: OpInfo(2, ANY, None, "x / y of floats, correctly rounded"),
    Op.IDIV: OpInfo(2, ANY, None, "floor(x / y) of integers; x // 0 is 0"),
    Op.MOD: OpInfo(2, ANY, None, "x - y * floor(x / y) of integers; x % 0 is 0"),
    Op.MAX: OpInfo(2, ANY, None, "larger one; NaN if either is NaN", True, True),
    Op.MIN: OpInfo(2, ANY, None, "smaller one; NaN if either is NaN", True, True),
    Op.POW: OpInfo(2, ANY, None, "x ** y of floats"),
    Op.AND: OpInfo(2, ANY, None, "bitwise and, logical for bool", True, True),
    Op.OR: OpInfo(2, ANY, None, "bitwise or, logical for bool", True, True),
    Op.XOR: OpInfo(2, ANY, None, "bitwise exclusive or", True, True),
    Op.SHL: OpInfo(2, ANY, None, "x << y; 0 unless 0 <= y < bits"),
    Op.SHR: OpInfo(2, ANY, None, "x >> y, arithmetic for signed; 0 or -1 (the sign) unless 0 <= y < bits"),
    Op.CMPLT: OpInfo(2, ANY, None, "x < y -> bool"),
    Op.CMPEQ: OpInfo(2, ANY, None, "x == y -> bool", True),
    Op.CMPNE: OpInfo(2, ANY, None, "x != y -> bool", True),
    Op.WHERE: OpInfo(3, ANY, None, "(condition, if true, if false)"),
    Op.MULADD: OpInfo(3, (K, L), None, "x * y + z, fused when the target has it"),
    Op.DOT: OpInfo(3, ANY, None, "(a, b, start) of int32: start plus the products of the four bytes of a, which have "
                   "no sign, with those of b, which have one"),
    Op.DOT16: OpInfo(3, ANY, None, "(a, b, start) of int32: start plus the products of the two halves of a with those "
                     "of b, all with their signs"),
    Op.PARAM: OpInfo(0, (K, L), ParamArg, "pointer argument of a kernel; dtype is the element's"),
    Op.RANGE: OpInfo(None, (K, L), RangeArg, "(size, *guards): loop variable 0 <= i < size, dtype index; in a "
                     "program of lanes, iteration 32 w + l does nothing where guard w of lane l of each warp is false"),
    Op.INDEX: OpInfo(None, (K, L), None, "(param, element number[, gate]) -> address; dtype is the element's"),
    Op.LOAD: OpInfo(None, (K, L), None, "(index[, value where the gate is false])"),
    Op.STORE: OpInfo(2, (K, L), StoreArg, "(index, value), dtype void; no arg for an ordinary one"),
    Op.REDUCE: OpInfo(None, (K,), ReduceArg, "(value, *ranges): combine the value over the ranges"),
    Op.SINK: OpInfo(None, ANY, KernelArg, "(*stores): the kernel; its loops follow from the ranges used. For tensors: "
                    "the roots of one schedule; (*kernels): its kernels in order, or with a LaunchArg the bodies of "
                    "one launch"),
    Op.VECTORIZE: OpInfo(None, (K, L), None, "lanes from scalars; all the same scalar is a broadcast"),
    Op.EXTRACT: OpInfo(1, (K, L), LaneArg, "one lane of a vector"),
    Op.SHUFFLE: OpInfo(None, (K, L), ShuffleArg, "lanes of one vector or of two of the same type, in another order"),
    Op.PREFIX: OpInfo(2, (K,), PrefixArg, "(value, range of lanes): each lane combined with those before it"),
    Op.LOOKUP: OpInfo(2, (K, L), None, "(table, index): the lanes of a vector that have the numbers `index`, int32"),
    Op.PREFETCH: OpInfo(2, (K, L), PrefetchArg, "(value, index): the value; the line at the address, which need not "
                        "exist, is on its way to a cache by then"),
    Op.REDUCE_LANES: OpInfo(1, (K, L), ReduceArg, "combine the lanes of a vector to a scalar"),
    Op.ACC: OpInfo(None, (L,), AccArg, "(initial value, *ranges): a register carried over the ranges"),
    Op.UPDATE: OpInfo(2, (L,), None, "(acc, new value)"),
    Op.END: OpInfo(1, (L,), None, "(range): end of its loop body"),
    Op.SPECIAL: OpInfo(0, (K, L), SpecialArg, "GPU index register, dtype index"),
    Op.ACROSS: OpInfo(1, (L,), AcrossArg, "(value): combined over some lanes of a workgroup, for each of them"),
    Op.PICK: OpInfo(2, (K,), None, "(vector, number): the lane, whose number is a constant once ranges are copies"),
    Op.WGMMA: OpInfo(None, (K, L), WgmmaArg, "(first, second, warp, buffer, start, *boxes): of one lane: start plus "
                     "the product of two tiles in shared memory, which the matrix unit of its warps computes; the "
                     "boxes are what the copy engine brings into both, and where stores of the result go"),
    Op.BOX: OpInfo(None, (K, L), BoxArg, "(param, *coordinates): a part of memory that the copy engine moves at once"),
    Op.RING: OpInfo(0, (L,), RingArg, "buffers that one warp fills and others use in turn; dtype index"),
    Op.TURN: OpInfo(2, (L,), TurnArg, "(ring, loop or number): the next buffer, once it may be filled, or used"),
    Op.PASS_ON: OpInfo(1, (L,), None, "(turn): the buffer may be filled again; what fills it does that as it arrives"),
    Op.COPY_BOX: OpInfo(3, (L,), None, "(array index, box, turn): begin to bring a box into the buffer of a turn"),
    Op.STORE_BOX: OpInfo(2, (L,), None, "(array index, box): store what the lanes of a warp have gathered"),
    Op.COPY_ASYNC: OpInfo(2, (L,), CopyArg, "(array index, memory index): begin to copy, zeros for a false guard"),
    Op.COMMIT: OpInfo(0, (L,), BarrierArg, "the copies begun since the last one are a group"),
    Op.WAIT: OpInfo(0, (L,), WaitArg, "wait until all groups of copies but the last few have arrived"),
    Op.BARRIER: OpInfo(0, (L,), BarrierArg, "the lanes of a workgroup wait here for each other, dtype void"),
    Op.CARRY: OpInfo(None, (K,), AccArg, "(start, row, *ordered ranges): what NEXT gave in the iteration before, start "
                     "in the first; the row number tells apart what is carried in rows that run side by side"),
    Op.LOCAL: OpInfo(0, (K, L), LocalArg, "an array of the core's own, empty at first; dtype is the element's"),
    Op.AFTER: OpInfo(None, (K,), None, "(local, *stores into it, *ranges): the array once the stores have run over the "
                     "ranges, which it closes"),
    Op.NEXT: OpInfo(3, (K,), None, "(carry, value, result): the result; the next iteration finds the value"),
}  # fmt: skip

UNARY: Final = frozenset({Op.CAST, Op.BITCAST, Op.SQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.TRUNC})
BINARY: Final = frozenset(Op(n) for n in range(Op.ADD, Op.CMPNE + 1))
TERNARY: Final = frozenset({Op.WHERE, Op.MULADD, Op.DOT, Op.DOT16})
DOTS: Final = frozenset({Op.DOT, Op.DOT16})  # products of parts of words
ELEMENTWISE: Final = UNARY | BINARY | TERNARY
COMPARE: Final = frozenset({Op.CMPLT, Op.CMPEQ, Op.CMPNE})
MOVEMENT: Final = frozenset(Op(n) for n in range(Op.RESHAPE, Op.UNWINDOW + 1)) | {Op.LIMIT}
SCALAR_LEAVES: Final = frozenset({Op.CONST, Op.VARIABLE, Op.BIND})
COMMUTATIVE: Final = frozenset(op for op, info in OP_INFO.items() if info.commutative)


def identity_element(op: Op, dtype: DType) -> Any:
    """The value that changes nothing when combined by `op`: 0 for ADD, 1 for MUL, the extremes for MAX and MIN."""
    if op is Op.ADD:
        return 0
    if op is Op.MUL:
        return 1
    return dtype.min if op is Op.MAX else dtype.max


def adds_in_order(op: Op, dtype: DType) -> bool:
    """Whether a reduction must go element by element: the order of sums and products of floats in strict mode."""
    return bool(STRICT_FLOAT.value) and dtype.is_float and op in (Op.ADD, Op.MUL)


def batch_axes(arg: GatherArg | ScatterArg | None) -> int:
    """How many leading axes the sources of a GATHER or SCATTER share."""
    return arg.batch if arg is not None else 0
