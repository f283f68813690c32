"""Pictures of what edits change."""

import io

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from meeting import problems
from seen import bars, caption

import gattn
from gattn.edit_records import to_text
from gattn.errors import SelectionError
from gattn.models.effects.effect_tables import Effects

TOKENS = ["The", "dog", "chased", "the", "cat"]


def edges(*, heads=((1, 0),), tokens=TOKENS, column="estimate", seed=0):
    """One effect for each causal edge of some heads."""
    drawn = np.random.default_rng(seed)
    rows = [
        {"stack": "decoder", "layer": layer, "head": head, "query": i, "key": j}
        | {"query_token": tokens[i], "key_token": tokens[j]}
        for layer, head in heads
        for i in range(len(tokens))
        for j in range(i + 1)
    ]
    table = Effects(rows)
    table["effect"] = drawn.normal(size=len(rows)) ** 3
    if column == "estimate":
        table["estimate"] = table["effect"]
        table["effect"] = np.nan
    table.attrs = {"metric": "probability of '␣cat'", "tokens": list(tokens)}
    return table


def cuts(layers=2, heads=3):
    table = Effects(
        [
            {"edit": f"Cut(layer={n}, head={h})", "kind": "Cut", "stack": None}
            | {"record": to_text([gattn.Cut(layer=n, head=h)])}
            | {"layer": n, "head": h, "query": None, "key": None}
            for n in range(layers)
            for h in range(heads)
        ]
    )
    table["effect"] = np.linspace(-0.9, 0.4, len(table))
    table.attrs = {"metric": "probability of '␣cat'", "tokens": TOKENS}
    return table


