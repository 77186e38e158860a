"""Train a small convolutional network on the bundled handwritten digits: the loop inside `gradlet demo`."""

import argparse

from gradlet import Tensor, TinyJit, nn
from gradlet.nn.datasets import digits


class Network:
    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = self.second(x).relu().max_pool2d((2, 2))
        return self.last(x.flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    Tensor.manual_seed(0)
    images, labels, test_images, test_labels = digits()
    model = Network()
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=2e-3)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(x).sparse_categorical_crossentropy(y)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    for number in range(1, steps + 1):
        chosen = Tensor.randint(64, low=0, high=images.shape[0])
        loss = step(images[chosen].realize(), labels[chosen].realize())
        if number % 50 == 0 or number == steps:
            accuracy = (model(test_images).argmax(1) == test_labels).mean().item()
            print(f"step {number}: loss {loss.item():.3f}, test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
