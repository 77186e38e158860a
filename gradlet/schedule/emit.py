"""From groups to calls: give every stored step its memory, lower every kernel, keep in-place kernels safe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from types import MappingProxyType

from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.extents import Extents
from gradlet.graph.node import UOp, mk, toposort
from gradlet.ops.op import SCALAR_LEAVES, CustomArg, Op
from gradlet.schedule.blocks import Frame, block_elements, scratch_view
from gradlet.schedule.bodies import Bodies
from gradlet.schedule.boxes import Box, box_of_address, disjoint
from gradlet.schedule.builder import LaunchBuilder
from gradlet.schedule.calls import CopyCall, KernelCall
from gradlet.schedule.clean import is_whole
from gradlet.schedule.lower import buffer_below
from gradlet.schedule.lowered import Lowered
from gradlet.schedule.moves import chain_to, expand_scalar, replay, reshape, root_of
from gradlet.schedule.partition import Blocks, Group, Launch, Region
from gradlet.schedule.ranges import RegionError
from gradlet.schedule.steps import Steps, is_number


class Emitter:
    """Turns groups, in execution order, into calls.

    Attributes:
        places: where every stored step is: a view of a BUFFER with the step's shape.
        calls: what was emitted so far.
        temporary: buffers that hold nothing of use after the schedule.
        apart: numbers of calls that begin what was to be one launch and became several, with the reason.
        call_bodies: the body of every call that is one body or part of one.
    """

    def __init__(
        self, steps: Steps, launches: Sequence[Launch], sizes: Mapping[UOp, Extents] = MappingProxyType({}),
        counting: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.steps = steps
        self.counting = counting
        self.places: dict[UOp, UOp] = {}
        self.calls: list[KernelCall | CopyCall] = []
        self.made: set[UOp] = set()
        self.bodies = Bodies(self.places, steps.axes, sizes)
        self._unsafe: dict[UOp, list[int]] = {}
        self._custom: set[tuple[tuple[UOp, ...], CustomArg]] = set()
        self.apart: dict[int, str] = {}
        self.call_bodies: dict[int, Group] = {}
        for launch in launches:
            for output in launch.outputs:
                self.places[output] = self.place(output)

    # memory
    def new_place(self, node: UOp, device: str) -> UOp:
        """A view, shaped like the node, of a new buffer."""
        buffer = new_buffer_node(device, node.dtype, prod(node.shape))
        self.made.add(buffer)
        return reshape(buffer, node.shape)

    def place(self, node: UOp) -> UOp:
        """Where a stored step goes: new memory, or the memory of the version it overwrites."""
        # A chain of in-place steps ends in memory: walk down to it, then back up.
        device = self.steps.devices[node]
        pending = [node]
        while pending:
            top = pending[-1]
            version = self.steps.effects.versions.get(top)
            if top in self.places or version is None:
                if top not in self.places:
                    self.places[top] = self.new_place(top, self.steps.devices.get(top, device))
                pending.pop()
            elif version.op is Op.BUFFER or version in self.places:
                memory = version if version.op is Op.BUFFER else self.places[version]
                self.places[top] = self.place_over(top, version, memory)
                pending.pop()
            else:
                pending.append(version)
        return self.places[node]

    def place_over(self, node: UOp, version: UOp, memory: UOp) -> UOp:
        """The place of an in-place step, given where the version it overwrites is."""
        if node.op is Op.WRITE:
            return memory
        return replay(chain_to(self.steps.effects.overwritten(node), version), memory)

    def resolve(self, node: UOp) -> UOp:
        """A movement chain over a step as the same chain over the step's memory."""
        bottom = root_of(node)
        place = self.places.get(bottom, bottom)
        return node if place is bottom else replay(chain_to(node, bottom), place)

    def temporary(self, value: UOp, device: str) -> UOp:
        """A step of its own that computes `value` into temporary memory."""
        while True:
            # The mark keeps it from being a CONTIGUOUS of the graph.
            value = mk(Op.DETACH, value.dtype, (value,), None)
            step = mk(Op.CONTIGUOUS, value.dtype, (value,), None)
            if step not in self.places:
                self.places[step] = self.new_place(step, device)
                return step

    # calls
    def emit(self, launch: Launch) -> None:
        """Append the calls of one launch."""
        bodies = launch.bodies
        if bodies[0].outputs[0].op is Op.COPY:
            self.emit_copy(bodies[0].outputs[0])
        elif bodies[0].outputs[0].op is Op.CUSTOM:
            self.emit_custom(bodies[0].outputs[0])
        elif len(bodies) == 1 or not self.emit_launch(launch):
            for output in launch.scratch:
                self.places[output] = self.new_place(output, self.steps.devices[output])
            for body in bodies:
                self.emit_body(body)

    def emit_body(self, group: Group) -> None:
        """Append the calls of one body on its own."""
        outputs = computed(group)
        if outputs:
            begin = len(self.calls)
            self.emit_kernel(outputs, group, self.steps.devices[outputs[0]])
            self.call_bodies.update(dict.fromkeys(range(begin, len(self.calls)), group))

    def emit_launch(self, launch: Launch) -> bool:
        """Append several bodies as one call; False (and nothing appended) where a body cannot run inside a launch."""
        device = self.steps.devices[launch.bodies[0].outputs[0]]
        builder = LaunchBuilder()
        try:
            for stage in launch.stages:
                after = [last for region in stage for last in self.add_region(region, launch, builder, device)]
                builder.end_stage()
                for last in after:
                    builder.add_region([last], {})
                builder.end_stage()
        except RegionError as error:
            self.apart[len(self.calls)] = str(error)
            return False
        finally:
            for output in launch.scratch:
                self.places.pop(output, None)
        call = builder.call(device)
        if call is not None:
            self.calls.append(call)
        return True

    def add_region(self, region: Region, launch: Launch, builder: LaunchBuilder, device: str) -> list[Lowered]:
        """Lower the bodies of one region; returns what has to run in a stage after this one.

        Raises:
            RegionError: a block needs what another block makes, or overwrites.
        """
        frame = None
        if region.blocks is not None:
            frame = self.open_frame(region, region.blocks, launch, device)
        bodies = [(body, outputs) for body in region.bodies if (outputs := computed(body))]
        uses: list[Lowered] = []
        after: list[Lowered] = []
        for body, outputs in bodies:
            lowered = self.lower(outputs, body.nest, frame)
            if not self.unsafe(lowered):
                uses.append(lowered)
            elif frame is not None:
                raise RegionError("a body reads what it overwrites")
            else:
                first, after = self.in_two(lowered, outputs, body, device)
                uses.extend(first)
        if uses:
            builder.add_region(uses, frame.scratch if frame is not None else {})
        return after

    def open_frame(self, region: Region, blocks: Blocks, launch: Launch, device: str) -> Frame:
        """Places in scratch memory for what the bodies of a region hand to one another."""
        scratch: dict[UOp, int] = {}
        for body in region.bodies:
            for output in body.outputs:
                if output in launch.scratch:
                    buffer = new_buffer_node(device, output.dtype, prod(output.shape))
                    scratch[buffer] = block_elements(output, blocks)
                    self.places[output] = scratch_view(output, buffer, self.steps.axes.axis, blocks)
        return Frame(blocks, scratch)

    def emit_copy(self, node: UOp) -> None:
        """A copy between devices; a source that is no whole buffer is brought into shape first."""
        if 0 in node.shape:
            return
        source = node.src[0]
        device = self.steps.devices[root_of(source)]
        if not is_whole(source) or not is_whole(self.resolve(source)):
            packed = self.temporary(source, device)
            self.append(self.lower([packed], ()), device)
            source = packed
        self.calls.append(CopyCall(buffer_below(self.places[node]), buffer_below(self.resolve(source))))

    def emit_custom(self, node: UOp) -> None:
        """A kernel that the caller wrote, once for all its results; sources that are no whole buffers are packed."""
        arg = node.arg
        key = (node.src, arg._replace(output=0))
        if key in self._custom or all(0 in shape for shape in arg.shapes):
            return
        self._custom.add(key)
        arrays: list[UOp] = []
        for number, whole in enumerate(arg.whole):
            result = mk(Op.CUSTOM, arg.types[number], node.src, arg._replace(output=number))
            if result not in self.places:
                self.places[result] = self.new_place(result, arg.device)
            if not whole and 0 not in result.shape:
                zeros = mk(
                    Op.CONTIGUOUS, result.dtype, (expand_scalar(UOp.const(result.dtype, 0), result.shape),), None
                )
                self.append(self.lower_into(zeros, self.places[result]), arg.device)
            arrays.append(buffer_below(self.places[result]))
        for source in node.src:
            if not is_whole(source) or not is_whole(self.resolve(source)):
                source = self.temporary(source, arg.device)
                self.append(self.lower([source], ()), arg.device)
            arrays.append(buffer_below(self.resolve(source)))
        if not arg.kernel.src:
            return  # all its loops are empty
        written = tuple([slot for slot, number in enumerate(arg.slots) if number < len(arg.whole)])
        self.calls.append(
            KernelCall(arg.kernel, tuple([arrays[number] for number in arg.slots]), written, (), arg.device)
        )

    def lower_into(self, step: UOp, place: UOp) -> Lowered:
        """A step of its own that goes to a place that is known."""
        while step in self.places:
            step = mk(Op.CONTIGUOUS, step.dtype, (step,), None)
        self.places[step] = place
        return self.lower([step], ())

    def emit_kernel(self, outputs: Sequence[UOp], group: Group, device: str) -> None:
        """One kernel; two when it would read what it has already overwritten."""
        lowered = self.lower(outputs, group.nest)
        first, after = ([lowered], []) if not self.unsafe(lowered) else self.in_two(lowered, outputs, group, device)
        for one in (*first, *after):
            self.append(one, device)

    def in_two(
        self, lowered: Lowered, outputs: Sequence[UOp], group: Group, device: str
    ) -> tuple[list[Lowered], list[Lowered]]:
        """A body that reads what it has overwritten: one that computes into temporary memory, and what copies that."""
        overwritten = {lowered.buffers[slot] for slot in self.unsafe(lowered)}
        while True:
            first, after = self.staged(outputs, overwritten, group, device)
            # Values in temporary memory have loops of their own, so other outputs may be read out of step now.
            again = {one.buffers[slot] for one in first for slot in self.unsafe(one)}
            if again <= overwritten:
                return first, after
            overwritten |= again

    def staged(
        self, outputs: Sequence[UOp], overwritten: Collection[UOp], group: Group, device: str
    ) -> tuple[list[Lowered], list[Lowered]]:
        """One body that computes outputs over some memory into temporary memory, and those that copy that."""
        before: list[UOp] = []
        after: list[UOp] = []
        hidden: list[UOp] = []
        for output in outputs:
            if buffer_below(self.places[output]) in overwritten:
                staged, final = self.stage(output, device)
                before.extend(staged)
                after.append(final)
                hidden.append(output)
            else:
                before.append(output)
        # While the staged values are computed, the steps that go over them are not in memory yet.
        saved = {o: self.places.pop(o) for o in hidden if o.op is not Op.WRITE and o.op is not Op.SCATTER}
        first = [self.lower(before, group.nest)] if before else []
        self.places.update(saved)
        return first, [self.lower([final], ()) for final in after]

    def stage(self, output: UOp, device: str) -> tuple[list[UOp], UOp]:
        """What to compute into temporary memory first, and the step that then goes to the output's place."""
        if output.op is Op.WRITE:
            values = [output.src[2]]
        elif output.op is Op.SCATTER:
            values = list(output.src[1:])
        else:
            values = [output]
        made = [value if is_constant(value) else self.temporary(value, device) for value in values]
        if output.op is Op.WRITE:
            final = mk(Op.WRITE, output.dtype, (*output.src[:2], made[0]), None)
        elif output.op is Op.SCATTER:
            final = mk(Op.SCATTER, output.dtype, (output.src[0], *made), output.arg)
        else:
            final = mk(Op.CONTIGUOUS, output.dtype, (made[0],), None)
        self.places[final] = self.places[output]
        return [value for value, given in zip(made, values, strict=True) if value is not given], final

    def lower(self, outputs: Sequence[UOp], nest: Sequence[tuple[int, int]], frame: Frame | None = None) -> Lowered:
        """Lower one body."""
        return self.bodies.lower(outputs, nest, frame, self.steps.devices.get(outputs[0]) in self.counting)

    def unsafe(self, lowered: Lowered) -> list[int]:
        """`unsafe_slots` of a body; asked once for equal bodies."""
        if not lowered.reads_written:
            return []
        found = self._unsafe.get(lowered.ast)
        if found is None:
            found = self._unsafe[lowered.ast] = unsafe_slots(lowered)
        return found

    def append(self, lowered: Lowered, device: str) -> None:
        """Emit one kernel call."""
        self.calls.append(KernelCall(lowered.ast, lowered.buffers, lowered.written, lowered.variables, device))