def lines_of(ax):
    (found,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    return found


def words(ax):
    labels = [axes.get_ylabel() for axes in bars(ax)] + [ax.get_title()]
    return " ".join([*labels, *(text.get_text() for text in ax.texts)]).replace("\n", " ")


def test_edges_of_one_head_are_arcs_coloured_by_what_cutting_them_does():
    table = edges()
    ax = table.draw()
    lines = lines_of(ax)
    assert len(lines.get_paths()) == len(table)
    sizes = np.sort(np.abs(table["estimate"]))
    np.testing.assert_allclose(
        lines.get_linewidths() / lines.get_linewidths()[-1],
        (0.12 + 0.88 * sizes / sizes[-1]),
    )
    strongest = table.loc[table["estimate"].abs().idxmax()]
    vertices = lines.get_paths()[-1].vertices
    assert (vertices[0, 0], vertices[-1, 0]) == (strongest["key"], strongest["query"])
    red, _, blue, _ = lines.get_edgecolor()[-1]
    assert (blue > red) == (strongest["estimate"] > 0)
    assert "estimated change in probability of '␣cat'" in words(ax)
    assert "layer 1 · head 0" in words(ax)


def test_arcs_say_how_many_edges_they_show_of_how_many():
    table = edges()
    assert caption(table.draw("arcs")) == "15 edges"
    table.loc[[2, 4], "estimate"] = 0.0
    assert "13 of 15 edges, the others 0" in caption(table.draw("arcs"))
    table.loc[3, "estimate"] = np.nan
    said = "12 of 15 edges, the others 0 or not measured"
    assert said in caption(table.draw("arcs"))
    long = edges(tokens=[f"t{n}" for n in range(30)])
    assert f"the 300 strongest of {len(long)} edges" in caption(long.draw("arcs"))


def test_edges_of_one_head_are_a_matrix_around_zero():
    table = edges(column="effect")
    ax = table.draw("matrix")
    shown = ax.images[0].get_array()
    for row in table.itertuples():
        assert shown[row.query, row.key] == pytest.approx(row.effect)
    assert shown.mask[0, 1]
    assert "hatched: no such edge" in words(ax)
    norm = ax.images[0].norm
    assert norm.vmin == -norm.vmax
    assert "estimated" not in words(ax)


def test_edges_of_several_layers_lie_on_the_layers_and_name_their_heads():
    table = edges(heads=[(1, 0), (1, 2), (2, 1)])
    ax = table.draw()
    lines = lines_of(ax)
    assert len(lines.get_paths()) == 2 * 15
    best = table.sort_values("estimate", key=np.abs).groupby(["layer", "query", "key"]).last()
    np.testing.assert_allclose(
        np.sort(lines.get_linewidths()) / np.max(lines.get_linewidths()),
        np.sort(0.12 + 0.88 * best["estimate"].abs() / table["estimate"].abs().max()),
    )
    named = {text.get_text() for text in ax.texts if text.get_gid() == "gattn-heads"}
    assert named <= {"1.0", "1.2", "2.1"}
    assert named
    assert "each edge by its strongest head" in words(ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "2"]


def test_cut_heads_are_a_matrix_of_layers_and_heads_with_numbers():
    ax = cuts().draw()
    np.testing.assert_allclose(ax.images[0].get_array(), cuts()["effect"].to_numpy().reshape(2, 3))
    assert {"−0.90", "0.40"} <= {text.get_text() for text in ax.texts}
    assert "change in probability" in words(ax)


def test_only_cuts_are_called_cuts():
    text = "The dog chased the cat"
    kinds = {
        "cutting heads": gattn.Cut(layer=1, head=0),
        "edits of heads": gattn.Scale(layer=1, head=0, factor=2.0),
        "cutting edges": gattn.Cut(layer=1, head=0, query=3, key=2),
        "edits of edges": gattn.Scale(layer=1, head=0, query=3, key=2, factor=2.0),
    }
    for said, edit in kinds.items():
        found = gattn.effect(text, [edit], progress=False)
        assert found["kind"].tolist() == [type(edit).__name__]
        title = found.draw().get_title()
        assert title.endswith(said)
        assert title.count("cutting") == ("cutting" in said)
    mixed = gattn.effect(
        text, [kinds["cutting heads"], gattn.Scale(layer=2, head=0, factor=2.0)], progress=False
    )
    assert "edits of heads" in mixed.draw().get_title()
    both = gattn.effect(text, [list(kinds.values())[:2]], progress=False)
    assert both["kind"].tolist() == ["Cut, Scale"]


def test_stacks_are_named_and_never_share_a_matrix():
    table = cuts()
    table["stack"] = "decoder"
    assert table.draw().get_title() == "decoder · cutting heads"
    table.loc[table["layer"] == 0, "stack"] = "encoder"
    assert len(table.draw().patches) == len(table)
    with pytest.raises(SelectionError, match="one stack, but there are encoder, decoder"):
        table.draw("heads")
    assert table[table["stack"] == "encoder"].draw().images[0].get_array().shape == (1, 3)
    named = gattn.effect("The dog", [gattn.Cut(0, 0, stack="decoder")], progress=False)
    assert named["stack"].tolist() == ["decoder"]
    assert gattn.effect("The dog", [gattn.Cut(0, 0)], progress=False)["stack"].isna().all()


@pytest.mark.parametrize("layout", ["arcs", "matrix", "layered"])
def test_two_edits_of_one_edge_never_share_its_place(layout):
    twice = edges(column="effect").iloc[[3, 3, 4]]
    with pytest.raises(SelectionError, match="each once"):
        twice.draw(layout)
    assert len(twice.draw().patches) == 3


def test_a_few_edits_are_bars_in_the_order_of_the_table():
    table = cuts()
    table.loc[[1, 4], "effect"] = [0.0, np.nan]
    ax = table.draw("edits")
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], table["effect"])
    assert " of " not in caption(ax)


def test_many_edits_are_bars_of_the_strongest_with_the_largest_first():
    many = cuts(10, 8).sample(frac=1, random_state=0)
    many.loc[many.index[::10], "effect"] = 0.0
    ax = many.draw("edits")
    assert "the 40 strongest of 80 edits, 8 are 0" in words(ax)
    expected = many.sort_values("effect", key=np.abs, ascending=False)[:40]
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], expected["effect"])
    ax.figure.canvas.draw()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [f"{n}.{h}" for n, h in zip(expected["layer"], expected["head"], strict=True)]
    assert ax.yaxis_inverted()


