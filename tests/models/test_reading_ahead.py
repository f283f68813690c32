"""Predictions of the next token, asked of models whose tokens have read it."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import transformers

import gattn
from gattn import TokenGraph
from gattn.analysis import routes
from gattn.errors import SelectionError
from gattn.models.read.places import Side
from gattn.models.watch.reading_ahead import ReadingAhead

IDS = [3, 1, 4, 1, 5, 9]
SIZES = {"vocab_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
CUT = [gattn.Cut(layer=0, head=1)]
TWO = {"target": 3, "other": 4}
ASKED = {
    "effect": lambda model, **more: gattn.effect(IDS, CUT, model, progress=False, **more),
    "estimate": lambda model, **more: gattn.estimate(
        IDS, model, **TWO, sample=0, progress=False, **more
    ),
    "circuit": lambda model, **more: gattn.circuit(
        IDS, model, **TWO, units="heads", progress=False, **more
    ),
    "routes": lambda model, **more: routes(IDS, model, progress=False, **more),
}


def bert(is_decoder):
    config = transformers.BertConfig(**SIZES, intermediate_size=32, is_decoder=is_decoder)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return transformers.BertLMHeadModel(config).eval()


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_model_whose_tokens_read_later_ones_has_no_next_token(asked):
    """Bert's language model generates, but reads the whole text unless it is told not to."""
    both = bert(is_decoder=False)
    with torch.no_grad():
        one, other = (both(torch.tensor([ids])).logits[0, 0] for ids in (IDS, [*IDS[:-1], 0]))
    assert not torch.equal(one, other)
    with pytest.raises(SelectionError, match=r"[Pp]ass position=, the token"):
        asked(both)
    asked(both, position=-1)
    asked(bert(is_decoder=True))


def test_the_loss_of_tokens_that_were_read_is_refused():
    with pytest.raises(SelectionError, match="up to position 0 read later ones: load the model wi"):
        ASKED["effect"](bert(is_decoder=False), metric="loss")
    with pytest.raises(SelectionError, match="up to position 3 read later ones"):
        ASKED["effect"](bert(is_decoder=False), metric="loss", position=3)
    ASKED["effect"](bert(is_decoder=True), metric="loss")


def test_where_tokens_are_read_past_is_what_all_pairs_say():
    generator = np.random.default_rng(0)
    for _ in range(30):
        edges = generator.random((7, 7)) < 0.15
        edges |= np.eye(7, dtype=bool)
        edges[3:5, :2] = True
        graph = TokenGraph.from_mask(torch.from_numpy(edges))
        order = torch.from_numpy(generator.permutation(7))  # which token each slot is
        side = Side(torch.arange(7), 0, order)
        expected = {
            n
            for n in range(7)
            for query in range(7)
            for key in range(7)
            if edges[query, key] and order[query] <= n < order[key]
        }
        ahead = ReadingAhead()
        ahead.note(graph, side, side)
        assert ahead.past == expected
        last = int(order.argmax())
        assert ahead.reads_last == any(edges[n, last] for n in range(7) if n != last)
    causal, side = TokenGraph.causal(2, num_keys=6, query_offset=4), Side(torch.arange(2), 4)
    ahead = ReadingAhead()
    ahead.note(causal, side, Side(torch.arange(6), 0))
    assert not ahead.past
    assert not ahead.reads_last


def test_the_last_token_of_a_window_is_not_that_of_the_sequence():
    """Windows that read themselves as wholes, of which the last one holds the last token alone."""
    ahead = ReadingAhead()
    for positions in ([0, 1, 2], [3, 4, 5], [6, 7, 7]):
        side = Side(torch.arange(3), 0, torch.tensor(positions), count=7)
        ahead.note(TokenGraph.complete(3), side, side)
    assert ahead.past == {0, 1, 3, 4}
    assert not ahead.reads_last


def test_rules_of_intervals_say_what_their_edges_say():
    for graph in (TokenGraph.window(9, 2), TokenGraph.causal(9), TokenGraph.complete(9)):
        side, known = Side(torch.arange(9), 3), []
        for one in (graph, TokenGraph.from_mask(graph.allowed(slice(0, 9), slice(0, 9)))):
            known.append(ReadingAhead())
            known[-1].note(one, side, side)
        assert known[0].past == known[1].past


