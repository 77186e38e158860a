"""Networks for texts against torch modules with the same weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [oracle]")

from gradlet import Tensor, nn
from gradlet.base.errors import ArgumentError
from gradlet.models import bert, gpt2, weights
from tests.models import oracle, reference

IDS = [[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]]
GPT2 = dict(vocabulary=17, positions=12, width=16, layers=2, heads=2)


@pytest.mark.slow
def test_bert_with_masks_and_kinds() -> None:
    sizes = dict(vocabulary=11, positions=7, width=16, layers=2, heads=2, hidden=24)
    module = oracle.shaken(reference.Bert(**sizes))
    given = {name: oracle.given(value) for name, value in module.weights().items()}
    model = weights.load(bert.Bert(bert.Config(**sizes)), {f"bert.{name}": value for name, value in given.items()})
    mask, kinds = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    expected = module(torch.tensor(IDS), mask, kinds)
    seen = expected.detach().numpy() * mask.numpy()[:, :, None]  # what stands behind the end means nothing
    found = model(IDS, Tensor(mask.numpy()), Tensor(kinds.numpy())) * Tensor(mask.numpy()).unsqueeze(-1)
    oracle.same(found, torch.tensor(seen))


@pytest.mark.slow
def test_embeddings_of_sentences_do_not_depend_on_filling() -> None:
    model = bert.Bert(bert.Config(vocabulary=11, positions=9, width=16, layers=1, heads=2, hidden=24))
    alone = model.embed([[3, 1, 4]]).numpy()
    filled = model.embed([[3, 1, 4, 0, 0], [1, 2, 3, 4, 5]], Tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])).numpy()
    assert abs((filled**2).sum(-1) - 1).max() < 1e-5
    assert abs(alone[0] - filled[0]).max() < 1e-5


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_gpt2_and_its_cache(layers: int) -> None:
    sizes = {**GPT2, "layers": layers}
    module = oracle.shaken(reference.GPT2(**sizes))
    model = oracle.copied(gpt2.GPT2(gpt2.Config(**sizes)), module)
    ids = torch.tensor(IDS)
    oracle.same(model(IDS), module(ids))
    tokens = IDS[0][:2]
    for _ in range(5):
        tokens.append(int(module(torch.tensor([tokens]))[0, -1].argmax()))
    assert gpt2.Generator(model).greedy(tokens[:2], 5) == tokens[2:]


def test_gpt2_says_when_there_is_no_room() -> None:
    generator = gpt2.Generator(gpt2.GPT2(gpt2.Config(**GPT2)))
    for ids, count in (([], 1), ([1, 2, 3], 10)):
        with pytest.raises(ArgumentError, match="there is room for 1 to 12"):
            generator.greedy(ids, count)


@pytest.mark.slow
def test_a_step_of_training_gpt2_is_that_of_torch() -> None:
    module = oracle.shaken(reference.GPT2(**GPT2))
    model = oracle.copied(gpt2.GPT2(gpt2.Config(**GPT2)), module)
    ids = torch.tensor(IDS)
    loss = torch.nn.functional.cross_entropy(module(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.0).step()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.01, weight_decay=0.0)
    with Tensor.train():
        mine = model.loss(IDS).backward()
        optimizer.step()
    oracle.same(mine, loss)
    named = nn.state.get_state_dict(model)
    for name, value in module.state_dict().items():
        if name != "h.0.attn.c_attn.bias" and name != "h.1.attn.c_attn.bias":  # of keys the gradient is only noise
            oracle.same(named[name], value, 2e-3)
