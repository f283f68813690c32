"""Pictures of arrays and tables of analyses."""

import io
import itertools
from functools import partial

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from sample_heads import causal_head
from seen import bars, caption, texts, words

import gattn
from gattn.analysis import best_edges, communities, graph_frequencies
from gattn.analysis.faithfulness.agreement import Agreement
from gattn.analysis.reading.results import Table, array
from gattn.drawing.canvas.colours import KINDS_OF_AREAS, REST_OF_KINDS, Scale
from gattn.drawing.matrices import heatmaps
from gattn.drawing.matrices.heatmaps import cell_text, decimals_of
from gattn.drawing.results.of_heads.tables import draw_head_table
from gattn.errors import SelectionError
from gattn.heads.stack import Stack

TOKENS = ["The", "dog", "chased", "the", "cat"]


def of_heads(values, last, **facts):
    axes = {"layer": range(1, 1 + values.shape[0]), "head": range(values.shape[1])}
    axes[last] = range(values.shape[2])
    tokens = {last: TOKENS} if last == "token" else None
    return array(values, axes, name="some_score", computed_from="a toy", tokens=tokens, **facts)


def test_some_heads_of_a_table_are_not_called_all_of_them():
    trace = gattn.AttentionTrace.from_arrays(np.random.default_rng(0).dirichlet([1] * 5, (2, 4, 5)))
    table = trace.summary()
    compared = gattn.analysis.compare(trace, trace)
    for made in (table, compared):
        assert "are shown" not in caption(made.draw())
        some = made[made.index.get_level_values("layer") == 1]
        assert "3 of 8 heads are shown" in caption(some[:3].draw())
    assert "are shown" not in caption(table[["entropy"]].groupby("layer").mean().draw())


def test_one_number_a_token_and_head_is_a_row_a_head_of_all_layers():
    values = np.arange(30.0).reshape(2, 3, 5)
    ax = of_heads(values, "token").draw()
    np.testing.assert_array_equal(ax.images[0].get_array(), values.reshape(6, 5))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]
    one = of_heads(values, "token").draw(layer=1)
    np.testing.assert_array_equal(one.images[0].get_array(), values[0])
    assert one.get_title() == "some score · layer 1"
    assert words(one).endswith("a toy")


def test_a_spectrum_is_a_line_a_head_in_its_layers_colour():
    values = np.sort(np.random.default_rng(0).random((2, 3, 8)), axis=-1)
    ax = of_heads(values, "index").draw()
    drawn = np.array([line.get_ydata() for line in ax.lines])
    np.testing.assert_array_equal(drawn, values.reshape(6, 8))
    colours = [line.get_color() for line in ax.lines]
    assert len(set(colours)) == 2
    assert colours[0] == colours[2] != colours[3]
    assert bars(ax)[0].get_ylabel() == "layer"
    assert "a line per head" in words(ax)


def test_frequencies_of_the_model_are_such_a_spectrum():
    attention = np.tril(np.random.default_rng(0).random((2, 2, 5, 5)))
    attention /= attention.sum(-1, keepdims=True)
    assert len(graph_frequencies(attention, progress=False).draw().lines) == 4


def test_communities_have_colours_without_order_and_their_numbers():
    attention = np.kron(np.eye(2), np.ones((3, 3))) / 3
    found = communities(attention, progress=False)
    ax = found.draw()
    image = ax.images[0]
    painted = {tuple(image.cmap(image.norm(number))[:3]) for number in (0, 1)}
    assert painted == {
        tuple(int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)) for c in KINDS_OF_AREAS[:2]
    }
    assert texts(ax, "gattn-numbers") == list("000111")
    assert "colours compare within a head" in words(ax)


def test_more_kinds_than_colours_share_the_last_and_keep_their_numbers():
    axes = {"head": range(2), "token": range(12)}
    numbers = np.tile(np.arange(12.0), (2, 1))
    many = array(numbers, axes, name="community", computed_from="a toy", are_kinds=True)
    ax = many.draw()
    painted = ax.images[0].cmap(ax.images[0].norm(ax.images[0].get_array()))
    assert len({tuple(colour) for colour in painted[0]}) == len(KINDS_OF_AREAS) + 1
    assert texts(ax, "gattn-numbers") == 2 * [str(n) for n in range(12)]


def test_numbers_of_tokens_are_stems_without_a_line_between():
    values = np.array([[0.5, 0.1, 0.2, 0.9, 0.4]])
    found = array(
        values,
        {"query": [4], "key": range(5)},
        name="flow",
        computed_from="a toy",
        tokens={"query": TOKENS[4:], "key": TOKENS},
    )
    ax = found.draw()
    assert ax.lines[0].get_linestyle() == "None"
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), values[0])
    assert [label.get_text() for label in ax.get_xticklabels()] == TOKENS
    assert ax.get_title() == "flow · query 4"


