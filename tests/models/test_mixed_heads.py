"""Softmaxes whose heads are mixed are shown as they are; what mixes queries or texts is refused."""

import warnings

import pytest
import torch
from torch import nn

from gattn import All, Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH = 8


class Model(nn.Module):
    """Cross-attention, whose attention `change` changes before it meets the values."""

    def __init__(self, change, heads=4):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mix = nn.Linear(heads, heads)
        self.change, self.heads, self.cut = change, heads, None
        self.eval()

    def forward(self, x, y):
        query, key, value = (
            layer(z).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, z in ((self.query, x), (self.key, y), (self.value, y))
        )
        scores = query @ key.mT
        if self.cut is not None:
            scores[:, 1, self.cut[0], self.cut[1]] = -torch.inf
        self.shown = scores.softmax(-1)
        mixed = self.change(self, self.shown) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


SIZES = [
    (2, 4, 6, 6),
    (2, 4, 1, 6),
    (2, 4, 5, 6),
    (2, 4, 4, 6),
    (2, 4, 6, 4),
    (2, 4, 4, 4),
    (1, 2, 2, 2),
]
"""How many texts, heads, queries and keys there are."""
TALKING = {
    "queries, keys, heads": lambda m, a: m.mix(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "keys, queries, heads": lambda m, a: m.mix(a.permute(0, 3, 2, 1)).permute(0, 3, 2, 1),
    "einsum": lambda m, a: torch.einsum("gh,bhij->bgij", m.mix.weight, a),
    "einsum that turns": lambda m, a: torch.einsum("gh,bhij->bijg", m.mix.weight, a).movedim(3, 1),
    "convolution": lambda m, a: nn.functional.conv2d(a, m.mix.weight[..., None, None]),
    "flat": lambda m, a: (m.mix.weight @ a.flatten(2)).view_as(a),
    "heads first": lambda m, a: (
        (m.mix.weight @ a.transpose(0, 1).flatten(1))
        .unflatten(1, (len(a), *a.shape[2:]))
        .transpose(0, 1)
    ),
    "twice": lambda m, a: TALKING["einsum"](m, TALKING["queries, keys, heads"](m, a)),
}


MIXED = {
    "queries": lambda m, a: torch.einsum("ij,bhjk->bhik", torch.eye(a.shape[2]).flip(0), a),
    "queries, by a product": lambda m, a: torch.eye(a.shape[2]).flip(0) @ a,
    "queries, last": lambda m, a: nn.functional.linear(a.mT, torch.eye(a.shape[2]).flip(0)).mT,
    "texts": lambda m, a: torch.einsum("ab,bhij->ahij", torch.eye(len(a)).flip(0), a),
    "texts, second": lambda m, a: torch.einsum(
        "ab,hbij->haij", torch.eye(len(a)).flip(0), a.transpose(0, 1)
    ).transpose(0, 1),
}


def called(model, sizes):
    texts, _, queries, keys = sizes
    torch.manual_seed(1)
    return model(torch.randn(texts, queries, WIDTH), torch.randn(texts, keys, WIDTH))


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", TALKING)
def test_talking_heads_show_their_softmaxes(kind, sizes):
    model = Model(TALKING[kind], sizes[1])
    said = pytest.warns(UserWarning, match="mixes the attention of its heads before it meets")
    with said, capturing(model, keep=All()) as found:
        called(model, sizes)
    for trace, shown in zip(found.traces, model.shown, strict=True):
        for head in range(sizes[1]):
            dense = torch.from_numpy(trace[0, head].to_dense())
            torch.testing.assert_close(dense, shown[head], rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(2, 4, 5, 6), (2, 4, 4, 4)])
@pytest.mark.parametrize("kind", TALKING)
def test_a_cut_is_made_before_heads_are_mixed(kind, sizes):
    model = Model(TALKING[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with edited(model, Cut(layer=0, head=1, query=2, key=3)):
            found = called(model, sizes)
    model.cut = 2, 3
    torch.testing.assert_close(found, called(model, sizes), rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    "sizes", [(2, 4, 6, 6), (2, 4, 5, 6), (2, 4, 4, 6), (2, 4, 6, 4), (2, 2, 2, 2)]
)
@pytest.mark.parametrize("kind", MIXED)
def test_what_mixes_queries_or_texts_is_refused(kind, sizes):
    model = Model(MIXED[kind], sizes[1])
    said = r"is changed by .* between its softmax and its values"
    with pytest.raises(CaptureError, match=said), capturing(model):
        called(model, sizes)


class OneHead(nn.Module):
    """One head, whose attention is mixed across its first dimension: texts, or heads."""

    def __init__(self, heads=1):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.heads = heads
        self.eval()

    def forward(self, x):
        query, key, value = (
            layer(x)
            if self.heads == 1
            else layer(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for layer in (self.query, self.key, self.value)
        )
        self.shown = (query @ key.mT).softmax(-1)
        mixed = torch.einsum("ab,bij->aij", torch.eye(len(self.shown)).roll(1, 0), self.shown)
        return mixed @ value


@torch.no_grad()
def test_a_first_dimension_is_mixed_only_if_it_holds_heads():
    texts, heads = OneHead(), OneHead(4)
    with pytest.raises(CaptureError, match="holds no heads, but texts"), capturing(texts):
        texts(torch.randn(3, 6, WIDTH))
    said = pytest.warns(UserWarning, match="mixes the attention of its heads")
    with said, capturing(heads, keep=All()) as run:
        heads(torch.randn(6, WIDTH))
    for head in range(4):
        dense = torch.from_numpy(run.trace[0, head].to_dense())
        torch.testing.assert_close(dense, heads.shown[head], rtol=1e-5, atol=1e-6)


class KeysBeforeHeads(nn.Module):
    """Talking heads on attention of (texts, queries, keys, heads)."""

    def forward(self, x):
        q = k = v = x.unflatten(-1, (2, -1))
        weights = torch.einsum("bqhd,bkhd->bqkh", q, k).softmax(2)
        mixed = weights @ weights.new_tensor([[0.8, 0.2], [0.3, 0.7]])
        return torch.einsum("bqkh,bkhd->bqhd", mixed, v).flatten(2)


class ThereAndBack(nn.Module):
    """Attends from a context to itself by way of a question, as QANet does."""

    def __init__(self, is_from_the_right):
        super().__init__()
        self.is_from_the_right = is_from_the_right

    def forward(self, context, question):
        scores = context @ question.mT
        there, back = scores.softmax(2), scores.softmax(1).mT
        return there @ (back @ context) if self.is_from_the_right else there @ back @ context


@torch.no_grad()
def test_reasons_say_which_products_are_read():
    torch.manual_seed(0)
    context, question = torch.randn(2, 7, WIDTH), torch.randn(2, 5, WIDTH)
    refused = pytest.raises(CaptureError, match="mixtures of heads are read where keys are the l")
    model = KeysBeforeHeads()
    with refused, capturing(model):
        model(context)
    refused = pytest.raises(CaptureError, match=r"A @ \(B @ v\) is read, \(A @ B\) @ v is not")
    model = ThereAndBack(is_from_the_right=False)
    with refused, capturing(model):
        model(context, question)
    model = ThereAndBack(is_from_the_right=True)
    with capturing(model) as run:
        model(context, question)
    shown = (context @ question.mT).softmax(2)
    for trace, own in zip(run.traces, shown, strict=True):
        found = [torch.from_numpy(head.to_dense()) for head in trace.heads()]
        assert any(one.shape == own.shape and torch.allclose(one, own) for one in found)
