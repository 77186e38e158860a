"""Mistakes in shapes and axes: reshaping, padding, cropping, splitting, joining."""

from __future__ import annotations

import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from tests.errors.table import Row, check

X = Tensor([[1.0, 2.0], [3.0, 4.0]])
A = Tensor.zeros(2, 3)
B = Tensor.zeros(4, 5)
V = Tensor.zeros(3)

MISTAKES: list[Row] = [
    (lambda: X.reshape(3), ShapeError, r"reshape: shape \(2, 2\) has 4 elements, \(3,\) has 3.*use -1"),
    (lambda: X.reshape(2.0, 2), ShapeError, "reshape: expected integers"),
    (lambda: X.reshape(-2, -2), ShapeError, "reshape: "),
    (lambda: X.expand(3, 2), ShapeError, "expand: .*only axes of size 1 can grow"),
    (lambda: X.permute(0, 0), ShapeError, "permute: .*each of the 2 axes once"),
    (lambda: X.transpose(0, 7), IndexingError, "transpose: axis 7 is out of range.*use -2 to 1"),
    (lambda: X.flip("a"), ShapeError, "flip: expected integers"),
    (lambda: X.squeeze(5), IndexingError, "squeeze: axis 5"),
    (lambda: X.unsqueeze(1.5), IndexingError, "unsqueeze: axis must be an integer"),
    (lambda: X.unflatten(0, (3, 3)), ShapeError, r"unflatten: axis 0 of size 2 does not split into \(3, 3\)"),
    (lambda: X.unflatten(0, 3), ShapeError, "unflatten: axis 0 of size 2"),
    (lambda: X.unflatten(0, (-2, -1)), ShapeError, "unflatten: "),
    (lambda: X.shrink(3), ShapeError, "shrink: expected two integers or None for each axis, got 3"),
    (lambda: X.shrink(((0,), None)), ShapeError, r"shrink: expected two integers or None for each axis, got \(0,\)"),
    (lambda: X.shrink((("a", "b"), None)), ShapeError, "shrink: expected integers"),
    (lambda: X.shrink(((0.5, 1), None)), ShapeError, "shrink: expected integers"),
    (lambda: X.shrink(((0, 3), None)), ShapeError, r"shrink: \[0, 3\) is not inside axis 0 of size 2"),
    (lambda: X.shrink((None, None, None)), ShapeError, "shrink: 3 entries for 2 axes"),
    (lambda: X.pad(1), ShapeError, "pad: expected a list of integers"),
    (lambda: X.pad((1.5, 1)), ShapeError, "pad: expected integers"),
    (lambda: X.pad(((1,), (2,))), ShapeError, "pad: expected two integers or None"),
    (lambda: X.pad(((1, None), (2, 1))), ShapeError, "pad: expected integers"),
    (lambda: X.pad((-5, 1)), ShapeError, "pad: .*crops more"),
    (lambda: X.pad((1, 1), mode="mirror"), ArgumentError, "pad: mode 'mirror' is not one of constant"),
    (lambda: X.pad((5, 5), mode="reflect"), ShapeError, "pad: reflect padding"),
    (lambda: X.pad((1, 1), value="a"), DTypeError, "an operand of type str"),
    (lambda: X.pad_to(3), ShapeError, r"pad_to: 1 sizes for shape \(2, 2\)"),
    (lambda: X.pad_to(1, 3), ShapeError, "pad_to: .*use shrink_to"),
    (lambda: X.repeat_interleave(-1), ArgumentError, "repeat_interleave: repeats must be at least 0"),
    (lambda: X.repeat(2), ShapeError, "repeat: .*fewer entries"),
    (lambda: X.roll("a"), ShapeError, "roll: expected integers"),
    (lambda: X.roll((1, 2), 0), ArgumentError, "roll: 2 shifts for 1 dims"),
    (lambda: X.split(1.5), ShapeError, "split: expected integers"),
    (lambda: X.split([3, -1]), ShapeError, "split: sizes"),
    (lambda: X.chunk("a"), ArgumentError, "chunk: chunks must be an integer, got 'a'"),
    (lambda: X.unfold(0, 5, 1), ShapeError, r"unfold: windows of 5 do not fit axis 0 of shape \(2, 2\)"),
    (lambda: X.unfold(0, 1, 0), ArgumentError, "unfold: step must be at least 1"),
    (lambda: X.cat(3), DTypeError, "cat: argument 1 is int"),
    (lambda: X.cat(Tensor([1.0])), ShapeError, "cat: shapes"),
    (lambda: Tensor.cat([]), ArgumentError, "at least one tensor"),
    (lambda: Tensor.stack(X, X, dim=9), IndexingError, "stack: axis 9"),
    (lambda: X.diagonal(0, 0, 0), ArgumentError, "diagonal: dim1=0 and dim2=0 name the same axis"),
    (lambda: X.rearrange(3), ArgumentError, "rearrange: 3 needs one '->'"),
    (lambda: X.rearrange("(a c) b -> a b c", c="q"), ArgumentError, "rearrange: c must be an integer"),
    (lambda: X.expand(2**70, 2, 2), ShapeError, r"expand: .* the most is 2\*\*62"),
    (lambda: X.repeat(2**40, 2**40), ShapeError, r"the most is 2\*\*62"),
    (lambda: X.pad((2**63, 0)), ShapeError, r"pad: .* the most is 2\*\*62"),
    (lambda: X.meshgrid(3), DTypeError, "meshgrid: argument 1 is int, not a Tensor"),
    (lambda: A.reshape(4, 2), ShapeError, r"reshape: shape \(2, 3\) has 6 elements, \(4, 2\) has 8"),
    (lambda: A.reshape(-1, -1), ShapeError, "only one size may be -1"),
    (lambda: A.reshape(-1, 4), ShapeError, "do not divide"),
    (lambda: A.reshape("x"), ShapeError, "expected integers"),
    (lambda: A.expand(2, 4), ShapeError, r"expand: shape \(2, 3\) does not expand to \(2, 4\)"),
    (lambda: A.expand(3), ShapeError, "more axes"),
    (lambda: A.permute(0, 2), IndexingError, "axis 2 is out of range"),
    (lambda: A.shrink(((0, 3), None)), ShapeError, r"\[0, 3\) is not inside axis 0 of size 2"),
    (lambda: A.pad((1, 2, 3)), ShapeError, "pad"),
    (lambda: A.pad((1, 2), mode="mirror"), ArgumentError, "mode 'mirror'"),
    (lambda: A.pad((4, 0), mode="reflect"), ShapeError, "reflect"),
    (lambda: A.cat(B), ShapeError, r"cat: shapes \(2, 3\) and \(4, 5\)"),
    (lambda: A.stack(V), ShapeError, "stack: shapes"),
    (lambda: A.cat("x"), DTypeError, "argument 1 is str"),
    (lambda: Tensor(1).cat(Tensor(2)), ShapeError, "use stack"),
    (lambda: A.split(0), ShapeError, "positive"),
    (lambda: A.rearrange("a b -> a c"), ArgumentError, "every axis once"),
    (
        lambda: Tensor.zeros(2, 2, 2).diag(),
        ShapeError,
        "diag: needs a vector or a matrix, .*use diag_embed or diagonal",
    ),
    (lambda: Tensor(1.0).diag_embed(), ShapeError, "diag_embed: a tensor without axes has no diagonal; use diagflat"),
    (lambda: V.diag_embed(0, 1, 1), ArgumentError, "diag_embed: dim1=1 and dim2=1 name the same axis"),
    (lambda: V.diag_embed("a"), ArgumentError, "diag_embed: offset must be an integer, got 'a'"),
    (lambda: X.movedim((0, 1), 0), ArgumentError, "movedim: 2 axes in source, 1 in destination"),
    (lambda: X.movedim((0, -2), (0, 1)), ArgumentError, r"movedim: source \(0, -2\) names an axis twice"),
    (lambda: X.movedim(2, 0), IndexingError, "movedim: axis 2 is out of range"),
    (lambda: X.swapaxes(0, 2), IndexingError, "axis 2 is out of range"),
    (lambda: Tensor.zeros(1, 2, 3).t(), ShapeError, r"t: needs at most 2 axes, got shape \(1, 2, 3\); use mT"),
    (lambda: Tensor.zeros(1, 2, 3).H, ShapeError, "H: needs a matrix, .*use mH"),
    (lambda: V.mT, ShapeError, r"mT: needs at least 2 axes, got shape \(3,\)"),
    (lambda: V.fliplr(), ShapeError, r"fliplr: needs at least 2 axes, got shape \(3,\); use flip\(0\)"),
    (lambda: Tensor(1).flipud(), ShapeError, "flipud: needs at least 1 axis"),
    (lambda: A.rot90(1, (0, 0)), ArgumentError, "rot90: dims .*names an axis twice"),
    (lambda: A.rot90(1, (0,)), ArgumentError, "rot90: dims must be two different axes"),
    (lambda: A.rot90(0.5), ArgumentError, "rot90: k must be an integer, got 0.5"),
    (lambda: A.fftshift(2), IndexingError, "fftshift: axis 2 is out of range"),
    (lambda: A.broadcast_to(3, 3), ShapeError, r"shape \(2, 3\) does not expand to \(3, 3\)"),
    (lambda: Tensor.broadcast_shapes((2,), (3,)), ShapeError, "broadcast_shapes: .*sizes 2 and 3 meet on axis -1"),
    (lambda: A.broadcast_tensors(B), ShapeError, "broadcast_tensors: shapes .*do not broadcast"),
    (lambda: A.broadcast_tensors(3), DTypeError, "broadcast_tensors: argument 1 is int"),
    (lambda: A.sum_to_size(3, 3), ShapeError, r"size \(3, 3\) does not broadcast to shape \(2, 3\)"),
    (lambda: A.expand_as(3), DTypeError, "expand_as: other must be a Tensor, got int"),
    (lambda: A.reshape_as(V), ShapeError, r"reshape: shape \(2, 3\) has 6 elements, \(3,\) has 3"),
    (lambda: A.tile(-1), ShapeError, "tile: a size may not be negative"),
    (lambda: A.hstack(B), ShapeError, r"cat: shapes \(2, 3\) and \(4, 5\)"),
    (lambda: A.vstack(B), ShapeError, r"cat: shapes \(2, 3\) and \(4, 5\)"),
    (lambda: A.dstack(3), DTypeError, "dstack: argument 1 is int, not a Tensor"),
    (lambda: Tensor.column_stack([]), ArgumentError, "column_stack: give at least one tensor"),
    (lambda: A.block_diag(Tensor.zeros(1, 1, 1)), ShapeError, "block_diag: each part has at most 2 axes"),
    (lambda: A.cartesian_prod(V), ShapeError, r"cartesian_prod: needs vectors, got shape \(2, 3\)"),
    (lambda: A.combinations(), ShapeError, r"combinations: needs a vector, got shape \(2, 3\)"),
    (lambda: V.combinations(-1), ArgumentError, "combinations: r must be at least 0, got -1"),
    (lambda: A.meshgrid(V), ShapeError, r"meshgrid: needs vectors, got shape \(2, 3\)"),
    (lambda: A.tensor_split(0), ArgumentError, "tensor_split: the number of parts must be at least 1, got 0"),
    (lambda: A.tensor_split((1, "a")), ShapeError, "tensor_split: expected integers"),
    (lambda: A.hsplit(2), ShapeError, "hsplit: 2 parts do not divide axis 1 of size 3; use tensor_split"),
    (lambda: V.vsplit(1), ShapeError, r"vsplit: needs at least 2 axes, got shape \(3,\)"),
    (lambda: A.dsplit(1), ShapeError, "dsplit: needs at least 3 axes"),
    (lambda: A.split_with_sizes(1), ArgumentError, "split_with_sizes: expected a list of sizes, got 1; use split"),
    (lambda: V.repeat_interleave([1, 2]), ArgumentError, "2 repeats for axis 0 of size 3; give one a position"),
    (lambda: V.repeat_interleave([1, -2, 1]), ArgumentError, "repeats must be at least 0"),
    (lambda: V.repeat_interleave(Tensor([1, -2, 1])), ArgumentError, "repeats must be at least 0, got -2"),
    (lambda: V.repeat_interleave(V), ArgumentError, "repeats must be a vector of integers, got dtypes.float32"),
    (lambda: V.repeat_interleave(2, output_size=5), ArgumentError, "output_size is 5, not 6"),
    (lambda: Tensor(1).roll(1, 0), IndexingError, "roll: a tensor without axes has no axis"),
    (lambda: V.pad((-4, 0), mode="replicate"), ShapeError, r"replicate padding \(-4, 0\) is not possible for axis 0"),
    (lambda: Tensor.zeros(0).pad((1, 0), mode="replicate"), ShapeError, "for axis 0 of size 0"),
    (lambda: V.pad((4, 0), mode="circular"), ShapeError, r"circular padding \(4, 0\) is more than axis 0 of size 3"),
    (lambda: Tensor.tril_indices(2, -1), ShapeError, "tril_indices: a size may not be negative"),
    (lambda: Tensor.triu_indices(2, 2, 0.5), ArgumentError, "triu_indices: offset must be an integer, got 0.5"),
    (lambda: A.flatten(1, 0), ArgumentError, "flatten: start_dim 1 lies after end_dim 0"),
    (lambda: A.pad([(1, 1)]), ShapeError, r"pad: 1 entries for shape \(2, 3\); give one for every axis"),
    (
        lambda: A.pad_zeros([(1, -1), (0, 0)]),
        ShapeError,
        r"pad: \(\(1, -1\), \(0, 0\)\) does not fit shape \(2, 3\): one",
    ),
    (
        lambda: A.take_every(0),
        ShapeError,
        r"take_every: steps \(0,\) do not fit shape \(2, 3\); give one positive step",
    ),
    (
        lambda: A.window(0, 1),
        ShapeError,
        r"window: a window of 3 elements does not fit axis 0 of shape \(2, 3\); pad it",
    ),
    (lambda: Tensor(1.0).tensor_split(2), ShapeError, r"tensor_split: a tensor without axes has no parts; use reshape"),
    (lambda: V.meshgrid(V, indexing="yx"), ArgumentError, "meshgrid: indexing 'yx' is not 'ij' or 'xy'"),
    # formulas
    (
        lambda: A.rearrange("a b c ... -> c b a ..."),
        ShapeError,
        r"rearrange: shape \(2, 3\) has too few axes for 'a b c ... -> c b a ...'",
    ),
    (lambda: A.rearrange("a -> a"), ShapeError, r"rearrange: shape \(2, 3\) does not have the 1 axes of 'a -> a'"),
    (
        lambda: A.rearrange("a (b c) -> a b c"),
        ArgumentError,
        r"rearrange: give the sizes of all but one of \['b', 'c'\] as keywords",
    ),
    (
        lambda: A.rearrange("a (b c) -> a b c", b=2),
        ShapeError,
        r"rearrange: axis 1 of shape \(2, 3\) does not divide by 2 in 'a \(b c\) -> a b c'",
    ),
    (
        lambda: A.rearrange("a b -> b a", a=3),
        ShapeError,
        r"rearrange: axis 0 of shape \(2, 3\) is not 3 as the sizes gi",
    ),
    (lambda: A.rearrange("a (b -> b a"), ArgumentError, r"rearrange: cannot read 'a \(b' of .*; use names, '...', '1'"),
]


@pytest.mark.parametrize("row", MISTAKES, ids=range(len(MISTAKES)))
def test_mistake(row: Row) -> None:
    check(row)


def test_arguments_may_be_tensors_of_one_integer() -> None:
    two = Tensor(2)
    assert Tensor.zeros(4).reshape(two, two).shape == (2, 2)
    assert Tensor.arange(3).shrink(((0, two),)).tolist() == [0, 1]
    assert Tensor.arange(3).split(two)[1].tolist() == [2]
