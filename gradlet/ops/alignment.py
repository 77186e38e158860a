"""Composed mixin: the loss of sequences whose alignment is not known: connectionist temporal classification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import accumulator, dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import integer
from gradlet.ops.losses import LossMixin, check_reduction
from gradlet.ops.movement import operand
from gradlet.ops.op import Op


class AlignmentMixin(LossMixin):
    """Losses over alignments."""

    __slots__ = ()

    def from_data(self, value: Any, dtype: Any = None) -> Self:
        """Host data as a tensor on this one's device."""
        raise NotImplementedError

    def ctc_loss(
        self, targets: Self, input_lengths: Self | Sequence[int], target_lengths: Self | Sequence[int],
        blank: int = 0, reduction: str = "mean", zero_infinity: bool = False,
    ) -> Self:  # fmt: skip
        """Connectionist temporal classification: `-log` of the probability of all alignments of a target with time.

        The forward recursion of Graves et al. 2006 on logarithms: with the target's labels between blanks,
        `a[t][s] = log_probs[t][label[s]] + logsumexp(a[t-1][s], a[t-1][s-1], a[t-1][s-2])`, the last only where
        `label[s]` is no blank and not `label[s-2]`. One step of the graph a step of time, and in the gradient another.

        The gradient is `exp(log_probs)` minus the probability of each label at each time, which is right behind
        `log_softmax` alone, as torch has it.

        Args:
            targets: class numbers `[N, S]`, or those of all samples one after another; this is `[T, N, C]` of log
                probabilities, or `[T, C]` of one sample.
            input_lengths, target_lengths: `[N]`: how many steps and labels of each sample count.
            blank: number of the blank.
            reduction: "mean" (each loss divided by its target's length first), "sum" or "none".
            zero_infinity: take 0 for an infinite loss (a target longer than its input) and its gradient.

        Returns:
            One loss a sample, or a number.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: a blank that is no class.

        >>> probabilities = Tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
        >>> round(probabilities.log().ctc_loss(Tensor([[1]]), [2], [1]).item(), 4)  # 1-, -1, 11: three of four
        0.2877
        """
        what = "ctc_loss"
        check_reduction(reduction, what)
        targets = operand(targets, what, "targets")
        if self.ndim == 2:
            lengths = [n.reshape(1) if isinstance(n, LossMixin) else n for n in (input_lengths, target_lengths)]
            labels = targets.unsqueeze(0) if targets.ndim == 1 else targets
            loss = self.unsqueeze(1).ctc_loss(labels, lengths[0], lengths[1], blank, reduction, zero_infinity)
            return loss.squeeze(0) if reduction == "none" else loss
        if self.ndim != 3 or not self.shape[0] or not self.shape[1]:
            raise ShapeError(f"{what}: log probabilities {self.shape} must be [T, N, C] or [T, C], T and N above 0")
        blank = integer(blank, what, "blank", 0)
        if blank >= self.shape[2]:
            raise ArgumentError(f"{what}: blank {blank} is not one of {self.shape[2]} classes")
        times, counts = self._lengths(input_lengths, what, "input"), self._lengths(target_lengths, what, "target")
        labels = self._padded_targets(targets, target_lengths, counts)
        source = self.same_float(what)
        loss = source.cast(accumulator(source.dtype))._alignments(labels, times, counts, blank, zero_infinity)
        if reduction == "mean":
            loss = loss.fdiv(counts.maximum(1).cast(loss.dtype)).mean()
        return (loss.sum() if reduction == "sum" else loss).cast(source.dtype)

    def _alignments(self, labels: Self, times: Self, counts: Self, blank: int, zero_infinity: bool) -> Self:
        """The loss of each sample, with its gradient."""
        steps, batch, _ = self.shape
        places = 2 * labels.shape[1] + 1
        # Labels between blanks: - a - b -
        blanks = labels.constant_like(blank, (batch, labels.shape[1], 1))
        states = blanks.cat(labels.unsqueeze(-1), dim=-1).reshape(batch, places - 1)
        states = states.cat(labels.constant_like(blank, (batch, 1)), dim=1)
        before = states.pad(((0, 0), (2, 0)), value=blank).shrink((None, (0, places)))
        jumps = states.ne(blank).bitwise_and(states.ne(before))
        numbers = states.maximum(0).unsqueeze(0).expand(steps, batch, places)
        place = self.positions(places, self.place)
        ends = counts.mul(2).unsqueeze(-1)
        usable = place.lt(ends.add(1))
        last = place.eq(ends).bitwise_or(place.eq(ends.sub(1)))

        def forwards(x: Self) -> tuple[list[Self], list[Self], Self]:
            """Scaled logarithms a step of time and what they were scaled by, and the logarithm of the whole."""
            scores = x.gather(2, numbers)
            alpha = place.lt(2).bitwise_and(usable).where(scores[0], -math.inf)
            height = alpha.constant_like(0.0, (batch, 1))
            alphas, heights = [alpha], [height]
            for step in range(1, steps):
                alpha, height = alpha._lowered(height)
                one, two = alpha._stepped(1), jumps.where(alpha._stepped(2), -math.inf)
                reached = log_sum((alpha, one, two)).add(scores[step])
                alpha = times.gt(step).unsqueeze(-1).where(usable.where(reached, -math.inf), alpha)
                alphas.append(alpha)
                heights.append(height)
            ways = last.where(alpha, -math.inf)
            total = ways.logsumexp(1).add(height.squeeze(1))
            return alphas, heights, times.gt(0).where(total, counts.eq(0).where(0.0, -math.inf))

        loss = forwards(self.detach())[2].neg()

        def rule(gradient: Self) -> list[Self]:
            alphas, heights, total = forwards(self)
            scores = self.gather(2, numbers)
            possible = total.ne(-math.inf)
            total = possible.where(total, 0.0).unsqueeze(-1)
            beta = scores[0].constant_like(-math.inf)
            height = heights[0]
            shares: list[Self] = []
            for step in range(steps - 1, -1, -1):
                if step < steps - 1:
                    beta, height = beta._lowered(height)
                    beta = beta.add(scores[step + 1])
                    two = jumps.where(beta, -math.inf)._stepped(-2)
                    beta = usable.where(log_sum((beta, beta._stepped(-1), two)), -math.inf)
                beta = times.eq(step + 1).unsqueeze(-1).where(last.where(0.0, -math.inf), beta)
                shares.append(alphas[step].add(beta).add(heights[step].add(height).sub(total)).exp())
            share = shares[-1].stack(*shares[-2::-1], dim=0)
            counted = self.positions(steps, self.place).reshape(steps, 1, 1).lt(times.reshape(1, batch, 1))
            share = counted.where(share, 0.0)
            found = self.constant_like(0.0).scatter_reduce(2, numbers, share, "sum")
            result = counted.where(self.exp().sub(found).mul(gradient.reshape(1, batch, 1)), 0.0)
            return [possible.reshape(1, batch, 1).where(result, 0.0 if zero_infinity else math.nan)]

        loss = loss.with_derivative("ctc_loss", [self], rule)
        return loss.detach().eq(math.inf).where(0.0, loss) if zero_infinity else loss

    def _lowered(self, height: Self) -> tuple[Self, Self]:
        """Logarithms without their largest, which is added to the height: small numbers stay exact."""
        top = self.detach().max(1, True)
        top = top.eq(-math.inf).where(0.0, top)
        return self.sub(top), height.add(top)

    def _stepped(self, places: int) -> Self:
        """Moved along the last axis, with -inf behind."""
        size = self.shape[1]
        if places > 0:
            return self.pad(((0, 0), (places, 0)), value=-math.inf).shrink((None, (0, size)))
        return self.pad(((0, 0), (0, -places)), value=-math.inf).shrink((None, (-places, size - places)))

    def _lengths(self, lengths: Any, what: str, name: str) -> Self:
        """How much of each sample counts, as a vector of integers."""
        batch = self.shape[1]
        if isinstance(lengths, (tuple, list)):
            values = [integer(n, what, f"{name}_lengths", 0) for n in lengths]
            high = self.shape[0] if name == "input" else max(values, default=0)
            if len(values) != batch or max(values, default=0) > high:
                raise ShapeError(f"{what}: {name}_lengths {values} must be {batch} lengths up to {high}")
            lengths = self.from_data(values, dtypes.int32)
        if operand(lengths, what, f"{name}_lengths").shape != (batch,) or not lengths.dtype.is_int:
            raise ShapeError(
                f"{what}: {name}_lengths of shape {lengths.shape} and type {lengths.dtype} must be {batch} integers"
            )
        found: Self = lengths
        return found

    def _padded_targets(self, targets: Self, lengths: Any, counts: Self) -> Self:
        """Targets as `[N, S]`; those of all samples one after another are taken apart."""
        batch = self.shape[1]
        if not targets.dtype.is_int:
            raise DTypeError(f"ctc_loss: targets must be integers, got {targets.dtype}; cast them")
        if targets.ndim == 2 and targets.shape[0] == batch:
            return targets
        if targets.ndim != 1:
            raise ShapeError(
                f"ctc_loss: targets of shape {targets.shape} must be [{batch}, S], or a vector of them all"
            )
        # As wide as the longest may be: what all samples have together, where lengths are known only in the kernel.
        longest = max(lengths, default=0) if isinstance(lengths, (tuple, list)) else targets.shape[0]
        begin = counts.running(Op.ADD, 0, True).unsqueeze(-1)
        return targets.gather_rows(begin.add(self.positions(longest, self.place)))


def log_sum(terms: Sequence[Any]) -> Any:
    """`log(sum(exp(terms)))`, -inf where all are, and no gradient there."""
    top = terms[0]
    for term in terms[1:]:
        top = top.maximum(term)
    nothing = top.detach().eq(-math.inf)
    top = nothing.where(0.0, top.detach())
    total = None
    for term in terms:
        part = term.sub(top).exp()
        total = part if total is None else total.add(part)
    return nothing.where(-math.inf, nothing.where(1.0, total).log().add(top))
