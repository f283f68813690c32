"""Predictions of the next token, asked of models whose tokens have read it."""

import numpy as np
import pytest
import torch
import transformers

import gattn
from gattn import TokenGraph
from gattn.analysis import routes
from gattn.errors import SelectionError
from gattn.models.read.masks import is_last_read, read_past
from gattn.models.read.places import Side

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
        assert set(read_past(graph, side, side)) == expected
        assert (5 in expected) == is_last_read(graph, side, side)
    causal, side = TokenGraph.causal(2, num_keys=6, query_offset=4), Side(torch.arange(2), 4)
    assert read_past(causal, side, Side(torch.arange(6), 0)) == []


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
