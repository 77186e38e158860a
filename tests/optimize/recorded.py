"""The kernels of `recorded.json`, which holds the measured microseconds of some schedules of each.

The first schedule of a kernel is the heuristic's, the others were drawn at random from what a search may try. Each was
run on one thread of a Zen 3 core with AVX2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradlet.graph.node import UOp
from tests.codegen import kernels

KERNELS: Final[dict[str, Callable[[], UOp]]] = {
    "matmul": lambda: kernels.matmul(256, 192, 256).sink,
    "matmul of transposed": lambda: kernels.matmul(200, 160, 184, False, True).sink,
    "matrix times vector": lambda: kernels.matmul(1024, 1, 1024).sink,
    "convolution": lambda: kernels.conv2d(1, 32, 32, 28).sink,
    "transposition": lambda: kernels.strided(700, 900).sink,
    "columns": lambda: kernels.column_sum(1500, 700).sink,
    "rows": lambda: kernels.row_reduce(700, 1500).sink,
}
