"""Analyses of arrays take the tokens' texts, and then say what they say of a trace."""

from inspect import signature

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from matplotlib.text import Text

from gattn import AttentionTrace, TokenGraph, analysis
from gattn.drawing import draw_compare, draw_heads
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
    "head_distances": {"queries": [",", 0], **QUIET},
}
PER_HEAD = {
    "barcode": QUIET,
    "effective_rank": QUIET,
    "graph_frequencies": QUIET,
    "mixing": QUIET,
    "rank_collapse": {},
    "spectral_table": QUIET,
    "topology_table": QUIET,
}
"""Analyses whose results have no axis of tokens."""


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


def test_every_analysis_of_arrays_takes_tokens():
    takes = {
        name
        for name in analysis.__all__
        if {"attention", "given", "before"} & set(signature(getattr(analysis, name)).parameters)
    }
    assert takes == {*ANALYSES, *PER_HEAD, "arborescence", "compare", "without_tokens"}
    for name in takes:
        assert "tokens" in signature(getattr(analysis, name)).parameters, name


@pytest.mark.parametrize("name", PER_HEAD)
def test_tokens_change_nothing_where_none_are_named(name):
    function = getattr(analysis, name)
    same(function(LAYERS, tokens=WORDS, **PER_HEAD[name]), function(LAYERS, **PER_HEAD[name]))
    with pytest.raises(ShapeError, match="tokens has 4 texts, but there are 5 tokens"):
        function(LAYERS, tokens=WORDS[:4], **PER_HEAD[name])


DRAWN = [
    "rollout",
    "flow",
    "pagerank",
    "stationary",
    "bounces",
    "centrality",
    "communities",
    "reach",
]
DRAWN += ["walks", "oversquashing", "bottlenecks", "best_edges"]
LONG = ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_of_arrays_name_tokens(name):
    drawn = getattr(analysis, name)(LAYERS, tokens=LONG, **ANALYSES[name]).draw()
    seen = " ".join(text.get_text() for text in drawn.get_figure().findobj(Text))
    assert {"second", "fourth"} <= set(seen.replace("␣", " ").split()), seen


def test_heads_of_arrays_are_drawn_with_their_tokens():
    changed = LAYERS.flip(0)
    for figure in (
        draw_heads(LAYERS.numpy(), tokens=LONG, heads=[(1, 2)]),
        draw_compare(LAYERS, changed, tokens=LONG, heads=[(1, 2)]),
    ):
        seen = [text.get_text() for text in figure.findobj(Text)]
        assert set(LONG) <= set(seen)
    for draw in (
        lambda: draw_heads(AttentionTrace.from_arrays(LAYERS), tokens=LONG),
        lambda: draw_compare(LAYERS, AttentionTrace.from_arrays(changed), tokens=LONG),
    ):
        with pytest.raises(SelectionError, match="out with AttentionTrace"):
            draw()


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
