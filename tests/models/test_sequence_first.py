"""Models of one's own that are given (tokens, batch, channels), as many tokens as texts too."""

import pytest
import torch
from torch import nn

import gattn

WIDTH = 8


class Head(nn.Module):
    """One head (batch, tokens, channels); `cut` is a query and a key between which nothing goes."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.cut = None

    def forward(self, x, mask):
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5 + mask
        if self.cut is not None:
            scores[:, self.cut[0], self.cut[1]] = -torch.inf
        self.own = scores.softmax(-1)
        return self.own @ self.value(x)


class Model(nn.Module):
    """Two layers between transpositions; `moves` flips the tokens between them."""

    def __init__(self, *, ids=None, moves=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Head(), Head()])
        self.embed, self.ids, self.moves = nn.Embedding(20, WIDTH), ids, moves

    def forward(self, x, mask):
        if self.ids == "first":
            x = self.embed(x).transpose(0, 1)
        else:
            x = x.transpose(0, 1) if self.ids is None else self.embed(x.T)
        for number, layer in enumerate(self.layers):
            x = x.flip(1) if self.moves and number else x
            x = x + layer(x, mask)
        return x.transpose(0, 1)


def given(ids, tokens, batch):
    generator = torch.Generator().manual_seed(0)
    mask = torch.randn(tokens, tokens, generator=generator)
    if ids is None:
        return torch.randn(tokens, batch, WIDTH, generator=generator), mask
    return torch.randint(0, 20, (tokens, batch), generator=generator), mask


@torch.no_grad()
@pytest.mark.parametrize(("tokens", "batch"), [(2, 2), (4, 4), (4, 3)])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("ids", [None, "first", "transposed"])
def test_tokens_come_first(ids, moves, tokens, batch):
    model, inputs = Model(ids=ids, moves=moves).eval(), given(ids, tokens, batch)
    with gattn.capturing(model) as run:
        model(*inputs)
    assert len(run.traces) == batch
    for element, trace in enumerate(run.traces):
        for number, layer in enumerate(model.layers):
            own = layer.own[element]
            own = own.flip(0, 1) if moves and number else own
            found = torch.from_numpy(trace[number, 0].to_dense())
            torch.testing.assert_close(found, own, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("moves", [False, True])
def test_a_cut_reaches_its_tokens_of_all_texts(moves):
    model, inputs = Model(moves=moves).eval(), given(None, 4, 4)
    plain = model(*inputs)
    with gattn.edited(model, gattn.Cut(layer=1, query=0, key=2)):
        found = model(*inputs)
    model.layers[1].cut = (3, 1) if moves else (0, 2)
    wanted = model(*inputs)
    assert (wanted - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted)


class Attending(nn.Module):
    """Attention over embedded ids (tokens, texts)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = nn.Embedding(50, 16), nn.MultiheadAttention(16, 2)

    def forward(self, ids):
        x = self.embed(ids)
        return self.attend(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(("tokens", "texts"), [(4, 4), (5, 3), (3, 5), (4, 1)])
def test_ids_that_come_tokens_first_name_the_tokens_of_their_text(tokens, texts):
    model, (_, tokenizer) = Attending().eval(), gattn.load_model()
    ids = torch.randperm(49)[: tokens * texts].reshape(tokens, texts) + 1
    with gattn.capturing(model, tokenizer) as run:
        model(ids)
    found = [trace[0, 0].tokens for trace in run.traces]
    assert found == [tuple(tokenizer.convert_ids_to_tokens(row)) for row in ids.T.tolist()]


class Folded(nn.Module):
    """Attention over (tokens, texts, channels) whose heads are folded into the batch."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        tokens, texts, _ = x.shape
        query, key, value = (
            f(x).reshape(tokens, texts * 2, WIDTH // 2).transpose(0, 1)
            for f in (self.query, self.key, self.value)
        )
        attention = (query @ key.mT / 2).softmax(-1)
        return x + self.out((attention @ value).transpose(0, 1).reshape(x.shape))


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_one_token_of_several_texts_is_seen_where_heads_are_folded(layers):
    torch.manual_seed(0)
    model = nn.Sequential(*(Folded() for _ in range(layers))).double().eval()
    x = torch.randn(1, 3, WIDTH).double()
    with gattn.capturing(model) as run:
        plain = model(x)
    found = [graph.to_dense() for trace in run.traces for graph in trace.heads()]
    assert sum(map(len, found)) == 3 * 2 * layers  # texts, heads
    for attention in found:
        assert (attention == torch.eye(len(attention)).numpy()).all()
    with gattn.edited(model, gattn.Cut(layer=layers - 1)):
        cut = model(x)
    torch.testing.assert_close(cut, model[:-1](x) + model[-1].out.bias, rtol=0, atol=1e-12)
    assert not torch.allclose(cut, plain)
