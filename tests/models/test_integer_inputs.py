"""Models that are given integers: ids of tokens, and rows of other tensors that must stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gattn

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.own = None

    def forward(self, x, context, mask=None):
        q, k, v = (
            of(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for of, y in ((self.to_q, x), (self.to_k, context), (self.to_v, context))
        )
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        self.own = scores.softmax(-1).detach()
        return x + (self.own @ v).transpose(1, 2).flatten(2)


class Translator(nn.Module):
    """An encoder and a decoder, both of ids."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.encoder, self.decoder, self.cross = (Attention() for _ in range(3))

    def forward(self, source, target):
        memory, y = self.embed(source), self.embed(target)
        memory = self.encoder(memory, memory)
        return self.cross(self.decoder(y, y), memory)


@torch.no_grad()
def test_a_decoder_has_ids_of_its_own():
    torch.manual_seed(0)
    model = Translator().eval()
    source, target = torch.randint(0, 20, (3, 5)), torch.randint(0, 20, (3, 4))
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(source, target)
    assert len(run.traces) == 3
    for element, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["encoder", "decoder", "cross"]
        for name, stack in trace.stacks.items():
            own = model.get_submodule(name).own[element]
            for head in range(HEADS):
                dense = torch.from_numpy(stack[0, head].to_dense())
                torch.testing.assert_close(dense, own[head])


