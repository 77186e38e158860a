"""Explanations say what is in the schedule, and only true reasons."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from gradlet.base import settings
from gradlet.base.dtype import dtypes
from gradlet.graph.launch import is_launch, uses
from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, ScanArg, ShapeArg
from gradlet.schedule.calls import CopyCall, KernelCall, Schedule
from gradlet.schedule.create import create_schedule
from gradlet.schedule.explain import Explanation, Unmerged
from gradlet.schedule.fuse import MIN_GAIN
from gradlet.schedule.pipeline import make_schedule
from gradlet.schedule.reasons import Reason
from gradlet.schedule.refusals import Decisions, Refusal, name_of
from gradlet.schedule.traffic import Traffic, traffic_of
from gradlet.target.target import AVX2, Target
from tests.schedule.helpers import (
    buffer,
    contiguous,
    copy,
    expand,
    flip,
    matmul,
    permute,
    reduce,
    row,
    shrink,
    target_of,
    tensor,
    total,
    write,
)  # fmt: skip
from tests.schedule.test_fuse import random_graph, search_of


def explained(roots: Sequence[UOp], target: Target = AVX2, live: Sequence[UOp] = ()) -> tuple[Schedule, Explanation]:
    found: list[Explanation] = []
    schedule = make_schedule(roots, lambda device: target, live, tell=found.append)
    assert len(found) == 1
    return schedule, found[0]


def between(pairs: Sequence[Unmerged], first: str, second: str) -> dict[str, Refusal]:
    """The refusals of one pair by their ways."""
    (pair,) = [p for p in pairs if (p.first, p.second) == (first, second)]
    return {refusal.way: refusal for refusal in pair.refusals}


def only(explanation: Explanation) -> Refusal:
    """Why the only two kernels are not one."""
    (pair,) = explanation.kernels
    (refusal,) = pair.refusals
    return refusal


def softmax(x: UOp) -> UOp:
    e = (x - row(reduce(x, Op.MAX, 1, keep=True), x.shape[1])).exp()
    return e.fdiv(row(total(e, 1, keep=True), x.shape[1]))


def attention(rows: int = 256, width: int = 64) -> UOp:
    """Two products with a row norm between them (with a softmax they would be one kernel)."""
    scores = matmul(tensor(rows, width), tensor(width, rows)) * 0.125
    powers = (scores - expand(reduce(scores, Op.MAX, 1, keep=True), rows, rows)).sin()
    return matmul(powers.fdiv(expand(reduce(powers, Op.ADD, 1, keep=True), rows, rows)), tensor(rows, width))


def optimizer(count: int) -> list[UOp]:
    """Parameters of different sizes that are overwritten by what their gradients make of them."""
    found = []
    for number in range(count):
        weight = buffer(100 + number)
        found.append(write(weight, weight, weight - tensor(100 + number) * 0.1))
    return found


GRAPHS = {
    "elementwise": lambda: [tensor(1000) * 2.0],
    "softmax": lambda: [softmax(tensor(512, 512))],
    "attention": lambda: [attention()],
    "optimizer": lambda: optimizer(20),
    "matmuls": lambda: [matmul(matmul(tensor(64, 32), tensor(32, 64)).maximum(0.0), tensor(64, 16))],
    "two devices": lambda: [copy(tensor(64, 64) * 2.0, "PYTHON") + 1.0],
    "nothing": lambda: [tensor(4, 4).src[0]],
    "no elements": lambda: [tensor(0, 4) * 2.0, tensor(4) * 2.0],
    **{f"random {seed}": lambda seed=seed: random_graph(seed) for seed in range(12)},
}


@pytest.mark.parametrize("fuse", [0, 1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_call_is_listed_with_its_kernels_and_bytes(name: str, fuse: int) -> None:
    with settings.scope(FUSE=fuse):
        schedule, explanation = explained(GRAPHS[name]())
    assert len(explanation.launches) == len(schedule.calls)
    for number, (call, launch) in enumerate(zip(schedule.calls, explanation.launches, strict=True), 1):
        assert launch.number == number
        if isinstance(call, CopyCall):
            size = call.source.arg.size * call.source.dtype.itemsize
            assert launch.traffic == Traffic(size, size, 0) and launch.name == "copy CPU -> PYTHON"
            continue
        ast = call.ast
        assert (launch.name, launch.device, launch.traffic) == (ast.arg.name, call.device, traffic_of(call))
        bodies = [ast.src[use.body] for use in uses(ast.arg)] if is_launch(ast.arg) else [ast]
        assert [body.name for body in launch.bodies] == [body.arg.name for body in bodies]
        assert [body.number for body in launch.bodies] == list(range(len(bodies)))
        assert launch.scratch == (ast.arg.scratch if is_launch(ast.arg) else ())
    assert explanation.traffic.bytes == sum(launch.traffic.bytes for launch in explanation.launches)
    assert explanation.memory is schedule.memory


@pytest.mark.parametrize("name", GRAPHS)
def test_prices_add_up(name: str) -> None:
    with settings.scope(FUSE=1):
        apart = explained(GRAPHS[name]())[1]
    search = search_of(GRAPHS[name]())
    search.run()
    kernels = [k for k in search.kernels if k.alive and 0 not in k.cells[-1].root.shape]
    assert apart.price == sum(k.price for k in kernels) == sum(x.price or 0 for x in apart.launches)
    together = explained(GRAPHS[name]())[1]
    assert together.price == sum(x.price or 0 for x in together.launches) <= apart.price


def test_a_pack_starts_once() -> None:
    first, second = (explained([root])[1] for root in (tensor(1000) * 2.0, tensor(333).exp()))
    schedule, both = explained([tensor(1000) * 2.0, tensor(333).exp()])
    assert len(schedule.calls) == 1
    assert both.price == first.price + second.price - AVX2.launch_ps


def test_unfused_kernels_have_no_price() -> None:
    with settings.scope(FUSE=0):
        _, explanation = explained([softmax(tensor(8, 8))])
    assert [x.price for x in explanation.launches] == [None] * len(explanation.launches)
    assert not explanation.kernels and not explanation.unmerged and "not priced" in explanation.text()


def test_explaining_changes_nothing() -> None:
    roots = [attention(64), *random_graph(3)]
    plain = make_schedule(roots, target_of)
    schedule, explanation = explained(roots)
    names = [[c.ast for c in s.calls if isinstance(c, KernelCall)] for s in (plain, schedule)]
    assert names[0] == names[1] and explanation.priced > 0 and explanation.merges > 0


def test_a_schedule_from_the_cache_is_not_explained_again() -> None:
    found: list[Explanation] = []
    for _ in range(2):
        create_schedule([tensor(17, 23) * 3.0 + 1.0], target_of, tell=found.append)
    assert len(found) == 1


# results
def test_results_are_named_where_they_are_written() -> None:
    x = tensor(64, 64)
    _, explanation = explained([x * 2.0, total(x.exp(), 0, 1)])
    texts = [text for launch in explanation.launches for text in launch.results]
    assert sorted(texts) == ["result 0: float32 64x64", "result 1: float32 scalar"]


def test_buffers_written_in_place_are_counted() -> None:
    _, explanation = explained(optimizer(5))
    (launch,) = explanation.launches
    assert launch.in_place == 5 and len(launch.results) == 5
    assert "2 more" not in "".join(launch.results) and "1 more, 5 buffers in place" in explanation.text()


def test_a_kernel_that_became_two_says_why() -> None:
    t = tensor(4, 4)
    low, high = shrink(t, (0, 2), (0, 4)), shrink(t, (1, 3), (0, 4))
    schedule, explanation = explained([write(t, high, low * 2.0)])
    assert len(schedule.calls) == 2
    first, second = explanation.launches
    assert first.note == "part 1 of 2 of what was to be one launch: it would read what it has overwritten"
    assert second.note.startswith("part 2 of 2") and second.price is None and first.price == explanation.price


# refusals
def test_two_products_whose_rows_are_too_large_for_the_scratch() -> None:
    chain = [matmul(matmul(tensor(64, 32), tensor(32, 4096)), tensor(4096, 32))]
    small = replace(AVX2, scratch_bytes=4096)
    schedule, explanation = explained(chain, small)
    assert len(schedule.calls) == 2
    assert only(explanation).reason is Reason.TWO_CONTRACTIONS
    ways = between(explanation.unmerged, "1", "2")
    # One row of the first product is the least that a block could hold.
    assert ways["region"].words == f"scratch: {4096 * 4 / 1000:.1f} kB of 4.10 kB"
    assert ways["tail"].reason is Reason.LONG_TAIL
    assert ways["staging"].reason is Reason.NO_COPY
    for scratch in (4096 * 4 - 1, 4096 * 4):
        _, explanation = explained(chain, replace(AVX2, scratch_bytes=scratch))
        reason = between(explanation.unmerged, "1", "2")["region"].reason
        assert (reason is Reason.SCRATCH) == (scratch < 4096 * 4)


def gram(rows: int) -> UOp:
    """The product of a product with its own transpose: every row of it needs all rows of the first."""
    product = matmul(tensor(rows, 64), tensor(64, 256))
    return matmul(product, permute(product, 1, 0))


def test_a_product_and_its_transpose() -> None:
    schedule, explanation = explained([gram(96)])
    assert len(schedule.calls) == 2
    assert only(explanation).reason is Reason.TWO_CONTRACTIONS
    region = between(explanation.unmerged, "1", "2")["region"]
    assert region.words == "illegal: a block reads what another block makes (axis of 96)"
    # Nothing forbids it where the second factor is something else: rows then only need themselves.
    product = matmul(matmul(tensor(96, 64), tensor(64, 256)), tensor(256, 96))
    _, explanation = explained([product])
    assert not [p for p in explanation.unmerged if p.refusals[0].reason is Reason.OTHER_BLOCK]


def test_a_product_and_a_reduction() -> None:
    scores = matmul(tensor(64, 64), tensor(64, 64))
    _, explanation = explained([row(reduce(scores, Op.MAX, 1, keep=True), 64) - scores])
    assert only(explanation).reason is Reason.CONTRACTION_AND_REDUCTION


def test_a_write_whose_old_values_are_read_elsewhere() -> None:
    base = buffer(4096)
    _, explanation = explained([write(base, base, tensor(4096) + 1.0), contiguous(flip(base, 0) * 2.0)])
    assert only(explanation).reason is Reason.OUT_OF_STEP
    assert explanation.kernels[0].related == "data"
    _, explanation = explained([write(base, base, base + 1.0), contiguous(base * 2.0)])
    assert explanation.kernels == () and len(explanation.launches) == 1


def test_a_region_may_not_overwrite_what_another_block_reads() -> None:
    base, value = buffer(1 << 20), tensor(1 << 20)
    schedule, explanation = explained([write(base, base, value + 1.0), contiguous(flip(base, 0) * value)])
    assert len(schedule.calls) == 2
    assert between(explanation.unmerged, "1", "2")["region"].reason is Reason.OLD_VALUES


def test_a_running_sum_has_no_blocks() -> None:
    # Totals of blocks, and a running sum that goes through them in order: no loop of the two is parallel in both.
    x = mk(Op.RESHAPE, dtypes.float32, (tensor(1 << 20),), ShapeArg((1 << 20,)))
    zero = UOp.const(dtypes.float32, 0)
    schedule, explanation = explained([mk(Op.SCAN, dtypes.float32, (x, zero), ScanArg(Op.ADD, 0, False))])
    assert len(schedule.calls) == 2
    assert only(explanation).reason is Reason.SCANS
    assert between(explanation.unmerged, "1", "2")["region"].reason is Reason.NO_COMMON_LOOP


def test_arguments() -> None:
    tensors = [tensor(64) for _ in range(40)]
    value = tensors[0]
    for factor in tensors[1:]:
        value = value * factor
    schedule, explanation = explained([value], replace(AVX2, max_args=8))
    buffers = [set(call.buffers) for call in schedule.calls if isinstance(call, KernelCall)]
    assert len(explanation.unmerged) == len(buffers) - 1 > 3
    for pair in explanation.unmerged:
        (refusal,) = pair.refusals
        first, second = int(pair.first) - 1, int(pair.second) - 1
        # The value handed on is one buffer here; temporary memory is not yet shared where the limit is checked.
        assert refusal.reason is Reason.ARGUMENTS
        assert int(refusal.detail.split(" of ")[0]) >= len(buffers[first] | buffers[second]) > 8
        assert refusal.words.endswith(" of 8")
    assert all(pair.refusals[0].reason is Reason.OPERANDS for pair in explanation.kernels)


def test_devices() -> None:
    _, explanation = explained([copy(tensor(64, 64) * 2.0, "PYTHON") + 1.0])
    assert between(explanation.unmerged, "1", "2")["launch"].words == "illegal: on different devices (CPU and PYTHON)"
    assert between(explanation.unmerged, "2", "3")["launch"].reason is Reason.COPY


def skipped(size: int) -> list[UOp]:
    """The first kernel's value is needed by the last one directly, and through a product that neither can take in."""
    z = tensor(size, size).exp()
    product = matmul(matmul(z, tensor(size, size)).maximum(0.0), tensor(size, size)) + z
    return [z * 2.0, product, z]


