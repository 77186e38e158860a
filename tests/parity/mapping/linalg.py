"""Linear algebra: products, factorizations, systems, spectra, norms."""

from __future__ import annotations

from typing import Any

import torch

from gradlet import Tensor
from tests.parity.table import Entry


def _method(name: str) -> Any:
    return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


def _close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Equal within the rounding of matrices of this size."""
    size = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=tolerance * size, equal_nan=True)


# Results that are unique up to signs, or up to a basis of equal values: what they make together is compared.
def _orthonormal(columns: torch.Tensor) -> None:
    _close(columns.mT @ columns, torch.eye(columns.shape[-1]).expand(*columns.shape[:-2], -1, -1))


def _svd_pieces(ours: list[torch.Tensor], theirs: list[torch.Tensor], vh: bool) -> None:
    u, s, v = ours
    _close(s, theirs[1])
    if 0 in u.shape or 0 in v.shape:
        return
    rows = v if vh else v.mT
    k = s.shape[-1]
    _orthonormal(u), _orthonormal(rows.mT)
    other = theirs[2] if vh else theirs[2].mT
    _close(
        u[..., :k] * s.unsqueeze(-2) @ rows[..., :k, :],
        theirs[0][..., :k] * theirs[1].unsqueeze(-2) @ other[..., :k, :],
    )


def _compare_svd(ours: list[torch.Tensor], theirs: list[torch.Tensor], arguments: tuple[Any, ...]) -> None:
    _svd_pieces(ours, theirs, vh=True)


def _compare_svd_v(ours: list[torch.Tensor], theirs: list[torch.Tensor], arguments: tuple[Any, ...]) -> None:
    _svd_pieces(ours, theirs, vh=False)


def _compare_eigh(ours: list[torch.Tensor], theirs: list[torch.Tensor], arguments: tuple[Any, ...]) -> None:
    values, vectors = ours
    _close(values, theirs[0])
    if 0 not in vectors.shape:
        _orthonormal(vectors)
        _close(vectors * values.unsqueeze(-2) @ vectors.mT, theirs[1] * theirs[0].unsqueeze(-2) @ theirs[1].mT)


def _eigh_view(results: Any) -> Any:
    values, vectors = results
    return values, vectors * vectors


def _svd_view(results: Any) -> Any:
    """What does not change when a vector and its partner change sign; only the vectors that carry gradients."""
    u, s, v = results
    k = s.shape[-1]
    u, v = u[..., :k], v[..., :k, :]
    return u * u, s, v * v


def _svd_view_v(results: Any) -> Any:
    u, s, v = results
    k = s.shape[-1]
    u, v = u[..., :k], v[..., :k]
    return u * u, s, v * v


def _product_view(results: Any) -> Any:
    """The matrix that the pieces of a truncated decomposition make, and the singular values."""
    u, s, v = results
    return s, (u * s.unsqueeze(-2)) @ v.transpose(-1, -2)


def _compare_lowrank(ours: list[torch.Tensor], theirs: list[torch.Tensor], arguments: tuple[Any, ...]) -> None:
    for own, other in zip(_product_view(ours), _product_view(theirs)):
        _close(own, other)


def _svd_some(x: Tensor, some: bool = True, compute_uv: bool = True) -> Any:
    u, s, vh = x.svd(full_matrices=not some)
    if not compute_uv:
        u, vh = u.zeros_like(), vh.zeros_like()
    return u, s, vh.transpose(-1, -2)


def _of_product(name: str) -> Any:
    """The samples are two factors of a matrix of low rank."""
    return lambda a, b, **kwargs: getattr(a @ b.transpose(-1, -2), name)(**kwargs)


def _lu(x: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    return x.lu_factor_ex(pivot) if get_infos else x.lu_factor(pivot)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """torch's weight has its outputs first; a vector is one output without an axis."""
    if weight.ndim == 1:
        return x.inner(weight) if bias is None else x.inner(weight).add(bias)
    return x.linear(weight.transpose(0, 1), bias)


