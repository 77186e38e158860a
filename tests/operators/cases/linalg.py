"""Factorizations, systems, spectra and norms. Inputs keep a distance from singular ones, where rounding is all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gradlet import Tensor
from tests.operators.case import Case, In

L = torch.linalg
FLOATS = ("float32", "float64")

# Well conditioned, no equal eigenvalues, no ties of pivots.
SQUARE = [[4.0, 1.0, -0.5], [0.5, -3.0, 1.0], [1.0, 0.25, 2.0]]
OTHER = [[0.5, 2.0, 0.0], [1.0, 0.0, -1.5], [3.0, 1.0, 1.0]]
TALL = [[1.0, 2.0], [-0.5, 1.0], [3.0, 0.5]]
POSITIVE = [[4.0, 1.0, 0.5], [1.0, 3.0, -0.5], [0.5, -0.5, 2.0]]
RIGHT = [[1.0, -2.0], [0.5, 1.0], [2.0, 0.0]]
_BATCH = [[In(values=[SQUARE, OTHER])]]
_WIDE = [[In(values=np.transpose(TALL))]]

# Elimination and rotations: graphs of many steps.
HEAVY_NAMES = "cholesky det eigh eigvalsh inv lu lu_factor matrix_exp pinv qr slogdet solve svd svdvals"
HEAVY = frozenset(HEAVY_NAMES.split())


def _case(name: str, ours: Any, theirs: Any, inputs: Any, dtypes: Any = ("float32",), **kwargs: Any) -> Case:
    return Case(f"linalg-{name}", ours, theirs, inputs, dtypes, scale=20, heavy=name in HEAVY, **kwargs)


def _symmetric(x: Any) -> Any:
    return x + x.transpose(-1, -2)


def _squared(function: Any) -> Any:
    """Without the signs of vectors."""
    return lambda x: [part**2 for part in function(x)]


CASES: list[Case] = [
    _case("cholesky", lambda x: x.cholesky(), L.cholesky, [[In(values=POSITIVE)]]),
    _case("lu", lambda x: x.lu()[1:], lambda x: L.lu(x)[1:], [*_BATCH, [In(values=TALL)], *_WIDE]),
    _case("lu_factor", lambda x: x.lu_factor(), L.lu_factor, _BATCH),
    _case("qr", lambda x: x.qr(), L.qr, [*_BATCH, [In(values=TALL)], *_WIDE]),
    _case("inv", lambda x: x.inv(), L.inv, [*_BATCH, [In(values=SQUARE, layout="transposed")]]),
    _case("det", lambda x: x.det(), L.det, _BATCH),
    _case("slogdet", lambda x: x.slogdet(), L.slogdet, _BATCH),
    _case("solve", lambda x, y: x.solve(y), L.solve, [[In(values=[SQUARE, OTHER]), In(values=RIGHT)]], FLOATS),
    _case(
        "solve_triangular",
        lambda x, y: x.solve_triangular(y, upper=True),
        lambda x, y: L.solve_triangular(x, y, upper=True),
        [[In(values=SQUARE), In(values=RIGHT)]],
    ),
    _case("eigvalsh", lambda x: _symmetric(x).eigvalsh(), lambda x: L.eigvalsh(_symmetric(x)), _BATCH, FLOATS),
    _case(
        "eigh",
        lambda x: _symmetric(x).eigh()[1] ** 2,
        lambda x: L.eigh(_symmetric(x))[1] ** 2,
        [[In(values=SQUARE)]],
    ),
    _case("svdvals", lambda x: x.svdvals(), L.svdvals, [[In(values=TALL)]]),
    _case("svd", _squared(lambda x: x.svd(False)), _squared(lambda x: L.svd(x, False)), [[In(values=TALL)]]),
    _case("pinv", lambda x: x.pinv(), L.pinv, _WIDE),
    _case("matrix_exp", lambda x: x.matrix_exp(), L.matrix_exp, [[In(values=SQUARE)]]),
    _case("vector_norm", lambda x: x.vector_norm(3, 1), lambda x: L.vector_norm(x, 3, 1), [[In((3, 4))]]),
    _case("matrix_norm-1", lambda x: x.matrix_norm(1), lambda x: L.matrix_norm(x, 1), [[In((2, 3, 4))]]),
    _case("addmm", lambda z, x, y: z.addmm(x, y, beta=0.5, alpha=2), lambda z, x, y: z.addmm(x, y, beta=0.5, alpha=2),
          [[In((5,)), In((3, 4)), In((4, 5))]]),
    _case("baddbmm", lambda z, x, y: z.baddbmm(x, y), lambda z, x, y: z.baddbmm(x, y),
          [[In((2, 3, 5)), In((2, 3, 4)), In((2, 4, 5))]]),
    _case("tensordot", lambda x, y: x.tensordot(y), torch.tensordot, [[In((2, 3, 4)), In((3, 4, 5))]]),
    _case("multi_dot", lambda x, y, z: Tensor.multi_dot([x, y, z]), lambda x, y, z: L.multi_dot([x, y, z]),
          [[In((3,)), In((3, 4)), In((4, 2))]]),
    _case("cross", lambda x, y: x.linalg_cross(y), L.cross, [[In((2, 3)), In((1, 3))]], ("float32", "int32")),
    _case("kron", lambda x, y: x.kron(y), torch.kron, [[In((2, 3)), In((3,))]], ("float32", "int32")),
    _case("bilinear", lambda x, y, w, b: x.bilinear(y, w, b), torch.nn.functional.bilinear,
          [[In((2, 3)), In((2, 4)), In((5, 3, 4)), In((5,))]]),
]  # fmt: skip
