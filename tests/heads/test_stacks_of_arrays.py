"""Arrays of a batch, and of several stacks."""

import numpy as np
import pytest
import torch
import transformers
import xarray as xr

import gattn
from gattn import AttentionTrace, TokenGraph, TopK
from gattn.errors import GraphError, SelectionError, ShapeError


def softmaxed(*shape):
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()
    return scores.softmax(-1)


def test_one_text_of_a_batch_is_taken():
    values = softmaxed(2, 3, 4, 4).requires_grad_()
    for form in (
        values[:, None],
        values.detach().numpy()[:, None],
        [layer[None] for layer in values],
    ):
        trace = AttentionTrace.from_arrays(form, list("abcd"))
        for (layer, head), graph in trace.only_stack.items():
            np.testing.assert_array_equal(graph.to_dense(), values[layer, head].detach())
    batch = torch.stack([values, values], 1)
    for form, message in (
        (batch, r"batch of 2 texts: choose one, as in attention\[:, 0\]"),
        (list(batch), r"Layer 0 holds a batch of 2 texts: choose one, as in \[layer\[0\]"),
    ):
        with pytest.raises(ShapeError, match=message):
            AttentionTrace.from_arrays(form)
    assert len(AttentionTrace.from_arrays(batch[:, 1])) == 6


def test_the_stacks_of_an_encoder_decoder_model_are_named():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(
        vocab_size=11, decoder_start_token_id=0, attn_implementation="eager", **sizes
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = {"input_ids": torch.tensor([[1, 5, 3]]), "decoder_input_ids": torch.tensor([[0, 2]])}
    with torch.no_grad():
        output = model(**ids, output_attentions=True)
    with pytest.raises(ShapeError, match=r"output\.cross_attentions"):
        AttentionTrace.from_arrays(output)
    words, answer = ["a", "b", "c"], ["x", "y"]
    mine = AttentionTrace.from_arrays(
        {
            "encoder": output.encoder_attentions,
            "decoder": output.decoder_attentions,
            "cross": output.cross_attentions,
        },
        tokens={"encoder": words, "decoder": answer, "cross": words},
        query_tokens={"cross": answer},
    )
    live = gattn.capture(ids, model)
    assert mine.stacks.keys() == live.stacks.keys()
    for name, stack in live.stacks.items():
        for place, head in stack.items():
            assert repr(mine[name][place].graph) == repr(head.graph)
            np.testing.assert_allclose(mine[name][place].to_dense(), head.to_dense(), atol=1e-6)
    assert mine["cross"][1, 0].query_tokens == ("x", "y")
    assert mine["cross"].tokens == words


def test_what_stacks_share_and_what_they_do_not():
    square, wide = softmaxed(1, 2, 3, 3), softmaxed(1, 2, 2, 3)
    both = {"one": square, "two": wide}
    shared = AttentionTrace.from_arrays(both, ["a", "b", "c"], keep=TopK(1))
    assert [stack.tokens for stack in shared.stacks.values()] == [["a", "b", "c"]] * 2
    graphs = {"one": TokenGraph.complete(3)}
    assert AttentionTrace.from_arrays(both, graph=graphs)["two"][0, 0].graph.is_bipartite
    labelled_stacks = xr.Dataset({"one": (("layer", "head", "query", "key"), square.numpy())})
    assert AttentionTrace.from_arrays(labelled_stacks)["one"][0, 1].graph.num_edges == 9
    for wrong, options, error, message in (
        (
            both,
            {"query_tokens": ["x", "y"]},
            SelectionError,
            r"which has these query_tokens.*'two'",
        ),
        (both, {"tokens": {"three": []}}, SelectionError, "names the stack 'three'"),
        (both, {"tokens": ["a", "b"]}, ShapeError, "Stack 'one': tokens must have 3 entries"),
        (both, {"graph": {"two": "causal"}}, GraphError, "Stack 'two': graph must be a TokenGraph"),
        ({}, {}, ShapeError, "mapping of their names"),
        ({0: square}, {}, ShapeError, "mapping of their names"),
        (None, {}, ShapeError, "There is no attention"),
    ):
        with pytest.raises(error, match=message):
            AttentionTrace.from_arrays(wrong, **options)
