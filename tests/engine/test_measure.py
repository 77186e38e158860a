"""Workers survive what candidates do to them; memory for measuring keeps every access inside its buffer."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import CompilerError
from gradlet.base.settings import SETTINGS, scope
from gradlet.codegen import pipeline
from gradlet.device.common import llvm
from gradlet.engine.inputs import Inputs, index_limits, random_values
from gradlet.engine.measure import Measured, Workers
from gradlet.engine.worker import Built, Reply, Work, receive, send
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import Opt, OptKind
from gradlet.runtime.device import Device
from tests.codegen import kernels, launches
from tests.codegen.kernels import Builder


def work(sink: UOp, parallel: bool = True) -> Work:
    return Work(sink, "CPU", parallel, {n: r.value for n, r in SETTINGS.items()} | {"BEAM": 0, "DEBUG": 0})


def nothing(doing: str, place: int, count: int) -> None:
    pass


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(1, 20) as pool:
        yield pool


GOOD = (Opt(OptKind.SPLIT, 0, 8),)


def built(sink: UOp, body: str) -> Built:
    """A candidate with machine code of our own."""
    target = Device["CPU"].target
    program = pipeline.lower(sink, target)
    text = f"define void @{program.name}(ptr %table, i64 %begin, i64 %end) {{\nentry:\n{body}\n}}\n"
    declarations = "declare void @llvm.trap()\n"
    return Built(llvm.emit_object(declarations + text, target), program)


BAD = {
    "illegal instruction": ("call void @llvm.trap()\n unreachable", "SIGILL"),
    "no memory there": ("store i64 1, ptr inttoptr (i64 64 to ptr)\n ret void", "SIGSEGV"),
    "endless": ("br label %again\nagain:\n br label %again", "took longer than"),
    "wrong result": ("ret void", "changes the result"),
}


def test_workers_survive_their_candidates(workers: Workers) -> None:
    kernel = kernels.elementwise(64)
    this = work(kernel.sink)
    good = workers.ask(this, "build", [(GOOD,)])[0]
    assert good.kind == "ok"
    seconds = workers.ask(this, "measure", [(good.value, math.inf)])[0]
    assert seconds.kind == "ok" and 0 < seconds.value < 1
    for name in ("wrong result", "illegal instruction", "no memory there"):
        code, reason = BAD[name]
        reply = workers.ask(this, "measure", [(built(kernel.sink, code), math.inf)])[0]
        assert reply.kind == ("error" if name == "wrong result" else "failed") and reason in reply.value, name
    again = workers.ask(this, "measure", [(good.value, math.inf)])[0]
    assert again.kind == "ok"
    # A fresh process does not take the next candidate's results for the right ones.
    code, reason = BAD["wrong result"]
    workers.ask(this, "measure", [(built(kernel.sink, BAD["no memory there"][0]), math.inf)])
    reply = workers.ask(this, "measure", [(built(kernel.sink, code), math.inf, good.value)])[0]
    assert reply.kind == "error" and reason in reply.value
    code, reason = BAD["endless"]
    reply = workers.ask(this, "measure", [(built(kernel.sink, code), math.inf)], limit=0.5)[0]
    assert reply.kind == "failed" and reason in reply.value
    compared = workers.ask(this, "compare", [([good.value, good.value],)])[0]
    assert compared.kind == "ok" and len(compared.value) == 2


def test_a_worker_ends_with_its_parent() -> None:
    kernel = kernels.elementwise(64)
    endless = built(kernel.sink, BAD["endless"][0])
    code = "from gradlet.engine.worker import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    send(process.stdin, (work(kernel.sink), "estimate", ((),)))
    assert receive(process.stdout).kind == "ok"
    send(process.stdin, (None, "measure", (endless, math.inf)))
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def test_replies_say_what_is_wrong(workers: Workers) -> None:
    kernel = kernels.matmul(8, 8, 8)
    this = work(kernel.sink)
    refused, legal = workers.ask(this, "estimate", [((Opt(OptKind.GROUP, 0, 2),),), ((Opt(OptKind.UNROLL, 0, 2),),)])
    assert refused.kind == "refused" and "need a reduce range" in refused.value
    assert legal.kind == "ok" and 0 < legal.value < 1
    b = Builder()
    huge, i = b.param(0, 1 << 45), b.range(8)
    b.store(huge, i, b.load(b.param(1, 8), i))
    sink = b.sink("huge")
    code = workers.ask(work(sink), "build", [((),)])[0]
    assert code.kind == "ok"
    reply = workers.ask(work(sink), "measure", [(code.value, math.inf)])[0]
    assert reply.kind == "failed" and "memory" in reply.value


class Faulty:
    """In place of workers: one candidate does not compile, one crashes."""

    limit = 1.0

    def ask(self, work: Work, name: str, requests: Sequence[tuple[Any, ...]], **more: Any) -> list[Reply]:
        if name == "estimate":
            return [Reply("error", "SpecError: broken") if r[0] else Reply("ok", 1e-6) for r in requests]
        if name == "build":
            return [Reply("ok", r[0]) for r in requests]
        return [Reply("failed", "its process was killed by SIGSEGV") if r[0] else Reply("ok", 1e-6) for r in requests]


def test_errors_of_the_compiler_are_noted_and_strict_raises_them() -> None:
    sink = kernels.elementwise(64).sink
    tools = Measured(Faulty(), work(sink), False, nothing)  # type: ignore[arg-type]
    assert tools.estimate([(), GOOD]) == [1e-6, math.inf]
    assert tools.problems == {GOOD: "error: SpecError: broken"}
    outcomes = tools.measure([(), GOOD])
    assert [o.seconds for o in outcomes] == [1e-6, math.inf]
    assert "SIGSEGV" in outcomes[1].problem
    strict = Measured(Faulty(), work(sink), True, nothing)  # type: ignore[arg-type]
    with pytest.raises(CompilerError, match="BEAM_STRICT: a legal schedule of elementwise.*SpecError: broken"):
        strict.estimate([(), GOOD])
    assert strict.measure([GOOD])[0].seconds == math.inf  # a crash is no error of the compiler's own


def test_random_values_are_the_same_every_time() -> None:
    b = Builder()
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.int8, dtypes.uint64, dtypes.bool):
        param = b.param(3, 70_001, dtype)
        first, second = random_values(param, 3, None), random_values(param, 3, None)
        assert first.nbytes == 70_001 * dtype.itemsize
        np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))
        assert len(np.unique(first)) > 1
    assert len(random_values(b.param(0, 0), 0, None)) == 0


def test_indices_stay_inside() -> None:
    rows = 50
    gather = kernels.gather(rows, 7, 4)
    limits = index_limits(gather.sink)
    assert len(limits) == 1
    slot, limit = next(iter(limits.items()))
    assert limit == rows
    inputs = Inputs(gather.sink, "CPU")
    stored = np.frombuffer(inputs.buffers[slot].memory(), gather.arrays[slot].dtype)
    assert stored.min() >= 0 and stored.max() < rows


def test_what_is_read_and_written_gets_its_first_values_back() -> None:
    inputs = Inputs(kernels.in_place(100).sink, "CPU")
    assert inputs.drifts
    first = bytes(inputs.buffers[0].memory())
    inputs.buffers[0].copyin(bytes(len(first)))
    inputs.restore()
    assert bytes(inputs.buffers[0].memory()) == first
    assert not Inputs(kernels.elementwise(100).sink, "CPU").drifts


def test_results_may_differ_by_rounding_only() -> None:
    inputs = Inputs(kernels.elementwise(1000).sink, "CPU")
    expected = [np.linspace(-1, 1, 1000, dtype=np.float32)]
    assert inputs.differ(expected, [expected[0] + np.float32(1e-5)]) == ""
    assert "should hold" in inputs.differ(expected, [expected[0][::-1]])
    broken = expected[0].copy()
    broken[:10] = np.nan
    assert "nan" in inputs.differ(expected, [broken])
    assert inputs.differ([broken], [broken]) == ""
    assert "should hold" in inputs.differ([np.arange(9)], [np.arange(9)[::-1]])


def test_values_of_sizes_known_at_launch_are_the_largest() -> None:
    kernel = kernels.symbolic(9, 12)
    assert Inputs(kernel.sink, "CPU").values == [12]


def test_a_launch_gets_the_memory_of_its_uses() -> None:
    for make in (launches.attention, launches.optimizer, launches.mixed, launches.with_variables):
        launch = make()
        inputs = Inputs(launch.sink, "CPU")
        assert [b.size for b in inputs.buffers] == [a.size for a in launch.arrays]
        assert set(inputs.written) == set(launch.expected)
        assert len(inputs.values) == len(launch.variables)
        assert all(high >= given for high, given in zip(inputs.values, launch.variables, strict=True))


def test_a_launch_is_compared_as_a_whole(workers: Workers) -> None:
    launch = launches.attention().sink
    usual = tuple(pipeline.lower(body, Device["CPU"].target, parallel=False).opts for body in launch.src)
    tools = Measured(workers, work(launch), True, nothing)
    seconds = tools.compare([usual, tuple(() for _ in usual)])
    assert all(0 < s < 1 for s in seconds) and not tools.problems


def test_a_body_of_a_region_runs_on_one_thread(workers: Workers) -> None:
    kernel = kernels.elementwise(64)
    this = work(kernel.sink.replace(arg=KernelArg("alone", None)), parallel=False)
    reply = workers.ask(this, "build", [(GOOD,)])[0]
    with scope(NUM_THREADS=0):
        assert workers.ask(this, "measure", [(reply.value, math.inf)])[0].kind == "ok"
