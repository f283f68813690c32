"""Pictures of circuits: of several stacks, of graphs, of several texts; each head is named."""

import json
import re

import matplotlib as mpl
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from circuits_drawn import caption, curves, drawn, names
from made_circuits import made
from matplotlib.figure import Figure
from meeting import problems
from torch import nn

import gattn
from gattn.analysis.circuits.several import Circuits
from gattn.drawing.layers.bands import bands_of, place_of
from gattn.errors import FileError, SelectionError, ShapeError
from gattn.heads.geometry.written import to_text
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack

LAMP = "The river tall green lamp river tall green lamp river tall green"
QUIET = {"progress": False, "random": 0}
SIZES = [None, (3.3, 2.8), (6.75, 4.5)]


# Stacks


WORDS = ["the", "cat", "sat", "down"]
TARGETS = ["die", "katze", "saß"]
TRANSLATION = {
    "encoder": [WORDS, WORDS],
    "decoder": [TARGETS, TARGETS],
    "cross": [TARGETS, WORDS],
}


@pytest.fixture(scope="module")
def translation():
    rows = [
        (("encoder", 0, 1), ("encoder", 1, 2), 0, 1, 0.8),
        (("encoder", 2, 2), ("decoder", 1, 1), 0, 0, 0.7),
        (("decoder", 1, 1), ("decoder", 2, 2), 1, 3, 0.9),
        (("encoder", 2, 3), ("decoder", 2, 2), 1, 2, 0.3),
    ]
    layers = {"encoder": 2, "decoder": 2, "cross": 2}
    return made(rows, stacks=TRANSLATION, layers=layers, bipartite=["cross"])


@pytest.mark.parametrize("inches", SIZES)
def test_a_decoder_lies_above_its_encoder_and_each_has_its_own_tokens(translation, inches):
    ax = drawn(translation, inches)
    bands = bands_of(translation, whole=True)
    assert list(bands) == ["encoder", "decoder"]
    ends = {tuple(np.round(p, 6)) for path in curves(ax) for p in (path[0], path[-1])}
    nodes = ax.collections[-1].get_offsets()
    assert ends <= {tuple(np.round(p, 6)) for p in nodes}
    ys = {node: y for node, (_, y) in zip(translation, nodes.tolist(), strict=True)}
    assert max(y for node, y in ys.items() if node[0] == "encoder") < min(
        y for node, y in ys.items() if node[0] == "decoder"
    )
    assert [t.get_text() for t in ax.get_xticklabels()] == WORDS
    above = [t for t in ax.texts if t.get_gid() == "gattn-label"]
    assert [t.get_text() for t in above] == TARGETS
    layers = [t.get_text() for t in ax.get_yticklabels()]
    assert "encoder · 0" in layers
    assert "decoder · 0" in layers
    assert {t.get_text() for t in names(ax)} == {"0.1", "cross 0.0", "1.3", "cross 1.2"}


@pytest.mark.parametrize("inches", SIZES)
def test_texts_of_the_upper_stack_cover_no_node_of_the_lower_one(translation, inches):
    ax = drawn(translation, inches)
    ax.figure.draw_without_rendering()
    below = [n for n, node in enumerate(translation) if node[0] == "encoder"]
    nodes = ax.transData.transform(ax.collections[-1].get_offsets()[below])
    for text in (t for t in ax.texts if t.get_gid() == "gattn-label"):
        box = text.get_window_extent()
        assert not any(box.contains(*node) for node in nodes)


def test_stacks_on_the_same_tokens_have_the_same_columns():
    nodes = [str(n) for n in range(9)]
    stacks = {"first": [nodes, nodes], "second": [nodes, nodes]}
    rows = [(("first", 0, 3), ("first", 1, 7), 0, 0, 0.5)]
    rows.append((("second", 0, 7), ("second", 1, 5), 0, 0, 0.9))
    found = made(rows, stacks=stacks, layers={"first": 1, "second": 1}, has_stream=False)
    ax = found.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["3", "5", "7"]
    bands = bands_of(found, whole=True)
    columns = {node: place_of(bands, node)[0] for node in found}
    assert columns["first", 1, 7] == columns["second", 0, 7] == 2
    assert not [t for t in ax.texts if t.get_gid() == "gattn-label"]


def test_keys_that_are_other_tokens_than_queries_are_on_the_left():
    stacks = {"reader": [["q", "r"], ["a", "b", "c"]]}
    rows = [(("reader keys", 0, 2), ("reader", 1, 0), 0, 0, 0.5)]
    rows.append((("reader keys", 1, 0), ("reader", 2, 1), 1, 0, 0.5))
    found = made(rows, stacks=stacks, layers={"reader": 2}, bipartite=["reader"])
    ax = found.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b", "c", "q", "r"]
    assert [(p[0][1], p[-1][1]) for p in curves(ax)] == [(0, 1), (1, 2)]
    assert {(p[0][0] < 3, p[-1][0] > 3) for p in curves(ax)} == {(True, True)}
    assert {"keys", "queries"} <= {t.get_text() for t in ax.texts}