def is_constant(node: UOp) -> bool:
    """Whether a node is made from constants and values of variables alone, without a load."""
    return root_of(node).op in SCALAR_LEAVES or is_number(root_of(node))


def computed(group: Group) -> list[UOp]:
    """The outputs of a body that have elements."""
    return [o for o in group.outputs if 0 not in iteration_shape(o)]


def iteration_shape(node: UOp) -> tuple[int, ...]:
    """The shape a stored step loops over."""
    if node.op is Op.WRITE:
        return node.src[1].shape
    if node.op is Op.SCATTER:
        return (*node.src[1].shape, *node.shape)
    return node.shape


def unsafe_slots(lowered: Lowered) -> list[int]:
    """The slots that a kernel might read after it has overwritten them.

    Safe is: every load of the slot is of elements that the kernel does not store, or of the very element that the
    iteration stores, and what is stored depends on it.
    """
    ast = lowered.ast
    written = set(lowered.written)
    loads = [n for n in toposort((ast,)) if n.op is Op.LOAD and n.src[0].src[0].arg.slot in written]
    result: list[int] = []
    for slot in lowered.written:
        mine = [n for n in loads if n.src[0].src[0].arg.slot == slot]
        if not mine:
            continue
        stores = [s for s in ast.src if s.src[0].src[0].arg.slot == slot]
        boxes = [box_of_address(s.src[0].src[1]) for s in stores]
        mine = [n for n in mine if n.src[0] is stores[0].src[0] or may_meet(n.src[0].src[1], boxes)]
        if not mine:
            continue
        address = stores[0].src[0]
        if len(stores) > 1 or any(n.src[0] is not address for n in mine) or len(mine) > 1:
            result.append(slot)
        elif mine[0] not in set(toposort((stores[0].src[1],))) or _is_read_in_other_loops(mine[0], stores[0], ast):
            result.append(slot)
    return result


def _is_read_in_other_loops(load: UOp, store: UOp, ast: UOp) -> bool:
    """Whether a store with other loops than the one that overwrites what is loaded needs it too: it may run later."""
    others = [s for s in ast.src if s.ranges != store.ranges]
    return bool(others) and load in toposort(others)


def may_meet(element: UOp, boxes: Sequence[Box]) -> bool:
    """Whether an element number may lie in one of the boxes while the kernel's loops run."""
    read = box_of_address(element)
    return not all(disjoint(read, box) for box in boxes)
