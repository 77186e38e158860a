"""Matrix products and einsum."""

from __future__ import annotations

import torch

from gradlet import Tensor
from tests.operators.case import FLOATS, Case, In

CASES: list[Case] = []
_SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((1, 1), (1, 1)),
    ((33, 17), (17, 65)),
    ((3, 0), (0, 2)),
    ((0, 3), (3, 2)),
    ((4,), (2, 4, 5)),
]
_SETS = [[In(a), In(b)] for a, b in _SHAPES]
_SETS += [
    [In((8, 6), layout=a), In((6, 7), layout=b)]
    for a, b in (("transposed", "plain"), ("strided", "transposed"), ("sliced", "flipped"))
]
CASES.append(Case("matmul", lambda x, y: x @ y, torch.matmul, _SETS, (*FLOATS, "int32"), scale=4))
CASES.append(Case("dot-method", lambda x, y: x.dot(y), torch.matmul, [[In((3, 4)), In((4, 5))]]))
CASES.append(Case("matmul-reverse", lambda x, y: y.matmul(x, reverse=True), torch.matmul, [[In((3, 4)), In((4, 5))]]))
CASES.append(
    Case(
        "matmul-chain",
        lambda x, y, z: x @ y @ z,
        lambda x, y, z: x @ y @ z,
        [[In((3, 4)), In((4, 5)), In((5, 2))]],
        scale=4,
    )
)
CASES.append(Case("matmul-self", lambda x: x @ x.T, lambda x: x @ x.T, [[In((5, 3))]], scale=4))
CASES.append(
    Case(
        "linear",
        lambda x, w, b: x.linear(w, b),
        lambda x, w, b: x @ w + b,
        [[In((3, 4)), In((4, 5)), In((5,))], [In((2, 3, 4)), In((4, 5)), In((5,))]],
        ("float32", "float16"),
        scale=4,
    )
)
CASES.append(Case("linear-vector", lambda x, w: x.linear(w), lambda x, w: x * w, [[In((3, 4)), In((4,))]]))
CASES.append(Case("outer", lambda x, y: x.outer(y), torch.outer, [[In((3,)), In((4,))]]))
CASES.append(Case("trace", lambda x: x.trace(), torch.trace, [[In((4, 4))], [In((3, 5))]]))
CASES.append(Case("kron", lambda x, y: x.kron(y), torch.kron, [[In((2, 3)), In((3, 2))]]))
for _formula, *_inputs in [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("i,i", (4,), (4,)),
    ("i,j->ij", (3,), (4,)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...jk->...ik", (6, 2, 3, 4), (2, 4, 5)),
    ("ba", (3, 4)),
    ("...a->a...", (2, 3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("...,...->...", (2, 3), (3,)),
    ("iij->ij", (3, 3, 2)),
]:
    CASES.append(
        Case(
            f"einsum-{_formula}-{len(_inputs[0])}",
            lambda *x, f=_formula: Tensor.einsum(f, *x),
            lambda *x, f=_formula: torch.einsum(f, *x),
            [[In(s) for s in _inputs]],
            scale=4,
        )
    )
CASES.append(
    Case(
        "einsum-half",
        lambda x, y: Tensor.einsum("ij,jk->ik", x, y),
        lambda x, y: torch.einsum("ij,jk->ik", x, y),
        [[In((3, 40)), In((40, 5))]],
        ("float16",),
        scale=4,
    )
)