@pytest.fixture(scope="module")
def taking_turns():
    """A decoder whose attention to itself and to an encoder are stacks of their own."""
    stacks = {
        "encoder": [WORDS, WORDS],
        "own": [TARGETS, TARGETS],
        "across": [TARGETS, WORDS],
    }
    rows = [
        (("encoder", 0, 1), ("encoder", 1, 2), 0, 1, 0.8),
        (("own", 0, 0), ("own", 1, 1), 0, 0, 0.7),
        (("across keys", 0, 3), ("across", 1, 1), 0, 0, 0.6),
        (("own", 1, 1), ("own", 2, 2), 1, 3, 0.9),
        (("own", 1, 2), ("own", 2, 2), 1, 2, 0.4),
        (("across keys", 1, 0), ("across", 2, 2), 1, 1, 0.5),
    ]
    order = [["encoder", 0], *([name, n] for n in range(2) for name in ("own", "across"))]
    layers = {"encoder": 1, "own": 2, "across": 2}
    return made(rows, stacks=stacks, layers=layers, bipartite=["across"], order=json.dumps(order))


@pytest.mark.parametrize("inches", [*SIZES, (3.3, 2.2)])
def test_layers_of_stacks_that_took_turns_lie_in_the_order_in_which_they_ran(taking_turns, inches):
    ax = drawn(taking_turns, inches)
    spans = [
        (path.vertices[-4][1], path.vertices[-1][1])
        for c in ax.collections
        if c.get_gid() == "gattn-edges"
        for path in c.get_paths()
        if len(path.vertices) >= 4
    ]
    layers = sorted(set(spans))
    assert len(layers) == 5
    assert np.allclose([end - start for start, end in layers], 1)
    assert np.allclose([start for start, _ in layers[2:]], [end for _, end in layers[1:-1]])
    said = [t.get_text() for t in ax.get_yticklabels()]
    if inches != (3.3, 2.2):
        assert said == ["encoder · 0", "own · 0", "across · 0", "own · 1", "across · 1"]
    assert said == sorted(
        said, key=["encoder · 0", "own · 0", "across · 0", "own · 1", "across · 1"].index
    )
    above = [t.get_text() for t in ax.texts if t.get_gid() == "gattn-label"]
    assert above == [*WORDS, *TARGETS]
    ax.figure.draw_without_rendering()
    assert not problems(ax.figure)


def test_a_stack_without_a_known_order_lies_above_the_one_before(taking_turns):
    plain = taking_turns.copy()
    del plain.graph["order"]
    bands = bands_of(plain, whole=True)
    assert bands["across"].base > bands["own"].top > bands["encoder"].top


