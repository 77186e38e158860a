"""Matrix units by description: which types they multiply, what they add up in, which way factors may lie.

An instruction multiplies 32 bytes of a row of one factor with 32 of the other, whatever the type, so that tiles, copies
and registers are the same for all types. What is different stands in `FACTORS`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gradlet.base.dtype import DType, dtypes
from gradlet.base.settings import ALLOW_TF32, STRICT_FLOAT, TC

STEP: Final = 32  # bytes of a row that one instruction multiplies


class FactorType(NamedTuple):
    """A type of factors.

    Attributes:
        name: what instructions call it.
        itemsize: bytes of an element.
        total: the type that products are added up in.
        turns: whether the sum may run across the rows of a factor in shared memory, not only along them.
    """

    name: str
    itemsize: int
    total: DType
    turns: bool = False

    @property
    def converted(self) -> bool:
        """Whether a kernel converts factors before it multiplies them, to what the unit adds up in."""
        return self.name != "tf32"


FACTORS: Final[dict[DType, FactorType]] = {
    dtypes.bfloat16: FactorType("bf16", 2, dtypes.float32, turns=True),
    dtypes.float16: FactorType("f16", 2, dtypes.float32, turns=True),
    dtypes.float32: FactorType("tf32", 4, dtypes.float32),
    dtypes.float8_e4m3fn: FactorType("e4m3", 1, dtypes.float32),
    dtypes.float8_e5m2: FactorType("e5m2", 1, dtypes.float32),
    dtypes.int8: FactorType("s8", 1, dtypes.int32),
    dtypes.uint8: FactorType("u8", 1, dtypes.int32),
}
HALVES: Final = ("bf16", "f16", "tf32")
BYTES: Final = ("s8", "u8")
FLOATS_OF_8_BITS: Final = ("e4m3", "e5m2")


class MatrixUnits(NamedTuple):
    """The matrix units of a GPU.

    Attributes:
        instruction: `wgmma`: four warps together multiply tiles that lie in shared memory. `mma`: every warp multiplies
            what its lanes have loaded from there.
        factors: the names of the types that they multiply.
    """

    instruction: str
    factors: tuple[str, ...]

    @property
    def run_on(self) -> bool:
        """Whether lanes go on while a product is computed."""
        return self.instruction == "wgmma"

    def factor(self, dtype: DType) -> FactorType | None:
        """What is said about a type, None where the units do not multiply it, or settings do not allow it."""
        found = FACTORS.get(dtype)
        if found is None or found.name not in self.factors or TC.value == "0":
            return None
        if STRICT_FLOAT.value and found.total.is_float:  # they add up in an order of their own
            return None
        if not found.converted and not ALLOW_TF32.value:
            return None
        return found

    def pair(self, first: DType, second: DType) -> FactorType | None:
        """The first of two types whose products they add up; types of 8 bits may be mixed."""
        a, b = self.factor(first), self.factor(second)
        if a is None or b is None or a.total is not b.total:
            return None
        return a if first is second or first.itemsize == second.itemsize == 1 else None


WGMMA: Final = MatrixUnits("wgmma", (*HALVES, *FLOATS_OF_8_BITS, *BYTES))
MMA_80: Final = MatrixUnits("mma", (*HALVES, *BYTES))
MMA_89: Final = MatrixUnits("mma", (*HALVES, *FLOATS_OF_8_BITS, *BYTES))
