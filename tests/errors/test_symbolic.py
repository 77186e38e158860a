"""Mistakes with sizes and positions that are known only at launch."""

from __future__ import annotations

import pytest

from gradlet import Tensor, Variable
from gradlet.base.errors import IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor.zeros(12, 12)
N = Variable("n", 0, 12)
P = Variable("p", 1, 3)
n, m, p = N.bind(5), Variable("m", 0, 12).bind(4), P.bind(2)
one = Variable("one", 0, 1).bind(1)
far = Variable("far", 0, 20).bind(2)
ROWS = X[:n]

MISTAKES: list[Row] = [
    # positions
    (lambda: X.flatten()[:n].interpolate(scale_factor=2.0), ShapeError, "a factor needs fixed sizes.*give size"),
    (lambda: X[P], IndexingError, r"variable 'p' has no value; give it one: p.bind\(3\)"),
    (lambda: X[p < 2], IndexingError, "index on axis 0 is a node of dtypes.bool; use variables and integers"),
    (lambda: X[far], IndexingError, "positions 0 to 20 by variable 'far' may leave axis 0 of size 12; give the variab"),
    (lambda: ROWS[p], IndexingError, "index by a variable on axis 0: its size n is known only at launch; index before"),
    (lambda: X[p, Tensor([1])], IndexingError, "an index by variables and by tensors at once .*: index in two steps"),
    # slices between variables
    (lambda: X[p : p + 4 : 2], IndexingError, "slice on axis 0: bounds that are variables go with step 1 only, not 2"),
    (lambda: X[p:1.5], IndexingError, "slice on axis 0: bound 1.5 beside a variable; use integers and variables"),
    (lambda: X[p:], IndexingError, "slice on axis 0: how many positions it has depends on a variable, .* mask them"),
    (lambda: X[p : p + 2, p], IndexingError, "a slice of more than one position by a variable, and .*: index in two"),
    # slices up to a variable
    (lambda: X[5:n], IndexingError, "slice on axis 0: by variable 'n' it ends between 0 and 12, .* start 5 and the si"),
    (lambda: X[:one], IndexingError, "slice on axis 0: a size of 0 or 1 looks like an axis to repeat; give the variab"),
    (lambda: ROWS[:n], IndexingError, "slice on axis 0: its size n is known only at launch; take one slice of the who"),
    (lambda: ROWS[2:7], IndexingError, r"slice slice\(2, 7, None\) on axis 0: its size n is known only at launch, at"),
    # shapes
    (lambda: ROWS.reshape(1.5, ROWS.shape[0]), ShapeError, r"reshape: expected integers and sizes, got \(1.5, n\)"),
    (lambda: ROWS.reshape(-1, -1), ShapeError, r"reshape: only one size may be -1, got \(-1, -1\)"),
    (
        lambda: ROWS.reshape(ROWS.shape[0], 13),
        ShapeError,
        r"reshape: shape \(n, 12\) has 12 elements beside the sizes that stay, \(n, 13\) has 13",
    ),
    (
        lambda: ROWS[:, :m].reshape(X[:m].shape[0], ROWS.shape[0]),
        ShapeError,
        r"a value of shape \(n, m\) does not become one of shape \(m, n\): .* stay in their order; use permute",
    ),
    (lambda: ROWS.pad(((-1, 0), (0, 0))), ShapeError, r"pad: \(-1, 0\) crops more than axis 0 of size n has .*; give"),
    (lambda: ROWS.qr(), ShapeError, "pad: zeros behind an axis of size n, which is known .*; use a fixed size, as x"),
]  # fmt: skip


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)
