import dataclasses
import io
from itertools import pairwise

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import problems
from sample_heads import bipartite_head, causal_head, decoding_step, signed_head, uniform_head
from seen import caption

import gattn
from gattn.drawing import draw_text
from gattn.drawing.canvas import fonts
from gattn.drawing.one_head.prose.setting import Words
from gattn.errors import SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK

PROSE = (
    *("The", "anti", "dis", "establish", "ment", "wizard", "(", "of", "course", ")"),
    *("slept", ",", "then", "woke", ".", "\n", "He", "read", "the", "news"),
)
WORDS = (0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
HOSTILE = [
    "$x_1$",
    "a\nb",
    "\0",
    "中文",
    "مرحبا",
    "🙂\u200d👧",
    "",
    "   ",
    "\u202eevil",
    "<b>&",
    "\\frac",
]


def prose_head(**attributes):
    return causal_head(len(PROSE), tokens=PROSE, words=WORDS, **attributes)


def written(ax):
    return [text for text in ax.texts if text.get_gid() == "gattn-label"]


def boxes(ax, gid="gattn-shades"):
    found = [c for c in ax.collections if c.get_gid() == gid]
    return [path.vertices for c in found for path in c.get_paths()]


def lines_of(tokens, words=(), width=30.0):
    found = Words.of(tokens, words).set(width)
    lines = [""] * found.lines
    for text, row, starts in zip(found.texts, found.line, found.starts_word, strict=True):
        lines[row] += (" " if starts and lines[row] else "") + text
    return lines


def test_parts_of_a_word_stand_together_and_punctuation_follows_its_word():
    assert lines_of(PROSE, WORDS, width=25) == [
        "The antidisestablishment wizard (of course)",
        "slept, then woke. ↵",
        "He read the news",
    ]


def test_spaces_of_the_tokens_are_kept_where_they_have_any():
    assert lines_of(["def", " f", "(", "x", ")", ":", "\n", "    return", " x"]) == [
        "def f(x): ↵".replace(" ↵", "↵"),
        "return x",
    ]
    found = Words.of(["a:", "\n", "    b"], ()).set(30)
    assert found.left[2] == pytest.approx(4 * 0.34)


@pytest.mark.parametrize("blank", [" ", "  ", " \n"])
def test_a_token_of_spaces_alone_does_not_take_the_others_theirs(blank):
    tokens = ["The", "fox", ".", blank, "It", "ran"]
    assert Words.of(tokens, (0, 1, 2, 3, 4, 5)).spaces[1:] == [1, 0, 1, int("\n" not in blank), 1]


def test_tokens_that_say_nothing_of_spaces_stand_apart_but_for_parts_of_words():
    assert lines_of(["play", "##ing", "chess"]) == ["playing chess"]
    assert lines_of(["12", "7", "33"]) == ["12 7 33"]


def test_a_word_that_fits_in_a_line_never_breaks():
    found = Words.of(["a", "ma", "il", "is", "es", "tab", "lish", "ment"], (0, 1, 1, 2, 3, 4, 4, 4))
    for width in np.linspace(2.5, 12, 200):
        line = found.set(width).line
        for first, stop in found.runs:
            alone = Words.of(found.texts[first:stop], (0,) * (stop - first)).width
            assert (line[first] == line[stop - 1]) == (alone <= width)


def test_a_word_longer_than_a_line_breaks_between_its_tokens():
    assert lines_of(["abcdefgh"] * 4, (0, 0, 0, 0), width=11) == ["abcdefgh" * 2] * 2


@pytest.mark.parametrize("width", [12.0, 30.0, 52.0])
def test_boxes_of_a_line_never_overlap_and_stay_within_its_width(width):
    found = Words.of([f"word{i % 13}" for i in range(500)], ()).set(width)
    assert (found.right <= width).all()
    same_line = np.diff(found.line) == 0
    assert (found.left[1:][same_line] >= found.right[:-1][same_line]).all()
    assert set(np.diff(found.line)) <= {0, 1}


def test_parts_of_one_word_touch():
    found = Words.of(["anti", "dis", "wizard"], (0, 0, 1)).set(30)
    assert found.left[1] == found.right[0]
    assert found.left[2] > found.right[1]


def test_each_token_is_shaded_by_what_the_query_gives_to_it():
    head = prose_head()
    ax = draw_text(head, 12)
    assert len(boxes(ax)) == 13
    shades = next(c for c in ax.collections if c.get_gid() == "gattn-shades")
    attention = head.to_dense()[12, :13]
    lightness = shades.get_facecolors()[:, :3].sum(1)
    assert (np.diff(lightness[np.argsort(attention)]) <= 0).all()
    assert caption(ax) == "query 12 “then” reads: all 13 edges"
    assert ax.get_title() == "layer 1 · head 3"


def test_by_default_the_last_query_is_shown_and_it_is_outlined():
    ax = draw_text(prose_head())
    assert caption(ax).startswith("query 19 “news” reads")
    (outline,) = boxes(ax, "gattn-outline")
    last = written(ax)[-1].get_position()
    assert outline[:, 0].min() < last[0] < outline[:, 0].max()
    assert outline[:, 1].min() < last[1] < outline[:, 1].max()


def test_tokens_without_an_edge_are_pale_and_not_shaded():
    ax = draw_text(prose_head(), 4)
    assert [text.get_alpha() < 1 for text in written(ax)] == [False] * 5 + [True] * 15
    assert len(boxes(ax)) == 5


def test_a_key_shades_the_queries_that_read_it():
    head = causal_head(6)
    ax = draw_text(head, key=2)
    assert caption(ax) == "what reads key 2 “word2”: all 4 edges"
    assert [text.get_alpha() < 1 for text in written(ax)] == [True, True, *[False] * 4]
    part = draw_text(head.keep(TopK(2)), key=2)
    count = int((head.keep(TopK(2)).key == 2).sum())
    assert caption(part) == f"what reads key 2 “word2”: TopK(2), {count} edges were kept"


def test_what_was_dropped_and_the_sink_are_said():
    head = dataclasses.replace(causal_head(6).keep(TopK(2)), sink=np.full(6, 0.25))
    share = 100 * float(head.kept_mass[-1] / head.total_mass[-1])
    said = f"TopK(2), 2 of 6 edges, {share:.0f} % of the attention; 0.25 from the sink"
    assert caption(draw_text(head)) == f"query 5 “word5” reads: {said}"


def test_several_heads_are_shown_by_their_mean():
    heads = [causal_head(6, seed=seed, head=seed) for seed in (0, 1)]
    trace = AttentionTrace({"decoder": Stack("decoder", {(1, n): h for n, h in enumerate(heads)})})
    for ax in (draw_text(heads), trace.draw_text(), trace.draw_text(heads="decoder:1.0-1")):
        assert ax.get_title() == "layer 1 · mean of heads 0, 1"
        assert caption(ax) == "query 5 “word5” reads: all 12 edges"
    mean = AttentionGraph.from_dense(
        (heads[0].to_dense() + heads[1].to_dense()) / 2, TokenGraph.causal(6)
    )
    shades = [draw_text(one).collections[0].get_facecolors() for one in (heads, mean)]
    np.testing.assert_allclose(*shades)
    apart = [heads[0], dataclasses.replace(heads[1], layer=2)]
    assert draw_text(apart).get_title() == "mean of 2 heads"


def test_generated_tokens_are_underlined():
    ax = draw_text(prose_head(generated=4))
    assert caption(ax).endswith("; underlined: 4 generated")
    bars = next(c for c in ax.collections if c.get_gid() == "gattn-generated")
    assert len(bars.get_segments()) == 4
    assert not any(c.get_gid() == "gattn-generated" for c in draw_text(prose_head()).collections)


def test_cross_attention_writes_the_keys_or_for_a_key_the_queries():
    head = dataclasses.replace(bipartite_head(), generated=2)
    ax = draw_text(head, 1)
    assert [text.get_text() for text in written(ax)] == [*"abcde"]
    assert caption(ax) == "query 1 “y” reads: all 5 edges"
    assert not boxes(ax, "gattn-outline")
    ax = draw_text(head, key=0)
    assert [text.get_text() for text in written(ax)] == [*"xyz"]
    assert caption(ax) == "what reads key 0 “a”: all 3 edges; underlined: 2 generated"


def test_queries_of_a_decoding_step_go_by_their_position():
    assert caption(draw_text(decoding_step(), 4)) == "query 4 “e” reads: all 5 edges"
    with pytest.raises(SelectionError, match=r"query must be a token's position, here 4 \.\. 5"):
        draw_text(decoding_step(), 3)


def test_scores_and_lengths_have_their_own_scale():
    head = causal_head(6)
    with pytest.raises(SelectionError, match="scores=True"):
        draw_text(head, values="score")
    head = dataclasses.replace(head, score=np.log(head.attention))
    ax = draw_text(head, values="score")
    key = ax.get_legend()
    assert key.get_title().get_text() == "score"
    most, *_, least = [float(text.get_text().replace("−", "-")) for text in key.get_texts()]
    row = np.log(head.to_dense()[-1])
    assert (most, least) == pytest.approx((row.max(), row.min()), rel=0.01)


@pytest.mark.parametrize("values", ["score", "value_norm"])
def test_a_dropped_edge_does_not_count_as_a_score_of_zero(values):
    heads = [causal_head(6, seed=seed, head=seed) for seed in (0, 1)]
    heads = [dataclasses.replace(h, **{values: np.full(h.graph.num_edges, 4.0)}) for h in heads]
    ax = draw_text([heads[0], heads[1].keep(TopK(1))], values=values)
    fills = next(c for c in ax.collections if c.get_gid() == "gattn-shades").get_facecolors()
    assert len(fills) == 6
    assert (fills == fills[0]).all()
    assert caption(ax).endswith("; each token's mean is of the heads that have its edge")
    assert "mean is of" not in caption(draw_text(heads, values=values))


def test_the_rule_of_any_head_is_named():
    whole, part = causal_head(6), causal_head(6).keep(TopK(1))
    assert "reads: TopK(1), 7 of 12 edges" in caption(draw_text([whole, part]))
    assert "reads: TopK(1), TopK(2), 3 of 12 edges" in caption(
        draw_text([part, causal_head(6).keep(TopK(2))])
    )


def test_dropped_edges_count_as_no_attention():
    heads = [causal_head(6, seed=seed, head=seed) for seed in (0, 1)]
    part = heads[1].keep(TopK(1))
    mean = AttentionGraph.from_dense(
        (heads[0].to_dense() + part.to_dense()) / 2, TokenGraph.causal(6)
    )
    shades = [draw_text(one).collections[0].get_facecolors() for one in ([heads[0], part], mean)]
    np.testing.assert_allclose(*shades)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "Give a head, or several"),
        ((["arcs"],), "Give a head, or several"),
        (([causal_head(3), causal_head(4)],), "of several texts"),
        ((AttentionGraph.from_dense(np.zeros((0, 0))),), "nothing to draw"),
        ((causal_head(3), 3), "query must be a token's position"),
        ((causal_head(3), "word7"), "No query 'word7'; the"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(SelectionError, match=message):
        draw_text(*arguments)
    assert plt.get_fignums() == []


def test_colours_that_do_not_exist_are_refused_before_a_figure_is_open():
    with pytest.raises(SelectionError, match="No colours 'nope'"):
        draw_text(causal_head(3), cmap="nope")
    assert plt.get_fignums() == []


def test_scores_of_signed_attention_run_from_the_least_to_the_most():
    head = signed_head()
    head = dataclasses.replace(head, score=head.attention + 4.0)
    plain = dataclasses.replace(head, attention=np.abs(head.attention))
    keys = [draw_text(one, values="score").get_legend() for one in (head, plain)]
    colours = [[patch.get_facecolor() for patch in key.get_patches()] for key in keys]
    assert colours[0] == colours[1]


def test_a_query_and_a_key_are_not_asked_for_together():
    with pytest.raises(SelectionError, match="not both"):
        draw_text(causal_head(3), 1, key=1)


def test_hostile_tokens_are_written_as_text():
    size = len(HOSTILE)
    head = AttentionGraph.from_dense(np.full((size, size), 1 / size), tokens=HOSTILE)
    ax = draw_text(head, 0)
    for kind in ("png", "pdf", "svg"):
        ax.figure.savefig(io.BytesIO(), format=kind)
    found = [text.get_text() for text in written(ax)]
    assert found[:3] == ["$x_1$", "a↵b", "\\x00"]
    assert {"␣␣␣", "<b>&", "\\frac", '""'} <= set(found)
    assert not any("\u202e" in text for text in found)


LONG = [
    "中文字",
    "世界大同",
    "👩\u200d👩\u200d👧",
    "🙂",
    " Donaudampfschifffahrtselektrizitätenhauptbetriebswerk",
    " https://example.org/a/very/long/path?with=query",
    " é",
    " end",
]


@pytest.mark.parametrize("dpi", [72, 100, 130, 144, 300])
@pytest.mark.parametrize("inches", [None, (3.3, 3.3), (6.75, 2.5)])
def test_long_tokens_meet_no_others_however_letters_are_fitted_to_pixels(dpi, inches):
    head = AttentionGraph.from_dense(np.full((8, 8), 1 / 8), tokens=LONG)
    with mpl.rc_context({"font.size": 7}):
        figure = draw_text(head, 0, figsize=inches).figure
        assert not problems(figure, dpi)


@pytest.mark.parametrize("size", [1, 5, 60, 500])
@pytest.mark.parametrize("font", [6, 10, 20])
def test_text_fits_its_boxes_and_the_figure(size, font):
    with mpl.rc_context({"font.size": font}):
        ax = draw_text(causal_head(size))
        ax.figure.draw_without_rendering()
    whole = ax.figure.bbox
    for text in [*written(ax), *ax.get_legend().get_texts(), ax.title]:
        box = text.get_window_extent()
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert whole.y0 <= box.y0 <= box.y1 <= whole.y1
    ends = [text.get_window_extent() for text in written(ax)]
    for one, other in pairwise(ends):
        assert one.x1 <= other.x0 or other.y1 <= one.y0


@pytest.mark.parametrize("engine", ["constrained", None])
def test_on_given_axes_the_text_shrinks_until_it_fits(engine):
    figure = Figure((9, 3), layout=engine)
    for ax in figure.subplots(1, 2):
        assert draw_text(causal_head(150), ax=ax) is ax
    figure.draw_without_rendering()
    for ax in figure.axes:
        place = ax.get_window_extent()
        key = ax.get_legend().get_window_extent()
        for text in written(ax):
            box = text.get_window_extent()
            assert box.y0 > place.y0 - 2
            assert place.x0 - 1 < box.x0
            assert box.x1 < key.x0 + 2
    assert plt.get_fignums() == []


def test_what_is_made_once_for_a_text_is_not_made_for_each_token(monkeypatch):
    """A renderer, and a search through fonts, take as long as a token."""
    made = []
    for of, name in ((fonts, "families"), (Figure, "_get_renderer")):
        plain = getattr(of, name)

        def counted(*arguments, plain=plain, name=name):
            made.append(name)
            return plain(*arguments)

        monkeypatch.setattr(of, name, counted)
    counts = []
    for size in (10, 80):
        made.clear()
        draw_text(causal_head(size), ax=Figure((6, 6)).add_subplot())
        counts.append(len(made))
    assert counts[1] < counts[0] + 20


def test_uniform_attention_of_a_long_text_still_shades():
    ax = draw_text(uniform_head(500))
    shades = next(c for c in ax.collections if c.get_gid() == "gattn-shades")
    assert (shades.get_facecolors()[:, :3].min(1) < 0.85).all()


def test_letters_stand_out_from_every_shade():
    for style in ("default", "dark_background"):
        with plt.style.context(style):
            amounts = np.tril(np.linspace(0.001, 1, 100).reshape(10, 10))
            ax = draw_text(AttentionGraph.from_dense(amounts, TokenGraph.causal(10)))
            shades = next(c for c in ax.collections if c.get_gid() == "gattn-shades")
        for text, fill in zip(written(ax), shades.get_facecolors(), strict=True):
            letters = mpl.colors.to_rgb(text.get_color())
            assert abs(np.dot(fill[:3], [0.3, 0.6, 0.1]) - np.mean(letters)) > 0.4


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_passage_of_prose():
    return draw_text(prose_head(generated=4).keep(TopK(6)), 18).figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_passage_of_signed_attention():
    return draw_text(signed_head()).figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60}, style="dark_background")
