"""BEAM on a GPU whose lanes run on the CPU: what search proposes is right and kept, and what breaks does no harm."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.base import events
from gradlet.base.errors import ArgumentError, DeviceError
from gradlet.base.settings import SETTINGS, scope
from gradlet.codegen.pipeline import lower, schedulable
from gradlet.engine import beam, measure, worker
from gradlet.engine.worker import Bench, Reply, Work
from gradlet.graph.node import UOp
from gradlet.ops.op import KernelArg
from gradlet.ops.opt import Opt, OptKind
from gradlet.optimize import heuristic, lanecost, lanemoves, moves
from gradlet.optimize.actions.language import KEPT
from gradlet.optimize.analysis import KernelFacts
from gradlet.optimize.search import Outcome, State, search
from gradlet.render import cuda
from gradlet.target.target import SM_80, SM_90, Target
from tests.device.cuda import emulate

K = OptKind
RNG = np.random.default_rng(5)


def empty(*shape: int, dtype: Any = dtypes.float16, target: str = "sm_90") -> Tensor:
    return Tensor.empty(*shape, device=f"NULL:{target}", dtype=dtype)


def kernel(result: Tensor, target: Target = SM_90) -> UOp:
    """The last kernel of a result, as its opts find it."""
    return schedulable(result.schedule().calls[-1].ast, target)


KERNELS: dict[str, Callable[[], Tensor]] = {
    "product": lambda: empty(4096, 4096) @ empty(4096, 4096),
    "odd product": lambda: empty(1000, 1000) @ empty(1000, 1000),
    "float32": lambda: empty(300, 500, dtype=dtypes.float32) @ empty(500, 200, dtype=dtypes.float32),
    "convolution": lambda: (
        empty(32, 28, 28, 512).permute(0, 3, 1, 2).conv2d(empty(512, 3, 3, 512).permute(0, 3, 1, 2), padding=1)
        .permute(0, 2, 3, 1).contiguous()
    ),
    "attention": lambda: empty(4, 512, 64).scaled_dot_product_attention(empty(4, 512, 64), empty(4, 512, 64)),
    "softmax": lambda: empty(512, 4096).softmax(-1),
    "columns": lambda: empty(4096, 512).sum(0),
}  # fmt: skip


# what is proposed
@pytest.mark.parametrize("name", ["product", "odd product", "float32", "convolution", "attention"])
def test_other_blocks_are_whole_schedules(name: str) -> None:
    sink = kernel(KERNELS[name]())
    found = [o for o in lanemoves.alternatives(KernelFacts(sink), SM_90) if moves.apply(sink, o, SM_90) is not None]
    assert len(set(found)) > 3 and heuristic.choose(sink, SM_90) in found
    assert len({tuple([o.amount for o in opts if o.kind is K.SPLIT]) for opts in found}) > 1
    for opts in found:
        cuda.render(lower(sink.replace(arg=KernelArg("k", opts)), SM_90), SM_90)


def test_other_blocks_of_gpus_whose_warps_multiply() -> None:
    sink = kernel(empty(512, 512, target="sm_80") @ empty(512, 512, target="sm_80"), SM_80)
    found = [o for o in lanemoves.alternatives(KernelFacts(sink), SM_80) if moves.apply(sink, o, SM_80) is not None]
    assert len([opts for opts in found if any(o.kind is K.TENSORIZE for o in opts)]) == 3


def test_words_of_workgroups_are_changed() -> None:
    sink = kernel(KERNELS["product"]())
    usual = heuristic.choose(sink, SM_90)
    found = list(moves.changes(sink, usual, SM_90))
    assert usual not in found and sum(moves.apply(sink, opts, SM_90) is not None for opts in found) > 10

    def amounts(kind: OptKind) -> set[int]:
        return {o.amount for opts in found for o in opts if o.kind is kind}

    assert {132, 264} <= amounts(K.PERSISTENT) and {4, 8, 16} <= amounts(K.TILE_ORDER)
    assert {o.detail.pending for opts in found for o in opts if o.kind is K.TENSORIZE} == {0, 1}  # type: ignore[union-attr]
    for kind in (K.PERSISTENT, K.TILE_ORDER, K.EPILOGUE):
        without = [opts for opts in found if not any(o.kind is kind for o in opts)]
        assert len(without) == 1
        scheduled = moves.apply(sink, without[0], SM_90)
        assert scheduled is not None
        added = list(moves.additions(moves.Site(KernelFacts(scheduled), SM_90, True)))
        assert {o[0].kind for o in added} == {kind}
        assert usual in {(*without[0], *opts) for opts in added} or kind is not K.EPILOGUE
    # Both factors of a ring have as many buffers.
    assert all(_same_buffers(opts) for opts in found)


def test_the_gradient_of_attention_by_units_has_buffers_and_workgroups_to_choose() -> None:
    """Loops and lanes are those of the units' registers: nobody cuts them again."""
    q, k, v, slope = (empty(4, 512, 64) for _ in range(4))
    out = q.scaled_dot_product_attention(k, v)
    calls = out.schedule(*out.gradient(q, k, v, gradient=slope)).calls
    sinks = [schedulable(call.ast, SM_90) for call in calls]
    chosen = [(sink, opts) for sink in sinks if (opts := heuristic.choose(sink, SM_90))[-1].kind is K.FEED]
    assert len(chosen) == 2
    for sink, usual in chosen:
        scheduled = moves.apply(sink, usual, SM_90)
        assert scheduled is not None
        kept = scheduled.replace(arg=KernelArg("k", tuple([o for o in usual if o.kind in KEPT])))
        assert not list(moves.additions(moves.Site(KernelFacts(kept), SM_90, True)))
        found = [opts for opts in moves.changes(sink, usual, SM_90) if moves.apply(sink, opts, SM_90) is not None]
        assert {opts[:-1] for opts in found} == {usual[:-1]}
        details = {(opts[-1].detail.buffers, opts[-1].detail.workgroups) for opts in found}  # type: ignore[union-attr]
        assert {(2, usual[-1].detail.workgroups)} < details and usual not in found  # type: ignore[union-attr]
        assert {workgroups for _, workgroups in details} == {0, SM_90.cores}
        for opts in found:
            cuda.render(lower(sink.replace(arg=KernelArg("k", opts)), SM_90), SM_90)


