"""Parsing of einsum and rearrange formulas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.arguments import Shape, integer


def parse_rearrange(formula: str, shape: Shape, known: Mapping[str, int]) -> tuple[Shape, Shape, Shape]:
    """The three steps of a rearrange: shape to split into, order of the axes, shape to join into.

    Raises:
        ArgumentError: the formula names an axis on one side only, or twice.
        ShapeError: the shape does not fit.
    """
    if not isinstance(formula, str) or formula.count("->") != 1:
        raise ArgumentError(f"rearrange: {formula!r} needs one '->'")
    left, right = [_groups(side, formula) for side in formula.split("->")]
    if ["..."] in left:
        count = len(shape) - len(left) + 1
        if count < 0:
            raise ShapeError(f"rearrange: shape {shape} has too few axes for {formula!r}")
        rest = [f"...{i}" for i in range(count)]
        left = _spell_out(left, rest)
        right = [[n for name in group for n in (rest if name == "..." else [name])] if len(group) > 1 else group
                 for group in right]  # fmt: skip
        right = _spell_out(right, rest)
    if len(left) != len(shape):
        raise ShapeError(f"rearrange: shape {shape} does not have the {len(left)} axes of {formula!r}")
    size = {name: integer(value, "rearrange", name) for name, value in known.items()}
    for axis, (group, total) in enumerate(zip(left, shape)):
        unknown = [n for n in group if n not in size and n != "1"]
        have = prod(size[n] for n in group if n in size)
        if len(unknown) > 1:
            raise ArgumentError(f"rearrange: give the sizes of all but one of {unknown} as keywords")
        if unknown:
            if have == 0 or total % have:
                raise ShapeError(f"rearrange: axis {axis} of shape {shape} does not divide by {have} in {formula!r}")
            size[unknown[0]] = total // have
        elif have != total:
            raise ShapeError(
                f"rearrange: axis {axis} of shape {shape} is not {have} as the sizes given for {formula!r}"
            )
    names = [n for group in left for n in group if n != "1"]
    wanted = [n for group in right for n in group if n != "1"]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise ArgumentError(f"rearrange: {formula!r} must name every axis once on each side")
    order = tuple([names.index(n) for n in wanted])
    after = tuple([prod(size[n] for n in group if n != "1") for group in right])
    return tuple([size[n] for n in names]), order, after


def _spell_out(groups: list[list[str]], rest: list[str]) -> list[list[str]]:
    """Replace the ellipsis by an axis each."""
    return [g for group in groups for g in ([[n] for n in rest] if group == ["..."] else [group])]


def _groups(side: str, formula: str) -> list[list[str]]:
    """Axes of one side; each is a list of the names joined in it."""
    if not re.fullmatch(r"(\s*(\((\s*(\w+|\.\.\.))*\s*\)|\w+|\.\.\.)\s*)*", side):
        raise ArgumentError(
            f"rearrange: cannot read {side.strip()!r} of {formula!r}; use names, '...', '1' and one level of brackets"
        )
    groups = []
    for inside, single in re.findall(r"\(([^)]*)\)|(\w+|\.\.\.)", side):
        groups.append([single] if single else inside.split())
    return groups


def parse_einsum(formula: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The letters of every operand and of the result, with the ellipsis spelled out in capital letters.

    Raises:
        ArgumentError: the formula cannot be read.
        ShapeError: the number of axes or their sizes do not fit.
    """
    text = formula.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    operands = inputs.split(",")
    if len(operands) != len(shapes):
        raise ArgumentError(f"einsum: {formula!r} has {len(operands)} operands, {len(shapes)} tensors were given")
    if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", text):
        raise ArgumentError(f"einsum: {formula!r} may contain letters, ',', '...' and '->' only")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in text]
    widest = 0
    for letters, shape in zip(operands, shapes):
        plain = letters.replace("...", "")
        extra = len(shape) - len(plain)
        if "." in plain or letters.count("...") > 1 or extra < 0 or (extra and "..." not in letters):
            raise ShapeError(f"einsum: {letters!r} of {formula!r} does not fit shape {shape}")
        widest = max(widest, extra)
    batch = "".join(free[:widest])
    if len(batch) < widest:
        raise ArgumentError(
            f"einsum: {formula!r} leaves {len(free)} letters for the {widest} axes of '...'; use fewer, or join axes"
        )
    spelled = []
    for letters, shape in zip(operands, shapes):
        extra = len(shape) - len(letters.replace("...", ""))
        spelled.append(letters.replace("...", batch[widest - extra :]))
    everything = "".join(spelled)
    if arrow:
        result = output.replace("...", batch)
        if len(set(result)) != len(result) or any(c not in everything for c in result):
            raise ArgumentError(
                f"einsum: the result {output!r} of {formula!r} repeats a letter or has one no operand has"
            )
    else:
        once = sorted(c for c in set(everything) if c not in batch and everything.count(c) == 1)
        result = batch + "".join(once)
    size: dict[str, int] = {}
    for letters, shape in zip(spelled, shapes):
        for letter, extent in zip(letters, shape):
            if size.setdefault(letter, extent) not in (extent, 1):
                if extent != 1:
                    raise ShapeError(f"einsum: letter {letter!r} of {formula!r} has sizes {size[letter]} and {extent}")
            elif extent != 1:
                size[letter] = extent
    return spelled, result
