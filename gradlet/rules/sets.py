"""The named rule sets: the only place where sets of rules are combined.

| set | what it is for |
|-|-|
| SIMPLIFY | always on: identities, folding of constants, normal form of integer arithmetic, merged movements |
| INDEX_MATH | SIMPLIFY and what follows from bounds: division, modulo, comparison, guards, ranges |
"""

from __future__ import annotations

from typing import Final

from gradlet.graph.node import UOp
from gradlet.graph.rewrite import RuleSet, rewrite
from gradlet.rules import bounded, folds, removes, reorders

_simplify: Final = removes.RULES + folds.RULES + reorders.RULES
SIMPLIFY: Final = RuleSet("simplify", _simplify.guarantee, _simplify.rules)
# Bounds come first: what they decide needs no normal form.
_index_math: Final = bounded.RULES + SIMPLIFY
INDEX_MATH: Final = RuleSet("index math", _index_math.guarantee, _index_math.rules)


def simplify(node: UOp) -> UOp:
    """The node in its simplest form, with all rules that need no context."""
    return rewrite(node, INDEX_MATH)