class OfGraphs(nn.Module):
    """Nodes attend to all nodes of their own graph, in a batch with padding."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        self.attend = Attention()

    def forward(self, kinds, graph):
        from torch_geometric.utils import to_dense_batch

        x, mask = to_dense_batch(self.embed(kinds), graph)
        return self.attend(x, x, mask)[mask]

    def dense(self, kinds, graph, cut=None):
        """Compute the attention between all nodes, and the output, by the formula."""
        x = self.embed(kinds)
        q, k, v = (
            of(x).unflatten(-1, (HEADS, -1)).transpose(0, 1)
            for of in (self.attend.to_q, self.attend.to_k, self.attend.to_v)
        )
        apart = graph[:, None] != graph
        if cut is not None:
            apart[cut] = True
        attention = (q @ k.mT).masked_fill(apart, -torch.inf).softmax(-1)
        return attention, x + (attention @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("graph", [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]])
@torch.no_grad()
def test_the_graph_of_each_node_stays(graph):
    torch.manual_seed(0)
    model, kinds, graph = OfGraphs().eval(), torch.randint(0, 9, (8,)), torch.tensor(graph)
    names = list("abcdefgh")
    with gattn.capturing(model, keep=gattn.All(), tokens=names, scores=True) as run:
        plain = model(kinds, graph)
    assert list(run.trace.tokens) == names
    np.testing.assert_allclose(run.trace[0, 0].total_mass, 1, rtol=1e-5)
    attention, output = model.dense(kinds, graph)
    torch.testing.assert_close(plain, output)
    for head in range(HEADS):
        dense = torch.from_numpy(run.trace[0, head].to_dense())
        torch.testing.assert_close(dense, attention[head])
    with gattn.edited(model, gattn.Cut(layer=0, query=1, key=2)):
        cut = model(kinds, graph)
    torch.testing.assert_close(cut, model.dense(kinds, graph, cut=(1, 2))[1])


@torch.no_grad()
def test_a_pooling_whose_index_must_be_sorted():
    from torch_geometric.nn import SetTransformerAggregation

    torch.manual_seed(0)
    model = SetTransformerAggregation(WIDTH, num_seed_points=2, heads=HEADS).eval()
    x, graph = torch.randn(6, WIDTH), torch.tensor([0, 0, 0, 0, 1, 1])
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x, graph)
    first = model.encoders[0].mab.attn
    stack = run.trace.stacks["encoders.mab.attn"]
    for number, size in ((0, 4), (1, 2)):
        own = x[graph == number][None]
        _, weights = first(own, own, own, average_attn_weights=False)
        start = 4 * number
        pooled = run.trace.stacks["pma.mab.attn"][0, 0].to_dense()
        assert (pooled[2 * number : 2 * number + 2, start : start + size] > 0).all()
        for head in range(HEADS):
            dense = torch.from_numpy(stack[0, head].to_dense())
            shown = dense[start : start + size, start : start + size]
            torch.testing.assert_close(shown, weights[0, head])


class TwoTexts(nn.Module):
    """Encoders of ids and of something else as long, which may come in another order."""

    def __init__(self, is_shared=False, order=lambda ids: ids):
        super().__init__()
        self.embed, self.one = nn.Embedding(20, WIDTH), Attention()
        self.other = self.one if is_shared else Attention()
        self.order = order

    def forward(self, input_ids, other=None):
        x = self.embed(self.order(input_ids))
        x = self.one(x, x)
        if other is None:
            return x
        y = other if other.is_floating_point() else self.embed(other)
        return x * self.other(y, y)


@torch.no_grad()
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("other", [torch.tensor([[5, 6, 7, 8]]), torch.randn(1, 4, WIDTH)])
def test_ids_do_not_name_the_tokens_of_another_input(is_shared, other):
    tokenizer = gattn.load_model()[1]
    model, ids = TwoTexts(is_shared).eval(), torch.tensor([[1, 2, 3, 4]])
    with gattn.capturing(model, tokenizer) as run:
        model(input_ids=ids, other=other)
    names = tuple(tokenizer.convert_ids_to_tokens([1, 2, 3, 4]))
    found = {name: stack[0, 0].tokens for name, stack in run.trace.stacks.items()}
    assert found == ({"one": ()} if is_shared else {"one": names, "other": ()})


@torch.no_grad()
@pytest.mark.parametrize(
    "order", [lambda ids: ids.flip(1), lambda ids: ids.roll(1, 1)], ids=["flip", "shift"]
)
def test_ids_that_are_moved_before_they_are_looked_up_name_nothing(order):
    tokenizer = gattn.load_model()[1]
    model, ids = TwoTexts(order=order).eval(), torch.tensor([[1, 2, 3, 4]])
    with pytest.warns(UserWarning, match="have no names"), gattn.capturing(model, tokenizer) as run:
        model(ids)
    assert run.trace.only_stack[0, 0].tokens == ()


def late(ids):
    moved = ids.new_zeros(ids.shape)
    moved[:, 1:] = ids[:, :-1]
    return moved


def late_in_a_copy(ids):
    moved = ids.clone()
    moved[:, 1:] = ids[:, :-1]
    return moved


def scattered(ids):
    return torch.zeros_like(ids).scatter_(1, torch.tensor([[1, 2, 3, 0]]), ids)


class Beside(TwoTexts):
    """Is given a mask beside its ids, which it does not need."""

    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids)


@torch.no_grad()
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("order", [late, late_in_a_copy, scattered])
def test_ids_that_are_written_elsewhere_before_they_are_looked_up_name_nothing(order, has_mask):
    tokenizer = gattn.load_model()[1]
    model, ids = Beside(order=order).eval(), torch.tensor([[1, 2, 3, 4]])
    with pytest.warns(UserWarning, match="have no names"), gattn.capturing(model, tokenizer) as run:
        model(ids, torch.ones_like(ids) if has_mask else None)
    assert run.trace.only_stack[0, 0].tokens == ()


@torch.no_grad()
def test_ids_that_are_counted_from_elsewhere_name_their_tokens():
    tokenizer = gattn.load_model()[1]
    model, ids = Beside(order=lambda ids: (ids + 1).clamp(0, 19)).eval(), torch.tensor([[1, 2, 3]])
    with gattn.capturing(model, tokenizer) as run:
        model(ids, torch.ones_like(ids))
    assert run.trace.only_stack[0, 0].tokens == tuple(tokenizer.convert_ids_to_tokens([1, 2, 3]))


class Choices(nn.Module):
    """Scores several choices of one question, each a text of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, ids):
        return self.layers(self.embed(ids).flatten(0, 1)).mean(-1)


def test_ids_of_several_choices_are_no_patches():
    torch.manual_seed(0)
    model = Choices().eval()
    with torch.no_grad(), gattn.capturing(model) as run:
        model(torch.randint(9, (1, 3, 5)))
    head = run.trace[0, 0]
    assert head.labels() == [str(n) for n in range(15)]