def _same_buffers(opts: Sequence[Opt]) -> bool:
    return len({o.detail.buffers for o in opts if o.kind is K.STAGE}) == 1  # type: ignore[union-attr]


def test_lanes_are_changed() -> None:
    sink = kernel(KERNELS["columns"]())
    usual = heuristic.choose(sink, SM_90)
    lanes = {o.amount for opts in moves.changes(sink, usual, SM_90) for o in opts if o.kind is K.THREAD}
    assert len(lanes) > 2
    kinds = {opts[0].kind for opts in moves.additions(moves.Site(KernelFacts(sink), SM_90, True))}
    assert {K.THREAD, K.VECTORIZE, K.PARALLEL} <= kinds and not kinds & {K.PREFETCH, K.STREAM, K.FAR, K.ONLINE}


# the model
def expected(name: str, *opts: Opt) -> float:
    sink = kernel(KERNELS[name]())
    program = lower(sink.replace(arg=KernelArg("k", opts or heuristic.choose(sink, SM_90))), SM_90)
    return lanecost.estimate(program, SM_90).seconds


def test_the_model_knows_what_lanes_are_good_for() -> None:
    usual = expected("softmax")
    moved = 2 * 2 * 512 * 4096 / SM_90.bytes_per_second
    assert moved < usual < 5 * moved + 10e-6
    assert expected("softmax", Opt(K.PARALLEL, 0, 0)) > 8 * usual  # one lane a workgroup
    assert expected("softmax", Opt(K.THREAD, 0, 256), Opt(K.PARALLEL, 0, 0)) > 2 * usual  # lanes a row apart
    assert expected("columns", Opt(K.SPLIT, 0, 8)) > 8 * expected("columns")  # one lane


