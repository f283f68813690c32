"""A stack of several is drawn like the trace of a single one."""

from inspect import signature

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scenes import cross_head, landscape, picture_trace

from gattn import AttentionTrace
from gattn.errors import SelectionError
from gattn.heads.stack import Stack

OF_A_RUN = {"from_arrays", "from_pandas", "generated", "heads", "logits", "model", "only_stack"}
OF_A_RUN |= {"predictions", "save", "text"}


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def two():
    """A trace of a vision transformer, and this beside another stack."""
    alone = picture_trace()
    (name,) = alone.stacks
    words = {(0, 0): cross_head(5, 25), (1, 0): cross_head(5, 25)}
    return alone, AttentionTrace({name: alone[name], "cross": Stack("cross", words)}, "vit")[name]


def test_a_stack_has_the_methods_of_a_trace_but_for_those_of_its_run():
    assert public(AttentionTrace) - public(Stack) == OF_A_RUN
    for name in public(AttentionTrace) & public(Stack):
        one, other = getattr(AttentionTrace, name), getattr(Stack, name)
        if callable(one):
            assert signature(one) == signature(other)


@pytest.mark.parametrize(
    "draw",
    [
        lambda shown: shown.draw_image(landscape(), query=(1, 2)),
        lambda shown: shown.draw_image(landscape(), query=(1, 2), heads="1.2"),
        lambda shown: shown.draw_overlay(heads="0.1,1.2"),
        lambda shown: shown.draw_text(3),
        lambda shown: shown.draw_text(3, heads=[(1, 2)]),
        lambda shown: shown.at_times(0.5).draw_time(3),
        lambda shown: shown.with_layout(np.random.default_rng(0).random((25, 2))).draw_graph(3),
        lambda shown: shown.draw(),
        lambda shown: shown.unroll().draw(),
    ],
)
def test_pictures_are_those_of_a_trace_of_this_stack_alone(draw):
    alone, stack = two()
    pixels = []
    for shown in (alone, stack):
        found = draw(shown)
        figure = getattr(found, "figure", found)
        figure.canvas.draw()
        pixels.append(np.asarray(figure.canvas.buffer_rgba()).copy())
        plt.close(figure)
    one, other = pixels
    assert one.shape == other.shape
    assert (one != other).any(-1).mean() < 0.03  # titles name the model
    assert one.min() < 255


def test_other_results_are_those_of_a_trace_of_this_stack_alone():
    alone, stack = two()
    one, other = alone.summary(), stack.summary()
    pd.testing.assert_frame_equal(pd.DataFrame(one), pd.DataFrame(other))
    pages = alone.to_html(), stack.to_html()
    assert len(pages[0]) == pytest.approx(len(pages[1]), rel=1e-3)
    assert stack.to_html(heads="1.2")
    assert stack.to_html(other=stack)


def test_a_stack_refuses_the_name_of_another():
    _, stack = two()
    for draw in (stack.draw_text, stack.draw_overlay):
        with pytest.raises(SelectionError, match="leave out stack='cross'"):
            draw(heads="cross:0.0")
    with pytest.raises(SelectionError, match="No stack 'cross'"):
        stack.draw_image(landscape(), stack="cross")
