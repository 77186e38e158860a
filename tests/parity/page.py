"""docs/parity.md: how many operators of torch's database pass, a row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
PARTS = ("forward", "backward", "second", "errors")

HEAD = """# Parity with torch

torch's own operator database (`torch.testing._internal.common_methods_invocations.op_db`, torch {torch}) driven
against `Tensor`: every operator is mapped to one of our functions in `tests/parity/mapping/`, or listed below with the
reason. This page is written by

    python -m tests.parity.run --write

**{operators}** operators, **{mapped}** mapped. All samples pass: **{forward}** operators forward, **{backward}**
backward, {second} in second derivatives. Samples: {forward_passed} of {forward_total} forward, {backward_passed} of
{backward_total} backward, {second_passed} of {second_total} second derivatives; refused arguments: {errors_passed} of
{errors_total}.

* *forward*: shapes, types and values of every float32 sample (operators without float32: int64 or bool). A float
  passes within 1e-5 + 2e-5 |x| of torch's result (a few operators have another bound in their mapping), or no further
  from torch's float64 result than twice torch's own distance. Operators whose results are not unique (signs of singular
  vectors) are compared by what defines them, random ones by shape and type.
* *backward*: the gradients of a weighted sum of the float results, with respect to every input that asks for one.
* *second*: the gradients of a weighted sum of those gradients, on about {second_samples} samples an operator.
* *errors*: arguments that torch refuses must raise an error for users. They do not count for "pass".
* `dtypes.default_int` is int64 in these runs, as it is in torch.

"""


def write_page(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the page from the counts of a whole run."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.parity.check import SECOND_SAMPLES
    from tests.parity.table import entry_of, key_of, reason_of

    keys = {key_of(o): o for o in op_db}
    rows = {k: results[k] for k, o in keys.items() if entry_of(o) is not None}

    def total(part: str, field: str) -> int:
        return sum(r[part][field] for r in rows.values())

    def complete(part: str) -> int:
        return sum(r[part]["total"] > 0 and r[part]["passed"] == r[part]["total"] for r in rows.values())

    sums = {f"{p}_{f}": total(p, f) for p in PARTS for f in ("passed", "total")}
    text = HEAD.format(
        torch=torch.__version__.split("+")[0], operators=len(keys), mapped=len(rows), forward=complete("forward"),
        backward=complete("backward"), second=complete("second"), second_samples=SECOND_SAMPLES, **sums,
    )  # fmt: skip
    text += "| operator | forward | backward | second | errors |\n|---|---|---|---|---|\n"
    for key, counts in rows.items():
        cells = [_cell(counts[part]) for part in PARTS]
        text += f"| {key} | {' | '.join(cells)} |\n"
    text += "\n## Not mapped\n\n| operator | reason |\n|---|---|\n"
    for key, operator in keys.items():
        if entry_of(operator) is None:
            text += f"| {key} | {reason_of(operator) or 'NOT SAID'} |\n"
    PAGE.write_text(text)


def _cell(count: Mapping[str, int]) -> str:
    if not count["total"]:
        return ""
    text = f"{count['passed']}/{count['total']}"
    return text if count["passed"] == count["total"] else f"**{text}**"


def read_page() -> dict[str, tuple[bool, bool]]:
    """Of every mapped operator on the page whether all samples pass forward, and backward."""
    found = {}
    for line in PAGE.read_text().splitlines():
        row = re.fullmatch(r"\| (\S+) \| (\S*) \| (\S*) \| (\S*) \| (\S*) \|", line)
        if row and row[1] not in ("operator",):
            passes = [bool(cell) and not cell.startswith("**") for cell in (row[2], row[3])]
            found[row[1]] = (passes[0], passes[1])
    return found