def _named(edits, inches):
    """Draw bars of edits in a small font; return their names."""
    table = Effects({"edit": edits} | dict.fromkeys(["layer", "head", "query", "key"]))
    table["effect"] = np.linspace(1, 2, len(edits))
    with mpl.rc_context({"font.size": 7}):
        ax = table.draw("edits", ax=Figure(inches).add_subplot())
    ax.figure.draw_without_rendering()
    assert not problems(ax.figure)
    return [label.get_text() for label in ax.get_yticklabels()], caption(ax)


def test_bars_of_edits_with_little_in_common_have_the_numbers_of_their_rows():
    alike = [f"Use({'a function of keys ' * 4}{n} {'and queries ' * 3}{n * 'x'})" for n in range(9)]
    names, said = _named([*alike, "Cut(layer=1)"], (2.2, 3))
    assert len(set(names)) == 10
    if "by their rows in the table" in said:
        assert [name.partition(":")[0] for name in names] == [str(n) for n in range(10)]


def test_names_of_bars_take_a_third_of_a_column_at_most_and_few_are_whole_in_lines():
    edits = [
        "Cut(layer=2, head=0)",
        "Scale(layer=1, factor=0.5)",
        "Ablate(layer=2, head=3, how='mean')",
        "Without(sides='query', of='0.1', to='2.0')",
    ]
    names, _ = _named(edits, (3.3, 2.4))
    assert [" ".join(name.split()) for name in names] == edits
    for some in (edits, 3 * edits):
        table = Effects({"edit": some} | dict.fromkeys(["layer", "head", "query", "key"]))
        table["effect"] = np.linspace(1, 2, len(some))
        with mpl.rc_context({"font.size": 7}):
            ax = table.draw("edits", ax=Figure((3.3, 2.4)).add_subplot())
            ax.figure.draw_without_rendering()
            wide = [text.get_window_extent().width for text in ax.get_yticklabels()]
        assert max(wide) < ax.figure.bbox.width / 3


def test_of_many_edits_those_that_change_nothing_have_no_bar():
    many = cuts(10, 8)
    many.loc[3:, "effect"] = 0.0
    ax = many.draw("edits")
    assert len(ax.patches) == 3
    assert caption(ax) == "3 of 80 edits, the others 0"
    many.loc[5, "effect"] = np.nan
    assert caption(many.draw("edits")) == "3 of 80 edits, the others 0 or not measured"
    many["effect"] = 0.0
    ax = many.draw("edits")
    ax.figure.canvas.draw()
    assert caption(ax) == "all 80 edits are 0"


def test_a_divergence_has_no_middle():
    table = cuts()
    table["effect"] = table["effect"].abs()
    table.attrs["metric"] = "KL divergence in nats"
    assert table.draw().images[0].norm.vmin == 0


def test_a_long_text_shows_its_strongest_edges_and_says_so():
    table = edges(tokens=[f"word{n % 7}" for n in range(60)])
    ax = table.draw()
    assert len(lines_of(ax).get_paths()) == 300
    assert "the 300 strongest of 1,830 edges" in words(ax)
    ax.figure.savefig(io.BytesIO())


@pytest.mark.parametrize("layout", ["arcs", "matrix", "layered"])
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_hostile_tokens_and_metrics_are_drawn_with_effects(layout, style):
    table = edges(tokens=["$x_1$", "a\nb", "\0", "猫", "x" * 60])
    table.attrs["metric"] = "probability of '$\\frac'"
    with mpl.style.context(style):
        ax = table.draw(layout)
        ax.figure.savefig(io.BytesIO())
    shown = [text.get_text() for text in ax.figure.findobj(mpl.text.Text)]
    assert any("x_1" in text for text in shown)
    assert not any("\0" in text for text in shown)


