"""Optimizers. A step builds lazy updates of every parameter and state tensor and realises them together."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from gradlet.base.dtype import DType, accumulator
from gradlet.base.errors import ArgumentError, GradientError
from gradlet.graph.node import no_gc
from gradlet.nn.parameter import filled
from gradlet.ops import arguments
from gradlet.tensor.recipes import composed
from gradlet.tensor.tensor import Tensor


class Optimizer:
    """Base of the optimizers: holds the parameters and the learning rate, turns gradients into updates.

    State and update are computed in float32 for 16-bit parameters, else in the parameter's dtype.

    Attributes:
        params: the float tensors that are trained, each once.
        buffers: the other tensors that were passed (counters and the like); a step realises them too.
        lr: the learning rate, a tensor of one element: assign to it to change it, also under `jit`.
    """

    def __init__(self, params: Iterable[Tensor], lr: float | Tensor, device: str | None = None) -> None:
        if not isinstance(params, Iterable):
            raise ArgumentError(f"params: expected a list of tensors, got {type(params).__name__}")
        given = list({id(tensor): tensor for tensor in params}.values())
        for position, tensor in enumerate(given):
            if not isinstance(tensor, Tensor):
                raise ArgumentError(f"params[{position}]: expected a Tensor, got {type(tensor).__name__}")
        self.params = [tensor for tensor in given if tensor.dtype.is_float]
        self.buffers = [tensor for tensor in given if not tensor.dtype.is_float]
        if not self.params:
            raise ArgumentError("params: no float tensor to train; pass for example nn.state.get_parameters(model)")
        for param in self.params:
            param.is_param = True  # `backward` then fills the gradients of parameters only
        self.device = device or self.params[0].device
        self.lr = lr if isinstance(lr, Tensor) else filled(_not_negative(lr, "lr"), (1,), device=self.device)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters: the next `backward` starts from zero."""
        for param in self.params:
            param.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient, now.

        Raises:
            GradientError: `Tensor.training` is off, or no parameter has a gradient.
        """
        first, *rest = self.schedule_step()
        first.realize(*rest)

    def schedule_step(self) -> list[Tensor]:
        """Like `step`, but lazy: returns the tensors to realise, for example `loss.realize(*opt.schedule_step())`.

        Gradients are among them: they read the parameters as they were before the step.

        Raises:
            GradientError: `Tensor.training` is off, or no parameter has a gradient.
        """
        if not Tensor.training:
            raise GradientError("an optimizer step needs Tensor.training = True; wrap it in `with Tensor.train():`")
        active = [(number, p) for number, p in enumerate(self.params) if p.grad is not None]
        if not active:
            raise GradientError("no parameter has a gradient; call loss.backward() before the step")
        gradients = [p.grad for _, p in active if p.grad is not None]
        common, changed = self._begin()
        with no_gc():
            for (number, param), grad in zip(active, gradients, strict=True):
                wide = accumulator(param.dtype)
                old = param.detach().cast(wide)
                new, state = self._update(number, old, grad.detach().cast(wide), common)
                param.assign(new.cast(param.dtype))
                changed += state
        return [*self.params, *self.buffers, *changed, *gradients]

    def _begin(self) -> tuple[list[Tensor], list[Tensor]]:
        """What happens once a step: values that the updates of all parameters read, and state that was assigned."""
        return [], []

    def _update(self, number: int, param: Tensor, grad: Tensor, common: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """New value of parameter `number`, and the state tensors that were assigned for it."""
        raise NotImplementedError

    def _rate(self, dtype: DType, device: str) -> Tensor:
        """The learning rate where and as the update needs it."""
        return self.lr.to(device).cast(dtype)

    def _state(self) -> list[Tensor]:
        """A zero tensor like every parameter."""
        return [filled(0.0, p.shape, accumulator(p.dtype), p.device) for p in self.params]


class OptimizerGroup(Optimizer):
    """Several optimizers used as one.

    >>> from gradlet import Tensor, nn
    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> group = nn.optim.OptimizerGroup(nn.optim.SGD([a.weight]), nn.optim.Adam([b.weight]))
    >>> len(group.params)
    2
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ArgumentError("optimizers: pass at least one")
        for position, optimizer in enumerate(optimizers):
            if not isinstance(optimizer, Optimizer):
                raise ArgumentError(f"optimizers[{position}]: expected an optimizer, got {type(optimizer).__name__}")
        self.optimizers = optimizers
        self.params = [param for optimizer in optimizers for param in optimizer.params]
        self.buffers = [buffer for optimizer in optimizers for buffer in optimizer.buffers]

    def __getitem__(self, number: int) -> Optimizer:
        return self.optimizers[number]

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def schedule_step(self) -> list[Tensor]:
        return [tensor for optimizer in self.optimizers for tensor in optimizer.schedule_step()]


