"""Element-wise operations and lane reductions as LLVM instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import RenderError
from gradlet.ops.op import COMPARE, Op
from gradlet.render.llvmcast import cast
from gradlet.render.llvmtext import (
    Value,
    Writer,
    constant,
    integer,
    is_carried_as_bits,
    lanes_of,
    scalar_of,
    suffix,
)
from gradlet.target.target import TRANSCENDENTAL, Target

_FLOAT_BINARY: Final = {Op.ADD: "fadd", Op.MUL: "fmul", Op.FDIV: "fdiv"}
_INT_BINARY: Final = {Op.ADD: "add", Op.MUL: "mul", Op.AND: "and", Op.OR: "or", Op.XOR: "xor", Op.SHL: "shl"}
_BOOL_BINARY: Final = {
    Op.ADD: "or", Op.MUL: "and", Op.MAX: "or", Op.MIN: "and", Op.AND: "and", Op.OR: "or", Op.XOR: "xor",
}  # fmt: skip
_FLOAT_COMPARE: Final = {Op.CMPLT: "fcmp olt", Op.CMPEQ: "fcmp oeq", Op.CMPNE: "fcmp une"}
_INT_COMPARE: Final = {Op.CMPEQ: "icmp eq", Op.CMPNE: "icmp ne"}
_INTRINSIC: Final = {
    Op.SQRT: "sqrt", Op.TRUNC: "trunc", Op.EXP: "exp", Op.EXP2: "exp2", Op.LOG: "log", Op.LOG2: "log2",
    Op.SIN: "sin", Op.COS: "cos", Op.POW: "pow",
}  # fmt: skip


class Alu:
    """Writes element-wise operations for one target."""

    def __init__(self, writer: Writer, target: Target) -> None:
        self.writer = writer
        self.target = target

    def apply(self, op: Op, operand: DType, args: list[Value], never_nan: int | None = None) -> Value:
        """`op` on operands of dtype `operand` (its scalar type counts; lanes follow from the values).

        Args:
            op: any element-wise op but CAST, BITCAST and WHERE.
            operand: data type of the operands.
            args: the operands.
            never_nan: position of an operand of MAX or MIN that is known not to be NaN.

        Raises:
            RenderError: the target has no such operation.
        """
        scalar = operand.scalar
        if is_carried_as_bits(scalar, self.target):
            wide = [cast(self.writer, self.target, a, scalar, dtypes.float32) for a in args]
            result = self.apply(op, dtypes.float32, wide, never_nan)
            return result if op in COMPARE else cast(self.writer, self.target, result, dtypes.float32, scalar)
        if scalar.is_float:
            return self._float(op, scalar, args, never_nan)
        if scalar.is_bool:
            return self._bool(op, args)
        return self._int(op, scalar, args)

    def _float(self, op: Op, scalar: DType, args: list[Value], never_nan: int | None) -> Value:
        writer = self.writer
        kind = args[0].type
        if op in _FLOAT_BINARY:
            return writer.binary(_FLOAT_BINARY[op], args[0], args[1])
        if op in _FLOAT_COMPARE:
            return writer.compare(_FLOAT_COMPARE[op], args[0], args[1])
        if op in (Op.MAX, Op.MIN):
            return self._extreme(op, args[0], args[1], never_nan)
        if op is Op.MULADD:
            if self.target.fma:
                return writer.call(kind, f"llvm.fma.{suffix(kind)}", *args)
            return writer.binary("fadd", writer.binary("fmul", args[0], args[1]), args[2])
        if op in (Op.SQRT, Op.TRUNC):
            return writer.call(kind, f"llvm.{_INTRINSIC[op]}.{suffix(kind)}", *args)
        if op in TRANSCENDENTAL:
            if not self.target.library:
                raise RenderError(
                    f"{op.name} of {scalar.name} reached the renderer, and {self.target.name} has no libm"
                )
            return self._by_lane(f"llvm.{_INTRINSIC[op]}.{suffix(scalar_of(kind))}", args)
        raise RenderError(f"{op.name} is not defined for {scalar.name}")

    def _by_lane(self, function: str, args: list[Value]) -> Value:
        """Call a scalar function on every lane."""
        writer = self.writer
        kind = args[0].type
        count = lanes_of(kind)
        if count == 1:
            return writer.call(kind, function, *args)
        result = Value("poison", kind)
        for lane in range(count):
            one = writer.call(scalar_of(kind), function, *(writer.extract(a, lane) for a in args))
            result = writer.emit(kind, f"insertelement {result}, {one}, i64 {lane}")
        return result

    def _extreme(self, op: Op, first: Value, second: Value, never_nan: int | None) -> Value:
        """MAX and MIN of floats. `a > b ? a : b` is one instruction on most machines and gives b when a is NaN."""
        predicate = "fcmp ogt" if op is Op.MAX else "fcmp olt"
        writer = self.writer
        if never_nan == 1:
            first, second = second, first
        chosen = writer.select(writer.compare(predicate, first, second), first, second)
        if never_nan is not None:
            return chosen
        return writer.select(writer.compare("fcmp uno", first, first), first, chosen)

    def _bool(self, op: Op, args: list[Value]) -> Value:
        if op in _BOOL_BINARY:
            return self.writer.binary(_BOOL_BINARY[op], args[0], args[1])
        if op is Op.CMPLT:
            return self.writer.compare("icmp ult", args[0], args[1])
        if op in _INT_COMPARE:
            return self.writer.compare(_INT_COMPARE[op], args[0], args[1])
        if op is Op.MULADD:
            return self.writer.binary("or", self.writer.binary("and", args[0], args[1]), args[2])
        if op is Op.TRUNC:
            return args[0]
        raise RenderError(f"{op.name} is not defined for bool")

    def _int(self, op: Op, scalar: DType, args: list[Value]) -> Value:
        writer = self.writer
        if op in _INT_BINARY:
            # Index arithmetic never overflows; saying so lets addresses be computed by increments.
            exact = " nsw" if scalar.kind == "x" and op in (Op.ADD, Op.MUL) else ""
            return writer.binary(_INT_BINARY[op] + exact, args[0], args[1])
        if op is Op.SHR:
            return writer.binary("lshr" if scalar.is_unsigned else "ashr", args[0], args[1])
        if op is Op.CMPLT:
            return writer.compare("icmp ult" if scalar.is_unsigned else "icmp slt", args[0], args[1])
        if op in _INT_COMPARE:
            return writer.compare(_INT_COMPARE[op], args[0], args[1])
        if op in (Op.MAX, Op.MIN):
            name = ("u" if scalar.is_unsigned else "s") + op.name.lower()
            return writer.call(args[0].type, f"llvm.{name}.{suffix(args[0].type)}", args[0], args[1])
        if op is Op.MULADD:
            return writer.binary("add", writer.binary("mul", args[0], args[1]), args[2])
        if op is Op.TRUNC:
            return args[0]
        raise RenderError(f"{op.name} is not defined for {scalar.name}")

    def shift(self, op: Op, scalar: DType, x: Value, y: Value) -> Value:
        """SHL and SHR by any amount: where it is negative or not below the width, only the sign is left, or nothing."""
        writer = self.writer
        last = integer(scalar.bits - 1, x.type)
        outside = writer.compare("icmp ugt", y, last)  # negative amounts are large without their sign
        result = self._int(op, scalar, [x, writer.select(outside, last, y)])
        if op is Op.SHR and not scalar.is_unsigned:
            return result
        return writer.select(outside, integer(0, x.type), result)

    # integer division
    def divide(self, op: Op, scalar: DType, x: Value, y: Value, known: int | None, positive: bool) -> Value:
        """IDIV and MOD: round down, and 0 for a zero divisor.

        Args:
            op: IDIV or MOD.
            scalar: data type of the operands.
            x: dividend.
            y: divisor.
            known: the divisor's value where it is a constant.
            positive: whether x >= 0 and y > 0 is certain.
        """
        if known is not None and known > 0:
            return self._divide_by_constant(op, x, y, known, scalar.is_unsigned or positive)
        if positive:
            return self.writer.binary("udiv" if op is Op.IDIV else "urem", x, y)
        if scalar.is_unsigned:
            return self._divide_unsigned(op, x, y)
        return self._divide_signed(op, x, y)

    def _divide_by_constant(self, op: Op, x: Value, y: Value, known: int, positive: bool) -> Value:
        writer = self.writer
        if known & (known - 1) == 0:  # also right for negative x: both round down
            if op is Op.MOD:
                return writer.binary("and", x, integer(known - 1, x.type))
            shift = "lshr" if positive else "ashr"
            return writer.binary(shift, x, integer(known.bit_length() - 1, x.type))
        if positive:
            return writer.binary("udiv" if op is Op.IDIV else "urem", x, y)
        rest = writer.binary("srem", x, y)
        below = writer.compare("icmp slt", rest, integer(0, x.type))
        if op is Op.MOD:
            return writer.select(below, writer.binary("add", rest, y), rest)
        quotient = writer.binary("sdiv", x, y)
        return writer.select(below, writer.binary("add", quotient, integer(-1, x.type)), quotient)

    def _divide_unsigned(self, op: Op, x: Value, y: Value) -> Value:
        writer = self.writer
        zero = integer(0, x.type)
        by_zero = writer.compare("icmp eq", y, zero)
        safe = writer.select(by_zero, integer(1, x.type), y)
        if op is Op.MOD:
            return writer.binary("urem", x, safe)  # x % 1 is the 0 that is wanted
        return writer.select(by_zero, zero, writer.binary("udiv", x, safe))

    def _divide_signed(self, op: Op, x: Value, y: Value) -> Value:
        writer = self.writer
        zero = integer(0, x.type)
        by_zero = writer.compare("icmp eq", y, zero)
        by_minus_one = writer.compare("icmp eq", y, integer(-1, x.type))
        # The smallest integer divided by -1 traps on x86, so -1 is a case of its own: the negated dividend.
        safe = writer.select(writer.binary("or", by_zero, by_minus_one), integer(1, x.type), y)
        quotient = writer.binary("sdiv", x, safe)
        rest = writer.binary("sub", x, writer.binary("mul", quotient, safe))
        differ = writer.compare("icmp slt", writer.binary("xor", rest, safe), zero)
        uneven = writer.compare("icmp ne", rest, zero)
        below = writer.binary("and", differ, uneven)
        if op is Op.MOD:
            return writer.select(below, writer.binary("add", rest, safe), rest)
        floor = writer.select(below, writer.binary("add", quotient, integer(-1, x.type)), quotient)
        floor = writer.select(by_minus_one, writer.binary("sub", zero, x), floor)
        return writer.select(by_zero, zero, floor)

    # lanes
    def reduce_lanes(self, op: Op, dtype: DType, value: Value) -> Value:
        """Combine all lanes of a vector by ADD, MUL, MAX, MIN, AND, OR or XOR."""
        scalar = dtype.scalar
        if is_carried_as_bits(scalar, self.target):
            wide = cast(self.writer, self.target, value, scalar, dtypes.float32)
            result = self.reduce_lanes(op, dtypes.float32, wide)
            return cast(self.writer, self.target, result, dtypes.float32, scalar)
        kind = scalar_of(value.type)
        if scalar.is_float:
            if op in (Op.ADD, Op.MUL):
                start = constant(-0.0 if op is Op.ADD else 1.0, scalar, self.target)
                name = f"llvm.vector.reduce.{_FLOAT_BINARY[op]}.{suffix(value.type)}"
                return self.writer.call(kind, name, start, value, flags="reassoc ")
            return self._halving(value, lambda a, b: self._extreme(op, a, b, None))
        if scalar.is_bool:
            return self.writer.call(kind, f"llvm.vector.reduce.{_BOOL_BINARY[op]}.{suffix(value.type)}", value)
        name = _INT_BINARY.get(op) or ("u" if scalar.is_unsigned else "s") + op.name.lower()
        return self.writer.call(kind, f"llvm.vector.reduce.{name}.{suffix(value.type)}", value)

    def _halving(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Combine the halves of a vector until one lane is left; an odd lane is set aside and joins at the end."""
        writer = self.writer
        odd: list[Value] = []
        while (count := lanes_of(value.type)) > 1:
            half = count // 2
            if count % 2:
                odd.append(writer.extract(value, count - 1))
            if half == 1:
                value = combine(writer.extract(value, 0), writer.extract(value, 1))
                break
            lower = writer.lanes(value, list(range(half)))
            value = combine(lower, writer.lanes(value, list(range(half, 2 * half))))
        for lane in odd:
            value = combine(value, lane)
        return value
