"""Gradient descent by hand: fit a line to noisy points. Shows lazy tensors, gradients and in-place updates."""

from gradlet import Tensor

Tensor.manual_seed(1)
x = Tensor.uniform(200, low=-1.0, high=1.0)
y = 3.0 * x + 0.5 + Tensor.randn(200) * 0.05
Tensor.realize(x, y)

slope, offset = Tensor([0.0]), Tensor([0.0])
for _ in range(60):
    loss = ((slope * x + offset - y) ** 2).mean()
    slope_gradient, offset_gradient = loss.gradient(slope, offset)
    slope = slope - 0.5 * slope_gradient
    offset = offset - 0.5 * offset_gradient
    Tensor.realize(slope, offset)

print(f"y = {slope.item():.2f} x + {offset.item():.2f}")