@pytest.mark.slow
def test_a_circuit_knows_in_which_order_layers_ran():
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True).double().eval()
    ran = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            module.register_forward_pre_hook(
                lambda *_, name=name: ran.append(name), with_kwargs=True
            )
    source, target = (torch.randn(1, n, 8, dtype=torch.float64) for n in (4, 3))
    with torch.no_grad():
        model(source, target)
    expected = list(ran)
    found = gattn.circuit(lambda: model(source, target)[0, -1, 0], model, units="heads", **QUIET)
    order = json.loads(found.graph["order"])
    counts = {}
    for (stack, layer), name in zip(order, expected, strict=True):
        assert stack == re.sub(r"\.\d+\.", ".", name)
        assert layer == counts.setdefault(stack, 0)
        counts[stack] += 1
    bands = bands_of(found, whole=True)
    own, across = (bands[f"decoder.layers.{name}"] for name in ("self_attn", "multihead_attn"))
    assert own.base == across.base
    assert [own.height(1), across.height(1), own.height(2), across.height(2)] == [
        own.base + n for n in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("inches", [(3.3, 3), (6.75, 4)])
def test_stacks_whose_names_begin_alike_are_told_apart(inches):
    names = ["decoder.layers.self_attn", "decoder.layers.multihead_attn"]
    tokens = [str(n) for n in range(4)]
    stacks = {name: [tokens, tokens] for name in names}
    rows = [((name, 0, 1), (name, 1, 2), 0, 0, 0.5) for name in names]
    found = made(rows, stacks=stacks, layers=dict.fromkeys(names, 1))
    labels = [t.get_text() for t in found.draw(figsize=inches).get_yticklabels()]
    assert [label[:9] for label in labels] == ["self_attn", "multihead"]
    alone = made(rows[:1], stacks=stacks, layers=dict.fromkeys(names, 1))
    (label,) = [t.get_text() for t in alone.draw(figsize=inches).get_yticklabels()]
    assert label == "self_attn · 0"


@pytest.mark.slow
def test_a_model_of_two_stacks_of_one_graph_draws_its_circuit():
    class Layer(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.score, self.value = nn.Linear(size, 2), nn.Linear(size, 4)

        def forward(self, x, edges):
            ends = self.score(x)
            scores = ends[:, :1] + ends[:, 1]
            return scores.masked_fill(~edges, -torch.inf).softmax(-1) @ self.value(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(6), Layer(4)

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    torch.manual_seed(0)
    model, x = Net().double().eval(), torch.randn(6, 6, dtype=torch.float64)
    edges = (torch.rand(6, 6) < 0.5) | torch.eye(6, dtype=torch.bool)
    found = gattn.circuit(lambda: model(x, edges)[2].sum(), model, units="pairs", **QUIET)
    assert len(found.stacks) == 2
    ax = found.draw()
    assert len(curves(ax)) == found.number_of_edges()
    assert len(ax.get_xticks()) == len({node[-1] for node in found})


# Names of heads


@pytest.fixture(scope="module")
def park():
    text = "Tom and Mary went to the park. Tom gave the ball to"
    return gattn.circuit(text, target=" the", units="heads", **QUIET)


@pytest.mark.parametrize("inches", SIZES)
def test_each_head_is_named_once_at_least_or_listed(park, inches):
    found, ax = park, drawn(park, inches)
    said = {head for t in names(ax) for head in t.get_text().rstrip("…").split(",")}
    _, found_list, listed = caption(ax).partition("heads without a name here: ")
    assert not said & set(listed.split(", "))
    every = {f"{row.layer}.{row.head}" for row in found.heads().itertuples()}
    assert said | (set(listed.split("; ")[0].split(", ")) if found_list else set()) == every


def test_heads_whose_curves_have_no_room_are_listed():
    rows = [((0, 0), (1, 1), 0, head, 1 - 0.1 * head) for head in range(6)]
    rows += [((0, key), (1, 3), 0, 6 + key, 0.2) for key in range(3)]
    tokens = list("abcd")
    found = made(rows, stacks={"decoder": [tokens, tokens]}, layers={"decoder": 1})
    ax = drawn(found, (6, 4))
    assert "0.0,0.1,0.2 + 3 more" in {t.get_text() for t in names(ax)}
    assert "heads without a name here: 0.3, 0.4, 0.5" in caption(ax)


def test_a_head_that_is_named_nowhere_comes_before_one_that_is_named():
    tokens = [f"t{n}" for n in range(30)]
    rows = [((0, n), (1, n + 1), 0, 0, 0.9) for n in range(28)]
    rows.append(((1, 5), (2, 20), 1, 7, 0.01))
    found = made(rows, stacks={"decoder": [tokens, tokens]}, layers={"decoder": 2})
    assert "1.7" in {t.get_text() for t in names(drawn(found, (10, 4)))}


# Graphs


@pytest.fixture(scope="module")
def karate():
    graph = nx.karate_club_graph()
    tokens = [str(n) for n in graph]
    rows = [((0, 8), (1, 2), 0, 0, 0.4), ((0, 8), (1, 2), 0, 1, 0.6)]
    rows += [((1, 2), (2, 30), 1, 0, 0.9), ((1, 30), (2, 30), 1, 0, 0.2)]
    ends = torch.tensor(list(graph.edges)).T
    edge_index = torch.cat([ends, ends.flip(0)], 1)
    head = AttentionGraph.from_edges(edge_index, torch.ones(edge_index.shape[1]), num_tokens=34)
    trace = gattn.AttentionTrace({"graph": Stack("graph", {(0, 0): head})})
    found = made(
        rows,
        stacks={"graph": [tokens, tokens]},
        layers={"graph": 2},
        has_stream=False,
        trace=trace,
    )
    return graph, found


def test_only_nodes_of_the_circuit_are_shown_of_a_graph(karate):
    _, found = karate
    ax = found.draw()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["2", "8", "30"]
    assert ax.figure.get_size_inches()[0] < 6


def test_a_circuit_is_drawn_on_the_layout_of_its_graph(karate):
    graph, found = karate
    places = nx.spring_layout(graph, seed=0)
    ax = found.draw_graph(places)
    kinds = {c.get_gid(): c for c in ax.collections}
    assert np.allclose(kinds["gattn-nodes"].get_offsets(), [places[n] for n in (2, 8, 30)])
    assert len(kinds["gattn-others"].get_offsets()) == 31
    assert {t.get_text() for t in ax.texts if t.get_gid() == "gattn-label"} == {"2", "8", "30"}
    ends = {
        (tuple(np.round(path.vertices[0], 6)), tuple(np.round(path.vertices[-1], 6)))
        for c in ax.collections
        if c.get_gid() == "gattn-edges"
        for path in c.get_paths()
    }
    expected = [(8, 2), (2, 30), (30, 30)]
    assert ends == {tuple(tuple(np.round(places[n], 6)) for n in edge) for edge in expected}
    assert len(kinds["gattn-faint"].get_paths()) == 2 * graph.number_of_edges()
    widths = np.concatenate(
        [c.get_linewidths() for c in ax.collections if c.get_gid() == "gattn-edges"]
    )
    pen = (widths - widths.min()) / (widths.max() - widths.min())
    assert sorted(pen) == pytest.approx([0, (0.6 - 0.2) / 0.7, 1])
    assert "largest of" in ax.get_legend().get_title().get_text()


def test_where_nodes_lie_must_be_known(karate, translation):
    graph, found = karate
    with pytest.raises(ShapeError, match=r"found.draw_graph\(data.pos\)"):
        found.draw_graph()
    with pytest.raises(ShapeError):
        found.draw_graph(dict.fromkeys(list(graph)[:5], (0.0, 1.0)))
    with pytest.raises(SelectionError, match="different tokens"):
        translation.draw_graph(np.zeros((4, 2)))


# Several texts


def test_several_circuits_draw_in_how_many_of_them_a_head_reads_what(tmp_path):
    tokens = list("abcab")
    one = [((0, 1), (1, 2), 0, 1, 0.5), ((1, 2), (2, 4), 1, 0, 0.7)]
    two = [((0, 2), (1, 3), 0, 1, 0.9), ((0, 3), (1, 3), 0, 0, 0.2)]
    several = Circuits(
        [
            made(rows, stacks={"decoder": [tokens, tokens]}, layers={"decoder": 2})
            for rows in (one, two)
        ]
    )
    ax = several.draw()
    roles = pd.DataFrame(several.roles())
    heads = [t.get_text() for t in ax.get_yticklabels()]
    kinds = [t.get_text() for t in ax.get_xticklabels()]
    shown = ax.images[0].get_array()
    assert shown.sum() == round(2 * roles["share"].sum())
    for row in roles.itertuples():
        place = heads.index(f"{row.layer}.{row.head}"), kinds.index(row.role)
        assert shown[place] == 2 * row.share
    assert sorted(heads) == sorted({f"{row.layer}.{row.head}" for row in roles.itertuples()})
    with pytest.raises(FileError, match=r"Circuits has 2: save each by itself, .*graphs.table\(\)"):
        gattn.save(several, tmp_path / "circuits.json")


def of_words(words, rows, **facts):
    stacks, layers = {"decoder": [words, words]}, {"decoder": 2}
    return made(rows, stacks=stacks, layers=layers, **facts)


@pytest.mark.parametrize("size", [(3.3, 2.2), (3.3, 2.0), (6.75, 2.2)])
@pytest.mark.parametrize("layout", [None, "constrained"])
def test_names_of_roles_are_whole(size, layout):
    words = list("abcdabcd")
    rows = [((0, key), (1, query), 0, query, 0.5) for query, key in
            ((4, 4), (5, 4), (6, 3), (7, 5), (7, 3), (4, 1), (5, 0))]  # fmt: skip
    with mpl.rc_context({"font.size": 7}):
        figure = Figure(size, layout=layout)
        ax = Circuits([of_words(words, rows)] * 2).draw(ax=figure.add_subplot())
        assert not problems(figure)
    names = [" ".join(text.get_text().split()) for text in ax.get_xticklabels()]
    assert names == ["itself", "previous", "after same token", "same token", "first", "other"]


def test_roles_say_patches_of_images_and_nodes_have_no_order():
    words = ["a", "b", "a", "c"]
    rows = [((0, 0), (1, 2), 0, 0, 0.5), ((0, 1), (1, 2), 0, 1, 0.5), ((0, 2), (1, 2), 0, 2, 0.5)]
    grid = gattn.TokenGraph.complete(4)
    head = AttentionGraph.from_dense(np.full((4, 4), 0.25), grid).on_grid(2, 2)
    axes = {name: np.asarray(x).tolist() for name, x in head.geometry.coordinates().items()}
    places = {"text": to_text(head.geometry), "axes": axes}
    patches = of_words(words, rows, geometry=json.dumps({"decoder": places}))
    assert set(Circuits([patches]).roles()["role"]) == {"same patch", "previous", "itself"}
    names = [text.get_text() for text in Circuits([patches]).draw().get_xticklabels()]
    assert [" ".join(name.split()) for name in names] == ["itself", "previous", "same patch"]
    nodes = [str(n) for n in range(4)]
    graph = made(rows, stacks={"graph": [nodes, nodes]}, layers={"graph": 1}, has_stream=False)
    assert sorted(Circuits([graph]).roles()["role"]) == ["itself", "other", "other"]
