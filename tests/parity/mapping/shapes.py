"""Shapes, joining, indexing and creation: torch's names and orders of arguments for ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet import Tensor
from tests.parity.table import Entry


def method(name: str) -> Callable[..., Any]:
    """The method of the same name; a property without arguments."""

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        found = getattr(first, name)
        return found(*args, **kwargs) if callable(found) else found

    return call


def of_list(name: str) -> Callable[..., Any]:
    """A function of a list of tensors, which ours takes as it is."""
    return lambda tensors, *args, **kwargs: getattr(Tensor, name)(tensors, *args, **kwargs)


def joined(name: str) -> Callable[..., Any]:
    """`f(tensors, dim)`."""
    return lambda tensors, dim=0: getattr(Tensor, name)(tensors, dim=dim)


def shape_only(ours: Callable[..., Any]) -> Entry:
    """Contents that are not set: only shapes and types are compared."""
    return Entry(ours, random=True)


SAME = (
    "broadcast_to", "chunk", "clone", "combinations", "contiguous", "diag",
    "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "dsplit", "expand", "expand_as", "flatten", "fliplr",
    "flipud", "full_like", "gather", "H", "hsplit", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "index_select", "masked_fill", "masked_scatter", "mH", "mT", "movedim", "narrow", "new_full",
    "new_ones", "new_zeros", "ones_like", "permute", "put", "ravel", "repeat", "repeat_interleave", "reshape",
    "reshape_as", "roll", "rot90", "scatter", "scatter_add", "scatter_reduce", "select", "select_scatter",
    "slice_scatter", "split", "split_with_sizes", "squeeze", "sum_to_size", "T", "t", "take", "take_along_dim",
    "tensor_split", "tile", "transpose", "tril", "triu", "unbind", "unflatten", "unfold", "unsqueeze", "view",
    "view_as", "vsplit", "zeros_like", "as_strided", "as_strided_scatter",
)  # fmt: skip
COPIES = (
    "as_strided_copy", "diagonal_copy", "expand_copy", "narrow_copy", "permute_copy", "split_with_sizes_copy",
    "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy", "unfold_copy", "unsqueeze_copy", "view_copy",
)  # fmt: skip

MAPPING: dict[str, Entry | Callable[..., Any]] = {
    **{name: method(name) for name in SAME},
    **{name: method(name.removesuffix("_copy")) for name in COPIES},
    **{
        name: of_list(name)
        for name in ("atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "dstack", "hstack", "vstack")
    },
    "cat": joined("cat"),
    "stack": joined("stack"),
    "__getitem__": lambda x, index: x[index],
    "alias_copy": method("clone"),
    "arange": lambda start, end=None, step=1, dtype=None: Tensor.arange(start, end, step, dtype),
    "block_diag": lambda *tensors: Tensor.block_diag(*tensors),
    "broadcast_shapes": lambda *shapes: Tensor.broadcast_shapes(*shapes),
    "broadcast_tensors": lambda *tensors: Tensor.broadcast_tensors(*tensors),
    "cartesian_prod": lambda *tensors: Tensor.cartesian_prod(*tensors),
    "constant_pad_nd": lambda x, pad, value=0: x.pad(pad, value=value),
    "empty": shape_only(lambda *size, **kwargs: Tensor.empty(*size, **kwargs)),
    "empty_like": shape_only(method("empty_like")),
    "empty_permuted": shape_only(lambda size, order, dtype=None: Tensor.empty(size, dtype=dtype)),
    "empty_strided": shape_only(lambda size, stride, dtype=None: Tensor.empty(size, dtype=dtype)),
    "eye": lambda n, m=None, dtype=None: Tensor.eye(n, m, dtype=dtype),
    "fft.fftshift": method("fftshift"),
    "fft.ifftshift": method("ifftshift"),
    "flip": lambda x, dims: x.flip(dims),
    "full": lambda size, fill_value, dtype=None: Tensor.full(size, fill_value, dtype=dtype),
    "linspace": lambda start, end, steps, dtype=None: Tensor.linspace(start, end, steps, dtype=dtype),
    "logspace": lambda start, end, steps, base=10.0, dtype=None: Tensor.logspace(start, end, steps, base, dtype=dtype),
    "meshgrid": lambda tensors, *more, **kwargs: Tensor.meshgrid(tensors, *more, **kwargs),
    "new_empty": shape_only(method("new_empty")),
    "new_empty_strided": shape_only(lambda x, size, stride, dtype=None: x.new_empty(size, dtype=dtype)),
    "nn.functional.pad": lambda x, pad, mode="constant", value=None: x.pad(pad, mode=mode, value=value or 0.0),
    "ones": lambda *size, dtype=None: Tensor.ones(*size, dtype=dtype),
    "scalar_tensor": lambda value, dtype=None: Tensor(value, dtype=dtype),
    "slice": lambda x, dim=0, start=None, end=None, step=1: x[(slice(None),) * dim + (slice(start, end, step),)],
    "tril_indices": lambda row, col, offset=0, dtype=None: Tensor.tril_indices(row, col, offset, dtype=dtype),
    "triu_indices": lambda row, col, offset=0, dtype=None: Tensor.triu_indices(row, col, offset, dtype=dtype),
    "unsafe_chunk": method("chunk"),
    "unsafe_split": method("split"),
    "zeros": lambda *size, dtype=None: Tensor.zeros(*size, dtype=dtype),
}

REASONS = {
    "_chunk_cat": "private to torch",
    "_unsafe_masked_index": "private to torch's compiler",
    "_unsafe_masked_index_put_accumulate": "private to torch's compiler",
    "as_strided.partial_views": "reads memory outside of the view; our strides count elements of the value itself",
    "resize_": "changes how much memory a tensor has; a tensor of ours is a value",
    "resize_as_": "changes how much memory a tensor has; a tensor of ours is a value",
    "sparse.mm": "sparse layouts",
    "sparse.sampled_addmm": "sparse layouts",
    "to_sparse": "sparse layouts",
}
