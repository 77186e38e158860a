"""Repeated layers: found by structure, decided once, with the same result; work grows with what is new."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from gradlet import Tensor
from gradlet.graph.node import UOp
from gradlet.schedule import bodies as bodies_module
from gradlet.schedule import pipeline
from gradlet.schedule.calls import KernelCall
from gradlet.schedule.context import Context, sink
from gradlet.schedule.fuse import Search
from gradlet.schedule.launches import LaunchSearch
from gradlet.schedule.price import IMPOSSIBLE
from gradlet.schedule.repeats import Repeats, Run, adopt, find_runs, number_layers
from gradlet.schedule.steps import Steps, Work
from gradlet.target.target import NVPTX, Target
from tests.schedule.helpers import (
    check,
    contiguous,
    create_schedule,
    expand,
    flip,
    matmul,
    pad,
    permute,
    reshape,
    row,
    shrink,
    target_of,
    tensor,
    total,
)

WIDTH, TOKENS, HEADS = 16, 8, 2
Layer = Callable[[Tensor], tuple[Tensor, list[Tensor]]]


def weight(*shape: int) -> Tensor:
    return Tensor.empty(*shape).realize()


def transformer_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    scale, mix, out = weight(WIDTH), weight(WIDTH, 3 * WIDTH), weight(WIDTH, WIDTH)
    up, bias, down = weight(WIDTH, 2 * WIDTH), weight(2 * WIDTH), weight(2 * WIDTH, WIDTH)
    mixed = ((x.layernorm() * scale) @ mix * 0.25).reshape(TOKENS, 3, HEADS, WIDTH // HEADS)
    q, k, v = (mixed[:, i].transpose(0, 1) for i in range(3))
    found = (q @ k.transpose(-2, -1)).softmax(-1) @ v
    x = x + found.transpose(0, 1).reshape(TOKENS, WIDTH) @ out * 0.25
    return x + (x.layernorm() @ up * 0.25 + bias).relu() @ down * 0.1, [scale, mix, out, up, bias, down]


def perceptron_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    up, bias, down = weight(WIDTH, 2 * WIDTH), weight(2 * WIDTH), weight(2 * WIDTH, WIDTH)
    return x + (x.layernorm() @ up * 0.25 + bias).gelu() @ down * 0.1, [up, bias, down]


def convolution_layer(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    kernel, scale = weight(4, 4, 3, 3), weight(4)
    out = x.conv2d(kernel, padding=1)
    centred = out - out.mean((0, 2, 3), keepdim=True)
    spread = (centred * centred).mean((0, 2, 3), keepdim=True)
    return x + (centred * (spread + 1e-5).rsqrt() * scale.reshape(1, 4, 1, 1)).relu(), [kernel, scale]


MODELS: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "transformer": (transformer_layer, (TOKENS, WIDTH)),
    "perceptron": (perceptron_layer, (TOKENS, WIDTH)),
    "convolution": (convolution_layer, (2, 4, 6, 6)),
}


def build(name: str, layers: int) -> list[UOp]:
    """A loss of equal layers, and its gradients."""
    layer, shape = MODELS[name]
    x = given = weight(*shape)
    parameters = [given]
    for _ in range(layers):
        x, more = layer(x)
        parameters += more
    loss = (x * x).mean()
    return [t.uop for t in (loss, *loss.gradient(*parameters))]


def build_training(layers: int) -> list[UOp]:
    """A training step: gradients, and parameters and velocities updated in place."""
    x = weight(TOKENS, WIDTH)
    parameters = []
    for _ in range(layers):
        x, more = perceptron_layer(x)
        parameters += more
    loss = (x * x).mean()
    results = [loss]
    for parameter, gradient in zip(parameters, loss.gradient(*parameters), strict=True):
        velocity = weight(*parameter.shape)
        results.append(velocity.assign(velocity * 0.9 + gradient))
        results.append(parameter.assign(parameter - velocity * 0.01))
    return [t.uop for t in results]


def steps_of(roots: Sequence[UOp]) -> Steps:
    """The steps as the search over partitions gets them."""
    context = Context(list(roots), len(roots), 0, target_of, "CPU")
    node = sink(roots)
    for step in pipeline.PIPELINE.passes:
        if step.name == "decide kernels":
            break
        node = step.run(node, context) if callable(step.run) else node
    assert context.effects is not None
    return Steps(context.effects, node.src, context.stored_on, "CPU")


def searched(steps: Steps, target: Target, replay: bool) -> tuple[Search, LaunchSearch]:
    search = Search(steps, lambda device: target, replay)
    search.run()
    launches = LaunchSearch(search)
    launches.run()
    return search, launches


def prices(search: Search, launches: LaunchSearch) -> tuple[int, int, int, int]:
    """Kernels, what they cost, launches, what they cost."""
    kernels = [k for k in search.kernels if k.alive]
    drafts = [d for d in launches.drafts.values() if d.alive]
    return len(kernels), sum(k.price for k in kernels), len(drafts), sum(d.price for d in drafts)


@pytest.mark.parametrize("name", list(MODELS))
def test_equal_layers_share_their_classes(name: str) -> None:
    steps = steps_of(build(name, 8))
    search = Search(steps, target_of)
    repeats = Repeats(search.cells, steps, search.home)
    assert len(set(repeats.classes)) * 2 < len(search.cells)
    assert len(set(zip(repeats.classes, repeats.layers, strict=True))) == len(search.cells)
    more = steps_of(build(name, 16))
    longer = Search(more, target_of)
    assert len(set(Repeats(longer.cells, more, longer.home).classes)) == len(set(repeats.classes))


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_same_partition_with_and_without_sharing(name: str, device: str) -> None:
    target = NVPTX if device == "gpu" else target_of("CPU")
    roots = build(name, 8)
    shared = prices(*searched(steps_of(roots), target, replay=True))
    alone = prices(*searched(steps_of(roots), target, replay=False))
    assert shared == alone


@pytest.mark.parametrize("name", list(MODELS))
def test_prices_replayed_are_prices_asked(name: str) -> None:
    search, launches = searched(steps_of(build(name, 6)), target_of("CPU"), replay=True)
    assert_prices_asked(search, launches)


def assert_prices_asked(search: Search, launches: LaunchSearch) -> None:
    """What was taken over from other layers is what asking again gives."""
    for kernel in search.kernels:
        if kernel.alive:
            assert search.stored_cells(kernel.cells) == kernel.stored
            assert search.price(kernel.cells, kernel.stored).price == kernel.price < IMPOSSIBLE
    for draft in launches.drafts.values():
        if draft.alive and draft.plan is not None:
            assert launches.region(draft.main) == draft.plan


@pytest.mark.parametrize("name", list(MODELS))
def test_work_of_deciding_grows_with_what_is_new(name: str) -> None:
    done: dict[int, Work] = {}
    counts: dict[int, int] = {}
    for layers in (1, 8, 32):
        steps = steps_of(build(name, layers))
        searched(steps, target_of("CPU"), replay=True)
        done[layers], counts[layers] = steps.work, len(steps.order)
        assert steps.work.prices <= 10 * len(steps.order)
    assert done[32].prices < done[8].prices * 3 // 2
    assert done[32].replayed > done[8].replayed * 3
    growth = math.log((done[32].prices + done[32].merges) / (done[8].prices + done[8].merges))
    assert growth <= 1.1 * math.log(counts[32] / counts[8])


def test_training_steps_share_as_well() -> None:
    done = {}
    for layers in (8, 24):
        steps = steps_of(build_training(layers))
        search, launches = searched(steps, target_of("CPU"), replay=True)
        done[layers] = steps.work.prices  # those that deciding asked for, not those that are asked for here
        assert_prices_asked(search, launches)
    assert done[24] < done[8] * 3 // 2
    roots = build_training(5)
    assert prices(*searched(steps_of(roots), target_of("CPU"), replay=True)) == prices(
        *searched(steps_of(roots), target_of("CPU"), replay=False)
    )
    check(roots)


def test_equal_bodies_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[int] = []
    original = bodies_module.lower_kernel

    def counted(*given: object) -> object:
        lowered.append(1)
        return original(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(bodies_module, "lower_kernel", counted)
    found = {}
    for layers in (4, 12):
        lowered.clear()
        calls = pipeline.make_schedule(build("transformer", layers), target_of).calls
        kernels = [c.ast for c in calls if isinstance(c, KernelCall)]
        found[layers] = len(lowered), len(kernels), len(set(kernels))
    assert found[12][1] > 2 * found[4][1]
    assert found[12][0] <= found[4][0] + 2 and found[12][2] <= found[4][2] + 2


@pytest.mark.parametrize("name", list(MODELS))
def test_results_of_repeated_layers(name: str) -> None:
    check(build(name, 5))


def test_layers_with_one_odd_layer_among_them() -> None:
    x = weight(TOKENS, WIDTH)
    for number in range(7):
        x, _ = perceptron_layer(x)
        if number == 3:
            x = x.sin().cumsum(0)
    check([x.sum().uop])


def test_shared_weights_and_two_losses() -> None:
    x, w = weight(TOKENS, WIDTH), weight(WIDTH, WIDTH)
    given = x
    results = []
    for _ in range(6):
        x = (x @ w).tanh() + x
        results.append(x.sum())
    loss = results[2] + results[5]
    check([t.uop for t in (*results, *loss.gradient(given, w))])


def test_find_runs() -> None:
    assert find_runs([]) == find_runs([1, 2, 3]) == []
    assert find_runs(list(range(40))) == []
    period = list(range(12))
    assert find_runs([99, 98, *period * 4, 97]) == [Run(2, 50, 12)]
    # Two runs, the second of another period; a lone copy far away is no run.
    other = [50, 51, 52]
    runs = find_runs([*period * 3, 77, *other * 9, 78, *range(20, 31), *period])
    assert runs == [Run(0, 36, 12), Run(37, 64, 3)]
    # The period of one run is a multiple of that of another.
    assert find_runs([*period * 5, 77, *period[:6] * 6]) == [Run(0, 60, 12), Run(61, 97, 6)]


def test_layers_run_backwards_where_references_do() -> None:
    # Three layers of two cells, then three of two that read them in the opposite order.
    runs = [Run(0, 6, 2), Run(7, 13, 2)]
    stations = [0, 1, 0, 1, 0, 1, -1, 2, 3, 2, 3, 2, 3]
    references: list[list[tuple[int, int]]] = [[] for _ in stations]
    for turn in range(3):
        references[7 + 2 * turn] = [(5 - 2 * turn, 0)]
        references[8 + 2 * turn] = [(4 - 2 * turn, 0)]
    assert number_layers(runs, references, stations) == [0, 0, 1, 1, 2, 2, 0, 2, 2, 1, 1, 0, 0]
    # Every turn of the second run belongs to two of the first.
    references = [[] for _ in range(11)]
    for turn in range(3):
        references[8 + turn] = [(5 - 2 * turn, 0)]
    found = number_layers([Run(0, 6, 1), Run(8, 11, 1)], references, [0] * 6 + [-1, -1] + [1] * 3)
    assert found == [0, 1, 2, 3, 4, 5, 0, 0, 5, 3, 1]


def test_cells_outside_runs_join_the_layer_that_reads_them() -> None:
    # A copy of a weight for each of three layers, a value that all three share, and layers of one cell.
    bodies = [5, 5, 5, 6, 7, 7, 7]
    stations, layers = [-1, -1, -1, -1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 2]
    references: list[list[tuple[int, int]]] = [[], [], [], [], [(2, 0), (3, 0)], [(1, 0), (3, 0)], [(0, 0), (3, 0)]]
    adopt(stations, layers, references, bodies)
    assert stations == [1, 1, 1, -1, 0, 0, 0] and layers == [2, 1, 0, 0, 0, 1, 2]
    # One that does something else has a place of its own; what only a copy reads follows it.
    bodies = [4, 5, 8, 5, 7, 7]
    stations, layers = [-1, -1, -1, -1, 0, 0], [0, 0, 0, 0, 3, 4]
    references = [[], [(0, 0)], [], [(2, 0)], [(1, 0)], [(3, 0)]]
    adopt(stations, layers, references, bodies)
    assert stations == [2, 1, 3, 1, 0, 0] and layers == [3, 3, 4, 4, 3, 4]


def test_cached_schedules_are_those_made_anew() -> None:
    roots = build("perceptron", 4)
    first = create_schedule(roots, target_of)
    second = pipeline.make_schedule(roots, target_of)
    assert [c.ast for c in first.calls if isinstance(c, KernelCall)] == [
        c.ast for c in second.calls if isinstance(c, KernelCall)
    ]


def random_layer(seed: int, x: UOp, shared: UOp) -> UOp:
    """A function of a (4, 6) value, made of the same ops whenever the seed is the same, with memory of its own."""
    rng = random.Random(seed)
    nodes = [x]
    for _ in range(rng.randint(3, 9)):
        y, kind = rng.choice(nodes[-3:]), rng.randrange(8)
        if kind == 0:
            y = y * tensor(4, 6) + rng.choice(nodes)
        elif kind == 1:
            y = matmul(y, tensor(6, 6)) * 0.2
        elif kind == 2:
            y = y - row(total(y, 1, keep=True) * (1 / 6), 6)
        elif kind == 3:
            y = y * expand(total(y * y, 0, keep=True) * 0.1, 4, 6)
        elif kind == 4:
            y = flip(y, rng.randrange(2)) + shared
        elif kind == 5:
            y = contiguous(y.maximum(0.1))
        elif kind == 6:
            y = reshape(permute(reshape(y, 6, 4), 1, 0), 4, 6) * (y * 0.1).exp()
        else:
            y = shrink(pad(y, (1, 1), (0, 0)), (0, 4), (0, 6)) + rng.choice(nodes)
        nodes.append(y)
    return nodes[-1] * 0.5


def random_stack(seed: int, layers: int) -> list[UOp]:
    """Equal random layers, one after another, and sometimes a second time backwards through their values."""
    rng = random.Random(seed)
    shared = tensor(4, 6)
    values = [tensor(4, 6)]
    for _ in range(layers):
        values.append(random_layer(seed, values[-1], shared))
    if seed % 2:
        return [values[-1], *rng.sample(values[1:], seed % 3)]
    back = values[-1]
    for value in reversed(values[:-1]):
        back = random_layer(seed + 1, back + value, shared)
    return [back, values[-1]]


@pytest.mark.parametrize("part", range(4))
def test_random_layers(part: int) -> None:
    for seed in range(part * 6, part * 6 + 6):
        roots = random_stack(seed, 6)
        search, launches = searched(steps_of(roots), target_of("CPU"), replay=True)
        assert_prices_asked(search, launches)
        alone = prices(*searched(steps_of(roots), target_of("CPU"), replay=False))
        assert prices(search, launches) == alone
        check(roots, seed=seed)
