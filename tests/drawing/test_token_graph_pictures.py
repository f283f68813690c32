import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from seen import axes, bars, caption, drawn_edges

from gattn.drawing import draw_token_graph
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph

GRAPHS = {
    "complete": TokenGraph.complete(12),
    "causal": TokenGraph.causal(12),
    "window": TokenGraph.window(12, 3),
    "dilated": TokenGraph.dilated(12, 4, 2),
    "prefix": TokenGraph.prefix(12, 4),
    "documents": TokenGraph.documents([0] * 5 + [1] * 7),
    "strided": TokenGraph.strided(12, 4),
    "longformer": TokenGraph.longformer(12, 1, [0, 6]),
    "bigbird": TokenGraph.bigbird(12, 2, random_blocks=1),
    "self_loops": TokenGraph.self_loops(12),
    "bipartite": TokenGraph.bipartite(4, 6),
    "expander": TokenGraph.expander(12, 2),
    "nearest": TokenGraph.nearest(torch.arange(12.0)[:, None], 3),
    "step": TokenGraph.causal(2, num_keys=8, query_offset=6),
    "difference": TokenGraph.causal(9) - TokenGraph.window(9, 2),
    "union": TokenGraph.disjoint_union([TokenGraph.causal(4), TokenGraph.complete(3)]),
    "edges": TokenGraph.from_edges([(0, 2), (3, 1)], 4),
}
LINKS = ("arcs", "columns", "circle")


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_a_matrix_has_a_cell_for_each_edge(graph):
    ax = graph.draw(ax=axes())
    assert (ax.images[0].get_array().filled(0) == graph.mask().numpy()).all()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    pairs, edges = graph.num_queries * graph.num_keys, graph.num_edges
    all_or = f"all {pairs}" if edges == pairs else f"{edges} of {pairs}"
    assert caption(ax) == f"{all_or} pairs are edges"
    assert not bars(ax)


@pytest.mark.parametrize("layout", [*LINKS, nx.circular_layout])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_lines_are_as_many_as_the_edges(graph, layout):
    ax = graph.draw(layout, ax=axes())
    assert drawn_edges(ax) == graph.num_edges
    assert ax.get_legend() is None


@pytest.mark.parametrize("graph", [TokenGraph.causal(300), TokenGraph.longformer(500, 9, [7])])
def test_cells_of_a_long_text_are_shares_of_blocks(graph):
    ax = graph.draw(ax=Figure((1.5, 1.5)).add_subplot())
    shares = ax.images[0].get_array().filled(0)
    assert len(shares) < 150
    assert shares.mean() * graph.num_queries * graph.num_keys == pytest.approx(graph.num_edges)
    assert 0 < shares[-1, -1] < 1
    assert "cells smaller than a pixel are averaged" in caption(ax)
    assert "share of the pairs that are edges" in [
        a.get_ylabel().replace("\n", " ") for a in bars(ax)
    ]


def test_a_single_edge_of_many_thousand_tokens_shows():
    graph = TokenGraph.from_edges([(4321, 9876)], 10_000)
    ax = graph.draw(ax=axes())
    image = ax.images[0].get_array()
    assert 1 <= image.count() <= 4
    assert image.filled(0).mean() == pytest.approx(1e-8)
    assert caption(ax).startswith("1 of 100,000,000 pairs are edges; cells smaller than a pixel")


@pytest.mark.parametrize("layout", LINKS)
def test_of_many_edges_evenly_some_are_drawn_and_that_is_said(layout):
    graph = TokenGraph.causal(100)
    ax = graph.draw(layout, ax=axes())
    assert "; 4 edges of each query are drawn, chosen by chance" in caption(ax)
    assert drawn_edges(ax) == 1 + 2 + 3 + 97 * 4


