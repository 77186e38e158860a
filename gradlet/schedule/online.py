"""Online reductions: a reduction of values that depend on another one of the same axes, in one pass over memory.

A softmax over a long row needs the maximum before it adds up exponentials, a variance needs the mean. Where a row does
not stay near one core, every link of such a chain would be a pass over memory. Instead the axes are cut in blocks that
do stay near it. A block has its own maximum and its own sum relative to that; a small combination brings all blocks
to the row's maximum (`separate` knows how). All cores work, and the order of additions is fixed by the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod
from typing import Final

from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import Op
from gradlet.schedule.blockcut import BlockCut
from gradlet.schedule.clean import HAS_REDUCES, REDUCES, find_devices
from gradlet.schedule.separate import Separation
from gradlet.target.target import Target

# A result that combines fewer elements is not worth a combination of its own.
MIN_REDUCED: Final = 1 << 16
# Blocks for each core: enough to even out unequal speed.
BLOCKS_PER_CORE: Final = 4
# More blocks make the combination long; they are larger then.
MAX_BLOCKS: Final = 4096
# Of columns each block gives a row of results. As few rows as a column sum takes without being cut (`columns`).
MAX_COLUMN_BLOCKS: Final = 128
# What one row shares with its neighbours when rows are not contiguous.
LINE_BYTES: Final = 64
# Blocks of a multiple of this are whole vectors.
VECTOR: Final = 64
_OPS: Final = (Op.ADD, Op.MAX, Op.MIN)

Key = tuple[tuple[int, ...], tuple[int, ...], str]


def go_online(root: UOp, target_of: Callable[[str], Target], default_device: str) -> UOp:
    """The graph with every long chain of reductions over the same axes as blocks and their combination."""
    if not root.mask & HAS_REDUCES:
        return root
    order = toposort((root,))
    long = [n for n in order if n.op in REDUCES and _is_long(n)]
    if not long:
        return root
    devices = find_devices(order)
    groups: dict[Key, list[UOp]] = {}
    for node in long:
        groups.setdefault((node.src[0].shape, node.arg.axes, devices.get(node, default_device)), []).append(node)
    made: dict[UOp, UOp] = {}
    for (shape, axes, device), members in groups.items():
        if len(members) > 1:
            cut = choose_cut(shape, axes, members[0].src[0].dtype.itemsize, target_of(device))
            if cut is not None:
                made.update(combinations(order, members, cut))
    return _replaced(root, made) if made else root


def _is_long(node: UOp) -> bool:
    if node.arg.op not in _OPS or node.arg.limited or 0 in node.src[0].shape:
        return False
    return prod(node.src[0].shape) >= prod(node.shape) * MIN_REDUCED


def choose_cut(shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, target: Target) -> BlockCut | None:
    """Blocks that stay near a core; None where whole rows do, or where there is nothing to cut."""
    reduced = prod([shape[a] for a in axes])
    results = prod(shape) // reduced
    rows = axes[-1] == len(shape) - 1
    line = itemsize if rows else max(itemsize, min(LINE_BYTES, results * itemsize))
    if results >= target.cores and reduced * line <= target.l2_bytes // 2:
        return None
    wanted = max(1, target.l1_bytes // 2 // line)
    wanted = max(wanted, min(reduced // (MAX_BLOCKS if rows else MAX_COLUMN_BLOCKS), target.l2_bytes // 4 // line))
    wanted = min(wanted, max(1, reduced * results // (target.cores * BLOCKS_PER_CORE)))
    blocks: list[int] = []
    sizes: list[int] = []
    for position, axis in enumerate(axes):
        rest = prod([shape[a] for a in axes[position + 1 :]])
        size = max(1, min(shape[axis], wanted // rest))
        if size < shape[axis]:
            size = near_divisor(shape[axis], size)
        sizes.append(size)
        blocks.append(-(-shape[axis] // size))
    cut = BlockCut(shape, axes, tuple(blocks), tuple(sizes))
    return cut if cut.count_blocks > 1 else None


def near_divisor(size: int, wanted: int) -> int:
    """A size of blocks near the wanted one: one that divides, if there is any, better in whole vectors."""
    divisors = [d for small in range(1, isqrt(size) + 1) if size % small == 0 for d in (small, size // small)]
    near = [d for d in divisors if wanted <= 2 * d and d <= 2 * wanted]
    if near:
        return min(near, key=lambda d: (d % VECTOR != 0, abs(d - wanted), d))
    return wanted if wanted < VECTOR else wanted // VECTOR * VECTOR


def combinations(order: Sequence[UOp], members: Sequence[UOp], cut: BlockCut) -> dict[UOp, UOp]:
    """What reductions become, in terms of the old graph: blocks of chains over the same axes, and their combination.

    A reduction that no block can begin before another is known ends a chain and begins the next one.
    """
    mine = set(members)
    level: dict[UOp, int] = {}
    chains: list[tuple[Separation, dict[UOp, UOp], list[UOp]]] = []
    known = level.keys()
    for node in order[order.index(members[0]) : order.index(members[-1]) + 1]:
        below = -1 if known.isdisjoint(node.src) else max([level.get(s, -1) for s in node.src])
        if node not in mine:
            if below >= 0:
                level[node] = below
            continue
        if below >= 0:
            separation, heads, followers = chains[below]
            combination = separation.follower(node)
            if combination is not None:
                heads[node] = combination
                followers.append(node)
                level[node] = below
                continue
        level[node] = below + 1
        if level[node] == len(chains):
            chains.append((_separation(cut, level, below + 1), {}, []))
        separation, heads, _ = chains[below + 1]
        heads[node] = separation.head(node)
    made: dict[UOp, UOp] = {}
    for _, combined, followers in chains:
        if followers:
            made.update(combined)
    return made


def _separation(cut: BlockCut, level: dict[UOp, int], own: int) -> Separation:
    return Separation(cut, lambda node: level.get(node, -1) == own)


def _replaced(root: UOp, made: dict[UOp, UOp]) -> UOp:
    """The graph with nodes replaced by expressions of the old graph."""
    new: dict[UOp, UOp] = {}
    pending: list[tuple[UOp, bool]] = [(root, False)]
    while pending:
        node, ready = pending.pop()
        if node in new:
            continue
        instead = made.get(node)
        sources = node.src if instead is None else (instead,)
        if not ready:
            pending.append((node, True))
            pending += [(s, False) for s in sources if s not in new]
        elif instead is not None:
            new[node] = new[instead]
        else:
            src = tuple([new[s] for s in node.src])
            new[node] = node if src == node.src else mk(node.op, node.dtype, src, node.arg)
    return new[root]
