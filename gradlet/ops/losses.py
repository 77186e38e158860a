"""Composed mixin: losses element by element, of distributions, and of distances between vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from gradlet.base.dtype import accumulator
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.ops.activation import ActivationMixin
from gradlet.ops.arguments import number
from gradlet.ops.movement import operand
from gradlet.ops.stats import StatsMixin

REDUCTIONS = ("mean", "sum", "none")


class LossMixin(StatsMixin, ActivationMixin):
    """Losses. `reduction` is "mean", "sum" or "none"."""

    __slots__ = ()

    def _reduced(self, reduction: str, what: str) -> Self:
        check_reduction(reduction, what)
        return self if reduction == "none" else self.mean() if reduction == "mean" else self.sum()

    def _with_target(self, target: Any, what: str) -> tuple[Self, Self]:
        """Both as floats of one type."""
        x, y = self.same_dtype([self.coerce(target)])
        return x.same_float(what), y.same_float(what)

    # regression
    def mse_loss(self, target: Any, reduction: str = "mean", weight: Any = None) -> Self:
        """Squared error: `(self - target) ** 2`; with a weight, the mean is divided by its sum.

        >>> Tensor([1.0, 3.0]).mse_loss(Tensor([1.0, 1.0])).item()
        2.0
        """
        x, y = self._with_target(target, "mse_loss")
        gap = x.sub(y)
        return gap.mul(gap)._weighted(weight, reduction, "mse_loss")

    def l1_loss(self, target: Any, reduction: str = "mean", weight: Any = None) -> Self:
        """Absolute error: `|self - target|`; with a weight, the mean is divided by its sum.

        >>> Tensor([1.0, 3.0]).l1_loss(Tensor([1.0, 1.0])).item()
        1.0
        """
        x, y = self._with_target(target, "l1_loss")
        return x.sub(y).abs()._weighted(weight, reduction, "l1_loss")

    def _weighted(self, weight: Any, reduction: str, what: str) -> Self:
        check_reduction(reduction, what)
        if weight is None:
            return self._reduced(reduction, what)
        factor = self.coerce(weight)
        if factor.shape != self.shape:
            raise ShapeError(f"{what}: weight of shape {factor.shape} must have the shape {self.shape} of the errors")
        loss = self.mul(factor)
        return loss.sum().fdiv(factor.sum()) if reduction == "mean" else loss._reduced(reduction, what)

    def smooth_l1_loss(self, target: Any, reduction: str = "mean", beta: float = 1.0) -> Self:
        """With `d = |self - target|`: `d ** 2 / (2 * beta)` below beta, `d - beta / 2` from there on.

        Raises:
            ArgumentError: a negative beta.

        >>> Tensor([1.0, 3.0]).smooth_l1_loss(Tensor([0.5, 1.0]), "none").tolist()
        [0.125, 1.5]
        """
        beta = number(beta, "smooth_l1_loss", "beta")
        if beta < 0:
            raise ArgumentError(f"smooth_l1_loss: beta must be at least 0, got {beta}")
        if beta == 0:
            return self.l1_loss(target, reduction)
        x, y = self._with_target(target, "smooth_l1_loss")
        gap = x.sub(y)
        size = gap.abs()
        loss = size.lt(beta).where(gap.mul(gap).mul(0.5 / beta), size.sub(0.5 * beta))
        return loss._reduced(reduction, "smooth_l1_loss")

    def huber_loss(self, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Self:
        """With `d = |self - target|`: `d ** 2 / 2` up to delta, `delta * (d - delta / 2)` above.

        Raises:
            ArgumentError: a delta that is not positive.

        >>> Tensor([1.0, 5.0]).huber_loss(Tensor([0.0, 1.0]), "none", delta=2.0).tolist()
        [0.5, 6.0]
        """
        delta = number(delta, "huber_loss", "delta")
        if delta <= 0:
            raise ArgumentError(f"huber_loss: delta must be positive, got {delta}")
        x, y = self._with_target(target, "huber_loss")
        gap = x.sub(y)
        size = gap.abs()
        loss = size.gt(delta).where(size.sub(0.5 * delta).mul(delta), gap.mul(gap).mul(0.5))
        return loss._weighted(weight, reduction, "huber_loss")

    # distributions
    def binary_crossentropy(self, Y: Any, reduction: str = "mean") -> Self:
        """`-(Y log(self) + (1 - Y) log(1 - self))` of probabilities; logarithms are cut at -100 as torch does.

        >>> round(Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item(), 4)
        0.6931
        """
        return self.binary_cross_entropy(Y, None, reduction)

    def binary_cross_entropy(self, target: Any, weight: Any = None, reduction: str = "mean") -> Self:
        """`-(t log(self) + (1 - t) log(1 - self))` of probabilities; logarithms are cut at -100 as torch does.

        Args:
            target: probabilities t of the same shape.
            weight: factors that broadcast.

        Raises:
            ShapeError: a target of another shape.

        >>> round(Tensor([0.5]).binary_cross_entropy(Tensor([1.0])).item(), 4)
        0.6931
        """
        what = "binary_cross_entropy"
        x = self.same_float(what)
        y = x.coerce(target).cast(x.dtype)
        if y.shape != x.shape:
            raise ShapeError(f"{what}: target of shape {y.shape} must have the shape {x.shape} of the probabilities")
        # At 0 and 1 the slope is (x - t) / 1e-12, as torch has it, not the infinite one of the logarithms.
        edge = x.detach().mul(x.detach().neg().add(1.0)).lt(1e-12)
        slope = x.detach().sub(y.detach()).mul(1e12)
        ends = _binary_entropy(x.detach(), y).add(x.sub(x.detach()).mul(slope))
        loss = edge.where(ends, _binary_entropy(edge.where(0.5, x), y))
        loss = loss if weight is None else loss.mul(weight)
        return loss._reduced(reduction, what)

    def binary_crossentropy_logits(self, Y: Any, reduction: str = "mean", pos_weight: Any = None) -> Self:
        """Binary cross-entropy of logits, without overflow: `Y * softplus(-self) + (1 - Y) * softplus(self)`.

        Args:
            pos_weight: factor of the first term.

        >>> round(Tensor([0.0]).binary_crossentropy_logits(Tensor([1.0])).item(), 4)
        0.6931
        """
        return self._entropy_of_logits(Y, None, reduction, pos_weight, "binary_crossentropy_logits")

    def binary_cross_entropy_with_logits(
        self, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
    ) -> Self:
        """`weight * (pos_weight * t * softplus(-self) + (1 - t) * softplus(self))`: of logits, without overflow.

        Args:
            target: probabilities t of the same shape.
            weight, pos_weight: factors that broadcast.

        Raises:
            ShapeError: a target of another shape.

        >>> round(Tensor([0.0]).binary_cross_entropy_with_logits(Tensor([1.0])).item(), 4)
        0.6931
        """
        what = "binary_cross_entropy_with_logits"
        if (shape := self.coerce(target).shape) != self.shape:
            raise ShapeError(f"{what}: target of shape {shape} must have the shape {self.shape} of the logits")
        return self._entropy_of_logits(target, weight, reduction, pos_weight, what)

    def _entropy_of_logits(self, target: Any, weight: Any, reduction: str, pos_weight: Any, what: str) -> Self:
        x = self.same_float(what)
        y = x.coerce(target).cast(x.dtype)
        hit = y if pos_weight is None else y.mul(pos_weight)
        loss = y.neg().add(1.0).mul(x.softplus()).add(hit.mul(x.neg().softplus()))
        loss = loss if weight is None else loss.mul(weight)
        return loss._reduced(reduction, what)

    def kl_div(self, target: Any, reduction: str = "mean", log_target: bool = False) -> Self:
        """Kullback-Leibler divergence of log probabilities: `t * (log(t) - self)`, 0 where t is 0.

        Args:
            target: probabilities t, or their logarithms with `log_target`.
            reduction: also "batchmean": the sum divided by the size of the first axis, the divergence a sample.

        >>> round(Tensor([0.0]).kl_div(Tensor([0.5])).item(), 4)
        -0.3466
        """
        x, t = self._with_target(target, "kl_div")
        if log_target:
            loss = t.exp().mul(t.sub(x))
        else:
            positive = t.gt(0.0)
            entropy = positive.where(t.mul(positive.where(t, 1.0).log()), t.isnan().where(t, 0.0))
            loss = entropy.sub(t.mul(x))
        if reduction == "batchmean":
            return loss.sum().mul(1 / max(1, self.shape[0] if self.ndim else 1))
        return loss._reduced(reduction, "kl_div")

    def poisson_nll_loss(
        self, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
    ) -> Self:
        """Negative log likelihood of counts: `exp(self) - t * self`, without `log_input` `self - t * log(self + eps)`.

        Args:
            target: counts t.
            full: add Stirling's `t log(t) - t + log(2 pi t) / 2` where t > 1.

        >>> Tensor([0.0]).poisson_nll_loss(Tensor([3.0])).item()
        1.0
        """
        x, t = self._with_target(target, "poisson_nll_loss")
        loss = x.exp().sub(t.mul(x)) if log_input else x.sub(t.mul(x.add(eps).log()))
        if full:
            large = t.gt(1.0)
            n = large.where(t, 1.0)
            stirling = n.mul(n.log()).sub(n).add(n.mul(2 * math.pi).log().mul(0.5))
            loss = loss.add(large.where(stirling, 0.0))
        return loss._reduced(reduction, "poisson_nll_loss")

    def gaussian_nll_loss(
        self, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
    ) -> Self:
        """`(log(v) + (self - target) ** 2 / v) / 2` with `v = max(var, eps)`.

        Args:
            var: variances: a number, or shaped like this, also without the last axis or with 1 there.
            full: add `log(2 pi) / 2`.

        Raises:
            ShapeError: variances of another shape.
            ArgumentError: an eps that is not positive, or a negative number as variance.

        >>> Tensor([1.0, 3.0]).gaussian_nll_loss(Tensor([1.0, 1.0]), 1.0).item()
        1.0
        """
        what = "gaussian_nll_loss"
        if number(eps, what, "eps") <= 0:
            raise ArgumentError(f"{what}: eps must be positive, got {eps}")
        x, t = self._with_target(target, what)
        if isinstance(var, (int, float)) and var < 0:
            raise ArgumentError(f"{what}: a variance may not be negative, got {var}")
        v = x.coerce(var).cast(x.dtype)
        if v.ndim and v.shape != x.shape:
            v = v.unsqueeze(-1) if v.shape == x.shape[:-1] else v
            if v.ndim != x.ndim or any(a not in (1, b) for a, b in zip(v.shape, x.shape)):
                raise ShapeError(f"{what}: var of shape {v.shape} does not fit shape {x.shape}")
        v = v.add(v.detach().lt(eps).where(v.detach().neg().add(eps), 0.0))  # cut, with the gradient of var itself
        gap = x.sub(t)
        loss = v.log().add(gap.mul(gap).fdiv(v)).mul(0.5)
        return (loss.add(0.5 * math.log(2 * math.pi)) if full else loss)._reduced(reduction, what)

    # margins
    def relu_like(self) -> Self:
        """`max(self, 0)` without gradient at 0, and with it everywhere else."""
        return self.gt(0.0).where(self, self.isnan().where(self, 0.0))

    def at_least(self, low: float) -> Self:
        """`max(self, low)`; the gradient is that of this also where both are equal, as torch's clamp has it."""
        return self.lt(low).where(low, self)

    def hinge_embedding_loss(self, target: Any, margin: float = 1.0, reduction: str = "mean") -> Self:
        """`self` where the target is 1, `max(0, margin - self)` where it is -1 (both where it is neither).

        >>> Tensor([0.25, 0.25]).hinge_embedding_loss(Tensor([1.0, -1.0]), reduction="none").tolist()
        [0.25, 0.75]
        """
        x, t = self._with_target(target, "hinge_embedding_loss")
        far = x.neg().add(margin).at_least(0.0)
        loss = t.ne(1.0).where(far, 0.0).add(t.ne(-1.0).where(x, 0.0))
        return loss._reduced(reduction, "hinge_embedding_loss")

    def soft_margin_loss(self, target: Any, reduction: str = "mean") -> Self:
        """`log(1 + exp(-target * self))`, without overflow; targets are 1 or -1.

        >>> round(Tensor([0.0]).soft_margin_loss(Tensor([1.0])).item(), 4)
        0.6931
        """
        x, t = self._with_target(target, "soft_margin_loss")
        return t.neg().mul(x).softplus()._reduced(reduction, "soft_margin_loss")

    def multilabel_soft_margin_loss(self, target: Any, weight: Any = None, reduction: str = "mean") -> Self:
        """Binary cross-entropy of logits, averaged over the classes on the last axis.

        Args:
            target: 0 or 1 for each class, shaped like this.
            weight: weight of each class.

        Raises:
            ShapeError: a target of another shape.

        >>> round(Tensor([[0.0, 0.0]]).multilabel_soft_margin_loss(Tensor([[1.0, 0.0]])).item(), 4)
        0.6931
        """
        what = "multilabel_soft_margin_loss"
        x, t = self._with_target(target, what)
        if not x.ndim or t.shape != x.shape:
            raise ShapeError(f"{what}: target of shape {t.shape} must have the shape {x.shape}, classes last")
        loss = t.neg().add(1.0).mul(x.softplus()).add(t.mul(x.neg().softplus()))
        loss = loss if weight is None else loss.mul(weight)
        return loss.mean(-1)._reduced(reduction, what)

    def margin_ranking_loss(self, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Self:
        """`max(0, margin - target * (self - other))`: 1 says that this should be larger, -1 that the other should.

        >>> Tensor([1.0]).margin_ranking_loss(Tensor([3.0]), Tensor([1.0])).item()
        2.0
        """
        x, y = self._with_target(other, "margin_ranking_loss")
        t = x.coerce(target)
        loss = t.neg().mul(x.sub(y)).add(margin).at_least(0.0)
        return loss._reduced(reduction, "margin_ranking_loss")

    # vectors
    def cosine_embedding_loss(self, other: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Self:
        """With the cosine c of vectors on the last axis: `1 - c` where the target is 1, `max(0, c - margin)` where -1.

        Args:
            other: vectors that broadcast with these, `[N, D]` or `[D]`.
            target: `[N]`, or one number for vectors `[D]`.

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[1.0, 0.0]]).cosine_embedding_loss(Tensor([[0.0, 2.0]]), Tensor([1])).item()
        1.0
        """
        what = "cosine_embedding_loss"
        x, y = self._with_target(other, what)
        t = x.coerce(target)
        if x.ndim != y.ndim or x.ndim != t.ndim + 1 or x.ndim > 2:
            raise ShapeError(
                f"{what}: vectors {x.shape} and {y.shape} with target {t.shape} must be [N, D] with [N], or [D] with []"
            )
        product = x.mul(y).sum(-1)
        sizes = x.mul(x).sum(-1).add(1e-12).mul(y.mul(y).sum(-1).add(1e-12))
        cosine = product.fdiv(sizes.sqrt())
        near = t.eq(1).where(cosine.neg().add(1.0), 0.0)
        far = t.eq(-1).where(cosine.sub(margin).at_least(0.0), 0.0)
        return near.add(far)._reduced(reduction, what)

    def triplet_margin_loss(
        self, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
        swap: bool = False, reduction: str = "mean",
    ) -> Self:  # fmt: skip
        """`max(0, margin + d(self, positive) - d(self, negative))`, d the p-norm of the difference plus `eps`.

        Source: Schroff et al. 2015, "FaceNet"; Balntas et al. 2016 (`swap`).

        Args:
            swap: take `d(positive, negative)` where that is smaller than `d(self, negative)`.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: a negative margin.

        >>> round(Tensor([[0.0]]).triplet_margin_loss(Tensor([[1.0]]), Tensor([[1.5]])).item(), 4)
        0.5
        """
        power = number(p, "triplet_margin_loss", "p")

        def distance(a: Any, b: Any) -> Any:
            return _p_norm(a.sub(b).add(eps), power)

        return self._triplet("triplet_margin_loss", positive, negative, distance, margin, swap, reduction)

    def triplet_margin_with_distance_loss(
        self, positive: Any, negative: Any, distance_function: Callable[[Any, Any], Any] | None = None,
        margin: float = 1.0, swap: bool = False, reduction: str = "mean",
    ) -> Self:  # fmt: skip
        """`max(0, margin + d(self, positive) - d(self, negative))` with any distance d of vectors.

        Args:
            distance_function: d; None is the Euclidean distance as `triplet_margin_loss` has it.
            swap: take `d(positive, negative)` where that is smaller than `d(self, negative)`.

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: a negative margin.

        >>> a, b, c = Tensor([[0.0]]), Tensor([[1.0]]), Tensor([[1.5]])
        >>> a.triplet_margin_with_distance_loss(b, c, lambda x, y: (x - y).abs().sum(-1)).item()
        0.5
        """
        what = "triplet_margin_with_distance_loss"

        def euclidean(a: Any, b: Any) -> Any:
            return _p_norm(a.sub(b).add(1e-6), 2.0)

        return self._triplet(what, positive, negative, distance_function or euclidean, margin, swap, reduction)

    def _triplet(
        self, what: str, positive: Any, negative: Any, distance: Callable[[Any, Any], Any], margin: float, swap: bool,
        reduction: str,
    ) -> Self:  # fmt: skip
        if number(margin, what, "margin") <= 0:
            raise ArgumentError(f"{what}: margin must be positive, got {margin}")
        close, away = operand(positive, what, "positive"), operand(negative, what, "negative")
        if not self.ndim == close.ndim == away.ndim or not self.ndim:
            raise ShapeError(f"{what}: {self.shape}, {close.shape} and {away.shape} must have the same number of axes")
        far = distance(self, away)
        if swap:
            far = far.minimum(distance(close, away))
        loss: Self = distance(self, close).sub(far).add(margin)
        return loss.at_least(0.0)._reduced(reduction, what)


def check_reduction(reduction: str, what: str) -> None:
    """Raise ArgumentError unless it is one of the three."""
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"{what}: reduction {reduction!r} is not one of {', '.join(REDUCTIONS)}")


def _binary_entropy(x: Any, y: Any) -> Any:
    """`-(y log(x) + (1 - y) log(1 - x))` with logarithms cut at -100."""
    hit, miss = x.log().clamp(min_=-100.0), x.neg().add(1.0).log().clamp(min_=-100.0)
    return y.mul(hit).add(y.neg().add(1.0).mul(miss)).neg()


def _p_norm(gap: Any, p: float) -> Any:
    """The p-norm over the last axis; its gradient at 0 is 0."""
    wide = gap.cast(accumulator(gap.dtype))
    if p == math.inf:
        return wide.abs().max(-1).cast(gap.dtype)
    if p == 1:
        return wide.abs().sum(-1).cast(gap.dtype)
    total = wide.mul(wide).sum(-1) if p == 2 else wide.abs().pow(p).sum(-1)
    zero = total.detach().eq(0.0)
    safe = zero.where(1.0, total)
    return zero.where(0.0, safe.sqrt() if p == 2 else safe.pow(1 / p)).cast(gap.dtype)
