"""A launch of several kernels: every body through the passes of one kernel, and what a backend asks of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gradlet.base.errors import CompilerError
from gradlet.codegen.pipeline import lower
from gradlet.graph.launch import BodyFacts, body_facts, is_launch, region_blocks, uses
from gradlet.graph.node import UOp, mk
from gradlet.graph.passes import Observer
from gradlet.graph.program import LaunchProgram, LinearProgram, SegmentWork
from gradlet.graph.spec import check_node
from gradlet.ops.op import BodyUse, LaunchArg, LaunchSegment, Op, ParamArg, Stage
from gradlet.optimize import cost
from gradlet.target.target import Target


class SharedBodies:
    """The programs of bodies that several of some launches have, for as long as these are compiled."""

    def __init__(self, asts: Iterable[UOp]) -> None:
        counts = Counter([key for ast in asts if is_launch(ast.arg) for key in _bodies(ast)])
        self._wanted = {key for key, count in counts.items() if count > 1}
        self._known: dict[tuple[UOp, bool, Target], LinearProgram] = {}

    def lower(self, body: UOp, parallel: bool, target: Target) -> LinearProgram:
        """The program of a body, made when the first launch asks for it."""
        key = (body, parallel, target)
        program = self._known.get(key)
        if program is None:
            program = lower(body, target, (), parallel)
            if self.has(body, parallel):
                self._known[key] = program
        return program

    def has(self, body: UOp, parallel: bool) -> bool:
        """Whether several of the launches have a body."""
        return (body, parallel) in self._wanted


def _bodies(ast: UOp) -> list[tuple[UOp, bool]]:
    """The bodies of a launch, and whether each may be spread over cores.

    Those of a region run on one core each, also those that are the same for every block.
    """
    alone = {use.body for stage in ast.arg.stages for segment in stage if len(segment) > 1 for use in segment}
    return [(body, number not in alone) for number, body in enumerate(ast.src)]


def lower_launch(
    ast: UOp, target: Target, observers: Sequence[Observer] = (), shared: SharedBodies | None = None
) -> LaunchProgram:
    """The program of a launch; the heuristic chooses the schedule of every body that has none.

    Args:
        ast: a SINK with a LaunchArg.
        target: the machine; a CPU.
        observers: called after every pass on every body.
        shared: where bodies are found that other launches have too.

    Raises:
        SpecError: the launch breaks a rule of its form.
        CompilerError: a pass failed, or the target is a GPU.
    """
    arg: LaunchArg = ast.arg
    if target.kind != "cpu":
        raise CompilerError(
            f"launch {arg.name} holds several kernels, which only CPU targets run in one launch; "
            f"schedule for {target.name} without regions, packs and tails"
        )
    check_node(ast, Stage.KERNEL)
    facts = [body_facts(body) for body in ast.src]
    bodies = _bodies(ast)
    again: tuple[int, ...] = ()
    if shared is not None and not observers:
        programs = tuple(shared.lower(body, parallel, target) for body, parallel in bodies)
        again = tuple(number for number, body in enumerate(bodies) if shared.has(*body))
    else:
        programs = tuple(lower(body, target, observers, parallel) for body, parallel in bodies)
    for number, (_, parallel) in enumerate(bodies):
        if not parallel and programs[number].grid > 1 and not facts[number].blocks:
            raise CompilerError(f"launch {arg.name}: the opts of body {number} share it between cores inside a region")
    everything = uses(arg)
    work = _Work(ast, programs, facts)
    return LaunchProgram(
        name=arg.name, programs=programs, stages=arg.stages,
        work=tuple(tuple(work.of(segment) for segment in stage) for stage in arg.stages),
        scratch=arg.scratch, params=_params(arg, facts),
        written=tuple(sorted({u.slots[w] for u in everything for w in facts[u.body].written if u.slots[w] >= 0})),
        variables=1 + max((number for u in everything for number in u.variables), default=-1), shared=again,
    )  # fmt: skip


class _Work:
    """Counts the work of segments."""

    def __init__(self, ast: UOp, programs: Sequence[LinearProgram], facts: Sequence[BodyFacts]) -> None:
        self.ast, self.programs, self.facts = ast, programs, facts
        self._costs: dict[tuple[int, frozenset[int]], tuple[int, int]] = {}

    def of(self, segment: LaunchSegment) -> SegmentWork:
        """The work of one segment."""
        if len(segment) == 1:
            program = self.programs[segment[0].body]
            return SegmentWork(program.grid, program.flops, program.bytes)
        # The range of a region may be gone from a program, as when there is one block: its body runs once a block.
        blocks = region_blocks(segment, self.facts)
        costs = [self.in_region(use) for use in segment]
        return SegmentWork(blocks, blocks * sum(flops for flops, _ in costs), sum(nbytes for _, nbytes in costs))

    def in_region(self, use: BodyUse) -> tuple[int, int]:
        """Operations of a use in one block, and the bytes that it moves in all of them; scratch arrays stay near."""
        near = frozenset(i for i, slot in enumerate(use.slots) if slot < 0)
        found = self._costs.get((use.body, near))
        if found is None:
            body = self.ast.src[use.body]
            found = cost.estimate_region(body, near)
            self._costs[use.body, near] = found
        return found


def _params(arg: LaunchArg, facts: Sequence[BodyFacts]) -> tuple[UOp, ...]:
    largest: dict[int, UOp] = {}
    for use in uses(arg):
        for param, slot in zip(facts[use.body].params, use.slots, strict=True):
            known = largest.get(slot)
            if slot >= 0 and (known is None or _nbytes(param) > _nbytes(known)):
                largest[slot] = param
    return tuple(mk(Op.PARAM, p.dtype, (), ParamArg(slot, p.arg.size)) for slot, p in sorted(largest.items()))


def _nbytes(param: UOp) -> int:
    return int(param.arg.size) * param.dtype.itemsize
