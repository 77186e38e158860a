"""The tables of special cases of the standard's element-wise functions: arguments, then the result."""

from __future__ import annotations

from math import pi

NAN, INF = float("nan"), float("inf")

UNARY: dict[str, list[tuple[float, float]]] = {
    "abs": [(NAN, NAN), (-0.0, 0.0), (-INF, INF), (INF, INF)],
    "acos": [(NAN, NAN), (1.5, NAN), (-1.5, NAN), (INF, NAN), (1.0, 0.0)],
    "acosh": [(NAN, NAN), (0.5, NAN), (-INF, NAN), (1.0, 0.0), (INF, INF)],
    "asin": [(NAN, NAN), (1.5, NAN), (-1.5, NAN), (0.0, 0.0), (-0.0, -0.0)],
    "asinh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "atan": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, pi / 2), (-INF, -pi / 2)],
    "atanh": [(NAN, NAN), (1.5, NAN), (-1.5, NAN), (-1.0, -INF), (1.0, INF), (0.0, 0.0), (-0.0, -0.0)],
    "ceil": [(NAN, NAN), (3.0, 3.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (-0.5, -0.0)],
    "cos": [(NAN, NAN), (0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "cosh": [(NAN, NAN), (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF)],
    "exp": [(NAN, NAN), (0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0)],
    "expm1": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0)],
    "floor": [(NAN, NAN), (3.0, 3.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (0.5, 0.0)],
    "log": [(NAN, NAN), (-1.0, NAN), (-INF, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)],
    "log1p": [(NAN, NAN), (-1.5, NAN), (-INF, NAN), (-1.0, -INF), (-0.0, -0.0), (0.0, 0.0), (INF, INF)],
    "log2": [(NAN, NAN), (-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)],
    "log10": [(NAN, NAN), (-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)],
    "reciprocal": [(NAN, NAN), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0)],
    "round": [
        (NAN, NAN), (3.0, 3.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (0.5, 0.0), (1.5, 2.0), (2.5, 2.0),
        (-0.5, -0.0),
    ],
    "sign": [(NAN, NAN), (-2.5, -1.0), (0.0, 0.0), (2.5, 1.0), (INF, 1.0), (-INF, -1.0)],
    "sin": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "sinh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "sqrt": [(NAN, NAN), (-1.0, NAN), (-INF, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, INF)],
    "tan": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "tanh": [(NAN, NAN), (0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "trunc": [(NAN, NAN), (3.0, 3.0), (INF, INF), (-INF, -INF), (0.0, 0.0), (-0.0, -0.0), (0.5, 0.0), (-0.5, -0.0)],
}  # fmt: skip

# Of tests: True and False.
TESTS: dict[str, list[tuple[float, bool]]] = {
    "isfinite": [(NAN, False), (INF, False), (-INF, False), (1.0, True)],
    "isinf": [(NAN, False), (INF, True), (-INF, True), (1.0, False)],
    "isnan": [(NAN, True), (INF, False), (-INF, False), (1.0, False)],
    "signbit": [(0.0, False), (-0.0, True), (INF, False), (-INF, True), (1.0, False), (-1.0, True)],
    "logical_not": [(0.0, True), (-0.0, True), (NAN, False), (2.0, False)],
}

Row = tuple[float, float, float]

BINARY: dict[str, list[Row]] = {
    "add": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, -INF, NAN), (-INF, INF, NAN), (INF, INF, INF), (-INF, -INF, -INF),
        (INF, 1.0, INF), (-INF, 1.0, -INF), (1.0, INF, INF), (1.0, -INF, -INF), (-0.0, -0.0, -0.0), (-0.0, 0.0, 0.0),
        (0.0, -0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 2.0, 2.0), (-0.0, 2.0, 2.0), (2.0, -2.0, 0.0),
    ],
    "atan2": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (1.0, 0.0, pi / 2), (1.0, -0.0, pi / 2), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0),
        (0.0, -0.0, pi), (0.0, -1.0, pi), (-0.0, 1.0, -0.0), (-0.0, 0.0, -0.0), (-0.0, -0.0, -pi), (-0.0, -1.0, -pi),
        (-1.0, 0.0, -pi / 2), (-1.0, -0.0, -pi / 2), (1.0, INF, 0.0), (1.0, -INF, pi), (-1.0, INF, -0.0),
        (-1.0, -INF, -pi), (INF, 1.0, pi / 2), (-INF, 1.0, -pi / 2), (INF, INF, pi / 4), (INF, -INF, 3 * pi / 4),
        (-INF, INF, -pi / 4), (-INF, -INF, -3 * pi / 4),
    ],
    "copysign": [(2.0, -0.0, -2.0), (-2.0, 0.0, 2.0), (2.0, INF, 2.0), (2.0, -INF, -2.0), (0.0, -1.0, -0.0)],
    "divide": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (INF, -INF, NAN), (0.0, 0.0, NAN), (0.0, -0.0, NAN),
        (0.0, 1.0, 0.0), (-0.0, 1.0, -0.0), (0.0, -1.0, -0.0), (-0.0, -1.0, 0.0), (1.0, 0.0, INF), (1.0, -0.0, -INF),
        (-1.0, 0.0, -INF), (-1.0, -0.0, INF), (INF, 1.0, INF), (INF, -1.0, -INF), (-INF, 1.0, -INF),
        (-INF, -1.0, INF), (1.0, INF, 0.0), (1.0, -INF, -0.0), (-1.0, INF, -0.0), (-1.0, -INF, 0.0),
    ],
    "floor_divide": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (-INF, INF, NAN), (0.0, 0.0, NAN), (-0.0, 0.0, NAN),
        (0.0, 1.0, 0.0), (-0.0, 1.0, -0.0), (0.0, -1.0, -0.0), (-0.0, -1.0, 0.0), (1.0, 0.0, INF), (1.0, -0.0, -INF),
        (-1.0, 0.0, -INF), (-1.0, -0.0, INF), (INF, 1.0, INF), (INF, -1.0, -INF), (-INF, 1.0, -INF),
        (-INF, -1.0, INF), (1.0, INF, 0.0), (1.0, -INF, -1.0), (-1.0, INF, -1.0), (-1.0, -INF, 0.0), (7.0, 2.0, 3.0),
        (-7.0, 2.0, -4.0), (7.0, -2.0, -4.0), (-7.0, -2.0, 3.0),
    ],
    "hypot": [
        (INF, NAN, INF), (-INF, NAN, INF), (NAN, INF, INF), (NAN, -INF, INF), (NAN, 1.0, NAN), (1.0, NAN, NAN),
        (0.0, -3.0, 3.0), (-0.0, 3.0, 3.0), (-3.0, 0.0, 3.0), (1e30, 1e30, 2**0.5 * 1e30),
    ],
    "logaddexp": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, INF), (1.0, INF, INF), (INF, -INF, INF), (-INF, -INF, -INF),
        (-INF, 1.0, 1.0),
    ],
    "maximum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, NAN, NAN), (INF, 1.0, INF), (-INF, 1.0, 1.0)],
    "minimum": [(NAN, 1.0, NAN), (1.0, NAN, NAN), (-INF, NAN, NAN), (INF, 1.0, 1.0), (-INF, 1.0, -INF)],
    "multiply": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 0.0, NAN), (-INF, -0.0, NAN), (0.0, INF, NAN), (INF, INF, INF),
        (INF, -INF, -INF), (INF, 2.0, INF), (INF, -2.0, -INF), (-2.0, INF, -INF), (0.0, -2.0, -0.0),
        (-0.0, -2.0, 0.0),
    ],
    "nextafter": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (0.0, -0.0, -0.0), (-0.0, 0.0, 0.0), (INF, INF, INF), (3.0, 3.0, 3.0),
    ],
    "pow": [
        (2.0, NAN, NAN), (NAN, 0.0, 1.0), (NAN, -0.0, 1.0), (2.0, 0.0, 1.0), (INF, -0.0, 1.0), (NAN, 2.0, NAN),
        (1.5, INF, INF), (-1.5, INF, INF), (1.5, -INF, 0.0), (-1.5, -INF, 0.0), (1.0, INF, 1.0), (1.0, -INF, 1.0),
        (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (1.0, 2.5, 1.0), (0.5, INF, 0.0), (-0.5, INF, 0.0), (0.5, -INF, INF),
        (-0.5, -INF, INF), (INF, 2.0, INF), (INF, 0.5, INF), (INF, -2.0, 0.0), (-INF, 3.0, -INF), (-INF, 2.0, INF),
        (-INF, 0.5, INF), (-INF, -3.0, -0.0), (-INF, -2.0, 0.0), (-INF, -0.5, 0.0), (0.0, 2.0, 0.0), (0.0, -2.0, INF),
        (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (-0.0, -3.0, -INF), (-0.0, -2.0, INF),
        (-0.0, -0.5, INF), (-2.0, 0.5, NAN), (-2.0, 3.0, -8.0),
    ],
    "remainder": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, 1.0, NAN), (-INF, 1.0, NAN), (INF, INF, NAN), (1.0, 0.0, NAN),
        (1.0, -0.0, NAN), (-1.0, 0.0, NAN), (0.0, 0.0, NAN), (0.0, 1.0, 0.0), (-0.0, 1.0, 0.0), (0.0, -1.0, -0.0),
        (-0.0, -1.0, -0.0), (1.0, INF, 1.0), (1.0, -INF, -INF), (-1.0, INF, INF), (-1.0, -INF, -1.0), (7.0, 2.0, 1.0),
        (-7.0, 2.0, 1.0), (7.0, -2.0, -1.0), (-7.0, -2.0, -1.0),
    ],
    "subtract": [
        (NAN, 1.0, NAN), (1.0, NAN, NAN), (INF, INF, NAN), (-INF, -INF, NAN), (INF, -INF, INF), (-INF, INF, -INF),
        (INF, 1.0, INF), (1.0, INF, -INF), (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -0.0, 0.0), (-0.0, -0.0, 0.0),
    ],
}  # fmt: skip

COMPARISONS: dict[str, list[tuple[float, float, bool]]] = {
    "equal": [(NAN, NAN, False), (INF, INF, True), (-INF, INF, False), (-0.0, 0.0, True), (1.0, 1.0, True)],
    "not_equal": [(NAN, NAN, True), (INF, INF, False), (-0.0, 0.0, False), (1.0, 2.0, True)],
    "less": [(NAN, 1.0, False), (1.0, NAN, False), (-INF, INF, True), (-0.0, 0.0, False)],
    "less_equal": [(NAN, 1.0, False), (1.0, NAN, False), (-INF, INF, True), (0.0, -0.0, True)],
    "greater": [(NAN, 1.0, False), (1.0, NAN, False), (INF, -INF, True), (0.0, -0.0, False)],
    "greater_equal": [(NAN, 1.0, False), (1.0, NAN, False), (INF, -INF, True), (-0.0, 0.0, True)],
    "logical_and": [(NAN, 1.0, True), (0.0, 1.0, False), (-0.0, NAN, False)],
    "logical_or": [(NAN, 0.0, True), (0.0, -0.0, False)],
    "logical_xor": [(NAN, 0.0, True), (NAN, 1.0, False), (0.0, -0.0, False)],
}
