"""One head in each layout, as pictures that were looked at."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure
from sample_heads import bipartite_head, causal_head, decoding_step, signed_head, uniform_head

from gattn.drawing import draw_head
from gattn.heads.head import AttentionGraph
from gattn.keep import TopK

LAYOUTS = ("arcs", "columns", "circle", "matrix")
HOSTILE = ["$x^2$", "a\nb", "\0", "antidisestablishment", "\u202eevil", "", "  ", "<b>"]


def complete_head(size, **attributes):
    attention = np.random.default_rng(3).dirichlet(np.full(size, 0.3), size)
    return AttentionGraph.from_dense(attention, layer=0, head=2, **attributes)


def sheet(heads, size=(15, 8.5)):
    figure = Figure(size, layout="constrained")
    rows = figure.subplots(len(heads), 4, squeeze=False)
    for row, head in zip(rows, heads, strict=True):
        for ax, layout in zip(row, LAYOUTS, strict=True):
            draw_head(head, layout, ax=ax)
    figure.draw_without_rendering()  # Axes of equal scales take the layout engine two rounds.
    return figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 45})
def test_causal_head_and_complete_head_in_each_layout():
    return sheet([causal_head(7), complete_head(7)])


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 45})
def test_cross_attention_and_decoding_step_in_each_layout():
    return sheet([bipartite_head(), decoding_step()])


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 45})
def test_signed_attention_and_sink_in_each_layout():
    sink = dataclasses.replace(causal_head(7), sink=np.linspace(0.9, 0.2, 7))
    return sheet([signed_head(), sink])


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 45}, style="dark_background")
def test_half_kept_head_and_signed_attention_in_each_layout_on_a_dark_background():
    return sheet([causal_head(7).keep(TopK(2)), signed_head()])


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 45})
def test_hostile_tokens_in_each_layout():
    return sheet([complete_head(8, tokens=HOSTILE)], (18, 5))


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 32})
def test_sixty_tokens_and_uniform_attention_in_each_layout():
    return sheet([causal_head(60), uniform_head(60)], (24, 13))


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 32})
def test_five_hundred_tokens_in_each_layout():
    return sheet([uniform_head(500)], (26, 7))


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_scores_of_a_head_as_a_matrix():
    head = causal_head(7)
    return draw_head(
        dataclasses.replace(head, score=np.log(head.attention)), "matrix", values="score"
    ).figure