class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        params: tensors to train.
        lr: learning rate.
        momentum: share of the last update that is kept.
        weight_decay: this times the parameter is added to its gradient.
        nesterov: look ahead along the momentum.
        classic: the learning rate is applied before the momentum instead of after.

    >>> from gradlet import Tensor, nn
    >>> w = Tensor([1.0, 2.0])
    >>> optimizer = nn.optim.SGD([w], lr=0.5)
    >>> with Tensor.train():
    ...     _ = (w * w).sum().backward()
    ...     optimizer.step()
    >>> w.tolist()
    [0.0, 0.0]
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, classic: bool = False, device: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, device)
        if nesterov and not momentum:
            raise ArgumentError("nesterov=True looks ahead along the momentum: give a momentum above 0")
        self.momentum = _not_negative(momentum, "momentum")
        self.wd = _not_negative(weight_decay, "weight_decay")
        self.nesterov = nesterov
        self.classic = classic
        self.b = self._state() if momentum else []

    def _update(self, number: int, param: Tensor, grad: Tensor, common: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return self._descend(number, param, grad + param * self.wd if self.wd else grad)

    def _descend(self, number: int, param: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        rate = self._rate(param.dtype, param.device)
        before = self.b[number] if self.momentum else None
        options = (self.momentum, self.nesterov, self.classic)
        new, velocity = composed(_descent, (param, grad, rate, before), *options)
        return new, [before.assign(velocity)] if before is not None else []


def _descent(
    param: Tensor, grad: Tensor, rate: Tensor, before: Tensor | None, momentum: float, nesterov: bool, classic: bool
) -> tuple[Tensor, Tensor]:
    """A parameter after a step, and its velocity; `before` is the velocity before, if there is momentum."""
    if classic:
        grad = grad * rate
    if before is not None:
        velocity = before * momentum + grad
        grad = grad + velocity * momentum if nesterov else velocity
    else:
        velocity = grad
    return param - (grad if classic else grad * rate), velocity


class LARS(SGD):
    """Stochastic gradient descent whose step is scaled, tensor by tensor, to the size of the parameter.

    Args:
        params: tensors to train.
        lr: learning rate.
        momentum: share of the last update that is kept.
        weight_decay: this times the parameter is added to its gradient.
        nesterov: look ahead along the momentum.
        classic: the learning rate is applied before the momentum instead of after.
        tcoef: trust coefficient: size of a step relative to the parameter.

    >>> from gradlet import nn
    >>> model = nn.Linear(2, 2)
    >>> len(nn.optim.LARS(nn.state.get_parameters(model), lr=0.5).params)
    2
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor = 0.001, momentum: float = 0.9, weight_decay: float = 1e-4,
        nesterov: bool = False, classic: bool = True, tcoef: float = 0.001, device: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, momentum, weight_decay, nesterov, classic, device)
        self.tcoef = tcoef

    def _update(self, number: int, param: Tensor, grad: Tensor, common: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        size, slope = _norm(param), _norm(grad)
        trust = size * self.tcoef / (slope + size * self.wd)
        trust = ((size > 0) & (slope > 0)).where(trust, 1.0)
        return self._descend(number, param, (grad + param * self.wd) * trust)


class LAMB(Optimizer):
    """Adam whose step is scaled, tensor by tensor, to the size of the parameter; with `adam=True` plain AdamW.

    Args:
        params: tensors to train.
        lr: learning rate.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: added to the root of the mean square.
        weight_decay: decoupled weight decay.
        adam: leave the scaling out.

    >>> from gradlet import nn
    >>> model = nn.Linear(2, 2)
    >>> len(nn.optim.LAMB(nn.state.get_parameters(model), lr=0.5).params)
    2
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor = 0.001, b1: float = 0.9, b2: float = 0.999,
        eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False, device: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, device)
        for name, value in (("b1", b1), ("b2", b2)):
            if not _not_negative(value, name) < 1:
                raise ArgumentError(f"{name}={value} must be at least 0 and below 1")
        self.b1, self.b2, self.adam = b1, b2, adam
        self.eps, self.wd = _not_negative(eps, "eps"), _not_negative(weight_decay, "weight_decay")
        # How much of a mean that started at zero has filled up: 1 - b**steps. Kept as such, because that difference
        # would lose most of its digits in float32 while b**steps is near 1.
        self.filled1 = filled(0.0, (1,), device=self.device)
        self.filled2 = filled(0.0, (1,), device=self.device)
        self.m = self._state()
        self.v = self._state()

    def _begin(self) -> tuple[list[Tensor], list[Tensor]]:
        # The updates read these expressions, not the assigned memory, and so fuse with the assignment.
        share1 = self.filled1 * self.b1 + (1 - self.b1)
        share2 = self.filled2 * self.b2 + (1 - self.b2)
        return [share1, share2], [self.filled1.assign(share1), self.filled2.assign(share2)]

    def _update(self, number: int, param: Tensor, grad: Tensor, common: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        mean = self.m[number] * self.b1 + grad * (1 - self.b1)
        square = self.v[number] * self.b2 + grad * grad * (1 - self.b2)
        share1, share2 = (share.to(param.device).cast(param.dtype) for share in common)
        change = (mean / share1) / ((square / share2).sqrt() + self.eps)
        if self.wd:
            change = change + param * self.wd
        if not self.adam:
            size, length = _norm(param), _norm(change)
            change = change * ((size > 0) & (length > 0)).where(size / length, 1.0)
        state = [self.m[number].assign(mean), self.v[number].assign(square)]
        return param - change * self._rate(param.dtype, param.device), state


class AdamW(LAMB):
    """Adam with decoupled weight decay.

    Args:
        params: tensors to train.
        lr: learning rate.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: added to the root of the mean square.
        weight_decay: decoupled weight decay.

    >>> from gradlet import nn
    >>> model = nn.Linear(2, 2)
    >>> len(nn.optim.AdamW(nn.state.get_parameters(model), lr=0.5).params)
    2
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor = 0.001, b1: float = 0.9, b2: float = 0.999,
        eps: float = 1e-8, weight_decay: float = 0.01, device: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam=True, device=device)


class Adam(AdamW):
    """Adam.

    Args:
        params: tensors to train.
        lr: learning rate.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: added to the root of the mean square.

    >>> from gradlet import nn
    >>> model = nn.Linear(2, 2)
    >>> len(nn.optim.Adam(nn.state.get_parameters(model), lr=0.5).params)
    2
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float | Tensor = 0.001, b1: float = 0.9, b2: float = 0.999,
        eps: float = 1e-8, device: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, b1, b2, eps, 0.0, device)


def _not_negative(value: float, name: str) -> float:
    """A number that is finite and not negative.

    Raises:
        ArgumentError: it is something else.
    """
    found = arguments.number(value, "optimizer", name)
    if not 0 <= found < inf:
        raise ArgumentError(f"{name}={value} must be a finite number, at least 0")
    return found


def _norm(tensor: Tensor) -> Tensor:
    """Euclidean norm over all elements."""
    return (tensor * tensor).sum().sqrt()
