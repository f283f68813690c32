"""Edits name tokens by texts that the user gives, in models that know none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, Restrict, TokenGraph, capturing, edited, effect, load_model
from gattn.errors import EditError

WORDS = ["the", "cat", "sat", "on", "the", "mat"]
OTHERS = ["die", "Katze", "saß", "da"]
WIDTH = 8


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, dropout=0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.fixture
def translator():
    torch.manual_seed(0)
    return nn.Transformer(WIDTH, 2, 1, 2, 16, batch_first=True, dropout=0).eval()


@pytest.fixture
def x():
    return torch.randn(1, len(WORDS), WIDTH, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def run(model, *inputs, edit, **options):
    with edited(model, edit, **options):
        return model(*inputs)


@pytest.mark.parametrize(
    ("text", "position"), [("mat", 5), ("the", [0, 4]), ("SAT", 2), (["cat", -1], [1, 5])]
)
def test_a_text_is_its_positions(encoder, x, text, position):
    by_text = run(encoder, x, edit=Cut(layer=0, key=text), tokens=WORDS)
    assert torch.equal(by_text, run(encoder, x, edit=Cut(layer=0, key=position)))
    assert not torch.equal(by_text, encoder(x))


def test_tokens_are_given_by_stack(translator, x):
    y = torch.randn(1, len(OTHERS), WIDTH, generator=torch.Generator().manual_seed(2))
    with capturing(translator) as known, torch.no_grad():
        translator(x, y)
    stack = next(name for name in known.trace.stacks if "multihead" in name)
    by_position = run(translator, x, y, edit=Cut(layer=1, query=1, key=5, stack=stack))
    for tokens, query in (({stack: WORDS}, 1), (WORDS, 1)):
        cut = Cut(layer=1, query=query, key="mat", stack=stack)
        assert torch.equal(run(translator, x, y, edit=cut, tokens=tokens), by_position)
    cut = Cut(layer=1, query="Katze", key=5, stack=stack)
    assert torch.equal(run(translator, x, y, edit=cut, tokens=OTHERS), by_position)


def test_what_no_token_is_is_refused_with_the_tokens_there_are(encoder, x):
    with pytest.raises(EditError, match=r"no key is 'dog'.*tokens are 'the', 'cat'"):
        run(encoder, x, edit=Cut(layer=0, key="dog"), tokens=WORDS)
    says = r"tokens= gives 5 texts, and the stack 'layers.self_attn' has 6 keys: give one text"
    with pytest.raises(EditError, match=says):
        run(encoder, x, edit=Cut(layer=0, key="cat"), tokens=WORDS[:5])
    with pytest.raises(EditError, match="pass tokens= or tokenizer="):
        run(encoder, x, edit=Cut(layer=0, key="cat"))
    with pytest.raises(EditError, match="tokens= names the stack 'encoder'; the stacks are"):
        run(encoder, x, edit=Cut(layer=0, key=1), tokens={"encoder": WORDS})


def test_a_token_that_no_text_of_a_batch_has_is_sought_in_all():
    model, tokenizer = load_model()
    batch = tokenizer(["The lamp", "A cat sat there"], return_tensors="pt", padding=True)
    says = r"no key of any text is ' lammp', the most similar tokens are 'lamp'"
    edits = edited(model, Cut(key=" lammp"), tokenizer=tokenizer)
    with pytest.raises(EditError, match=says), torch.no_grad(), edits:
        model(**batch)


def test_other_edits_need_no_texts(encoder, x):
    restricted = Restrict(TokenGraph.causal(6), layer=0)
    found = run(encoder, x, edit=restricted, tokens=WORDS[:2])
    assert torch.equal(found, run(encoder, x, edit=restricted))


def test_effects_are_of_edits_by_text(encoder, x):
    cuts = [Cut(layer=n, key=key) for n in (0, 1) for key in ("cat", "mat")]
    positions = [Cut(layer=n, key=key) for n in (0, 1) for key in (1, 5)]

    def call():
        return encoder(x)[0, 2].sum()

    found = effect(call, cuts, encoder, tokens=WORDS, progress=False)
    wanted = effect(call, positions, encoder, progress=False)
    assert found["effect"].tolist() == wanted["effect"].tolist()
    assert all(found["effect"].abs() > 0)
