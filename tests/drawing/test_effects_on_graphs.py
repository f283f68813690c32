"""Effects of cuts of edges on the layout of their graph."""

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from meeting import problems
from seen import caption, drawn_edges, texts
from torch_geometric.nn import GATConv

import gattn
from gattn.errors import SelectionError, ShapeError
from gattn.models.effects.effect_tables import Effects

CLUB = nx.karate_club_graph()
PLACES = nx.spring_layout(CLUB, seed=0)


def effects(heads=((0, 0),), **facts):
    rows = [
        {"edit": "", "kind": "Cut", "stack": "graph", "layer": n, "head": h, "query": i, "key": j}
        for n, h in heads for one in CLUB.edges for i, j in (one, one[::-1])
    ]  # fmt: skip
    table = Effects(rows)
    table["effect"] = np.random.default_rng(0).normal(size=len(rows))
    table.attrs = {"metric": "class 1", "tokens": [str(n) for n in CLUB]} | facts
    return table


def edges_of(ax):
    """The numbers of drawn edges as the norm of their widths has them, by both ends."""
    found = {}
    for lines in (c for c in ax.collections if c.get_gid() == "gattn-edges"):
        for path, width, colour, dash in zip(
            lines.get_paths(), lines.get_linewidths(), lines.get_edgecolors(),
            lines.get_linestyles(), strict=True,
        ):  # fmt: skip
            ends = tuple(tuple(np.round(path.vertices[n], 6)) for n in (0, -1))
            found[ends] = width, colour, dash[1] is not None
    return found


def place(node):
    return tuple(np.round(PLACES[node], 6))


def test_each_edge_is_as_wide_and_coloured_as_its_effect():
    table = effects()
    ax = table.draw_graph(PLACES)
    found = edges_of(ax)
    assert len(found) == len(table)
    widths, sizes = [], []
    for row in table.itertuples():
        width, (red, _, blue, _), is_dashed = found[place(row.key), place(row.query)]
        assert (blue > red) == (row.effect > 0)
        assert is_dashed == (row.effect < 0)
        widths.append(width)
        sizes.append(abs(row.effect))
    fit = np.polyval(np.polyfit(sizes, widths, 1), sizes)
    np.testing.assert_allclose(fit, widths, rtol=1e-6)
    title = ax.get_legend().get_title().get_text()
    assert title.replace("\n", " ") == "change in class 1"
    assert ax.get_title() == "graph · layer 0 · head 0 · cutting edges"
    assert sorted(texts(ax, "gattn-label"), key=int) == [str(n) for n in CLUB]


def test_an_edge_of_several_heads_shows_its_largest_change_and_edges_without_one_are_faint():
    table = effects(heads=[(0, 0), (0, 1), (1, 0)])
    table.loc[table["query"] == 33, "effect"] = 0.0
    ax = table.draw_graph(PLACES)
    found, top = edges_of(ax), table["effect"].abs().max()
    best = table.sort_values("effect", key=np.abs).groupby(["query", "key"]).last()
    best = best[best["effect"] != 0]
    shown = {(place(key), place(query)) for query, key in best.index}
    assert set(found) <= shown
    strongest = best["effect"].abs().idxmax()
    assert found[place(strongest[1]), place(strongest[0])][0] == max(w for w, *_ in found.values())
    assert "the largest change" in caption(ax)
    (faint,) = [c for c in ax.collections if c.get_gid() == "gattn-faint"]
    assert len(faint.get_segments()) + len(found) == 2 * CLUB.number_of_edges()
    assert top > 0


def test_titles_and_captions_of_graphs_name_the_layer_or_those_that_differ():
    ax = effects(heads=[(1, 0), (1, 1)]).draw_graph(PLACES)
    assert ax.get_title() == "graph · layer 1 · cutting edges"
    assert "of each edge the largest change, among: 1.0, 1.1;" in caption(ax)
    assert caption(ax).count("1.0") == 1
    assert "several heads" not in caption(ax)
    assert "several" not in caption(effects().draw_graph(PLACES))