def test_passage_on_a_dark_background():
    return draw_text(prose_head(sink=np.full(len(PROSE), 0.3)), key=1).figure


def test_the_caption_stands_near_a_text_that_is_shorter_than_its_figure():
    ax = draw_text(decoding_step(), 4, figsize=(3.3, 2.4))
    ax.figure.draw_without_rendering()
    low = min(t.get_window_extent().y0 for t in ax.texts if t.get_gid() == "gattn-label")
    (below,) = [t for t in ax.texts if t.get_gid() == "gattn-caption"]
    high = ax.figure.bbox.height
    assert 0 < low - below.get_window_extent().y1 < 0.4 * high


@pytest.mark.parametrize("style", ["paper", "talk", "dark"])
@pytest.mark.parametrize("count", [1, 13, 80])
def test_the_caption_follows_the_text_and_the_key_stands_aside(style, count):
    with gattn.style(style):
        ax = causal_head(count).draw_text()
        ax.figure.draw_without_rendering()
        assert not problems(ax.figure, ax.figure.dpi)
        line = mpl.rcParams["font.size"] * ax.figure.dpi / 72
    words = [one for one in ax.texts if one.get_gid() == "gattn-label"]
    lowest = min(word.get_window_extent().y0 for word in words)
    (below,) = [one for one in ax.texts if one.get_gid() == "gattn-caption"]
    assert 0 < lowest - below.get_window_extent().y1 < 1.5 * line
    lowest = min(below.get_window_extent().y0, ax.get_legend().get_window_extent().y0)
    assert lowest < 2.5 * line