def test_a_cycle() -> None:
    _, explanation = explained(skipped(512))
    pair = between(explanation.unmerged, "1", "3")
    assert pair["region"].reason is Reason.CYCLE and "would gain" in pair["region"].detail
    related = {(p.first, p.second) for p in explanation.unmerged if p.related == "data"}
    assert {("1", "2"), ("2", "3")} <= related


def test_a_device_with_one_kernel_a_launch() -> None:
    chain = [matmul(matmul(tensor(64, 32), tensor(32, 64)).maximum(0.0), tensor(64, 16))]
    _, explanation = explained(chain, replace(AVX2, scratch_bytes=0))
    assert between(explanation.unmerged, "1", "2")["launch"].reason is Reason.ONE_KERNEL


def test_priced_out_by_work_done_again() -> None:
    # A long formula of one row, used in 4096 rows.
    vector = tensor(1, 4096)
    for _ in range(20):
        vector = vector.sin().exp()
    _, explanation = explained([tensor(4096, 4096) * expand(vector, 4096, 4096)])
    refusal = only(explanation)
    assert refusal.reason is Reason.PRICE and refusal.cost is not None and refusal.cost > 0
    assert "times as much" in refusal.detail and refusal.words.startswith("priced out: +")


@pytest.mark.parametrize("seed", range(40))
def test_what_a_priced_out_merge_costs_is_what_it_costs(seed: int) -> None:
    search = search_of(random_graph(seed))
    search.run()
    _, explanation = explained(random_graph(seed))
    costs = [r.cost for pair in explanation.kernels for r in pair.refusals if r.reason is Reason.PRICE]
    alive = [k for k in search.kernels if k.alive]
    possible = {
        search.joined([*a.cells, *b.cells])[2].price - a.price - b.price for a, b in permutations(alive, 2)
    }  # fmt: skip
    assert all(cost is not None and cost > -MIN_GAIN and cost in possible for cost in costs)


