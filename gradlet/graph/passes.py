"""Passes and pipelines as data: what runs in which order, what each step needs and guarantees, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gradlet.base import events
from gradlet.base.errors import CompilerError, SpecError, UserError
from gradlet.base.settings import SPEC
from gradlet.graph.node import UOp, no_gc, toposort
from gradlet.graph.rewrite import RuleSet, rewrite
from gradlet.graph.signatures import SignatureIndex
from gradlet.graph.spec import check
from gradlet.graph.text import one_line
from gradlet.ops.op import Op, Stage

# What a pass may be besides a rule set: (graph, context) -> graph.
PassFunction = Callable[[UOp, Any], UOp]


@dataclass(frozen=True)
class Pass:
    """One step of a pipeline.

    Attributes:
        name: what it does, in words.
        run: a rule set, applied to a fixpoint, or a function of (node, context).
        requires: stage of the graph it accepts.
        ensures: stage of the graph it leaves.
        gone: ops that do not occur from here on.
        doc: why it exists, in a sentence.
    """

    name: str
    run: RuleSet | PassFunction
    requires: Stage
    ensures: Stage
    gone: frozenset[Op] = frozenset()
    doc: str = ""


# Called after every pass with (pass, graph before, graph after, seconds).
Observer = Callable[[Pass, UOp, UOp, float], None]


class SpecObserver:
    """Checks the graph after every pass: the stage's rules, and that no op comes back that a pass has removed."""

    def __init__(self) -> None:
        self.gone: frozenset[Op] = frozenset()

    def __call__(self, row: Pass, before: UOp, after: UOp, seconds: float) -> None:
        self.gone |= row.gone
        check(after, row.ensures, gone=self.gone)


@dataclass(frozen=True)
class Pipeline:
    """Passes in order. Each must accept the stage that the one before it leaves."""

    name: str
    passes: tuple[Pass, ...]

    def __init__(self, name: str, passes: Sequence[Pass]) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "passes", tuple(passes))
        for before, after in zip(self.passes, self.passes[1:]):
            if before.ensures is not after.requires:
                raise CompilerError(
                    f"pipeline {name!r}: pass {after.name!r} requires stage {after.requires.name}, but {before.name!r} "
                    f"before it leaves {before.ensures.name}"
                )

    def run(self, node: UOp, context: Any = None, observers: Sequence[Observer] = ()) -> UOp:
        """Run all passes on a graph.

        Raises:
            CompilerError: a pass failed or left a bad graph; the message names the pass and the node.
            UserError: unchanged, as the pass raised it.
        """
        watching: list[Observer] = [SpecObserver(), *observers] if SPEC.value else list(observers)
        index: SignatureIndex | None = None
        with no_gc():
            for row in self.passes:
                before = node
                start = perf_counter()
                try:
                    if isinstance(row.run, RuleSet):
                        if index is None or index.root is not node:
                            index = SignatureIndex(node)
                        if index.has_work(row.run, context):
                            node = rewrite(node, row.run, context)
                    else:
                        node = row.run(node, context)
                    seconds = perf_counter() - start
                    for observer in watching:
                        observer(row, before, node, seconds)
                except UserError:
                    raise
                except Exception as error:
                    raise self._failure(row, before, error) from error
                if events.active():
                    counts = (len(toposort((before,))), len(toposort((node,))))
                    events.emit(events.PassRan(self.name, row.name, seconds, counts))
        return node

    def _failure(self, row: Pass, before: UOp, error: Exception) -> CompilerError:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        cause = str(error) if isinstance(error, CompilerError) else f"{type(error).__name__}: {error}"
        kind = type(error) if isinstance(error, CompilerError) else CompilerError
        if isinstance(error, SpecError):
            cause = f"left a bad graph: {cause}"
        return kind(f"pipeline {self.name!r}, pass {row.name!r}: {cause}{notes}\n  in the graph of {one_line(before)}")