@pytest.mark.parametrize("size", [(3.3, 3), (6.75, 4)])
def test_nothing_meets_at_the_size_of_a_paper(size):
    ax = effects().draw_graph(PLACES, ax=Figure(size).add_subplot())
    assert not problems(ax.figure)


@pytest.mark.parametrize("ends", [(33, 32), (2, 0), (8, 30)])
def test_the_ends_of_the_strongest_edges_are_named_before_others(ends):
    table = effects(tokens=[f"a member {n}" for n in CLUB])
    is_strongest = (table["query"] == ends[0]) & (table["key"] == ends[1])
    assert is_strongest.sum() == 1
    table.loc[is_strongest, "effect"] = -20.0
    ax = table.draw_graph(PLACES, ax=Figure((3.3, 2.4)).add_subplot())
    ax.figure.canvas.draw()
    found = {label for label in texts(ax, "gattn-label") if label}
    assert len(found) < len(CLUB)
    assert {f"a member {n}" for n in ends} <= found


def test_only_names_that_repeat_are_numbered():
    assert set(
        texts(effects(tokens=list(map("m{}".format, CLUB))).draw_graph(PLACES), "gattn-label")
    ) == {f"m{n}" for n in CLUB}
    twice = effects(tokens=["one", *["two"] * 33]).iloc[:1]
    key, query = twice[["key", "query"]].iloc[0]
    found = set(texts(twice.draw_graph(PLACES), "gattn-label"))
    assert found == {f"{n} {'two' if n else 'one'}" for n in (key, query)}


def test_what_is_no_edge_of_one_graph_is_refused():
    table = effects()
    with pytest.raises(ShapeError, match=r"found.draw_graph\(data.pos\)"):
        table.draw_graph()
    with pytest.raises(ShapeError):
        table.draw_graph({node: PLACES[node] for node in range(5)})
    heads = table.copy()
    heads["query"] = None
    with pytest.raises(SelectionError, match=r"select their rows"):
        heads.draw_graph(PLACES)
    two = table.copy()
    two.loc[:3, "stack"] = "other"
    with pytest.raises(SelectionError, match="choose one"):
        two.draw_graph(PLACES)
    apart = effects(tokens={"graph": {"query": ["a"] * 34, "key": ["b"] * 34}})
    with pytest.raises(SelectionError, match="different tokens"):
        apart.draw_graph(PLACES)


def test_rows_of_ones_own_need_no_names():
    table = effects()
    del table.attrs["tokens"]
    assert drawn_edges(table.draw_graph(np.array(list(PLACES.values())))) == len(table)


@pytest.mark.slow
def test_cuts_of_a_graph_attention_network_are_drawn():
    torch.manual_seed(0)
    ends = torch.tensor(list(CLUB.edges)).T
    edges, nodes = torch.cat([ends, ends.flip(0)], 1), torch.eye(34)
    gat = GATConv(34, 2, heads=2, concat=False).eval()
    friends = list(CLUB[8])
    cuts = [gattn.Cut(query=8, key=friend) for friend in friends]
    found = gattn.effect(lambda: gat(nodes, edges)[8], cuts, gat, target=1, progress=False)
    ax = found.draw_graph(PLACES)
    assert drawn_edges(ax) == len(friends)
    assert set(texts(ax, "gattn-label")) == {"8", *map(str, friends)}


def test_effects_given_to_the_picture_of_heads_are_told_how_to_draw_themselves():
    with pytest.raises(
        SelectionError, match=r"Effects draws itself, as in found\.draw_graph\(pos\)"
    ):
        gattn.drawing.draw_graph(effects())
    with pytest.raises(SelectionError, match=r"several of the same tokens\.$"):
        gattn.drawing.draw_graph([])
