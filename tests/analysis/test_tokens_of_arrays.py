"""Analyses of arrays take the tokens' texts, and then say what they say of a trace."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from gattn import AttentionTrace, TokenGraph, analysis
from gattn.errors import SelectionError, ShapeError

WORDS = ["a", "b", ",", "a", "b"]
QUIET = {"progress": False}


def softmaxed(*shape):
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()
    return scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -torch.inf).softmax(-1)


LAYERS = softmaxed(2, 3, 5, 5)
ANALYSES = {
    "rollout": {},
    "flow": QUIET,
    "best_edges": QUIET,
    "pagerank": QUIET,
    "stationary": QUIET,
    "bounces": {"query": 3},
    "template_distances": {},
    "head_table": QUIET,
    "laplacian_eigenvalues": {},
    "centrality": {"measure": nx.pagerank, **QUIET},
    "communities": QUIET,
    "reach": QUIET,
    "walks": QUIET,
    "oversquashing": {},
    "bottlenecks": {"key": 0, "query": 4},
}


def same(found, expected):
    if isinstance(expected, xr.DataArray):
        xr.testing.assert_allclose(found, expected)
    else:
        pd.testing.assert_frame_equal(pd.DataFrame(found), pd.DataFrame(expected))


@pytest.mark.parametrize("form", ["tensor", "array", "attentions", "labelled"])
@pytest.mark.parametrize("name", ANALYSES)
def test_arrays_with_tokens_are_read_as_their_trace(name, form):
    given = {
        "tensor": LAYERS,
        "array": LAYERS.numpy(),
        "attentions": tuple(layer[None] for layer in LAYERS),
        "labelled": xr.DataArray(LAYERS.numpy(), dims=("layer", "head", "query", "key")),
    }[form]
    function = getattr(analysis, name)
    found = function(given, tokens=WORDS, **ANALYSES[name])
    expected = function(AttentionTrace.from_arrays(LAYERS, WORDS), **ANALYSES[name])
    if isinstance(expected, pd.DataFrame) and "stack" in expected.index.names:
        expected = expected.rename({"attention": ""}, level="stack")
    if name == "head_table":  # an array's zeros are no edges
        assert np.isfinite(found["induction"]).all()
    same(found, expected)


def test_trees_comparisons_and_omissions_of_arrays_name_tokens():
    tree = analysis.arborescence(LAYERS[0, 0], tokens=WORDS)
    assert [tree.nodes[n]["token"] for n in tree] == WORDS
    table = analysis.compare(LAYERS, LAYERS.flip(0), tokens=WORDS, progress=False)
    assert table["query"].notna().all()
    assert table["query_token"].tolist() == [WORDS[n] for n in table["query"]]
    left = analysis.without_tokens(LAYERS, [","], tokens=WORDS)
    assert left.tokens == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (AttentionTrace.from_arrays(LAYERS, WORDS), SelectionError, "out with AttentionTrace"),
        ([AttentionTrace.from_arrays(LAYERS, WORDS)[0, 0]], SelectionError, "has its own"),
        (softmaxed(2, 2, 4, 4), ShapeError, "tokens has 5 texts, but there are 4 tokens"),
        (softmaxed(2, 2, 4, 5), ShapeError, "from_arrays"),
    ],
)
def test_tokens_that_cannot_be_theirs_are_refused(given, error, message):
    for name in ("rollout", "head_table"):
        with pytest.raises(error, match=message):
            getattr(analysis, name)(given, tokens=WORDS)


def test_tokens_are_texts_and_token_graphs_have_none():
    with pytest.raises(ShapeError, match="list of texts"):
        analysis.rollout(LAYERS, tokens="ab,ab")
    with pytest.raises(SelectionError, match="TokenGraph"):
        analysis.reach(TokenGraph.causal(5), tokens=WORDS)
    labelled = xr.DataArray(LAYERS.numpy(), dims=("layer", "head", "query", "key"))
    rolled = analysis.rollout(labelled, tokens=WORDS)
    with pytest.raises(SelectionError, match="has its own"):
        analysis.rollout(rolled, tokens=WORDS)
