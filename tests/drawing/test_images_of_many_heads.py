"""Pictures of many heads, as they look."""

import dataclasses

import numpy as np
import pytest
from matplotlib import pyplot as plt
from sample_heads import bipartite_head, causal_head, signed_head

from gattn.drawing import draw_compare, draw_heads
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

image = pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})


def trace(seed=0, *, layers=2, heads=4, size=8, **fields):
    found = {
        (layer, head): causal_head(
            size, seed=seed + 10 * layer + head, layer=layer, head=head, **fields
        )
        for layer in range(layers)
        for head in range(heads)
    }
    return AttentionTrace({"decoder": Stack("decoder", found)}, "tiny")


def grouped(trace):
    heads = {
        place: dataclasses.replace(head, key_value_head=place[1] // 2)
        for place, head in trace.only_stack.items()
    }
    return dataclasses.replace(trace, stacks={"decoder": Stack("decoder", heads)})


@image
def test_all_heads_with_groups_labels_and_generated_tokens():
    return draw_heads(grouped(trace(generated=3)), label="entropy")


@image
def test_heads_sorted_by_a_score():
    return draw_heads(trace(), sort="entropy")


@image
def test_heads_sorted_within_layers():
    return draw_heads(trace(layers=3, heads=3), sort="entropy", within_layers=True)


@image
def test_a_strip_of_heads_with_a_sink():
    sink = np.linspace(0.1, 0.9, 8)
    return draw_heads(trace(sink=sink), heads=[(0, 1), (1, 0), (1, 3)], label="label")


@image
def test_two_stacks_of_heads():
    cross = dataclasses.replace(bipartite_head(), layer=0, head=0)
    stacks = {
        "decoder": trace(layers=1, heads=3).only_stack,
        "cross": Stack("cross", {(0, 0): cross, (0, 2): cross}),
    }
    return draw_heads(AttentionTrace(stacks, "tiny"))


@image
def test_signed_heads():
    heads = [dataclasses.replace(signed_head(), layer=0, head=head) for head in range(3)]
    return draw_heads(heads)


@image
def test_heads_of_a_long_text_with_few_edges_kept():
    from gattn.keep import TopK

    heads = [causal_head(300, seed=head, layer=0, head=head).keep(TopK(3)) for head in range(4)]
    return draw_heads(heads)


@image
def test_heads_before_and_after():
    return draw_compare(trace(), trace(50), edits="cut 0.1")


@image
def test_heads_before_and_after_one_below_the_other():
    sides = (
        [
            causal_head(8, seed=seed + head, layer=None, head=head, weight_function=name)
            for head in range(5)
        ]
        for seed, name in ((0, "ScaledDotProduct()"), (40, "SquaredDistance(c=1.0)"))
    )
    return draw_compare(*sides)


@image
def test_chosen_heads_before_and_after_on_black():
    with plt.style.context("dark_background"):
        return draw_compare(trace(), trace(50), heads=[(0, 1), (1, 2)], sort="distance")