def test_a_prefix_that_reads_itself_as_a_whole_leaves_the_last_token_its_prediction():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, intermediate_size=32)
    model = transformers.LlamaForCausalLM(config).eval()
    allowed = torch.ones(6, 6).tril().bool()
    allowed[:4, :4] = True
    mask = torch.zeros(1, 1, 6, 6).masked_fill(~allowed, torch.finfo(torch.float32).min)
    inputs = {"input_ids": torch.tensor([IDS]), "attention_mask": mask}
    assert len(gattn.effect(inputs, CUT, model, progress=False)) == 1
    inputs["attention_mask"] = torch.zeros(1, 1, 6, 6)
    with pytest.raises(SelectionError, match="the last one is read by others: pass position="):
        gattn.effect(inputs, CUT, model, progress=False)


def of_all(size):
    """Attention of each token to all, the later ones too."""
    return gattn.AttentionTrace.from_arrays(np.full((1, 1, size, size), 1 / size))[0, 0]


def llama(attention="eager"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, intermediate_size=32, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config).eval()


def first_logits(model):
    """The logits of the first token, with two different last ones."""
    with torch.no_grad():
        texts = torch.tensor([IDS, [*IDS[:-1], 0]])
        return [model(ids[None]).logits[0, 0] for ids in texts]


@pytest.mark.parametrize("head", [0, 1])
def test_an_edit_by_which_tokens_read_later_ones_leaves_no_next_token(head):
    """It may be of a head that is not the first, and in a layer that is not captured."""
    model = llama()
    assert torch.equal(*first_logits(model))
    assert gattn.capture(IDS, model).predictions.shift == 1
    with gattn.edited(model, gattn.Use(of_all(6), layer=0, head=head)):
        assert not torch.equal(*first_logits(model))
        assert gattn.capture(IDS, model).predictions is None
        assert gattn.capture(IDS, model, keep=gattn.TopK(1)).predictions is None
        assert gattn.capture(IDS, model, heads=0).predictions is None
        assert gattn.capture(IDS, model, layers=1).predictions is None
        with pytest.raises(SelectionError, match=r"pass position="):
            ASKED["effect"](model)
        with pytest.raises(SelectionError, match="up to position 0 read later ones"):
            ASKED["effect"](model, metric="loss")


def test_an_edit_by_which_no_token_reads_later_ones_leaves_its_next_one():
    model = bert(is_decoder=False)
    with gattn.edited(model, gattn.Restrict(TokenGraph.causal(6))):
        assert torch.equal(*first_logits(model))
        assert gattn.capture(IDS, model).predictions.shift == 1
        ASKED["effect"](model)
        ASKED["effect"](model, metric="loss")
    assert gattn.capture(IDS, model).predictions is None


def test_what_was_read_ahead_is_known_where_few_edges_are_kept():
    """Tokens read the next one alone, besides themselves: no row has more edges than are causal."""
    model = llama()
    allowed = torch.eye(6, dtype=torch.bool) | torch.eye(6, dtype=torch.bool).roll(1, 1)
    allowed[0, 1] = allowed[-1, 0] = False
    mask = torch.zeros(1, 1, 6, 6).masked_fill(~allowed, torch.finfo(torch.float32).min)
    inputs = {"input_ids": torch.tensor([IDS]), "attention_mask": mask}
    for keep in (gattn.All(), gattn.Threshold(0.99)):
        with gattn.capturing(model, keep=keep) as run, torch.no_grad():
            model(**inputs)
        assert run.trace.predictions is None
    own = (torch.eye(6, dtype=torch.bool), torch.tensor(0.0))
    inputs["attention_mask"] = torch.where(*own, torch.finfo(torch.float32).min)[None, None]
    with gattn.capturing(model) as run, torch.no_grad():
        model(**inputs)
    assert run.trace.predictions.shift == 1


class Extra(torch.nn.Module):
    """Attention of torch's own, with keys that are no tokens; a row of logits for each token."""

    def __init__(self, *, is_causal):
        super().__init__()
        torch.manual_seed(0)
        more = {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}
        self.attend = torch.nn.MultiheadAttention(16, 2, **more)
        self.mask = torch.ones(6, 6).triu(1).bool() if is_causal else None

    def forward(self, x):
        return self.attend(x, x, x, attn_mask=self.mask, need_weights=False)[0]


@pytest.mark.parametrize("is_edited", [False, True])
def test_keys_that_are_no_tokens_are_none_that_come_later(is_edited):
    x = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))

    def asked(is_causal, **more):
        model = Extra(is_causal=is_causal).eval()
        cut = gattn.Cut(layer=0, head=0, query=5)
        with torch.no_grad(), gattn.edited(model, cut) if is_edited else nullcontext():
            return gattn.effect(
                lambda: model(x)[0], [gattn.Cut(layer=0, head=1)], model, progress=False, **more
            )

    assert len(asked(is_causal=True)) == len(asked(is_causal=False, position=0)) == 1
    with pytest.raises(SelectionError, match="tokens read later ones"):
        asked(is_causal=False)
