"""The order in which `reorders` rules must make an expression smaller: a weight, then how far sums are from sorted."""

from gradlet.graph.node import toposort
from gradlet.ops.op import COMPARE, Op
from gradlet.rules.order import compare


def measure(root):
    """(weight, constants before others, terms against the order) of an expression; compare with `<`."""
    return weight(root), constants_first(root), disorder(root)


def weight(root):
    """Products weigh more above sums than below, casts and conditions more than what replaces them."""
    of = {}
    for node in toposort((root,)):
        inner = [of[s] for s in node.src]
        if node.op is Op.CONST:
            of[node] = 2
        elif not inner:
            of[node] = 3
        elif node.op is Op.MUL:
            of[node] = inner[0] * inner[1]
        elif node.op is Op.FDIV:
            of[node] = inner[0] * inner[1] + 1
        elif node.op is Op.POW:
            of[node] = inner[0] ** 2 * inner[1]
        elif node.op in COMPARE:
            # A negation is `x == False`, and `!=` of bools is written as one.
            of[node] = sum(inner) + (2 if node.op is Op.CMPNE else 1)
        elif node.op in (Op.OR, Op.XOR, Op.WHERE):
            of[node] = sum(inner) + (6 if node.op is Op.WHERE else 4)
        else:
            of[node] = sum(inner) + 1
    return of[root]


def constants_first(root):
    """Constants of sums with something else to their right."""
    count = 0
    for node in toposort((root,)):
        if node.op is Op.ADD:
            are_constants = [p.op is Op.CONST for p in _parts(node)]
            count += sum(a and not b for i, a in enumerate(are_constants) for b in are_constants[i + 1 :])
    return count


def disorder(root):
    """Pairs of operands that stand against the total order, and sums nested to the right."""
    count = 0
    for node in toposort((root,)):
        if node.op in (Op.ADD, Op.AND):
            parts = _parts(node)
            count += sum(_before(b, a) for i, a in enumerate(parts) for b in parts[i + 1 :])
            count += _right_nested(node)
    return count


def _parts(node):
    """Operands of nested sums (or conjunctions) from left to right."""
    parts, stack = [], [node]
    while stack:
        top = stack.pop()
        if top.op is node.op:
            stack.extend(reversed(top.src))
        else:
            parts.append(top)
    return parts


def _right_nested(node):
    return sum(n.src[1].op is n.op for n in toposort((node,)) if n.op is node.op)


def _before(first, second):
    if first.op is Op.CONST or second.op is Op.CONST:
        return False
    return compare(_base(first), _base(second)) < 0


def _base(node):
    return node.src[0] if node.op is Op.MUL and node.src[1].op is Op.CONST else node
