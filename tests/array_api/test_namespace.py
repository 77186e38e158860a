"""The namespace as a whole: names, signatures, constants, inspection, versions, what it costs to have."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradlet
import gradlet.array_api as xp
from gradlet import Device, Tensor, dtypes
from gradlet.base.errors import ArgumentError, DTypeError

HERE = Path(__file__).parent
CONSTANTS = {"e", "inf", "nan", "newaxis", "pi"}
TYPES = {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
}  # fmt: skip
# The functions of the standard, version 2024.12, by chapter, as it spells their arguments.
FUNCTIONS = """
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
asarray(obj, /, *, dtype=None, device=None, copy=None)
empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
meshgrid(*arrays, indexing='xy')
ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None)
tril(x, /, *, k=0)
triu(x, /, *, k=0)
zeros(shape, *, dtype=None, device=None)
zeros_like(x, /, *, dtype=None, device=None)
astype(x, dtype, /, *, copy=True, device=None)
can_cast(from_, to, /)
finfo(type, /)
iinfo(type, /)
isdtype(dtype, kind)
result_type(*arrays_and_dtypes)
clip(x, /, min=None, max=None)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
matmul(x1, x2, /)
matrix_transpose(x, /)
tensordot(x1, x2, /, *, axes=2)
vecdot(x1, x2, /, *, axis=-1)
broadcast_arrays(*arrays)
broadcast_to(x, /, shape)
concat(arrays, /, *, axis=0)
expand_dims(x, /, axis=0)
flip(x, /, *, axis=None)
moveaxis(x, source, destination, /)
permute_dims(x, /, axes)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
roll(x, /, shift, *, axis=None)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
tile(x, repetitions, /)
unstack(x, /, *, axis=0)
argmax(x, /, *, axis=None, keepdims=False)
argmin(x, /, *, axis=None, keepdims=False)
count_nonzero(x, /, *, axis=None, keepdims=False)
nonzero(x, /)
searchsorted(x1, x2, /, *, side='left', sorter=None)
where(condition, x1, x2, /)
unique_all(x, /)
unique_counts(x, /)
unique_inverse(x, /)
unique_values(x, /)
argsort(x, /, *, axis=-1, descending=False, stable=True)
sort(x, /, *, axis=-1, descending=False, stable=True)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
max(x, /, *, axis=None, keepdims=False)
mean(x, /, *, axis=None, keepdims=False)
min(x, /, *, axis=None, keepdims=False)
prod(x, /, *, axis=None, dtype=None, keepdims=False)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
all(x, /, *, axis=None, keepdims=False)
any(x, /, *, axis=None, keepdims=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
"""
OF_ONE = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf isnan log
log1p log2 log10 logical_not negative positive real reciprocal round sign signbit sin sinh square sqrt tan tanh trunc
"""
OF_TWO = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal floor_divide
greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum minimum multiply
nextafter not_equal pow remainder subtract
"""
LINALG = """
cholesky(x, /, *, upper=False)
cross(x1, x2, /, *, axis=-1)
det(x, /)
diagonal(x, /, *, offset=0)
eigh(x, /)
eigvalsh(x, /)
inv(x, /)
matmul(x1, x2, /)
matrix_norm(x, /, *, keepdims=False, ord='fro')
matrix_power(x, n, /)
matrix_rank(x, /, *, rtol=None)
matrix_transpose(x, /)
outer(x1, x2, /)
pinv(x, /, *, rtol=None)
qr(x, /, *, mode='reduced')
slogdet(x, /)
solve(x1, x2, /)
svd(x, /, *, full_matrices=True)
svdvals(x, /)
tensordot(x1, x2, /, *, axes=2)
trace(x, /, *, offset=0, dtype=None)
vecdot(x1, x2, /, *, axis=-1)
vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
"""


def spelled(name: str, function: object) -> str:
    """A signature without types."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return f"{name}{inspect.Signature(plain)}"


def expected() -> dict[str, str]:
    rows = [
        *FUNCTIONS.split("\n"),
        *[f"{n}(x, /)" for n in OF_ONE.split()],
        *[f"{n}(x1, x2, /)" for n in OF_TWO.split()],
    ]
    return {row.partition("(")[0]: row for row in rows if row}


def test_functions_have_the_signatures_of_the_standard() -> None:
    found = {name: spelled(name, getattr(xp, name)) for name in expected()}
    assert found == expected()


def test_the_linalg_extension_has_them_too() -> None:
    rows = {row.partition("(")[0]: row for row in LINALG.split("\n") if row}
    assert {name: spelled(name, getattr(xp.linalg, name)) for name in rows} == rows
    assert set(xp.linalg.__all__) == set(rows)


def test_names_are_those_of_the_standard() -> None:
    more = {"__array_api_version__", "__array_namespace_info__", "linalg"}
    assert set(xp.__all__) == set(expected()) | CONSTANTS | TYPES | more


def test_every_function_is_described() -> None:
    assert [n for n in expected() if not (getattr(xp, n).__doc__ or "").strip()] == []
    assert [n for n in xp.linalg.__all__ if not (getattr(xp.linalg, n).__doc__ or "").strip()] == []


def test_every_function_has_a_test_here() -> None:
    texts = [path.read_text() for path in HERE.glob("*.py") if path != Path(__file__)]
    words = set(re.findall(r"\w+", " ".join(texts)))
    assert set(expected()) - words == set()
    assert set(xp.linalg.__all__) - words == set()


def test_constants() -> None:
    assert (xp.e, xp.pi, xp.inf) == (math.e, math.pi, math.inf)
    assert math.isnan(xp.nan)
    assert xp.newaxis is None
    assert Tensor([1, 2])[xp.newaxis].shape == (1, 2)


def test_types() -> None:
    for name in TYPES:
        assert getattr(xp, name) is getattr(dtypes, name)


def test_versions() -> None:
    assert xp.__array_api_version__ == "2024.12"
    x = Tensor([1.0])
    assert x.__array_namespace__() is xp is gradlet.array_api
    assert x.__array_namespace__(api_version="2022.12") is xp
    with pytest.raises(ArgumentError, match=r"api_version '2019.12' is not supported; use one of: .*2024.12"):
        x.__array_namespace__(api_version="2019.12")


def test_inspection() -> None:
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}
    assert info.default_device() == Device.DEFAULT
    assert set(info.devices()) - {"CUDA"} == {"CPU", "PYTHON"}  # a GPU where there is one
    assert info.default_dtypes() == {"real floating": xp.float32, "integral": xp.int32, "indexing": xp.int32}
    assert set(info.dtypes()) == TYPES
    assert set(info.dtypes(kind="bool")) == {"bool"}
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(info.dtypes(kind=("real floating", "bool"))) == {"float32", "float64", "bool"}
    assert info.dtypes(kind="complex floating") == {}


def test_complex_numbers_are_refused_by_name() -> None:
    for name in ("complex64", "complex128"):
        assert not hasattr(xp, name)
        with pytest.raises(AttributeError, match="there are no complex numbers"):
            getattr(xp, name)
    for make in (lambda: xp.asarray(1j), lambda: xp.full((2,), 1j)):
        with pytest.raises(DTypeError, match="there are no complex numbers"):
            make()


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'foo'; it has .*arange"):
        _ = xp.foo


def test_the_package_does_not_load_it() -> None:
    code = "import sys, gradlet; gradlet.Tensor([1.0]); print('gradlet.array_api' in sys.modules)"
    root = HERE.parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