def leads_through_others(after: Sequence[dict[int, None]], first: int, second: int) -> bool:
    """Whether the second kernel needs the first one by way of a third."""
    reached = [n for n in after[first] if n != second]
    for number in reached:  # grows while it is walked
        reached.extend([n for n in after[number] if n not in reached])
    return second in reached


def test_a_cycle_goes_through_a_third_kernel() -> None:
    cycles = 0
    for roots in (skipped(256), skipped(512), skipped(768), *map(random_graph, range(80))):
        search = search_of(roots)
        search.run()
        decisions = Decisions()
        decisions.kernels_decided(search)
        numbers = {name_of(k): n for n, k in enumerate(search.kernels) if k.alive}
        for pair in decisions.kernels:
            if pair.refusals[0].reason is Reason.CYCLE:
                first, second = numbers[pair.first], numbers[pair.second]
                after = search.graph.after
                assert leads_through_others(after, first, second) or leads_through_others(after, second, first)
                cycles += 1
    assert cycles > 3


@pytest.mark.parametrize("seed", range(60))
def test_every_refusal_has_a_reason_in_words(seed: int) -> None:
    rng = random.Random(seed)
    target = replace(AVX2, scratch_bytes=rng.choice([0, 256, 1 << 19]), max_args=rng.choice([4, 16, 4096]))
    schedule, explanation = explained(random_graph(seed) + random_graph(seed + 1000), target)
    for pair in (*explanation.kernels, *explanation.unmerged):
        assert pair.refusals and pair.first != pair.second and pair.related in ("data", "operand")
        for refusal in pair.refusals:
            assert refusal.words.startswith(refusal.reason.kind)
            assert (refusal.cost is not None) == (refusal.reason in (Reason.PRICE, Reason.CYCLE, Reason.LATE))
    labels = {f"{x.number}.{b.number}" for x in explanation.launches for b in x.bodies}
    assert {label for pair in explanation.kernels for label in (pair.first, pair.second)} <= labels
    numbers = {str(x.number) for x in explanation.launches}
    assert {label for pair in explanation.unmerged for label in (pair.first, pair.second)} <= numbers
    assert len(numbers) == len(schedule.calls)