@pytest.mark.parametrize(
    ("table", "layout", "message"),
    [
        (edges()[:0], None, "no effects to draw"),
        (edges(heads=[(0, 0), (0, 1)]), "arcs", "one head, but there are 2"),
        (edges(), "heads", "edits of whole heads"),
        (cuts(), "matrix", "edits of single edges"),
        (cuts(), "circle", "layout is one of"),
    ],
)
def test_what_cannot_be_drawn_as_effects_is_refused(table, layout, message):
    with pytest.raises(SelectionError, match=message):
        table.draw(layout)


def test_effects_and_estimates_know_their_metric_and_tokens():
    text = "The dog chased the cat"
    found = gattn.effect(text, [gattn.Cut(layer=0, head=0)], progress=False)
    assert found.attrs["metric"] == "KL divergence in nats"
    assert found.draw().get_xlabel() == "head"
    options = {"target": " cat", "other": " dog", "layers": [1], "heads": [1], "sample": 2}
    guessed = gattn.estimate(text, progress=False, **options)
    assert guessed.attrs["metric"] == "logit difference (“␣cat” − “␣dog”)"
    assert "correlation" in guessed.attrs
    part = guessed[guessed["query"] == guessed["query"].max()]
    assert isinstance(part, Effects)
    ax = part.draw()
    labels = [label.get_text() for label in ax.get_xticklabels()]
    tokens = [str(token).strip() for token in guessed.attrs["tokens"]]
    begin, _, end = labels[0].partition("…")
    assert tokens[0].startswith(begin)
    assert tokens[0].endswith(end)
    assert labels[1:] == tokens[1:]


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_effects_of_cutting_edges_as_arcs():
    return edges().draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_effects_of_cutting_edges_on_layers():
    return edges(heads=[(0, 0), (1, 2), (2, 1)]).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_effects_of_cutting_heads_as_a_matrix():
    return cuts().draw().figure


def test_the_directions_of_arcs_are_no_wider_than_their_axes():
    rows = edges()
    back = Effects(rows.assign(query=rows["key"], key=rows["query"]))
    both = Effects(pd.concat([rows, back[back["query"] != back["key"]]], ignore_index=True))
    both.attrs = rows.attrs
    with gattn.style("paper"):
        ax = both.draw("arcs", figsize=(3.3, 3)).axes
        ax.figure.canvas.draw()
    label = ax.xaxis.label
    assert "below: to the left" in label.get_text().replace("\n", " ")
    found, room = label.get_window_extent(), ax.get_window_extent()
    assert room.x0 - 1 <= found.x0
    assert found.x1 <= room.x1 + 1
    assert found.y0 >= 0


@pytest.mark.parametrize("layout", ["heads", "edits", "arcs", "matrix", "layered"])
def test_a_picture_of_effects_that_are_all_0_says_so(layout):
    table = cuts() if layout in ("heads", "edits") else edges(column="effect")
    what = layout if layout in ("heads", "edits") else "edges"
    assert "are 0" not in caption(table.draw(layout))
    table["effect"] = 0.0
    assert caption(table.draw(layout)).startswith(f"all {len(table)} {what} are 0")
    table.loc[0, "effect"] = np.nan
    assert f"all {len(table)} {what} are 0 or not measured" in caption(table.draw(layout))
    table["effect"] = np.nan
    assert f"no {what} are measured" in caption(table.draw(layout))
    table["effect"] = 0.0
    assert caption(table[:1].draw(layout)).startswith("the change is 0")


def test_a_printed_table_names_edits_and_shows_their_effects():
    table = cuts(2, 2)
    table["record"] = "[{}]"
    for shown in (table, table[table.layer == 1]):
        assert "record" not in repr(shown)
        assert "Cut(" in repr(shown)
        assert "effect" in repr(shown)
    assert "record" in table.columns
