"""THE list of passes from the tensor graph to kernel calls in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gradlet.base.settings import STRICT_FLOAT
from gradlet.graph.allocation import new_buffer_node
from gradlet.graph.extents import HAS_LIMIT, Extents, write_out
from gradlet.graph.node import UOp, mk, toposort
from gradlet.graph.passes import Observer, Pass, Pipeline
from gradlet.ops.op import SCALAR_LEAVES, Op, Stage
from gradlet.rules.sets import SIMPLIFY
from gradlet.schedule import clean, memory
from gradlet.schedule.calls import MOST_KEPT, CopyCall, KernelCall, Schedule, is_worth_keeping
from gradlet.schedule.channelslast import keep_channels_last
from gradlet.schedule.clean import REDUCES
from gradlet.schedule.columns import cut_column_sums
from gradlet.schedule.context import Context, sink
from gradlet.schedule.convolution import stage_convolutions
from gradlet.schedule.deep import cut_deep_products
from gradlet.schedule.dots import form_dots
from gradlet.schedule.emit import Emitter
from gradlet.schedule.exchange import exchange_sums
from gradlet.schedule.fed import fed_products
from gradlet.schedule.hazards import place_writes
from gradlet.schedule.launches import partition
from gradlet.schedule.layout import lay_out_operands
from gradlet.schedule.moves import chain_to, replay, reshape, root_of
from gradlet.schedule.online import go_online
from gradlet.schedule.order import execution_order
from gradlet.schedule.packed import pack_products
from gradlet.schedule.pick import pick_selected
from gradlet.schedule.pixelrows import keep_pixels_as_rows
from gradlet.schedule.pull import pull_sums
from gradlet.schedule.scan import split_scans
from gradlet.schedule.sizes import needed_sizes, values_only
from gradlet.schedule.split import split_reductions
from gradlet.schedule.steps import Steps
from gradlet.schedule.widen import convert_before_repeating, convert_once
from gradlet.schedule.windowplaces import ask_windows
from gradlet.target.target import Target

if TYPE_CHECKING:
    from gradlet.schedule.explain import Explanation

__all__ = ["PIPELINE", "CopyCall", "KernelCall", "Schedule", "make_schedule"]


def _drop_marks(node: UOp, context: Context) -> UOp:
    order = toposort((node,))
    context.devices = clean.find_devices(order)
    exact = STRICT_FLOAT.value or not node.mask & 1 << Op.DERIVATIVE
    rough = frozenset() if exact else clean.rough_functions(order, context.devices, context.target_of)
    return clean.drop_marks(node, context.devices, order, rough)


def _bind_variables(node: UOp, context: Context) -> UOp:
    return clean.bind_variables(node, context.values, context.roots)


def _write_out_sizes(node: UOp, context: Context) -> UOp:
    if not node.mask & HAS_LIMIT:
        return node
    roots, found = write_out(node.src)
    context.sizes = {old: sizes for old, sizes in zip(context.asked, found, strict=True) if sizes}
    return sink(roots)


def _keep_bases_whole(node: UOp, context: Context) -> UOp:
    node, guards = clean.keep_bases_whole(node)
    context.guards = len(guards)
    return sink([*node.src, *guards]) if guards else node


def _exchange_sums(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    exchanged = exchange_sums(node, context.target_of, context.default_device, context.by_units)
    context.exchanged = exchanged is not node
    return exchanged


def _pull_sums(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return pull_sums(node)


def _pick_selected(node: UOp, context: Context) -> UOp:
    return pick_selected(node)


def _ask_windows(node: UOp, context: Context) -> UOp:
    return ask_windows(node, context.target_of, context.default_device)


def _keep_pixels_as_rows(node: UOp, context: Context) -> UOp:
    return keep_pixels_as_rows(node, context.target_of, context.default_device)


def _go_online(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return go_online(node, context.target_of, context.default_device)


def _split_reductions(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return split_reductions(node, context.target_of, context.default_device)


def _split_scans(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return split_scans(node, context.target_of, context.default_device)


def _cut_column_sums(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return cut_column_sums(node, context.target_of, context.default_device)


def _cut_deep_products(node: UOp, context: Context) -> UOp:
    if STRICT_FLOAT.value:  # it would change the order of sums
        return node
    return cut_deep_products(node, context.target_of, context.default_device)


def _stage_convolutions(node: UOp, context: Context) -> UOp:
    return stage_convolutions(
        node, context.target_of, context.default_device, context.sums, _still_settled(node, context)
    )


def _still_settled(node: UOp, context: Context) -> frozenset[UOp]:
    """Settled memory that this schedule does not write to."""
    written = [n for n in toposort((node,)) if n.op in (Op.WRITE, Op.SCATTER)] if context.settled else []
    return context.settled.difference([root_of(s) for n in written for s in n.src[:2]])


def _keep_channels_last(node: UOp, context: Context) -> UOp:
    return keep_channels_last(node, frozenset(context.sums))


def _lay_out_operands(node: UOp, context: Context) -> UOp:
    return lay_out_operands(node, context.target_of, context.default_device)


def _form_dots(node: UOp, context: Context) -> UOp:
    return form_dots(node)


def _pack_products(node: UOp, context: Context) -> UOp:
    return pack_products(node, context.target_of, context.default_device)


def _convert_before_repeating(node: UOp, context: Context) -> UOp:
    return convert_before_repeating(node)


def _convert_once(node: UOp, context: Context) -> UOp:
    return convert_once(node, context.target_of, context.default_device)


def _place_writes(node: UOp, context: Context) -> UOp:
    """After this pass the graph holds the roots and the writes that other graphs hold, and nothing else."""
    count = len(node.src) - context.guards
    roots, others, guards = node.src[: context.roots], node.src[context.roots : count], node.src[count:]
    live = others[: context.live]
    asked = list(zip(context.asked, node.src[:count], strict=True))
    effects = context.effects = place_writes(roots, live, frozenset(guards), asked)
    known = dict(zip(context.asked[: context.roots], effects.roots, strict=True))
    # Whoever else holds a write that runs here reads its result. A root may be such a write itself (`write * 1`).
    ran = {**dict(zip(roots, effects.roots, strict=True)), **effects.extra}
    for old, new in zip(context.asked[context.roots :], others, strict=True):
        bottom = root_of(new)
        if old.op is Op.WRITE and old not in known and bottom in ran:
            known[old] = replay(chain_to(new, bottom), ran[bottom])
    context.asked = list(known)
    return sink(list(known.values()))


def _store_constants(node: UOp, context: Context) -> UOp:
    """A view of nothing but constants is stored by a kernel of its own."""
    stored: list[UOp] = []
    overwritten = set(context.effects.versions.values()) if context.effects is not None else set()
    for old, new in zip(context.asked, node.src, strict=True):
        if root_of(new).op in SCALAR_LEAVES:
            device = context.devices.get(old, context.default_device)
            new = mk(Op.CONTIGUOUS, new.dtype, (new,), None)
            while new in overwritten or context.stored_on.setdefault(new, device) != device:
                new = mk(Op.CONTIGUOUS, new.dtype, (new,), None)
        stored.append(new)
    return sink(stored)


def _decide(node: UOp, context: Context) -> UOp:
    assert context.effects is not None
    context.steps = Steps(context.effects, node.src, context.stored_on, context.default_device, context.settled)
    context.steps.limit(_needed_sizes(node, context))
    context.launches = partition(context.steps, context.target_of, context.decisions)
    if context.exchanged and any(context.target_of(d).kind == "gpu" for d in set(context.steps.devices.values())):
        fed = fed_products(toposort((node,)))
        stored = {output for launch in context.launches for output in launch.outputs}
        context.pairs_stored = not stored.isdisjoint(fed.inner) or not stored.isdisjoint(fed.between)
    return node


def _order(node: UOp, context: Context) -> UOp:
    assert context.steps is not None
    context.launches = execution_order(context.launches, context.steps, [root_of(n) for n in node.src])
    return node


def _lower(node: UOp, context: Context) -> UOp:
    assert context.steps is not None
    # Lanes of a GPU count for nothing; what they read of a table takes their time.
    counting = {device for device in context.steps.devices.values() if context.target_of(device).warp > 1}
    emitter = Emitter(context.steps, context.launches, _needed_sizes(node, context), counting)
    for launch in context.launches:
        begin = len(emitter.calls)
        emitter.emit(launch)
        context.spans.append(range(begin, len(emitter.calls)))
    context.calls, context.made = emitter.calls, emitter.made
    context.call_bodies, context.apart = emitter.call_bodies, emitter.apart
    for old, new in zip(context.asked, node.src, strict=True):
        context.results[old] = _result(new, emitter, context.default_device)
    return sink([call.ast for call in context.calls if isinstance(call, KernelCall)])


def _needed_sizes(node: UOp, context: Context) -> Mapping[UOp, Extents]:
    """How far steps are needed that are not needed in full."""
    order = toposort(node.src)
    if not any(n.arg.limited for n in order if n.op in REDUCES) and not context.sizes:
        return {}
    assert context.effects is not None
    wanted = [(new, context.sizes.get(old, ())) for old, new in zip(context.asked, node.src, strict=True)]
    return needed_sizes(values_only(order, node.src), wanted, context.effects.versions.keys())


def _result(node: UOp, emitter: Emitter, default_device: str) -> UOp:
    """What a root became; a result without elements needs no kernel."""
    if 0 not in node.shape:
        return emitter.resolve(node)
    device = emitter.steps.devices.get(root_of(node), default_device)
    return reshape(new_buffer_node(device, node.dtype, 0), node.shape)


def _reuse_memory(node: UOp, context: Context) -> UOp:
    before = context.calls
    context.calls, context.memory = memory.plan_memory(
        before, context.made, context.results.values(), context.target_of, _computed_once(before, context)
    )
    if all(old is new for old, new in zip(before, context.calls, strict=True)):
        return node
    return sink([call.ast for call in context.calls if isinstance(call, KernelCall)])


def _computed_once(calls: Sequence[CopyCall | KernelCall], context: Context) -> frozenset[UOp]:
    """What depends on settled memory alone: it keeps its own memory, as it is not computed again."""
    found = set(context.settled)
    kept = 0
    for call in calls if found else ():
        if isinstance(call, KernelCall) and not call.variables:
            read = {b for slot, b in enumerate(call.buffers) if slot not in call.written}
            made = [call.buffers[slot] for slot in call.written]
            size = sum(memory.size_of(b) for b in made)
            if read and read <= found and is_worth_keeping(size, sum(memory.size_of(b) for b in read)):
                kept += size
                found.update(made if kept <= MOST_KEPT else ())
    return frozenset(found)


_WRITE: Final = Op.WRITE
T: Final = Stage.TENSOR
K: Final = Stage.KERNEL

PIPELINE: Final = Pipeline(
    "tensors to kernels",
    (
        Pass("drop marks", _drop_marks, T, T, gone=frozenset({Op.DETACH, Op.DERIVATIVE}),
             doc="gradient marks are nothing here, and copies to where the values are already copy nothing"),
        Pass("bind variables", _bind_variables, T, T, gone=frozenset({Op.BIND}),
             doc="kernels take variables as arguments; this launch's values go beside the graph"),
        Pass("write out sizes", _write_out_sizes, T, T,
             doc="reductions along axes whose size is known only at launch say how far they go"),
        Pass("keep bases whole", _keep_bases_whole, T, T,
             doc="the base of a write is memory, or is kept in one piece, so that its view stays a view of it"),
        Pass("simplify tensors", SIMPLIFY, T, T, doc="identities, constants, merged movements"),
        Pass("form byte dots", _form_dots, T, T, doc="four products of the bytes in words are one operation"),
        Pass("pack narrow products", _pack_products, T, T,
             doc="products of integers of 8 and 16 bits multiply several of them at once, in words"),
        Pass("exchange sums", _exchange_sums, T, T,
             doc="the mean in the gradient of attention's softmax is taken from the result, not from all pairs"),
        Pass("pull sums through windows", _pull_sums, T, T,
             doc="the gradient of a convolution is a convolution, not products that are scattered"),
        Pass("pick selected elements", _pick_selected, T, T,
             doc="a sum that selects by number reads one element, or adds to one"),
        Pass("ask windows", _ask_windows, T, T,
             doc="on a GPU elements ask the windows that they lie in what is added to them; nothing is scattered"),
        Pass("keep pixels as rows", _keep_pixels_as_rows, T, T,
             doc="images that matrix units convolve, and what is computed from them, have their channels last"),
        Pass("online reductions", _go_online, T, T,
             doc="long reductions that need one another read memory once: blocks on their own, then combined"),
        Pass("split long reductions", _split_reductions, T, T,
             doc="a long sum with few results is cut in parts, so that all cores work"),
        Pass("split long scans", _split_scans, T, T,
             doc="a long running sum of few rows is cut in blocks, each begins with the total of those before"),
        Pass("cut column sums", _cut_column_sums, T, T,
             doc="partial sums over chunks of rows ride with other work on the rows; a tail adds them up"),
        Pass("convert before repeating", _convert_before_repeating, T, T,
             doc="factors of 8 and 16 bits become float32 where there are fewest elements of them"),
        Pass("cut deep products", _cut_deep_products, T, T,
             doc="a part of a very deep product has its factors in a near cache; the partial products are added up"),
        Pass("stage convolutions", _stage_convolutions, T, T,
             doc="images under windows are copied with their zeros, strides apart, so that lanes read neighbours"),
        Pass("keep channels last", _keep_channels_last, T, T,
             doc="what is computed from a convolution is stored in its order of memory"),
        Pass("lay out operands", _lay_out_operands, T, T,
             doc="factors of large matrix products are copied into strips, in the order the product walks them"),
        Pass("convert factors once", _convert_once, T, T,
             doc="factors of 8 and 16 bits that a product uses many times are stored as float32 first"),
        Pass("place writes", _place_writes, T, T,
             doc="each write goes in place after the readers of the old values, or becomes an expression"),
        Pass("store constants", _store_constants, T, T, doc="a result that is only constants gets a kernel of its own"),
        Pass("decide kernels", _decide, T, T, doc="which steps run together, by price; the graph stays as it is"),
        Pass("order kernels", _order, T, T, doc="an order that respects all dependences and frees memory early"),
        Pass("lower kernels", _lower, T, K, doc="movement ops become index expressions over ranges, kernel by kernel"),
        Pass("reuse memory", _reuse_memory, K, K,
             doc="temporary buffers get places in one arena; outputs go over dying inputs where that saves memory"),
    ),
)  # fmt: skip


def make_schedule(
    roots: Sequence[UOp],
    target_of: Callable[[str], Target],
    live: Sequence[UOp] = (),
    observers: Sequence[Observer] = (),
    default_device: str = "CPU",
    tell: Callable[[Explanation], None] | None = None,
    settled: frozenset[UOp] = frozenset(),
) -> Schedule:
    """The kernel calls that compute the roots, decided now: see `create.create_schedule`."""
    writes = [n for n in toposort((*roots, *live)) if n.op is _WRITE]
    asked = [*roots, *live, *writes]

    def run(by_units: bool) -> Context:
        context = Context(asked, len(roots), len(live), target_of, default_device, settled=settled, by_units=by_units)
        if tell is not None:
            from gradlet.schedule.refusals import Decisions

            context.decisions = Decisions()
        PIPELINE.run(sink(asked), context, observers)
        return context

    context = run(True)
    if context.exchanged and context.pairs_stored:
        context = run(False)  # no blocks after all: products of pairs are better off as products like others
    used = {v for call in context.calls if isinstance(call, KernelCall) for v in call.variables}
    values = {v: value for v, value in context.values.items() if v in used}
    schedule = Schedule(tuple(context.calls), context.results, values, context.memory)
    if tell is not None and context.decisions is not None:
        from gradlet.schedule.explain import explain

        tell(explain(context, schedule, roots, context.decisions))
    return schedule
