"""The nodes of a graph by signature, which tells rule sets without work from the others at once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from gradlet.graph.node import UOp, next_stamp, stamp_lock
from gradlet.graph.rewrite import RuleSet, observed


class SignatureIndex:
    """The nodes of one graph grouped by signature: built once, then every rule set asks it whether it has work.

    A pass asks once per signature instead of once per node, so a pass without work costs next to nothing.
    """

    __slots__ = ("root", "groups")

    def __init__(self, root: UOp) -> None:
        self.root = root
        groups: defaultdict[int, list[UOp]] = defaultdict(list)
        with stamp_lock:
            stamp = next_stamp()
            root.stamp = stamp
            stack = [root]
            push, pop = stack.append, stack.pop
            while stack:
                following: UOp | None = pop()
                while following is not None:  # in the order that `toposort` takes
                    groups[following.sig].append(following)
                    src = following.src
                    following = None
                    for source in src:
                        if source.stamp != stamp:
                            source.stamp = stamp
                            if following is None:
                                following = source
                            else:
                                push(source)
        self.groups: dict[int, list[UOp]] = groups

    def has_work(self, rules: RuleSet, context: Any = None) -> bool:
        """False when no rule matches any node.

        Rules that use the context are not called, for their effects must happen once; nor are observed ones.
        """
        matchers = rules.matchers()
        root = self.root
        bit = matchers.stable_bit()
        if not root.mask & matchers.mask or root.stable & bit:
            return False
        for sig, nodes in self.groups.items():
            matcher = matchers[sig]
            if matcher is None:
                continue
            if not rules.context_free or observed():
                return True
            try:
                for node in nodes:
                    if not node.stable & bit and matcher(node, context) is not None:
                        return True
            except Exception as error:
                error.add_note(f"while rule set {rules.name!r} rewrote {node!r}")
                raise
        if bit:  # also what is rebuilt around these nodes need not look at them again
            for nodes in self.groups.values():
                for node in nodes:
                    node.stable |= bit
        return False