def _matrix_rank(x: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Any:
    return x.matrix_rank(tol if atol is None else atol, rtol, hermitian)


def _pinv(x: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Any:
    return x.pinv(atol, rcond if rtol is None else rtol, hermitian)


MAPPING: dict[str, Any] = {
    # products
    "addmm": _method("addmm"),
    "addmv": _method("addmv"),
    "addr": _method("addr"),
    "addbmm": _method("addbmm"),
    "baddbmm": _method("baddbmm"),
    "bmm": _method("bmm"),
    "mm": _method("mm"),
    "mv": _method("mv"),
    "dot": _method("vdot"),
    "vdot": _method("vdot"),
    "matmul": _method("matmul"),
    "__rmatmul__": lambda x, y: y @ x,
    "outer": _method("outer"),
    "inner": _method("inner"),
    "kron": _method("kron"),
    "tensordot": _method("tensordot"),
    "trace": _method("trace"),
    "einsum": lambda operands, formula: Tensor.einsum(formula, *operands),
    "cross": _method("cross"),
    "nn.functional.linear": _linear,
    "nn.functional.bilinear": _method("bilinear"),
    "linalg.cross": _method("linalg_cross"),
    "linalg.vecdot": _method("vecdot"),
    "linalg.multi_dot": lambda tensors: Tensor.multi_dot(tensors),
    "linalg.matrix_power": _method("matrix_power"),
    "linalg.vander": _method("vander"),
    "linalg.diagonal": lambda x, *, offset=0, dim1=-2, dim2=-1: x.diagonal(offset, dim1, dim2),
    # factorizations
    "cholesky": _method("cholesky"),
    "cholesky_inverse": _method("cholesky_inverse"),
    "cholesky_solve": _method("cholesky_solve"),
    "linalg.cholesky": _method("cholesky"),
    "linalg.cholesky_ex": _method("cholesky_ex"),
    "lu": _lu,
    "lu_solve": _method("lu_solve"),
    "lu_unpack": _method("lu_unpack"),
    "linalg.lu": _method("lu"),
    "linalg.lu_factor": _method("lu_factor"),
    "linalg.lu_factor_ex": _method("lu_factor_ex"),
    "linalg.lu_solve": lambda packed, pivots, b, **kwargs: b.lu_solve(packed, pivots, **kwargs),
    "geqrf": _method("geqrf"),
    "ormqr": _method("ormqr"),
    "qr": lambda x, some=True: x.qr("reduced" if some else "complete"),
    "linalg.qr": _method("qr"),
    "linalg.householder_product": _method("householder_product"),
    # systems
    "triangular_solve": _method("triangular_solve"),
    "linalg.solve_triangular": _method("solve_triangular"),
    "linalg.det": _method("det"),
    "linalg.slogdet": _method("slogdet"),
    "logdet": _method("logdet"),
    "linalg.inv": _method("inv"),
    "linalg.inv_ex": _method("inv_ex"),
    "linalg.solve": _method("solve"),
    "linalg.solve_ex": _method("solve_ex"),
    "linalg.lstsq": _method("lstsq"),
    "linalg.lstsq.grad_oriented": lambda a, b, driver: a.lstsq(b, driver=driver)[:2],
    "linalg.tensorinv": _method("tensorinv"),
    "linalg.tensorsolve": _method("tensorsolve"),
    "matrix_exp": _method("matrix_exp"),
    # spectra
    "linalg.eigh": Entry(_method("eigh"), compare=_compare_eigh, grad_view=_eigh_view, gradient_relative=2e-3),
    "linalg.eigvalsh": _method("eigvalsh"),
    "linalg.svd": Entry(_method("svd"), compare=_compare_svd, grad_view=_svd_view, gradient_relative=2e-3),
    "svd": Entry(_svd_some, compare=_compare_svd_v, grad_view=_svd_view_v, gradient_relative=2e-3),
    "linalg.svdvals": _method("svdvals"),
    "svd_lowrank": Entry(_of_product("svd_lowrank"), compare=_compare_lowrank, grad_view=_product_view),
    "pca_lowrank": Entry(_of_product("pca_lowrank"), compare=_compare_lowrank, grad_view=_product_view),
    "pinverse": _method("pinverse"),
    "linalg.pinv": _pinv,
    "linalg.pinv.singular": _of_product("pinv"),
    "linalg.matrix_rank": _matrix_rank,
    # norms
    "norm": _method("norm"),
    "linalg.norm": _method("linalg_norm"),
    "linalg.matrix_norm": _method("matrix_norm"),
    "linalg.vector_norm": _method("vector_norm"),
    "linalg.cond": _method("cond"),
}

REASONS: dict[str, str] = {
    "linalg.eig": "eigenvalues of general matrices are complex numbers",
    "linalg.eigvals": "eigenvalues of general matrices are complex numbers",
    "linalg.ldl_factor": "LDL with LAPACK's pivots (Bunch and Kaufman): use eigh or lu_factor",
    "linalg.ldl_factor_ex": "LDL with LAPACK's pivots (Bunch and Kaufman): use eigh or lu_factor",
    "linalg.ldl_solve": "needs LAPACK's LDL factors",
    "torch._scaled_mm": "float8 matrix units of a GPU; no samples",
    "torch._scaled_mm_v2": "float8 matrix units of a GPU; no samples",
}