def test_the_model_knows_blocks() -> None:
    sink = kernel(KERNELS["product"]())
    found = [o for o in lanemoves.alternatives(KernelFacts(sink), SM_90) if moves.apply(sink, o, SM_90) is not None]
    cost = {opts: expected("product", *opts) for opts in found}
    usual = cost[heuristic.choose(sink, SM_90)]
    units = [opts for opts in found if any(o.kind is K.TENSORIZE for o in opts)]
    assert usual < 2 * min(cost.values())
    assert all(cost[opts] > 4 * usual for opts in found if opts not in units)
    work = 2 * 4096**3
    assert work / 1000e12 < usual < work / 300e12


# from the outside
class InProcess:
    """In place of workers: the same requests, answered here; what goes between processes is pickled."""

    limit = 10.0

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.benches: dict[int, Bench] = {}

    def ask(self, work: Work, name: str, requests: Sequence[tuple[Any, ...]], **more: Any) -> list[Reply]:
        self.asked[name] = self.asked.get(name, 0) + len(requests)
        with scope(**work.settings):
            bench = self.benches.setdefault(id(work), Bench(work))
            return [pickle.loads(pickle.dumps(worker._answer(bench, name, r))) for r in requests]


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    if emulate.COMPILER is None:
        pytest.skip("no C++ compiler")
    emulate.register()
    monkeypatch.setattr(emulate.EmulatedBackend, "measurable", True)
    monkeypatch.setattr(worker, "RUNS", (1, 1))
    monkeypatch.setattr(worker, "COMPARED_RUNS", (1, 1))
    monkeypatch.setattr("gradlet.optimize.search.MEASURED_A_ROUND", 3)
    monkeypatch.setattr("gradlet.optimize.search.MAX_ROUNDS", 1)
    found = InProcess()
    monkeypatch.setattr(beam, "_pool", lambda: found)
    with scope(CACHEDIR=str(tmp_path), CACHE=1, BEAM=1, SPEC=0):
        yield found
    found.benches.clear()  # their memory goes back to the device
    emulate.unregister()


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], Any]] = {
    "softmax": (lambda x: x.softmax(-1), ((3, 300),), dtypes.float32),
    "product": (lambda a, b: a @ b, ((70, 136), (136, 136)), dtypes.bfloat16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_search_tries_is_right_and_kept(name: str, pool: InProcess) -> None:
    function, shapes, dtype = CASES[name]
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    with scope(BEAM=0):
        tensors = [Tensor(a, device="EMULATED").cast(dtype).realize() for a in arrays]
        wanted = function(*tensors).cast(dtypes.float32).numpy()
    with warnings.catch_warnings(), events.record() as log:
        warnings.simplefilter("error")  # a schedule that does not compile, or gives other results
        found = function(*tensors).cast(dtypes.float32).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
    searched = [e for e in log if isinstance(e, events.KernelSearched)]
    assert searched and all(math.isfinite(e.seconds) for e in searched)
    assert pool.asked["measure"] > 3
    pool.asked.clear()
    function(*tensors).cast(dtypes.float32).numpy()
    assert not pool.asked


def test_a_kernel_that_leaves_its_memory_takes_its_process_along() -> None:
    def lost(*_: Any) -> Any:
        raise DeviceError("GPU 0: cuEventSynchronize failed: an illegal memory access was encountered")

    class Broken:
        measure = lost

    reply = worker._answer(Broken(), "measure", ())  # type: ignore[arg-type]
    assert reply.kind == "lost" and "illegal memory access" in reply.value

    class Process:
        used, limit, stopped = 0.0, 1.0, False

        def read(self) -> Reply:
            return reply

        def stop(self) -> None:
            self.stopped = True

    process = Process()
    assert measure._progress(process) == Reply("error", reply.value) and process.stopped  # type: ignore[arg-type]

    class Full:
        def measure(self) -> None:
            raise DeviceError("out of memory on CUDA: x needs 1 GB")

    assert worker._answer(Full(), "measure", ()).kind == "failed"  # type: ignore[arg-type]


def test_short_kernels_are_timed_several_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def timer(program: Any, buffers: Any, values: Any, count: int) -> Callable[[], float]:
        return lambda: ran.append(count) or 1e-6

    class Backend:
        target = SM_90

        def __init__(self, seconds: float) -> None:
            self.seconds = seconds
            self.timer = timer

        def load(self, *_: Any) -> Callable[..., float]:
            return lambda buffers, values, wait: ran.append(1) or self.seconds

    sink = kernel(KERNELS["softmax"]())
    for seconds, counts in ((1e-5, [1, 20, 20]), (1e-4, [1, 2, 2]), (1.0, [1, 1, 1])):
        with monkeypatch.context() as patch:
            patch.setattr("gradlet.runtime.device.Device", {"CUDA": Backend(seconds)})
            bench = Bench(Work(sink, "CUDA", True, {}))
            bench._inputs = type("Inputs", (), {"buffers": [], "values": [], "drifts": False})()
            ran.clear()
            run = bench._load(worker.Built(b"", lower(sink, SM_90)))
            for _ in range(3):
                run()
            assert ran == counts


def test_code_for_a_gpu_comes_with_all_that_a_launch_needs() -> None:
    """Shared memory and tensor maps are read off the program."""
    ast = (empty(256, 256) @ empty(256, 256)).schedule().calls[-1].ast
    values = {n: r.value for n, r in SETTINGS.items()} | {"BEAM": 0, "DEBUG": 0}
    built = pickle.loads(pickle.dumps(Bench(Work(ast, "NULL:sm_90", True, values)).build(heuristic.choose(ast, SM_90))))
    whole = lower(ast, SM_90)
    assert cuda.shared_bytes(built.program) == cuda.shared_bytes(whole) > 100_000
    assert len(cuda.boxes_of(built.program)) == len(cuda.boxes_of(whole)) > 0


def test_more_shared_memory_than_there_is_is_refused() -> None:
    ast = (empty(4096, 4096) @ empty(4096, 4096)).schedule().calls[-1].ast
    usual = heuristic.choose(ast, SM_90)
    more = [
        o._replace(detail=o.detail._replace(buffers=5)) if o.kind is K.STAGE else o  # type: ignore[union-attr]
        for o in usual
    ]
    values = {n: r.value for n, r in SETTINGS.items()}
    bench = Bench(Work(ast, "NULL:sm_90", True, values))
    reply = worker._answer(bench, "build", (tuple(more),))
    assert reply.kind == "refused" and "share" in reply.value
    program = lower(ast, SM_90)
    with pytest.raises(
        ArgumentError, match=r"takes \d+ bytes .* a workgroup has 1000; choose smaller tiles, fewer buf"
    ):
        cuda.render(program, replace(SM_90, shared_bytes=1000))
    with pytest.raises(ArgumentError, match="takes 288 lanes, and a workgroup has at most 256"):
        cuda.render(program, replace(SM_90, max_threads=256))


def test_one_lane_is_not_tried() -> None:
    """Plain loops of a GPU take minutes where lanes take microseconds."""
    sink = kernel(KERNELS["product"]())
    asked: list[tuple[Opt, ...]] = []

    class Tools:
        def estimate(self, candidates: Sequence[tuple[Opt, ...]]) -> list[float]:
            asked.extend(candidates)
            return [1.0] * len(candidates)

        def measure(self, candidates: Sequence[tuple[Opt, ...]]) -> list[Outcome]:
            asked.extend(candidates)
            return [Outcome(1.0 + len(opts)) for opts in candidates]

        def compare(self, candidates: Sequence[tuple[Opt, ...]]) -> list[float]:
            return [1.0] * len(candidates)

        def keep(self, state: State) -> None: ...

        def enough(self) -> bool:
            return False

    found = search(sink, SM_90, 2, Tools())
    assert found.opts == heuristic.choose(sink, SM_90) and found.state.rounds > 0
    assert all(any(o.kind is K.THREAD for o in opts) for opts in asked) and len(set(asked)) > 30
