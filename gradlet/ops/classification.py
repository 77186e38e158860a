"""Composed mixin: losses of class scores: cross-entropy, likelihoods by class numbers, margins."""

from __future__ import annotations

import math
from typing import Self

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.ops.arguments import fraction, number
from gradlet.ops.linalg import LinalgMixin
from gradlet.ops.losses import LossMixin, check_reduction
from gradlet.ops.movement import operand
from gradlet.ops.op import Op


class ClassificationMixin(LinalgMixin, LossMixin):
    """Losses of class scores."""

    __slots__ = ()

    def sparse_categorical_crossentropy(
        self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """Cross-entropy of logits, classes on the last axis, with class numbers: `-log_softmax(self)[..., Y]`.

        Args:
            Y: integers shaped like this without its last axis; the loss of one that is no class is NaN.
            ignore_index: rows with this class do not count, in the mean neither.
            label_smoothing: share of the target that is spread over all classes.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: Y does not fit.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item(), 4)
        0.6931
        """
        if not self.ndim:
            raise ShapeError("sparse_categorical_crossentropy: needs an axis of classes, got a tensor without axes")
        if operand(Y, "sparse_categorical_crossentropy", "Y").shape != self.shape[:-1]:
            raise ShapeError(f"sparse_categorical_crossentropy: Y of shape {Y.shape} must have shape {self.shape[:-1]}")
        logs = self.log_softmax(-1)
        return logs._class_loss(Y, ignore_index, label_smoothing, reduction, None, "sparse_categorical_crossentropy")

    def _class_loss(
        self, target: Self, ignore_index: int | None, smoothing: float, reduction: str, weight: Self | None, what: str
    ) -> Self:
        """Loss of log probabilities (classes last) and class numbers; NaN for a number that is no class.

        What a tensor holds is known only when the kernel runs, too late for an error: NaN is seen, a small loss is not.
        """
        if not target.dtype.is_int:
            raise DTypeError(f"{what}: class numbers must be integers, got {target.dtype}; cast them")
        smoothing = fraction(smoothing, what, "label_smoothing")
        check_reduction(reduction, what)
        classes = self.positions(self.shape[-1], self.place)
        chosen = target.unsqueeze(-1).eq(classes)
        picked = self if weight is None else self.mul(weight)
        # Select, not multiply: other classes may be -inf.
        loss = chosen.where(picked, 0.0).sum(-1).neg()
        counted = self.constant_like(1.0, target.shape) if weight is None else chosen.where(weight, 0.0).sum(-1)
        known = target.lt(self.shape[-1])
        loss = (known if target.dtype.is_unsigned else known.bitwise_and(target.gt(-1))).where(loss, math.nan)
        if smoothing:
            loss = loss.mul(1.0 - smoothing).add(picked.sum(-1).mul(-smoothing / self.shape[-1]))
        if ignore_index is not None:
            kept = target.ne(ignore_index)
            loss, counted = kept.where(loss, 0.0), kept.where(counted, 0.0)
        if reduction == "mean":
            return loss.sum().fdiv(counted.sum())
        return loss.sum() if reduction == "sum" else loss

    def cross_entropy(
        self, Y: Self, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None,
        weight: Self | None = None,
    ) -> Self:  # fmt: skip
        """Cross-entropy of logits with classes on axis 1 (axis 0 of a vector): `-log_softmax(self)[Y]`.

        Args:
            Y: class numbers, shaped like this without axis 1 (the loss of one that is no class is NaN); or
                probabilities, shaped like this: `-sum(Y * log_softmax(self))`.
            reduction: "mean", "sum" or "none".
            label_smoothing: share of the target that is spread over all classes.
            ignore_index: class number of targets that do not count, in the mean neither.
            weight: weight of each class; the mean over class numbers is divided by the weights that count.

        Raises:
            ShapeError: Y does not fit.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        """
        axis = 1 if self.ndim > 1 else 0
        if self.ndim == 0:
            raise ShapeError("cross_entropy: needs an axis of classes, got a tensor without axes")
        Y = operand(Y, "cross_entropy", "Y")
        rest = self.shape[:axis] + self.shape[axis + 1 :]
        self._check_class_weight(weight, axis, "cross_entropy")
        logs = (self if self.ndim < 3 else self._classes_last()).log_softmax(-1)
        if Y.shape == rest and Y.dtype.is_int:
            return logs._class_loss(Y, ignore_index, label_smoothing, reduction, weight, "cross_entropy")
        if Y.shape != self.shape or not Y.dtype.is_float:
            raise ShapeError(
                f"cross_entropy: Y of shape {Y.shape} and type {Y.dtype} must be class numbers of shape {rest} or "
                f"probabilities of shape {self.shape}"
            )
        if ignore_index is not None:
            raise ArgumentError("cross_entropy: ignore_index needs class numbers, not probabilities")
        label_smoothing = fraction(label_smoothing, "cross_entropy", "label_smoothing")
        target = Y if self.ndim < 3 else Y._classes_last()
        if label_smoothing:
            target = target.mul(1 - label_smoothing).add(label_smoothing / self.shape[axis])
        if weight is not None:
            target = target.mul(weight)
        return target.mul(logs).sum(-1).neg()._reduced(reduction, "cross_entropy")

    def _check_class_weight(self, weight: Self | None, axis: int, what: str) -> None:
        if weight is not None and operand(weight, what, "weight").shape != (self.shape[axis],):
            raise ShapeError(f"{what}: weight of shape {weight.shape} must have shape {(self.shape[axis],)}")

    def _classes_last(self) -> Self:
        """Axis 1 moved to the end."""
        return self.permute([0, *range(2, self.ndim), 1])

    def linear_cross_entropy(
        self, linear_weight: Self, Y: Self, linear_bias: Self | None = None, reduction: str = "mean",
        label_smoothing: float = 0.0, ignore_index: int | None = None, weight: Self | None = None,
    ) -> Self:  # fmt: skip
        """`cross_entropy` of `self @ linear_weight.T + linear_bias`.

        Args:
            linear_weight: `[classes, features]` or `[classes, d1, ..., features]`; this is `[features]` or
                `[N, features]`.
            Y: class numbers `[]`, `[N]`, `[N, d1, ...]`, or probabilities shaped like the logits.
            linear_bias: one number a logit: `[classes]` or `[classes, d1, ...]`.
            reduction, label_smoothing, ignore_index, weight: those of `cross_entropy`.

        Raises:
            ShapeError: shapes that do not fit.

        >>> x, w = Tensor([[1.0, 0.0]]), Tensor([[0.0, 0.0], [0.0, 1.0]])
        >>> round(x.linear_cross_entropy(w, Tensor([1])).item(), 4)
        0.6931
        """
        what = "linear_cross_entropy"
        shape = operand(linear_weight, what, "linear_weight").shape
        if self.ndim not in (1, 2) or len(shape) < 2 or shape[-1] != self.shape[-1]:
            raise ShapeError(f"{what}: input {self.shape} must be [features] or [N, features], the weight {shape} fit")
        if self.ndim == 1 and len(shape) > 2:
            raise ShapeError(
                f"{what}: linear_weight of shape {shape} needs an input [N, features], got shape {self.shape}"
            )
        logits = self.dot(linear_weight.reshape(-1, shape[-1]).transpose(0, 1)).reshape(self.shape[:-1] + shape[:-1])
        if linear_bias is not None:
            wanted = shape[:-1] if operand(linear_bias, what, "linear_bias").ndim > 1 else shape[:1]
            if linear_bias.shape != wanted:
                raise ShapeError(f"{what}: linear_bias of shape {linear_bias.shape} must have shape {wanted}")
            logits = logits.add(linear_bias.reshape(wanted + (1,) * (len(shape) - 1 - len(wanted))))
        return logits.cross_entropy(Y, reduction, label_smoothing, ignore_index, weight)

    def nll_loss(
        self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: str = "mean"
    ) -> Self:
        """`-self[Y]`: negative log likelihood of log probabilities with classes on axis 1 (axis 0 of a vector).

        Args:
            Y: class numbers, shaped like this without axis 1; the loss of one that is no class is NaN.
            weight: weight of each class; the mean is divided by the weights that count.
            ignore_index: class number of targets that do not count.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: Y does not fit.

        >>> Tensor([[-1.0, -2.0]]).nll_loss(Tensor([1])).item()
        2.0
        """
        if not self.ndim:
            raise ShapeError("nll_loss: needs an axis of classes, got a tensor without axes")
        axis = 1 if self.ndim > 1 else 0
        rest = self.shape[:axis] + self.shape[axis + 1 :]
        if operand(Y, "nll_loss", "Y").shape != rest:
            raise ShapeError(f"nll_loss: Y of shape {Y.shape} must have shape {rest}")
        self._check_class_weight(weight, axis, "nll_loss")
        logs = self._classes_last() if self.ndim > 1 else self
        return logs._class_loss(Y, ignore_index, 0.0, reduction, weight, "nll_loss")

    # margins
    def multi_margin_loss(
        self, Y: Self, p: int = 1, margin: float = 1.0, weight: Self | None = None, reduction: str = "mean"
    ) -> Self:
        """`sum over j != Y of weight[Y] * max(0, margin - self[Y] + self[j]) ** p / C`, `C` classes on the last axis.

        Args:
            Y: class numbers `[N]` for scores `[N, C]`, one for scores `[C]`.
            p: 1 or 2.
            weight: weight of each class.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: shapes that do not fit.
            ArgumentError: another p.

        >>> Tensor([[0.0, 1.0]]).multi_margin_loss(Tensor([0])).item()
        1.0
        """
        what = "multi_margin_loss"
        if not self.ndim:
            return self.reshape(1).multi_margin_loss(Y, p, margin, weight, reduction)
        if self.ndim not in (1, 2) or not self.shape[-1]:
            raise ShapeError(f"{what}: scores of shape {self.shape} must be [N, C] or [C]")
        if operand(Y, what, "Y").shape != self.shape[:-1] and (self.ndim, Y.numel()) != (1, 1):
            raise ShapeError(f"{what}: Y of shape {Y.shape} must have shape {self.shape[:-1]}")
        if p not in (1, 2):
            raise ArgumentError(f"{what}: p must be 1 or 2, got {p!r}")
        self._check_class_weight(weight, -1, what)
        if not Y.dtype.is_int:
            raise DTypeError(f"{what}: class numbers must be integers, got {Y.dtype}; cast them")
        target = Y.reshape(self.shape[:-1])
        chosen = target.unsqueeze(-1).eq(self.positions(self.shape[-1], self.place))
        own = chosen.where(self, 0.0).sum(-1, True)
        gap = self.sub(own).add(number(margin, what, "margin")).relu_like()
        gap = gap.mul(gap) if p == 2 else gap
        gap = gap if weight is None else gap.mul(chosen.where(weight, 0.0).sum(-1, True))
        loss = chosen.where(0.0, gap).sum(-1).mul(1 / self.shape[-1])
        return chosen.any(-1).where(loss, math.nan)._reduced(reduction, what)

    def multilabel_margin_loss(self, Y: Self, reduction: str = "mean") -> Self:
        """`sum over true i, other j of max(0, 1 - self[i] + self[j]) / C`, `C` classes on the last axis.

        Args:
            Y: the numbers of the true classes, shaped like this; those from the first negative one on do not count.
            reduction: "mean", "sum" or "none".

        Raises:
            ShapeError: shapes that do not fit.

        >>> Tensor([[0.0, 1.0]]).multilabel_margin_loss(Tensor([[0, -1]])).item()
        1.0
        """
        what = "multilabel_margin_loss"
        if not self.ndim and not operand(Y, what, "Y").ndim:
            loss = self.reshape(1).multilabel_margin_loss(Y.reshape(1), reduction)
            return loss.reshape(())
        if self.ndim not in (1, 2) or not self.shape[-1] or operand(Y, what, "Y").shape != self.shape:
            raise ShapeError(f"{what}: scores {self.shape} and Y {Y.shape} must both be [N, C] or [C]")
        if not Y.dtype.is_int:
            raise DTypeError(f"{what}: class numbers must be integers, got {Y.dtype}; cast them")
        counts = Y.gt(-1).cast(dtypes.int32).running(Op.MIN, self.ndim - 1).ne(0)
        numbers = counts.where(Y, -1)
        classes = self.positions(self.shape[-1], self.place)
        true = numbers.unsqueeze(-1).eq(classes).any(-2)
        own = self.gather(-1, numbers.maximum(0)).unsqueeze(-1)
        gap = self.unsqueeze(-2).sub(own).add(1.0).relu_like()
        gap = counts.unsqueeze(-1).where(true.unsqueeze(-2).where(0.0, gap), 0.0)
        return gap.sum((-2, -1)).mul(1 / self.shape[-1])._reduced(reduction, what)
