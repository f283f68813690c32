"""Long names of stacks and models break into lines, or are shortened, and are never cut."""

from dataclasses import replace

import matplotlib as mpl
import pytest
from meeting import problems
from sample_heads import causal_head

import gattn
from gattn import AttentionTrace
from gattn.drawing.canvas.labels import width_of
from gattn.heads.stack import Stack
from gattn.names.shortening import short_names
from gattn.names.text import wrapped

LONG = [f"model.encoder.backbone.stages.{n}.blocks.attention" for n in (2, 3)]
PLACES = [(layer, head) for layer in range(2) for head in range(3)]
TRACE = AttentionTrace(
    {
        name: Stack(name, {place: causal_head(9, seed=n + sum(place)) for place in PLACES})
        for n, name in enumerate(LONG)
    },
    "someone-s-models/with-a-long-name-base-patch16-224-in21k",
)
HEADS = [replace(TRACE[name][0, 1], stack=name) for name in LONG]


def test_names_break_after_dots_and_no_line_begins_with_one():
    said = wrapped(f"{LONG[0]} · layer 0 · head 1", 16.0, width_of)
    assert said.replace("\n", "") == f"{LONG[0]}layer 0 · head 1"
    assert all(width_of(line) <= 16.0 for line in said.split("\n"))
    assert not any(line.startswith((".", "·")) or line.endswith("·") for line in said.split("\n"))
    assert wrapped("a · b", 100.0, width_of) == "a · b"
    assert wrapped("0.43 and 1.25", 2.0, width_of) == "0.43\nand 1.25"


def test_a_number_keeps_what_it_counts():
    assert short_names(LONG, 16.0) == ["stages.2", "stages.3"]
    names = ["model.encoder.self_attn", "model.decoder.self_attn"]
    assert short_names(names, 8.0) == ["encoder", "decoder"]


@pytest.mark.parametrize("layout", ["matrix", "arcs", "circle", "columns"])
@pytest.mark.parametrize("size", [(3.3, 2.4), (2.25, 2.2)])
def test_the_title_of_a_head_fits(layout, size):
    with mpl.rc_context({"font.size": 7}):
        assert not problems(HEADS[0].draw(layout, figsize=size).figure)


@pytest.mark.parametrize("layout", ["arcs", "circle", "columns"])
def test_heads_of_two_stacks_leave_their_picture_room(layout):
    with mpl.rc_context({"font.size": 7}):
        ax = gattn.drawing.draw_overlay(HEADS, layout, figsize=(3.3, 2.4))
        assert not problems(ax.figure)
    assert ax.get_title() == "heads stages.2:1.3, stages.3:1.3"
    assert ax.get_legend().get_window_extent().width < 0.35 * ax.figure.bbox.width


@pytest.mark.parametrize("options", [{}, {"label": "label"}, {"sort": "induction"}])
@pytest.mark.parametrize("size", [(3.3, 4.2), (6.75, 4)])
def test_the_titles_of_stacks_fit(options, size):
    with mpl.rc_context({"font.size": 7}):
        assert not problems(TRACE.draw(figsize=size, **options))