def test_tokens_are_written_where_they_are_given():
    words = ["The", "dog", "chased", "$x$"]
    graph = TokenGraph.from_edges([("The", "dog"), ("dog", "chased")], words)
    ax = graph.draw("arcs", tokens=words, ax=axes())
    assert [text.get_text() for text in ax.texts if text.get_gid() == "gattn-label"] == words
    ax = graph.draw(tokens=words, ax=axes())
    assert [text.get_text() for text in ax.get_yticklabels()] == words
    with pytest.raises(ShapeError, match="tokens must be 4 texts, not 3"):
        draw_token_graph(graph, tokens=words[:3])
    ax = graph.draw(labels=False, ax=axes())
    assert not ax.get_yticklabels()


def test_what_is_too_large_is_refused_before_a_figure_is_made():
    documents = torch.arange(200_000) // 3
    for graph in (
        TokenGraph.causal(1_000_000),
        TokenGraph.causal(2**40),
        TokenGraph.documents(documents) | TokenGraph.strided(200_000, 7),
    ):
        said = f"{graph.num_queries:,} queries and .* keys, too many pairs to look at; draw one of"
        with pytest.raises(SelectionError, match=said):
            graph.draw()
    with pytest.raises(SelectionError, match=r"1,000,000 tokens are too many for lines"):
        TokenGraph.self_loops(1_000_000).draw("arcs")
    with pytest.raises(SelectionError, match="too many for lines"):
        TokenGraph.causal(10_000).draw("arcs")
    with pytest.raises(SelectionError, match="No layout 'spiral'"):
        TokenGraph.causal(3).draw("spiral")
    assert plt.get_fignums() == []


def test_a_window_over_many_tokens_is_drawn():
    ax = TokenGraph.window(30_000, 64).draw(ax=axes())
    assert "of 900,000,000 pairs are edges" in caption(ax)


N = 3000
LARGE = {
    "causal": TokenGraph.causal(N),
    "complete": TokenGraph.complete(N),
    "window": TokenGraph.window(N, 700, causal=False),
    "strided": TokenGraph.strided(N, 3),
    "documents": TokenGraph.documents(torch.arange(N) // 900),
    "without": TokenGraph.causal(N) - TokenGraph.window(N, 600),
    "step": TokenGraph.causal(1500, num_keys=N, query_offset=N - 1500),
    "bipartite": TokenGraph.bipartite(2500, 1500),
}


def within(tokens, parts):
    """How much of each token lies in each part, (parts, tokens)."""
    ends, token = np.arange(parts + 1)[:, None] * tokens / parts, np.arange(tokens)
    return np.clip(np.minimum(ends[1:], token + 1) - np.maximum(ends[:-1], token), 0, None)


@pytest.mark.parametrize("graph", LARGE.values(), ids=LARGE)
def test_blocks_hold_the_share_of_their_pairs_that_are_edges(graph):
    ax = graph.draw(ax=axes())
    mask = graph.mask().double().numpy()
    shown = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    down, across = (within(*sizes) for sizes in zip(mask.shape, shown.shape, strict=True))
    shares = down @ mask @ across.T * shown.size / mask.size
    np.testing.assert_allclose(np.nan_to_num(shown), shares, atol=1e-9)
    assert f"{int(mask.sum()):,}" in caption(ax)


def test_causal_attention_over_many_tokens_is_drawn():
    ax = TokenGraph.causal(30_000).draw(ax=axes())
    assert "450,015,000 of 900,000,000 pairs are edges" in caption(ax)


def test_no_tokens_are_drawn_too():
    assert caption(TokenGraph.complete(0).draw(ax=axes())) == "all 0 pairs are edges"
    for layout in LINKS:
        TokenGraph.complete(0).draw(layout, ax=axes())


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 50})
def test_token_graphs_as_matrices():
    figure, grid = plt.subplots(3, 6, figsize=(13, 7.5), layout="constrained")
    for ax, (name, graph) in zip(grid.flat, GRAPHS.items(), strict=False):
        graph.draw(ax=ax, labels=False).set_title(name)
    return figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 50})
def test_token_graph_as_lines():
    figure, grid = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for ax, layout in zip(grid, LINKS, strict=True):
        GRAPHS["longformer"].draw(layout, ax=ax)
    return figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 50}, style="dark_background")
def test_token_graph_in_blocks_on_a_dark_background():
    return TokenGraph.longformer(1500, 100, [400]).draw().figure