# text
def test_text_names_every_launch_and_kernel() -> None:
    _, explanation = explained([attention(), *optimizer(3)])
    text = explanation.text()
    for launch in explanation.launches:
        assert f"{launch.number:3d} {launch.name} on CPU" in text
        assert all(body.name in text for body in launch.bodies)
    memory = explanation.memory
    assert "blocks, each:" in text and "scratch of every core" in text and "illegal: a contraction" in text
    assert text.count("\n   memory: ") == 1 and memory.results > 0


def test_limit_and_sort() -> None:
    _, explanation = explained([gram(96)])
    first, second = explanation.launches
    large = max((first, second), key=lambda launch: launch.traffic.bytes)
    small = min((first, second), key=lambda launch: launch.traffic.bytes)
    lines = explanation.text(limit=1, sort="bytes").splitlines()
    assert large.name in lines[1] and any("... and 1 more launch" in line for line in lines)
    assert not any(f"{small.number:3d} {small.name} on" in line for line in lines)
    dear = max((first, second), key=lambda launch: launch.price or 0)
    assert explanation.text(sort="price").splitlines()[1].startswith(f"{dear.number:3d} ")


def test_data_is_json_and_says_the_same() -> None:
    _, explanation = explained([attention(), *optimizer(3)])
    data = json.loads(json.dumps(explanation.data()))
    assert data["price_ps"] == sum(launch["price_ps"] for launch in data["launches"])
    assert data["bytes_read"] + data["bytes_written"] == explanation.traffic.bytes
    assert data["memory"]["peak"] >= data["memory"]["bound"]
    named = [b["name"] for x in data["launches"] for stage in x["stages"] for s in stage for b in s["bodies"]]
    assert named == [body.name for launch in explanation.launches for body in launch.bodies]
    reasons = {r["reason"] for pair in data["kernels_apart"] for r in pair["refusals"]}
    assert "CONTRACTION_AND_REDUCTION" in reasons <= {reason.name for reason in Reason}