def test_a_table_is_named_and_what_is_missing_is_hatched():
    rows = {"layer": [0, 0], "head": [0, 1], "entropy": [0.5, np.nan], "stack": "decoder"}
    made = Table.of(rows, name="heads", computed_from="a toy", index=["stack", "layer", "head"])
    ax = made.draw()
    assert ax.get_title() == "heads"
    assert "a toy; " in words(ax)
    assert ax.images[0].get_array()[:, 0, 3].tolist() == [1, 0]
    assert ax.patch.get_hatch()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.0", "0.1"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.50"), (-0.5, "−0.50"), (-0.001, "0.00"), (12.5, "12.50"), (3702.4, "3702")],
)
def test_numbers_in_cells_are_short(number, text):
    assert cell_text(number) == text


@pytest.mark.parametrize(
    ("largest", "texts"),
    [
        (0.3, ["0.30", "0.00"]),
        (0.0025, ["0.0025", "0.0013"]),
        (2e-7, ["2×10⁻⁷", "0"]),
        (0.0, ["0.00", "0.00"]),
    ],
)
def test_small_numbers_in_cells_are_not_all_zero(largest, texts):
    values = np.array([[largest, 0.00125 if largest == 0.0025 else 0.0, np.nan]])
    found = [cell_text(value, decimals_of(values)) for value in values[0, :2]]
    assert found == texts


def agreement():
    made = Agreement(
        {
            "ranking": ["attention", "rollout $x$"],
            "correlation": [0.48, -0.1],
            "low": [0.3, -0.3],
            "high": [0.6, 0.1],
            "p_value": [1e-9, 0.2],
            "signed_correlation": [0.2, np.nan],
            "number": [200, 200],
        }
    ).set_index("ranking")
    made.attrs = {"name": "rank agreement", "computed_from": "a toy", "notes": []}
    return made


def test_agreement_is_a_correlation_with_its_interval_and_p_is_written():
    ax = agreement().draw()
    points = ax.containers[0].lines[0]
    np.testing.assert_allclose(points.get_xdata(), [0.48, -0.1])
    (bars,) = ax.containers[0].lines[2]
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[0.3, 0.6], [-0.3, 0.1]])
    assert ax.get_xlim() == (-1.02, 1.02)
    said = [text.get_text() for text in ax.texts]
    assert "p < 0.001, n = 200" in said
    assert "p = 0.2, n = 200" in said
    ax.figure.savefig(io.BytesIO())
    with pytest.raises(SelectionError, match="nothing to draw"):
        agreement()[:0].draw()


def test_best_edges_are_a_row_a_head_with_the_word_that_is_read():
    attention = np.tril(np.random.default_rng(0).random((2, 2, 5, 5)))
    attention /= attention.sum(-1, keepdims=True)
    found = best_edges(attention, progress=False)
    ax = found.draw()
    shown = found["key_attention"].astype(float).unstack("word")
    np.testing.assert_allclose(ax.images[0].get_array().filled(np.nan), shown)
    cells = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
    assert cells == [str(key) for key in found["key"].dropna()]
    norm, attention = ax.images[0].norm, np.linspace(0, 1, 9)
    np.testing.assert_allclose(norm(attention), Scale(1.0, False, widest=1).norm(attention))
    by_query = found.draw("query").images[0].get_array()
    np.testing.assert_allclose(
        by_query.filled(np.nan), found["query_attention"].astype(float).unstack("word")
    )
    with pytest.raises(SelectionError, match="'key' or 'query'"):
        found.draw("token")


@pytest.mark.parametrize("size", [5, 60, 500])
def test_matrices_of_any_size_are_drawn_and_their_labels_do_not_meet(size):
    values = np.tril(np.random.default_rng(0).random((size, size)))
    texts = [f"word{n % 7}" for n in range(size)]
    found = array(
        values,
        {"query": range(size), "key": range(size)},
        name="rollout",
        computed_from="a toy",
        tokens={"query": texts, "key": texts},
    )
    ax = found.draw()
    ax.figure.savefig(io.BytesIO())
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert len(boxes) >= 5
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_numbers_of_which_most_are_tiny_are_on_a_square_root_scale():
    values = np.full((4, 30), 0.01)
    values[0, 0] = 1.0
    axes = {"query": range(4), "key": range(30)}
    skewed = array(values, axes, name="rollout", computed_from="a toy").draw()
    norm = skewed.images[0].norm
    assert norm(0.25) == pytest.approx(0.5)
    assert "square-root scale" in bars(skewed)[0].get_ylabel().replace("\n", " ")
    plain = array(np.sqrt(values), axes, name="rollout", computed_from="a toy").draw()
    assert plain.images[0].norm(0.25) == pytest.approx(0.25)
    assert "scale" not in bars(plain)[0].get_ylabel()


