"""Attention over seconds."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from meeting import problems
from scenes import attention, cross_head
from seen import axes, caption

import gattn
from gattn import AttentionGraph, AttentionTrace
from gattn.drawing import draw_time
from gattn.drawing.matrices.cells import EdgeCells
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack

HEAD = replace(cross_head(5, 40), layer=2, head=1).at_times(0.5)
DENSE = HEAD.to_dense()
FRAMES = AttentionGraph.from_dense(attention(20, 20)).at_times(0.25, start=1.0)
LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
SOUND = np.sin(np.arange(8000) / 20)


def curve(ax):
    (found,) = [patch for patch in ax.patches if patch.get_gid() == "gattn-curve"]
    return found.get_data()


def cells(ax):
    (found,) = ax.images
    return found


def marked(ax):
    return [patch.get_extents() for patch in ax.patches if patch.get_gid() == "gattn-outline"]


@pytest.mark.parametrize("query", [None, "house"])
def test_attention_beyond_the_end_of_the_scale_is_said(query):
    most = (DENSE if query is None else DENSE[2]).max()
    said = f"the scale ends at 0.01, the largest is {most:.3g}"
    assert said in caption(HEAD.draw_time(query, vmax=0.01))
    assert "scale" not in caption(HEAD.draw_time(query, vmax=float(most)))


def test_a_word_reads_frames_when_they_are():
    ax = HEAD.draw_time("house")
    values, edges, _ = curve(ax)
    np.testing.assert_allclose(values, DENSE[2])
    np.testing.assert_allclose(edges, np.arange(41) / 2)
    assert ax.get_xlim() == (0, 20)
    assert ax.get_ylim()[1] > DENSE[2].max()
    assert (ax.get_title(), caption(ax)) == (
        "cross-attention · layer 2 · head 1",
        "what query 2 “house” reads",
    )


def test_without_a_query_rows_are_words_and_columns_lie_in_time():
    ax = HEAD.draw_time()
    mesh = cells(ax)
    np.testing.assert_allclose(mesh.get_array(), DENSE)
    assert tuple(mesh.get_extent())[:2] == (0, 20)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "red", "house", "by", "the"]
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0, DENSE.max())


def test_pairs_without_an_edge_are_empty_as_in_a_matrix():
    head = AttentionGraph.from_dense(np.tril(attention(200, 200)), gattn.TokenGraph.causal(200))
    in_time = cells(head.at_times(0.5).draw_time(figsize=(6, 6))).get_array()
    assert (in_time.mask == np.triu(np.ones((200, 200)), 1)).all()
    ax = head.at_times(0.5).draw_time(figsize=(2, 2), labels=False)
    pooled = cells(ax).get_array()
    assert max(pooled.shape) < 200
    by_position = EdgeCells.of(head).at(*pooled.shape)
    np.testing.assert_allclose(pooled.filled(np.nan), by_position, atol=1e-7)


def test_seconds_without_a_key_are_hatched_and_pairs_without_an_edge_are_not():
    head = AttentionGraph.from_dense(np.tril(attention(3, 3)), gattn.TokenGraph.causal(3))
    (gaps,) = [
        found
        for found in head.at_times([[0, 1], [1, 1.5], [2, 3]]).draw_time().collections
        if found.get_gid() == "gattn-gaps"
    ]
    (place,) = gaps.get_paths()
    assert place.get_extents().extents.tolist() == [1.5, -0.5, 2, 2.5]
    ax = head.at_times(1).draw_time()
    assert not ax.collections
    assert not ax.patch.get_hatch()


def test_colours_of_nearly_even_attention_begin_at_the_least():
    even = np.linspace(0.02, 0.03, 5 * 40).reshape(5, 40)
    head = replace(HEAD, attention=even.ravel(), total_mass=even.sum(1))
    ax = head.draw_time()
    assert (cells(ax).norm.vmin, cells(ax).norm.vmax) == (0.02, 0.03)
    assert caption(ax) == "colours run from 0.02 to 0.03, not from 0"
    assert cells(head.draw_time(vmax=0.1)).norm.vmin == 0
    assert ax.yaxis_inverted()


def test_frames_read_frames_by_the_second():
    ax = FRAMES.draw_time(2.3)
    values, edges, _ = curve(ax)
    np.testing.assert_allclose(values, FRAMES.to_dense()[5])
    assert edges[0] == 1.0
    assert caption(ax) == "what query 2.25–2.5 s reads"
    (own,) = [p for p in ax.patches if p.get_gid() == "gattn-outline"]
    assert (own.get_x(), own.get_x() + own.get_width()) == (2.25, 2.5)
    both = FRAMES.draw_time([2.3, 0])
    np.testing.assert_allclose(curve(both)[0], FRAMES.to_dense()[[0, 5]].mean(0))
    assert FRAMES.draw_time().get_ylabel() == "query, seconds"


def test_by_key_the_queries_are_in_time():
    ax = FRAMES.draw_time(key=2.3)
    np.testing.assert_allclose(curve(ax)[0], FRAMES.to_dense()[:, 5])
    assert caption(ax) == "who reads key 2.25–2.5 s"


def test_of_several_heads_the_mean_is_shown():
    other = AttentionGraph.from_dense(attention(20, 20, seed=1)).at_times(0.25, start=1.0)
    ax = draw_time([FRAMES, other], 3)
    np.testing.assert_allclose(curve(ax)[0], (FRAMES.to_dense() + other.to_dense())[3] / 2)
    heads = {(0, 0): FRAMES, (0, 1): other, (1, 0): FRAMES}
    trace = AttentionTrace({"encoder": Stack("encoder", heads)})
    np.testing.assert_allclose(curve(trace.draw_time(3, heads="0.1"))[0], other.to_dense()[3])


def test_tokens_without_a_time_and_gaps_are_left_out_and_said():
    stretches = [[np.nan, np.nan], [0, 1], [2, 3], [1, 1.5]]
    head = AttentionGraph.from_dense(attention(4, 4)).at_times(stretches)
    ax = head.draw_time(1)
    dense = head.to_dense()[1]
    values, edges, _ = curve(ax)
    np.testing.assert_allclose(edges, [0, 1, 1.5, 2, 3])
    np.testing.assert_allclose(values, [dense[1], dense[3], np.nan, dense[2]])
    assert f"{100 * dense[0]:.0f} % of the attention lies on tokens without a time" in caption(ax)


def test_stretches_that_overlap_are_cut_in_the_middle():
    head = AttentionGraph.from_dense(attention(3, 3)).at_times([[0, 2], [1, 3], [2, 4]])
    ax = head.draw_time(0)
    np.testing.assert_allclose(curve(ax)[1], [0, 1.5, 2.5, 4])
    assert "stretches that overlap are drawn to their middle" in caption(ax)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([[0, 1], [1, 2], [0, 1], [1, 2]], "keys 0 and 2"),
        ([[0, 1], [1, 2], [0, 1], [0, 1]], "keys 0 and 2"),
        ([[0, 10], [4, 5], [20, 21], [22, 23]], "keys 0 and 1"),
    ],
)
@pytest.mark.parametrize("query", [None, 1])
def test_tokens_of_one_time_are_refused(times, said, query):
    head = AttentionGraph.from_dense(attention(4, 4)).at_times(times)
    with pytest.raises(ShapeError, match=rf"{said} share a time.*all others NaN"):
        head.draw_time(query)
    assert head.draw()
    some = np.array(times, dtype=float)
    some[1 if said == "keys 0 and 1" else slice(2, None)] = np.nan
    assert "tokens without a time" in caption(head.at_times(some).draw_time(query))


def test_rows_in_another_order_than_their_times_are_named():
    head = AttentionGraph.from_dense(attention(3, 3)).at_times([[2, 3], [0, 1], [1, 2]])
    ax = head.draw_time()
    assert ax.get_ylabel() == "query"
    assert [text.get_text() for text in ax.get_yticklabels()] == ["2 s", "0 s", "1 s"]
    np.testing.assert_allclose(cells(ax).get_array(), head.to_dense()[:, [1, 2, 0]])


def test_a_sound_stands_above_and_ends_the_seconds():
    for ax in (
        HEAD.draw_time(2, waveform=SOUND, rate=1000),
        HEAD.draw_time(2, waveform=torch.tensor(SOUND)[None], rate=1000),
        HEAD.draw_time(waveform=SOUND, rate=1000),
    ):
        assert ax.get_xlim() == (0, 8)
        (wave,) = [c for c in ax.collections if c.get_gid() == "gattn-waveform"]
        places = wave.get_paths()[0].vertices
        assert 0.8 < places[:, 1].min() < places[:, 1].max() < 1
        assert places[:, 0].max() == pytest.approx(8, abs=0.02)
    after = 100 * DENSE[2, 16:].sum()
    said = caption(HEAD.draw_time(2, waveform=SOUND, rate=1000))
    assert f"{after:.0f} % of the attention lies after the sound" in said


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_columns_thinner_than_a_pixel_are_pooled_as_asked(pool):
    head = AttentionGraph.from_dense(attention(3, 2000), gattn.TokenGraph.bipartite(3, 2000))
    figure = plt.figure(figsize=(4, 3), dpi=100)
    ax = head.at_times(0.02).draw_time(pool=pool, ax=figure.add_axes((0, 0, 1, 1)))
    shown = cells(ax).get_array()
    assert shown.shape[1] < 500
    parts = np.array_split(np.arange(2000), shown.shape[1])
    if 2000 % shown.shape[1] == 0:
        blocks = head.to_dense().reshape(3, shown.shape[1], -1)
        np.testing.assert_allclose(shown, getattr(blocks, pool)(-1))
    else:
        assert len(parts) == shown.shape[1]
        assert shown.max() == pytest.approx(head.attention.max()) or pool == "mean"
    assert {"mean": "are averaged", "max": "the largest is shown"}[pool] in caption(ax)


def test_dropped_edges_are_said():
    assert "TopK(3)" in caption(HEAD.keep(gattn.TopK(3)).draw_time(2))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"query": 7.5}, SelectionError, "position"),
        ({"query": (1, 2)}, SelectionError, "not patches"),
        ({"query": 1, "key": 2}, SelectionError, "not both"),
        ({"key": 3.0}, ShapeError, "not known when the queries are"),
        ({"vmax": -1}, SelectionError, "end of the scale"),
        ({"rate": 16000}, ShapeError, "pass waveform="),
        ({"waveform": SOUND}, ShapeError, "samples per second"),
        ({"waveform": SOUND, "rate": 0}, ShapeError, "rate must be above 0"),
        ({"waveform": np.zeros((2, 9)), "rate": 8}, ShapeError, "one channel"),
        ({"waveform": [np.nan, 0], "rate": 8}, ShapeError, "1 samples that are not finite"),
        ({"waveform": "a.wav", "rate": 8}, ShapeError, "must hold samples"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        HEAD.draw_time(**options)


def test_heads_without_times_say_how_to_tell_them():
    with pytest.raises(ShapeError, match=r'at_times\(0.02, side="key"\)'):
        cross_head(2, 3).draw_time(0)
    with pytest.raises(SelectionError, match="No token holds the query at 30 s"):
        FRAMES.draw_time(30.0)
    with pytest.raises(SelectionError, match="a head, or several"):
        draw_time([])


def test_it_is_drawn_on_axes_of_ones_own_and_texts_stay_on_small_figures():
    ax = axes()
    assert HEAD.draw_time(ax=ax, legend=False, labels=False) is ax
    with plt.rc_context({"font.size": 7}):
        figure = plt.figure(figsize=(3.3, 2.4), layout="constrained")
        HEAD.draw_time(waveform=SOUND, rate=1000, ax=figure.add_subplot())
        figure.draw_without_rendering()
        for text in figure.axes[0].get_yticklabels() + figure.axes[0].texts:
            box = text.get_window_extent()
            assert 0 <= box.x0 <= box.x1 <= figure.bbox.x1, text.get_text()


@pytest.mark.parametrize("query", [None, 1])
@pytest.mark.parametrize("start", [0.0, 36000.0])
@pytest.mark.parametrize("step", [1e-6, 0.001, 0.02, 1, 60, 3600, 86400])
def test_numbers_of_seconds_do_not_meet_and_say_when(step, start, query):
    head = AttentionGraph.from_dense(attention(48, 48)).at_times(step, start=start * step)
    with plt.rc_context({"font.size": 7}):
        ax = head.draw_time(query, figsize=(3.3, 1.6))
        assert not problems(ax.figure)
        shown = [
            (place, text.get_text())
            for place, text in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
            if ax.get_xlim()[0] <= place <= ax.get_xlim()[1]
        ]
    plt.close(ax.figure)
    assert len(shown) >= 2 or start
    assert len({text for _, text in shown}) == len(shown)
    for place, text in shown:
        assert _seconds(text, ax.get_xlabel()) == pytest.approx(place, rel=1e-8, abs=1e-9 * step)


def _seconds(text, unit):
    """Read a number of an axis."""
    if ":" in text:
        of = {"h": 3600, "min": 60, "s": 1}
        parts = zip(text.split(":"), unit.split(":"), strict=True)
        return sum(of[part] * int(number) for number, part in parts)
    digits, _, power = text.partition("×10")
    number = float(digits) * 10.0 ** int(power.translate(LOWERED) or 0)
    return number * (86400 if unit == "days" else 1)
