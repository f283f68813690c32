"""Padding that reads itself is told from tokens that are alone, and from all others."""

import warnings

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import gattn
from gattn.models.read.unread import may_be_unread, said_padding, unread

COUNT = 5
ONES = torch.ones(COUNT, COUNT, dtype=torch.bool)
CAUSAL, EYE = ONES.tril(), torch.eye(COUNT, dtype=torch.bool)


def blocks(*sizes):
    return torch.block_diag(*(torch.ones(n, n) for n in sizes)).bool()


def padded(rows, real, base=CAUSAL):
    """A mask whose keys are the real ones, where padding reads what `rows` says."""
    real = torch.tensor(real).bool()
    return (base & real) | (rows & ~real[:, None])


def found_in(reads):
    found = unread(reads[None], 0)[0].nonzero()[:, 0].tolist()
    assert may_be_unread(reads[None, None], 0, len(reads)) or not found
    return found


@pytest.mark.parametrize("rows", [EYE, ONES], ids=["itself", "all"])
@pytest.mark.parametrize("base", [CAUSAL, ONES], ids=["causal", "complete"])
def test_padding_on_the_left_is_found(rows, base):
    assert found_in(padded(rows, [0, 0, 1, 1, 1], base)) == [0, 1]


@pytest.mark.parametrize("base", [CAUSAL, ONES], ids=["causal", "complete"])
def test_padding_on_the_right_is_found(base):
    alone = base & torch.tensor([1, 1, 1, 0, 0]).bool()[:, None]
    assert found_in(padded(EYE, [1, 1, 1, 0, 0], alone)) == [3, 4]


ORDINARY = {
    "causal": CAUSAL,
    "complete": ONES,
    "two tokens": CAUSAL[:2, :2],
    "a window": CAUSAL & ONES.triu(-1),
    "documents": blocks(2, 3) & CAUSAL,
    "a document of one token between others": blocks(2, 1, 2),
    "a node alone between others": ONES & ~(torch.arange(COUNT) == 2) | EYE,
    "a class token that all read": CAUSAL | (torch.arange(COUNT) == 0)[:, None],
    "a prefix": CAUSAL | ((torch.arange(COUNT) < 2)[:, None] & (torch.arange(COUNT) < 2)),
    "padding that reads nothing": padded(EYE & ~ONES, [0, 0, 1, 1, 1]),
    "a query that nobody reads": (ONES & (torch.arange(COUNT) < 4)) | EYE,
}


@pytest.mark.parametrize("name", ORDINARY)
def test_other_tokens_are_not_taken_for_padding(name):
    reads = ORDINARY[name]
    if name == "a node alone between others":
        reads = reads & ~((torch.arange(COUNT) == 2)[:, None] & ~EYE)
    assert found_in(reads) == []


@pytest.mark.parametrize("name", ["causal", "complete", "a class token that all read"])
def test_most_masks_need_no_search(name):
    assert not may_be_unread(ORDINARY[name][None, None], 0, COUNT)


@pytest.mark.parametrize(
    ("name", "x", "is_told"),
    [
        ("mask", torch.tensor([[False, False, True, True, True]]), True),
        ("key_padding_mask", torch.tensor([[True, True, False, False, False]]), True),
        ("attention_mask", torch.tensor([[0, 0, 1, 1, 1]]), True),
        ("attn_mask", torch.tensor([[-1e9, -1e9, 0, 0, 0]]), True),
        ("attention_mask", torch.tensor([[1, 1, 0, 0, 0]]), False),
        ("special_tokens_mask", torch.tensor([[1, 1, 0, 0, 0]]), False),
        ("train_mask", torch.tensor([[0, 0, 1, 1, 1]]), False),
        ("is_query", torch.tensor([[True, True, False, False, False]]), False),
        ("labels", torch.tensor([[-100, -100, 3, 1, 2]]), False),
        ("pad_mask", torch.tensor([[1.0, 1, 0, 0, 0]]), True),
        ("positions", torch.tensor([[-2, -1, 0, 1, 2]]), True),
        ("documents", torch.tensor([[0, 0, 1, 1, 1]]), False),
        ("positions", torch.tensor([[0, 0, 0, 1, 2]]), False),
        ("attention_mask", torch.tensor([[0, 0, 0, 1, 1]]), False),
        ("x", torch.tensor([[-1.0, -1, 1, 1, 1]]), False),
    ],
)
@pytest.mark.parametrize("tokens_first", [False, True])
def test_inputs_tell_padding(name, x, is_told, tokens_first):
    reads = padded(EYE, [0, 0, 1, 1, 1])[None]
    inputs = {"given": {name: x.T if tokens_first else x}}
    said = said_padding(inputs, reads, unread(reads, 0), 0, tokens_first=tokens_first)
    assert said.tolist() == [[is_told] * 2 + [False] * 3]


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x, allowed, attention_mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])
        return a.transpose(1, 2).flatten(2)


def captured(masks, **inputs):
    torch.manual_seed(0)
    model, allowed = Attends().eval(), torch.stack(masks)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(torch.randn(len(masks), COUNT, 8), allowed, **inputs)
    return [len(trace.tokens) for trace in run.traces]


@pytest.mark.parametrize("rows", [EYE, ONES], ids=["itself", "all"])
@pytest.mark.parametrize("real", [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1]])
def test_a_mask_that_is_given_tells_padding(rows, real):
    masks = [padded(rows, real), CAUSAL]
    mask = torch.tensor([real, [1] * COUNT])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captured(masks, attention_mask=mask) == [sum(real), COUNT]
    if sum(real) > 1:  # One token is no text.
        with pytest.warns(UserWarning, match="positions count them"):
            assert captured(masks) == [COUNT, COUNT]


def test_texts_of_one_token_and_identities_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = EYE & (torch.arange(COUNT) == 0)
        assert captured([alone, CAUSAL]) == [1, COUNT]
        assert captured([EYE, EYE]) == [COUNT, COUNT]


PAIRS = torch.tensor([[0, 1, 2, 3, 4, 1, 2, 3], [0, 1, 2, 3, 4, 3, 4, 1]])
GRAPH = torch.zeros(COUNT, COUNT, dtype=torch.bool).index_put(
    (PAIRS[0], PAIRS[1]), torch.tensor(True)
)


@pytest.mark.parametrize("reads", [blocks(1, 2, 2), blocks(2, 2, 1), GRAPH])
def test_documents_and_graphs_give_no_warning(reads):
    """Their first or last token is read by no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found_in(reads)
        assert captured([reads, CAUSAL]) == [COUNT, COUNT]


def test_a_mask_of_pairs_for_transformers_gives_a_warning():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=9, num_hidden_layers=1, **sizes)
    model = LlamaForCausalLM(config).eval()
    ids, allowed = torch.arange(COUNT)[None], padded(EYE, [0, 0, 1, 1, 1])
    mask = torch.zeros(1, 1, COUNT, COUNT).masked_fill(~allowed, torch.finfo(torch.float32).min)
    said = pytest.warns(UserWarning, match="positions count them")
    with said, torch.no_grad(), gattn.capturing(model) as run:
        model(ids, attention_mask=mask)
    assert len(run.trace.tokens) == COUNT