@pytest.mark.parametrize("axes", [None, Figure])
def test_a_figure_of_an_analysis_is_known_to_pyplot_unless_it_is_the_callers(axes):
    made = of_heads(np.ones((1, 2, 5)), "token")
    for one in (made, made.to_dataframe().pipe(Table.of, name="", computed_from="")):
        ax = one.draw() if axes is None else one.draw(ax=axes().add_subplot())
        assert (ax.figure in map(plt.figure, plt.get_fignums())) == (axes is None)


def test_colours_of_analyses_that_do_not_exist_are_refused_before_a_figure_is_open():
    made = of_heads(np.ones((1, 2, 5)), "token")
    heads = Table.of({"entropy": [0.5], "label": ["even"]}, name="", computed_from="")
    spectra = of_heads(np.ones((1, 2, 5)), "index")
    draws = made.draw, heads.draw, spectra.draw, partial(draw_head_table, heads)
    for draw in draws:
        with pytest.raises(SelectionError, match="No colours 'nope'"):
            draw(cmap="nope")
    assert plt.get_fignums() == []


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_a_number_a_token_in_all_heads():
    values = np.random.default_rng(0).random((2, 3, 5)) ** 2
    return of_heads(values, "token").draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_spectra_by_layer():
    values = np.sort(np.random.default_rng(0).random((3, 2, 8)), axis=-1)
    return of_heads(values, "index").draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_rank_agreement_as_intervals():
    return agreement().draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_communities_as_kinds():
    numbers = np.array([[[0, 0, 1, 1, 2], [0, 1, 0, 2, 1]]])
    return of_heads(numbers, "token", are_kinds=True).draw().figure


def test_large_fonts_have_larger_figures_and_small_ones_no_smaller():
    made = of_heads(np.ones((1, 2, 5)), "token")
    usual = made.draw().figure.get_size_inches()
    with mpl.rc_context({"font.size": 18}):
        np.testing.assert_allclose(made.draw().figure.get_size_inches(), 1.8 * usual)
    with mpl.rc_context({"font.size": 6}):
        np.testing.assert_allclose(made.draw().figure.get_size_inches(), usual)


@pytest.mark.parametrize("size", [6, 16, 24, 32])
@pytest.mark.parametrize("last", ["token", "index", "table", "head table"])
def test_all_of_a_figure_of_an_analysis_is_within_it_in_any_font_size(last, size):
    values = np.linspace(0, 1, 10).reshape(1, 2, 5)
    columns = ["entropy", "mean_distance", "previous_token", "first_token", "edges_for_90"]
    scores = {name: [0.25, 0.75] for name in columns} | {"label": ["previous token, 0.75", "mixed"]}
    rows = Table.of(scores, name="heads", computed_from="a toy")
    with mpl.rc_context({"font.size": size}):
        if last == "head table":
            ax = draw_head_table(rows, columns=columns)
        else:
            ax = (rows if last == "table" else of_heads(values, last)).draw()
        ax.figure.draw_without_rendering()
    (left, low), (right, high) = ax.figure.get_tightbbox().get_points()
    wide, tall = ax.figure.get_size_inches()
    assert -0.01 <= left < right <= wide + 0.01
    assert -0.01 <= low < high <= tall + 0.01
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def causal(**facts):
    values = np.tril(np.random.default_rng(0).random((2, 5, 5)))
    axes = {"layer": range(2), "query": range(5), "key": range(5)}
    tokens = {"query": TOKENS, "key": TOKENS}
    return array(values, axes, name="some_score", computed_from="a toy", tokens=tokens, **facts)


def test_later_tokens_that_nothing_reads_are_hatched_not_drawn_as_0():
    ax = causal().draw()
    shown = ax.images[0].get_array()
    assert (np.ma.getmaskarray(shown) == np.triu(np.ones((5, 5), bool), 1)).all()
    assert ax.patch.get_hatch()
    assert "hatched: later tokens, all 0" in words(ax)
    read = causal()
    read[-1, 1, 3] = 1e-9
    ax = read.draw()
    assert not np.ma.getmaskarray(ax.images[0].get_array()).any()
    assert "hatched" not in words(ax)


def test_a_rollout_of_a_causal_model_is_hatched_above_its_diagonal():
    trace = gattn.capture("The dog chased the cat")
    shown = gattn.analysis.rollout(trace).draw().images[0].get_array()
    masked = np.ma.getmaskarray(shown)
    assert (masked == np.triu(np.ones(masked.shape, bool), 1)).all()


