"""One operator of torch's database, all its samples: results, refused arguments, gradients; counted and explained."""

from __future__ import annotations

import signal
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gradlet import Tensor, dtypes
from gradlet.base.errors import UserError
from tests.parity.convert import Conversion, leaves, to_theirs
from tests.parity.table import Entry

SECONDS = 60  # a sample may take that long
SECOND_SAMPLES = 8  # second derivatives are compared on about so many samples an operator
FALLBACKS = (torch.int64, torch.bool, torch.float64)  # for operators without float32


@dataclass
class Count:
    """How many samples passed, and what the first others did."""

    passed: int = 0
    total: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.total > 0 and self.passed == self.total

    def run(self, check: Callable[[], None], what: str) -> None:
        """Count one sample."""
        self.total += 1
        try:
            with _time_limit(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check()
            self.passed += 1
        except Exception as error:  # any failure is a sample that did not pass
            where = traceback.extract_tb(error.__traceback__)[-1]
            lines = str(error).strip().splitlines() or [""]
            text = " ".join(lines[:3])[:300]
            self.problems.append(f"{what}: {type(error).__name__}: {text} ({where.filename}:{where.lineno})")


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Python integers and positions are int64 for torch."""
    before = dtypes.default_int
    dtypes.default_int = dtypes.int64
    try:
        yield
    finally:
        dtypes.default_int = before


def dtype_of(operator: Any) -> torch.dtype | None:
    """The type in which an operator's samples are made: float32 where it has it."""
    return next((d for d in (torch.float32, *FALLBACKS) if d in operator.dtypes), None)


def describe(sample: Any) -> str:
    """A sample in a few words."""

    def short(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            kind = "" if value.dtype is torch.float32 else f" {str(value.dtype)[6:]}"
            return f"{list(value.shape)}{kind}"
        if isinstance(value, (list, tuple)):
            return "(" + ", ".join(short(v) for v in value) + ")"
        return repr(value)

    parts = [short(sample.input), *[short(a) for a in sample.args]]
    parts += [f"{k}={short(v)}" for k, v in sample.kwargs.items()]
    return "(" + ", ".join(parts)[:200] + ")"


def _chosen(samples: list[Any], every: int, offset: int) -> list[tuple[int, Any]]:
    every = min(every, max(1, len(samples)))
    return [(i, s) for i, s in enumerate(samples) if i % every == offset % every]


def _not_random(entry: Entry, samples: Iterable[Any]) -> list[Any]:
    return [sample for sample in samples if not entry.is_random(sample)]


def _detached(value: Any) -> Any:
    """A copy that an operator which writes in place cannot spoil for the next check."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_detached(v) for v in value)
    return value


def _in_float64(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.dtype is torch.float32 else value
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_in_float64(v) for v in value)
    return torch.float64 if value is torch.float32 else value


def _exact(operator: Any, sample: Any) -> Callable[[], list[Any] | None]:
    """Torch's result in float64."""

    def compute() -> list[Any] | None:
        try:
            arguments = [_in_float64(v) for v in (sample.input, *sample.args)]
            keywords = {k: _in_float64(v) for k, v in sample.kwargs.items()}
            return leaves(operator.op(*arguments, **keywords))
        except (RuntimeError, TypeError, ValueError):
            return None

    return compute


def same_values(
    ours: torch.Tensor, theirs: torch.Tensor, relative: float, absolute: float, exact: Callable[[], Any]
) -> None:
    """Equal within the tolerance, or not further from the float64 result than twice torch's own distance.

    Raises:
        AssertionError: naming the largest difference.
    """
    if not theirs.is_floating_point():
        assert torch.equal(ours, theirs), f"values differ: {_first_difference(ours, theirs)}"
        return
    a, b = ours.double(), theirs.double()
    good = torch.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
    if bool(good.all()):
        return
    reference = exact()
    if reference is not None and reference.shape == b.shape:
        wide = reference.double()
        allowed = 2 * (b - wide).abs() + absolute + relative * wide.abs()
        good |= (a - wide).abs() <= allowed
    assert bool(good.all()), f"values differ: {_first_difference(torch.where(good, b, a), b)}"


def _first_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    different = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
    place = tuple(different.nonzero()[0].tolist()) if ours.ndim else ()
    count = int(different.sum())
    return f"{count} of {ours.numel()}; at {place} {ours[place].item()!r}, torch has {theirs[place].item()!r}"


def check_results(operator: Any, entry: Entry, sample: Any) -> None:
    """Values, shapes and types of one sample.

    Raises:
        AssertionError: they differ.
    """
    arguments = (_detached(sample.input), *[_detached(a) for a in sample.args])
    if entry.refused is not None:
        reason = entry.refused(*arguments, **sample.kwargs)
        assert reason is None, f"refused: {reason}"
    conversion = Conversion()
    ours_in, ours_keywords = [conversion.ours(a) for a in arguments], conversion.keywords(sample.kwargs)
    theirs = leaves(operator.op(*arguments, **sample.kwargs))
    ours = leaves(entry.ours(*ours_in, **ours_keywords))
    assert len(ours) == len(theirs), f"{len(ours)} results, torch has {len(theirs)}"
    ours = [to_theirs(o) if isinstance(o, Tensor) else o for o in ours]
    for own, other in zip(ours, theirs):
        if isinstance(other, torch.Tensor):
            assert isinstance(own, torch.Tensor), f"a {type(own).__name__}, torch has a tensor"
            assert own.shape == other.shape, f"shape {tuple(own.shape)}, torch has {tuple(other.shape)}"
            assert own.dtype is other.dtype, f"{own.dtype}, torch has {other.dtype}"
        elif not entry.is_random(sample):
            assert type(own) is type(other) and (own == other or own != own), f"{own!r}, torch has {other!r}"
    if entry.is_random(sample):
        return
    if entry.compare is not None:
        entry.compare(ours, theirs, arguments)
        return
    exact = _exact(operator, sample)
    for number, (own, other) in enumerate(zip(ours, theirs)):
        if isinstance(other, torch.Tensor):

            def reference(number: int = number) -> Any:
                found = exact()
                return None if found is None else found[number].detach()

            same_values(own, other.detach(), entry.relative, entry.absolute, reference)


@dataclass
class Weighted:
    """A weighted sum of the float results of both sides, and the inputs that ask for gradients.

    Attributes:
        theirs, ours: the two sums; None where torch's results have no gradient.
        pairs: torch's tensor and ours.
    """

    theirs: Any
    ours: Any
    pairs: list[tuple[torch.Tensor, Tensor]]


def _weights(name: str, shapes: list[Any]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]


def weighted_sums(operator: Any, entry: Entry, sample: Any) -> Weighted:
    """Both sides of one sample.

    Raises:
        AssertionError: another number of results, or arguments that we refuse.
    """
    arguments = (_detached(sample.input), *[_detached(a) for a in sample.args])
    keywords = {k: _detached(v) for k, v in sample.kwargs.items()}
    if entry.refused is not None:
        reason = entry.refused(*arguments, **keywords)
        assert reason is None, f"refused: {reason}"
    conversion = Conversion()
    ours_in, ours_keywords = [conversion.ours(a) for a in arguments], conversion.keywords(keywords)
    view = entry.grad_view or (lambda results: results)
    theirs = leaves(view(operator.op(*arguments, **keywords)))
    carrying = [i for i, t in enumerate(theirs) if isinstance(t, torch.Tensor) and t.requires_grad]
    pairs = conversion.pairs
    if not carrying or not pairs:
        return Weighted(None, None, pairs)
    ours = leaves(view(entry.ours(*ours_in, **ours_keywords)))
    assert len(ours) == len(theirs), f"{len(ours)} results, torch has {len(theirs)}"
    weights = _weights(operator.name, [theirs[i].shape for i in carrying])
    return Weighted(
        sum((theirs[i] * w.to(theirs[i].dtype)).sum() for i, w in zip(carrying, weights)),
        sum((ours[i] * Tensor(w.numpy()).cast(ours[i].dtype)).sum() for i, w in zip(carrying, weights)),
        pairs,
    )


def same_gradients(
    entry: Entry, pairs: list[tuple[torch.Tensor, Tensor]], ours: list[Any], theirs: Any, factor: float = 1.0
) -> None:
    """Compare gradients; one that does not exist is zero.

    Raises:
        AssertionError: naming the input.
    """
    for number, ((own, _), result, wanted) in enumerate(zip(pairs, ours, theirs)):
        wanted = torch.zeros_like(own) if wanted is None else wanted.detach()
        got = torch.zeros_like(own) if result is None else to_theirs(result)
        assert got.shape == wanted.shape, f"gradient {number}: {tuple(got.shape)}, torch has {tuple(wanted.shape)}"
        finite = wanted[wanted.isfinite()].abs()
        size = factor * (max(1.0, float(finite.max())) if finite.numel() else 1.0)
        relative = entry.gradient_relative * factor
        try:
            same_values(got, wanted, relative, entry.gradient_absolute * size, lambda: None)
        except AssertionError as error:
            raise AssertionError(f"gradient {number}: {error}") from None


def check_gradients(operator: Any, entry: Entry, sample: Any) -> None:
    """Gradients of a weighted sum of the float results.

    Raises:
        AssertionError: they differ.
    """
    sums = weighted_sums(operator, entry, sample)
    if sums.theirs is None:
        return
    expected = torch.autograd.grad(sums.theirs, [t for t, _ in sums.pairs], allow_unused=True)
    same_gradients(entry, sums.pairs, sums.ours._gradients([o for _, o in sums.pairs], None), expected)


def check_second_gradients(operator: Any, entry: Entry, sample: Any) -> None:
    """Gradients of a weighted sum of the gradients.

    Raises:
        AssertionError: they differ.
    """
    sums = weighted_sums(operator, entry, sample)
    if sums.theirs is None:
        return
    theirs_in, ours_in = [t for t, _ in sums.pairs], [o for _, o in sums.pairs]
    first = torch.autograd.grad(sums.theirs, theirs_in, allow_unused=True, create_graph=True)
    carrying = [i for i, g in enumerate(first) if g is not None and g.requires_grad]
    if not carrying:
        return
    ours_first = sums.ours._gradients(ours_in, None)
    weights = _weights(operator.name + " again", [first[i].shape for i in carrying])
    loss = sum((first[i] * w).sum() for i, w in zip(carrying, weights))
    try:
        expected = torch.autograd.grad(loss, theirs_in, allow_unused=True)
    except RuntimeError:
        return  # torch has no second derivative here
    total: Any = Tensor(0.0)
    for i, w in zip(carrying, weights):
        if ours_first[i] is not None:
            total = total + (ours_first[i] * Tensor(w.numpy())).sum()
    same_gradients(entry, sums.pairs, total._gradients(ours_in, None), expected, 5.0)


def check_refusal(entry: Entry, sample: Any) -> None:
    """Arguments that torch refuses are refused by us, with an error for users.

    Raises:
        AssertionError: they were taken.
    """
    conversion = Conversion()
    try:
        ours_in = [conversion.ours(a) for a in (sample.input, *sample.args)]
        keywords = conversion.keywords(sample.kwargs)
    except (NotImplementedError, ValueError):
        return  # an input that we cannot even make: complex numbers, more axes than numpy has
    try:
        result = entry.ours(*ours_in, **keywords)
    except (UserError, TypeError):
        return
    for leaf in leaves(result):
        if isinstance(leaf, Tensor):
            leaf.numpy()
    raise AssertionError("taken, torch refuses it")


@dataclass
class Report:
    """Counts of one operator."""

    forward: Count = field(default_factory=Count)
    errors: Count = field(default_factory=Count)
    backward: Count = field(default_factory=Count)
    second: Count = field(default_factory=Count)


def check_operator(operator: Any, entry: Entry, every: int = 1, offset: int = 0, parts: str = "feb2") -> Report:
    """Drive one operator over its samples, or every so many of them.

    Args:
        operator: a row of torch's database.
        entry: how it is driven.
        every, offset: take the samples whose number is `offset` modulo `every`.
        parts: letters of what to check: forward, errors, backward, 2 for second derivatives.
    """
    report = Report()
    dtype = dtype_of(operator)
    if dtype is None:
        return report
    with torch_defaults():
        if "f" in parts:
            torch.manual_seed(0)
            for number, sample in _chosen(list(operator.sample_inputs("cpu", dtype)), every, offset):
                check = lambda s=sample: check_results(operator, entry, s)  # noqa: E731
                report.forward.run(check, f"{number} {describe(sample)}")
        if "e" in parts and operator.error_inputs_func is not None:
            torch.manual_seed(0)
            for number, bad in _chosen(list(operator.error_inputs("cpu")), every, offset):
                check = lambda s=bad.sample_input: check_refusal(entry, s)  # noqa: E731
                report.errors.run(check, f"{number} {describe(bad.sample_input)} [{bad.error_regex}]")
        gradable = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cpu")
        if "b" in parts and gradable and dtype is torch.float32 and entry.random is not True:
            torch.manual_seed(0)
            samples = _not_random(entry, operator.sample_inputs("cpu", dtype, requires_grad=True))
            for number, sample in _chosen(samples, every, offset):
                check = lambda s=sample: check_gradients(operator, entry, s)  # noqa: E731
                report.backward.run(check, f"{number} {describe(sample)}")
        if (
            "2" in parts
            and gradable
            and operator.supports_gradgrad
            and dtype is torch.float32
            and entry.random is not True
        ):
            torch.manual_seed(0)
            samples = _not_random(entry, operator.sample_inputs("cpu", dtype, requires_grad=True))
            for number, sample in _chosen(samples, max(every, len(samples) // SECOND_SAMPLES), offset):
                check = lambda s=sample: check_second_gradients(operator, entry, s)  # noqa: E731
                report.second.run(check, f"{number} {describe(sample)}")
    return report
