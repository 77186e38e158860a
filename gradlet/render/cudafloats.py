"""Functions in CUDA C that convert floats of 8 bits, in integer arithmetic."""

from __future__ import annotations

import struct

from gradlet.base.dtype import DType
from gradlet.base.floatformat import FloatFormat
from gradlet.render import carith


def format_functions(dtype: DType) -> str:
    """Conversions of a float of few bits from and to float, in integer arithmetic."""
    form, kind = dtype.format, carith.register_type(dtype)
    return _widening(dtype.name, form, kind) + "\n" + _narrowing(dtype.name, form, kind)


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _widening(name: str, form: FloatFormat, kind: str) -> str:
    if form.special == "ieee":
        special = f"if (magnitude >= {form.infinity}u) word = moved | 0x7f800000u;"
    else:
        tested = "x" if form.special == "fnuz" else "magnitude"
        special = f"if ({tested} == {form.nan}u) word = 0x7fc00000u;"
    return f"""inline_ float float_of_{name}({kind} x) {{
  const u32 magnitude = x & {form.sign_mask - 1}u, sign = (u32)(x & {form.sign_mask}u) << {32 - form.bits};
  const u32 moved = magnitude << {23 - form.fraction};
  u32 word = moved + {(127 - form.bias) << 23}u;
  if (magnitude < {1 << form.fraction}u) word = bits_of_float((float)(int)magnitude * {form.smallest!r}f);
  {special}
  return float_of_bits(word | sign);
}}"""


def _narrowing(name: str, form: FloatFormat, kind: str) -> str:
    cut = 23 - form.fraction
    change = ((1 << (cut - 1)) - 1 - ((127 - form.bias) << 23)) % (1 << 32)
    grid = _bits(form.smallest * 2.0**23)
    step = form.largest - form.decode(form.largest_code - 1)
    overflow = _bits(form.largest + step / 2) + (0 if form.largest_code % 2 else 1)
    if form.special == "fnuz":
        ending = f"if (word == 0) sign = 0;\n  if (magnitude >= {overflow}u) return {form.nan}u;"
    else:
        large = form.infinity if form.has_infinity else form.nan
        ending = f"if (magnitude >= {overflow}u) word = {large}u;\n  if (magnitude > 0x7f800000u) word = {form.nan}u;"
    return f"""inline_ {kind} {name}_of_float(float x) {{
  const u32 bits = bits_of_float(x), magnitude = bits & 0x7fffffffu;
  u32 sign = (bits >> {32 - form.bits}) & {form.sign_mask}u;
  u32 word = (magnitude + {change}u + ((magnitude >> {cut}) & 1u)) >> {cut};
  if (magnitude < {_bits(form.smallest_normal)}u)
    word = bits_of_float(float_of_bits(magnitude) + float_of_bits({grid}u)) - {grid}u;
  {ending}
  return ({kind})(word | sign);
}}"""
