"""Contexts on a model and on a part of it number the same tokens and nodes, or are refused."""

import pytest
import torch
import transformers
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

TOKENS, WIDTH = 8, 6
X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]])
BOTH_WAYS = torch.cat([EDGES, EDGES.flip(0)], 1)
CUT = Cut(layer=0, query=2, key=1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + (self.query(x) @ self.key(x).mT / 3).softmax(-1) @ self.value(x)


class Model(nn.Module):
    """Two layers, before the second of which tokens may be moved."""

    def __init__(self, kind, moves):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.moves = kind(), kind(), moves
        self.eval()

    def between(self, x):
        return x[:, ORDER] if self.moves else x

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Graph(Model):
    def forward(self, x):
        return self.second(self.between(self.first(x[0], BOTH_WAYS)[None])[0], BOTH_WAYS)


def gat():
    return pytest.importorskip("torch_geometric.nn").GATConv(WIDTH, WIDTH, add_self_loops=False)


def made(kind, moves):
    return Graph(gat, moves) if kind == "graph" else Model(Head, moves)


def rows(model, outer, inner):
    """Return the rows of the output that two contexts change."""
    before = model(X)
    with outer, inner:
        return (model(X) != before).reshape(TOKENS, WIDTH).any(1).nonzero()[:, 0].tolist()


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "graph"])
def test_what_a_whole_moves_before_a_part_is_refused(kind, is_inside):
    model = made(kind, True)
    contexts = [capturing(model), edited(model.second, CUT)]
    with pytest.raises(CaptureError, match=r"on a model and on a part of it, and .* have other"):
        rows(model, *(contexts if is_inside else contexts[::-1]))


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "graph"])
def test_a_part_whose_numbers_are_those_of_the_whole_is_edited(kind, is_inside):
    model = made(kind, False)
    contexts = [capturing(model), edited(model.second, CUT)]
    assert rows(model, *(contexts if is_inside else contexts[::-1])) == [2]


class Around(nn.Module):
    """A model of transformers after attention of one's own, whose tokens may be moved between."""

    def __init__(self, moves):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(
            vocab_size=9, intermediate_size=6, attn_implementation="eager", **sizes
        )
        self.head, self.bert, self.moves = Head(), transformers.BertModel(config), moves
        self.eval()

    def forward(self, x, mask=None):
        x = self.head(x)
        x = x[:, ORDER] if self.moves else x
        return self.bert(inputs_embeds=x, attention_mask=mask).last_hidden_state


PARTS = {
    "model": lambda model: model.bert,
    "layers": lambda model: model.bert.encoder,
    "attention": lambda model: model.bert.encoder.layer[0].attention.self,
}
MASKS = {
    "whole": None,
    "left": torch.tensor([[0] * 2 + [1] * 6]),
    "right": torch.tensor([[1] * 6 + [0] * 2]),
}


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_read_otherwise_than_the_whole_is_edited(part, mask, is_inside):
    """The whole is proved; BERT tells transformers' interface what it attends to."""
    model, mask = Around(False), MASKS[mask]
    with edited(model.bert, CUT):
        expected = model(X, mask)
    contexts = [capturing(model), edited(PARTS[part](model), CUT)]
    first, second = contexts if is_inside else contexts[::-1]
    with first as one, second as other:
        found = model(X, mask)
    trace = (one if is_inside else other).trace
    torch.testing.assert_close(found, expected)
    graph = trace.stacks["bert.encoder.layer.attention.self"][0, 0]
    with capturing(model.bert) as alone, edited(model.bert, CUT):
        model(X, mask)
    wanted = torch.tensor(alone.trace["encoder"][0, 0].to_dense())
    torch.testing.assert_close(torch.tensor(graph.to_dense()), wanted)


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
def test_edits_of_a_model_and_of_its_layers_add_up(is_inside):
    model, other = Around(False).bert, Cut(layer=0, query=3, key=0)
    with edited(model, CUT, other):
        expected = model(inputs_embeds=X).last_hidden_state
    contexts = [edited(model, CUT), edited(model.encoder, other)]
    first, second = contexts if is_inside else contexts[::-1]
    with first, second:
        found = model(inputs_embeds=X).last_hidden_state
    torch.testing.assert_close(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("is_inside", [True, False])
def test_tokens_that_a_whole_moves_before_a_model_of_transformers_are_refused(is_inside):
    model = Around(True)
    contexts = [capturing(model), edited(model.bert, CUT)]
    with pytest.raises(CaptureError, match=r"on a model and on a part of it, and .* have other"):
        rows(model, *(contexts if is_inside else contexts[::-1]))
