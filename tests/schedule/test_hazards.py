"""In-place writes against an interpreter that copies everything: a variable is an array, a write makes a new one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.settings import Context
from gradlet.graph.evaluate import evaluate
from gradlet.graph.node import UOp, substitute, toposort
from gradlet.ops.op import MOVEMENT, Op
from gradlet.schedule.hazards import place_writes
from tests.schedule.helpers import (
    buffer,
    check,
    contiguous,
    create_schedule,
    expand,
    flip,
    gather,
    kernels,
    permute,
    reshape,
    run,
    scatter,
    shrink,
    stride,
    target_of,
    tensor,
    total,
    write,
)  # fmt: skip

SIDE = 4


class Program:
    """A random program over square matrices, run lazily through the scheduler and eagerly on arrays."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory: dict[UOp, Any] = {}
        self.nodes: list[UOp] = []
        self.arrays: list[Any] = []
        rng = np.random.default_rng(seed)
        for _ in range(3):
            node = tensor(SIDE, SIDE)
            self.memory[node.src[0]] = rng.integers(-3, 4, SIDE * SIDE).astype(np.float32)
            self.nodes.append(node)
            self.arrays.append(self.memory[node.src[0]].reshape(SIDE, SIDE).copy())
        index = buffer(SIDE, dtypes.int32)
        self.memory[index] = rng.integers(-1, SIDE + 1, SIDE).astype(np.int32)
        self.index = index

    def view(self, node: UOp, array: Any) -> tuple[UOp, Any, Any]:
        """A random view: node, its values, and the positions it shows."""
        positions = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
        for _ in range(self.random.randint(1, 2)):
            kind = self.random.choice(["whole", "rows", "columns", "transpose", "flip", "stride", "reshape"])
            rows, columns = node.shape
            if kind == "rows" and rows > 1:
                low = self.random.randint(0, rows - 1)
                high = self.random.randint(low + 1, rows)
                node = shrink(node, (low, high), (0, columns))
                positions = positions[low:high]
            elif kind == "columns" and columns > 1:
                low = self.random.randint(0, columns - 1)
                high = self.random.randint(low + 1, columns)
                node = shrink(node, (0, rows), (low, high))
                positions = positions[:, low:high]
            elif kind == "transpose":
                node, positions = permute(node, 1, 0), positions.T
            elif kind == "flip":
                node, positions = flip(node, 0), positions[::-1]
            elif kind == "stride":
                node, positions = stride(node, 2, 1), positions[::2]
            elif kind == "reshape" and rows * columns == SIDE * SIDE:
                node, positions = reshape(node, 2, SIDE * SIDE // 2), positions.reshape(2, -1)
        return node, array.reshape(-1)[positions], positions

    def value(self, shape: tuple[int, ...]) -> tuple[UOp, Any]:
        """A random value of a shape."""
        kind = self.random.choice(["constant", "view", "sum", "mix"])
        if kind == "constant":
            number = self.random.randint(-5, 5)
            return UOp.const(dtypes.float32, number), np.full(shape, number, np.float32)
        which = self.random.randrange(len(self.nodes))
        for _ in range(20):
            node, array, _ = self.view(self.nodes[which], self.arrays[which])
            if node.shape == shape:
                break
            which = self.random.randrange(len(self.nodes))
        else:
            single = total(self.nodes[which], 0, 1)
            rank = len(shape)
            return expand(reshape(single, *(1,) * rank), *shape), np.full(shape, self.arrays[which].sum())
        if kind == "view":
            return node, array
        if kind == "sum":
            return node + 1.0, array + 1
        other = self.random.randrange(len(self.nodes))
        spread = expand(reshape(total(self.nodes[other], 0, 1), *(1,) * len(shape)), *shape)
        return node * 0.5 + spread * 0.125, array * np.float32(0.5) + self.arrays[other].sum() * np.float32(0.125)

    def step(self) -> None:
        kind = self.random.choice(["write", "write", "write", "read", "realize", "scatter", "drop"])
        which = self.random.randrange(len(self.nodes))
        node, array = self.nodes[which], self.arrays[which]
        if kind == "write":
            view, shown, positions = self.view(node, array)
            value, new = self.value(shown.shape)
            if self.random.random() < 0.3:
                value, new = view + value, shown + new
            written = array.copy()
            written.reshape(-1)[positions] = new
            self.nodes[which], self.arrays[which] = self.written(node, view, value), written
        elif kind == "scatter":
            rows, new = self.value((SIDE, SIDE))
            how = self.random.choice([None, Op.ADD, Op.MAX])
            result = array.copy()
            for i, row in zip(self.memory_of_index(), new):
                if 0 <= i < SIDE:
                    result[i] = row if how is None else result[i] + row if how is Op.ADD else np.maximum(result[i], row)
            scattered = scatter(node, self.index, rows, how)
            self.nodes[which] = self.written(node, node, scattered) if self.random.random() < 0.7 else scattered
            self.arrays[which] = result
        elif kind == "read" and len(self.nodes) < 6:
            value, new = self.value((SIDE, SIDE))
            if value.op is Op.CONST:
                value, new = node * 2.0, array * 2
            self.nodes.append(value)
            self.arrays.append(np.array(new))
        elif kind == "realize":
            self.realize(self.random.sample(range(len(self.nodes)), self.random.randint(1, len(self.nodes))))
        elif kind == "drop" and len(self.nodes) > 2:
            del self.nodes[which], self.arrays[which]

    def memory_of_index(self) -> Any:
        return self.memory[self.index]

    def written(self, node: UOp, view: UOp, value: UOp) -> UOp:
        """Either form: the base as it is, or the memory under its movement ops."""
        base = node
        while base.op in (Op.RESHAPE, Op.PERMUTE, Op.FLIP) and self.random.random() < 0.8:
            base = base.src[0]
        if base.op in MOVEMENT or base is node:
            return write(node, view, value)
        chain = []
        while node is not base:
            chain.append(node)
            node = node.src[0]
        result = write(base, view, value)
        for moved in reversed(chain):
            result = moved.replace(src=(result,))
        return result

    def realize(self, which: list[int]) -> None:
        roots = list(dict.fromkeys(self.nodes[i] for i in which))
        live = [n for n in self.nodes if n not in set(roots)]
        schedule = create_schedule(roots, target_of, live)
        known = set(self.memory)
        self.memory = run(schedule, self.memory)
        self.nodes = substitute(self.nodes, schedule.results)
        assert known <= set(self.memory)

    def check(self) -> None:
        for node, array in zip(evaluate(self.nodes, self.memory), self.arrays, strict=True):
            np.testing.assert_allclose(node, array, rtol=1e-4, atol=1e-3)


def run_program(seed: int) -> None:
    program = Program(seed)
    for _ in range(program.random.randint(2, 9)):
        program.step()
    program.realize(list(range(len(program.nodes))))
    program.check()


@pytest.mark.parametrize("fuse", [0, 1])
def test_random_programs(fuse: int) -> None:
    with Context(FUSE=fuse):
        for seed in range(100):
            run_program(seed)


@pytest.mark.slow
def test_many_random_programs() -> None:
    for seed in range(1000, 5000):
        run_program(seed)


@pytest.mark.parametrize("seed", [4416, 4626])
def test_programs_that_the_long_run_found(seed: int) -> None:
    """In 4416 a factor of a flipped image is a constant; in 4626 two cells each read what the other one overwrites."""
    run_program(seed)


# known cases
def grid() -> UOp:
    return tensor(3, 3)


def new_sizes(schedule: Any) -> list[int]:
    """Elements of every buffer that the schedule made: it is younger than those of the graph."""
    old = max(n.arg.number for n in toposort(schedule.results) if n.op is Op.BUFFER)
    used = {b for call in schedule.calls for b in call.buffers}
    return sorted([b.arg.size for b in used if b.arg.number > old])


def written_buffers(schedule: Any) -> set[UOp]:
    return {c.buffers[s] for c in schedule.calls for s in c.written}


def test_whole_update_stays_in_place() -> None:
    t = grid()
    schedule = check([write(t, t, t * 2.0 + 1)])
    assert kernels(schedule) == 1 and written_buffers(schedule) == {t.src[0]}


def test_slice_write_touches_the_slice_only() -> None:
    t = tensor(8, 4)
    schedule = check([write(t, shrink(t, (2, 4), (0, 4)), UOp.const(dtypes.float32, 9))])
    assert [c.ast.arg.name for c in schedule.calls] == ["e_2_4"] and written_buffers(schedule) == {t.src[0]}


def test_permuted_self_read_is_not_overwritten_early() -> None:
    t = grid()
    check([write(t, t, t + permute(t, 1, 0))])
    check([write(t, t, flip(t, 0))])


def test_overlapping_slices_go_through_a_temporary() -> None:
    t = tensor(8)
    schedule = check([write(t, shrink(t, (1, 6)), shrink(t, (0, 5)))])
    assert new_sizes(schedule) == [5]


def test_slices_that_do_not_overlap_need_no_temporary() -> None:
    t = tensor(8)
    schedule = check([write(t, shrink(t, (0, 4)), shrink(t, (4, 8)))])
    assert kernels(schedule) == 1 and new_sizes(schedule) == []
    grid = tensor(4, 6)
    left, right = shrink(grid, (0, 4), (0, 3)), shrink(grid, (0, 4), (3, 6))
    schedule = check([write(grid, left, right * 2.0 + 1)])
    assert kernels(schedule) == 1 and new_sizes(schedule) == []
    even, odd = stride(grid, 1, 2), stride(shrink(grid, (0, 4), (1, 6)), 1, 2)
    schedule = check([write(grid, odd, flip(even, 0))])
    assert kernels(schedule) == 1 and new_sizes(schedule) == []


def test_writing_what_is_there_is_nothing() -> None:
    t = tensor(8)
    assert check([write(t, shrink(t, (2, 6)), shrink(t, (2, 6)))]).calls == ()


@pytest.mark.parametrize("order", [0, 1])
def test_reader_built_before_the_write_sees_old_values(order: int) -> None:
    t = tensor(2)
    reader = t + 10
    writer = write(t, shrink(t, (0, 1)), UOp.const(dtypes.float32, 9))
    schedule = check([reader, writer] if order else [writer, reader])
    assert t.src[0] in written_buffers(schedule) if t.op is Op.RESHAPE else t in written_buffers(schedule)


def test_live_reader_keeps_the_old_values() -> None:
    t = grid()
    schedule = check([write(t, shrink(t, (0, 1), (0, 3)), UOp.const(dtypes.float32, 9))], live=[t + 10])
    assert t.src[0] not in written_buffers(schedule)


def test_live_view_of_other_elements_hinders_nothing() -> None:
    t = tensor(8, 4)
    top, row = shrink(t, (0, 4), (0, 4)), shrink(t, (5, 6), (0, 4))
    schedule = check([write(t, row, UOp.const(dtypes.float32, 9))], live=[top, top + 10, shrink(t, (6, 8), (0, 4))])
    assert written_buffers(schedule) == {t.src[0]} and new_sizes(schedule) == []


def test_live_view_of_the_first_of_two_writes() -> None:
    """Later writes of a chain run in the same memory as the first one."""
    t = tensor(8, 4)
    first = write(t, shrink(t, (5, 6), (0, 4)), UOp.const(dtypes.float32, 1))
    second = write(first, shrink(first, (0, 1), (0, 4)), UOp.const(dtypes.float32, 2))
    check([second], live=[shrink(t, (0, 4), (0, 4))])


def test_cached_schedules_know_which_parts_others_hold() -> None:
    for kept, size in (((0, 4), 0), ((4, 8), 1), ((0, 4), 0)):
        t = tensor(8, 4)
        writer = write(t, shrink(t, (5, 6), (0, 4)), UOp.const(dtypes.float32, 9))
        schedule = check([writer], live=[shrink(t, kept, (0, 4))])
        assert len(new_sizes(schedule)) == size


def test_reader_of_other_elements_needs_no_order() -> None:
    t = tensor(8, 4)
    reader = shrink(t, (0, 4), (0, 4)) * 2.0
    writer = write(t, shrink(t, (5, 6), (0, 4)), UOp.const(dtypes.float32, 9))
    assert not any(place_writes([reader, writer]).before.values())
    meets = write(t, shrink(t, (3, 4), (0, 4)), UOp.const(dtypes.float32, 9))
    assert list(place_writes([reader, meets]).before.values()) == [[reader]]


def test_reader_waits_for_the_first_write_that_reaches_it() -> None:
    t = tensor(8, 4)
    reader = shrink(t, (0, 4), (0, 4)) * 2.0
    first = write(t, shrink(t, (5, 6), (0, 4)), UOp.const(dtypes.float32, 9))
    second = write(first, shrink(first, (3, 4), (0, 4)), UOp.const(dtypes.float32, 8))
    effects = place_writes([reader, second])
    assert [len(r) for r in effects.before.values()] == [0, 1]


def test_reads_pass_by_writes_that_do_not_reach_them() -> None:
    t = tensor(8, 4)
    writer = write(t, shrink(t, (5, 6), (0, 4)), UOp.const(dtypes.float32, 9))
    schedule = check([shrink(writer, (0, 4), (0, 4)) * 2.0])
    assert kernels(schedule) == 1 and t.src[0] not in written_buffers(schedule)
    check([shrink(writer, (0, 4), (0, 4)) * 2.0, writer])


def test_writes_that_are_written_over_are_left_out() -> None:
    t = tensor(8, 4)
    first = write(t, shrink(t, (2, 4), (0, 4)), UOp.const(dtypes.float32, 1))
    second = write(first, shrink(first, (2, 5), (0, 4)), UOp.const(dtypes.float32, 2))
    assert kernels(check([second])) == 1 and len(place_writes([second]).versions) == 1
    assert t.src[0] in written_buffers(check([second, first * 2.0]))
    partly = write(first, shrink(first, (3, 5), (0, 4)), UOp.const(dtypes.float32, 2))
    assert len(place_writes([partly]).versions) == 2
    check([second], live=[first])


def test_late_reader_of_a_small_write_takes_what_was_saved() -> None:
    t = tensor(16, 4)
    writer = write(t, shrink(t, (2, 3), (0, 4)), UOp.const(dtypes.float32, 9))
    schedule = check([total(t * writer, 0, 1), writer])
    assert t.src[0] in written_buffers(schedule) and max(new_sizes(schedule)) == 4


def test_late_reader_makes_the_write_go_elsewhere() -> None:
    t = grid()
    writer = write(t, shrink(t, (0, 1), (0, 3)), UOp.const(dtypes.float32, 9))
    schedule = check([t * writer])
    assert t.src[0] not in written_buffers(schedule)


def test_write_held_by_a_live_graph_is_reported() -> None:
    t = grid()
    writer = write(t, t, t + 1)
    schedule = check([writer * 2.0], live=[writer])
    assert writer in schedule.results


def test_root_that_simplifies_to_a_write_others_hold() -> None:
    t = grid()
    writer = write(t, t, t + 1)
    schedule = check([writer * 1.0], live=[writer])
    assert writer in schedule.results


def test_swap() -> None:
    a, b = grid(), grid()
    check([write(a, a, b), write(b, b, a)])


def test_one_base_written_twice_makes_two_values() -> None:
    t = grid()
    first = write(t, shrink(t, (0, 1), (0, 3)), UOp.const(dtypes.float32, 1))
    second = write(t, shrink(t, (1, 2), (0, 3)), UOp.const(dtypes.float32, 2))
    check([first, second])


def test_chain_of_writes_on_a_lazy_value_uses_one_buffer() -> None:
    t = tensor(8, 4) * 2.0
    for i in range(8):
        t = write(t, shrink(t, (i, i + 1), (0, 4)), UOp.const(dtypes.float32, i))
    schedule = check([t])
    assert len(written_buffers(schedule)) == 1


def test_duplicate_indices_keep_the_last() -> None:
    target, rows = tensor(3), tensor(2)
    index = buffer(2, dtypes.int32)
    schedule = create_schedule([scatter(target, index, rows)], target_of)
    memory = {target: np.array([5, 6, 7], np.float32), index: np.array([1, 1], np.int32)}
    memory[rows] = np.array([3, 0], np.float32)
    after = run(schedule, memory)
    (result,) = evaluate(list(schedule.results.values()), after)
    assert result.tolist() == [5, 0, 7]


def test_scatter_that_reads_its_own_target() -> None:
    t, index = tensor(4, 4), tensor(4, dtype=dtypes.int32)
    check([write(t, t, scatter(t, index, permute(t, 1, 0), Op.ADD))])
    check([write(t, t, scatter(t, index, gather(t, index) * 2.0, Op.ADD))])


def test_effects_of_a_graph_without_writes() -> None:
    root = contiguous(tensor(2) + 1)
    effects = place_writes([root])
    assert effects.roots == [root] and not effects.versions and len(toposort(effects.roots)) == 4