def test_bars_and_axes_are_named_also_where_the_title_says_the_same():
    """In a paper the title goes, and the caption is the author's."""
    ax = causal().draw()
    assert ax.get_title() == "some score · layer 1"
    assert bars(ax)[0].get_ylabel() == "some score"
    line = causal().isel(layer=-1, query=-1).draw()
    assert line.get_ylabel() == "some score"
    skewed = array(
        np.r_[np.full(99, 1e-3), 1.0].reshape(10, 10), {"a": range(10), "b": range(10)},
        name="some_score", computed_from="a toy",
    )  # fmt: skip
    assert bars(skewed.draw())[0].get_ylabel().split() == ["some", "score,", "square-root", "scale"]
    reach = gattn.analysis.reach(gattn.TokenGraph.window(6, 2)).draw()
    assert bars(reach)[0].get_ylabel() == "layers"


def test_kinds_and_signs_are_told_apart_in_grey():
    def lightness(colour):
        red, green, blue = to_rgb(colour)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    levels = sorted(map(lightness, (*KINDS_OF_AREAS, REST_OF_KINDS)))
    assert np.diff(levels).min() > 0.05
    values = np.array([[0.9, -0.9, 0.01], [-0.01, -0.5, 0.3]])
    signed = array(values, {"a": range(2), "b": range(3)}, name="x", computed_from="a toy")
    ax = signed.draw()
    marks = [patch for patch in ax.patches if patch.get_gid() == "gattn-negative"]
    boxes = np.concatenate([patch.get_path().vertices for patch in marks])
    assert {(round(x), round(y)) for x, y in boxes.reshape(-1, 5, 2)[:, :4].mean(1)} == {
        (1, 0), (1, 1),
    }  # fmt: skip
    assert "marked −: below −0.045" in words(ax)  # a twentieth of the scale
    of_heads = array(values, {"layer": range(2), "head": range(3)}, name="x", computed_from="it")
    ax = of_heads.draw()  # the numbers stand in the cells
    assert texts(ax, "gattn-numbers")
    assert not [patch for patch in ax.patches if patch.get_gid() == "gattn-negative"]


def test_no_cell_is_looked_at_by_itself_where_cells_are_too_small_for_signs(monkeypatch):
    looked_at = []
    monkeypatch.setattr(heatmaps, "ink_on", looked_at.append)
    values = np.random.default_rng(0).normal(size=(1000, 1000))
    axes = {"a": range(1000), "b": range(1000)}
    ax = array(values, axes, name="x", computed_from="a toy").draw()
    ax.figure.canvas.draw()
    assert not looked_at
    assert "marked" not in words(ax)


def test_branches_between_clusters_are_dashed():
    from gattn.analysis import head_clusters, head_distances

    trace = gattn.capture("The dog chased the cat")
    ax = head_clusters(head_distances(trace, progress=False), 4).draw()
    dashes = [lines.get_linestyle()[0][1] for lines in ax.collections for _ in lines.get_segments()]
    assert sum(dash is not None for dash in dashes) == 3
    assert "4 clusters; dashed: between them" in words(ax)


def test_a_number_is_written_once_where_there_is_one_row():
    one = array(
        np.arange(4.0), {"token": range(4)}, name="x", computed_from="a toy", are_kinds=True
    )
    assert [label.get_text() for label in one.draw().get_yticklabels()] == ["0"]


def test_heads_of_stacks_with_long_names_are_told_apart_in_a_column():
    names = [
        f"model.{side}.layers.{of}_attention.very_long"
        for side, of in (("encoder", "self"), ("decoder", "self"), ("decoder", "encoder"))
    ]
    stacks = {
        name: Stack(
            name,
            {
                (n, h): causal_head(4, seed=n + h, layer=n, head=h, stack=name)
                for n in range(2)
                for h in range(2)
            },
        )
        for name in names
    }
    table = gattn.AttentionTrace(stacks, "tiny").summary()
    with mpl.rc_context({"font.size": 7}):
        ax = table.draw(figsize=(3.3, 2.4))
        ax.figure.draw_without_rendering()
    found = [label.get_text() for label in ax.get_yticklabels()]
    assert len(set(found)) == 12
    assert {name.split(" ")[-1] for name in found} == {"0.0", "0.1", "1.0", "1.1"}
    assert len({name.rsplit(" ", 1)[0] for name in found}) == 3


def test_rows_whose_names_have_no_room_are_told():
    heads = gattn.AttentionTrace(
        {"decoder": Stack("decoder", {(n, h): causal_head(5, seed=9 * n + h, layer=n, head=h)
                                      for n in range(12) for h in range(12)})}, "tiny"
    )  # fmt: skip
    with gattn.style("paper"):
        ax = heads.summary().draw(figsize=(3.3, 3))
        ax.figure.canvas.draw()
        shown = sum(bool(label.get_text()) for label in ax.get_yticklabels())
        assert shown < 144
        assert f"one row in {round(144 / shown)} is named" in caption(ax)
        assert "is named" not in caption(heads.summary()[:8].draw(figsize=(3.3, 3)))
