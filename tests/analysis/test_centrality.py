"""Centralities and communities against NetworkX called by hand, and by a backend of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from attentions import TEXT, random_attention

import gattn
from gattn.analysis import centrality, communities, pagerank
from gattn.analysis.reading import heads
from gattn.errors import GraphError, SelectionError, ShapeError

KNOWN = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(TEXT)


def graph_of(matrix, **lengths):
    """NetworkX's graph from query to key, made by hand."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(matrix)))
    for i, j in np.argwhere(matrix > 0).tolist():
        graph.add_edge(i, j, weight=matrix[i, j], distance=-np.log(matrix[i, j]))
    return graph


def test_pagerank_is_the_one_of_the_chains(trace):
    found = centrality(trace, "pagerank", tol=1e-12, max_iter=2000)
    np.testing.assert_allclose(found, pagerank(trace), atol=1e-6)
    assert found.dims == ("layer", "head", "token")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("betweenness_centrality", {"weight": "distance"}),
        ("load_centrality", {"weight": "distance"}),
        ("closeness_centrality", {"distance": "distance"}),
        ("harmonic_centrality", {"distance": "distance"}),
        ("eigenvector_centrality", {"weight": "weight"}),
        ("katz_centrality_numpy", {"weight": "weight"}),
        ("in_degree_centrality", {}),
        ("out_degree_centrality", {}),
    ],
)
@pytest.mark.parametrize("direction", ["attention", "information"])
def test_measures_get_the_weights_that_they_mean(name, options, direction):
    matrix = random_attention(1, 1, 8, seed=0)[0, 0]
    graph = graph_of(matrix)
    graph = graph.reverse() if direction == "information" else graph
    known = getattr(nx, name)(graph, **options)
    found = centrality(matrix, name, direction=direction)
    np.testing.assert_allclose(found[0, 0], [known[i] for i in range(8)], rtol=1e-8)


def test_the_default_direction_calls_central_what_is_attended_to():
    star = np.eye(5) * 0.1
    star[:, 2] += 0.9
    for name in ("pagerank", "closeness_centrality", "in_degree_centrality", "harmonic_centrality"):
        found = centrality(star, name)[0, 0]
        assert int(np.argmax(found.data)) == 2, name
        gathers = centrality(star, name, direction="information")[0, 0]
        assert int(np.argmax(gathers.data)) != 2 or name == "pagerank", name
    assert any("query to key" in note for note in centrality(star, "pagerank").notes)


def test_without_direction_weights_are_the_mean_of_both():
    matrix = random_attention(1, 1, 8, seed=1)[0, 0]
    graph = nx.from_numpy_array((matrix + matrix.T) / 2)
    known = nx.current_flow_closeness_centrality(graph, weight="weight")
    found = centrality(matrix, "current_flow_closeness_centrality", direction="none")
    np.testing.assert_allclose(found[0, 0], [known[i] for i in range(8)], rtol=1e-8)


def test_options_are_passed_on_and_go_before():
    matrix = random_attention(1, 1, 8, seed=2)[0, 0]
    known = nx.betweenness_centrality(graph_of(matrix), normalized=False)
    found = centrality(matrix, "betweenness_centrality", weight=None, normalized=False)
    np.testing.assert_allclose(found[0, 0], [known[i] for i in range(8)])


def test_attention_of_1_and_a_little_more_has_a_length_above_0():
    hard = np.zeros((4, 4), dtype=np.float32)
    hard[[0, 1, 2, 3], [1, 0, 1, 2]] = np.float32(1.0000001)
    found = centrality(hard, "betweenness_centrality")[0, 0]
    known = nx.betweenness_centrality(nx.DiGraph([(0, 1), (1, 0), (2, 1), (3, 2)]))
    np.testing.assert_allclose(found, [known[i] for i in range(4)])


def test_attention_of_0_is_no_edge():
    matrix = np.tril(KNOWN)
    head = gattn.AttentionGraph.from_dense(matrix, gattn.TokenGraph.complete(3))
    assert head.graph.num_edges == 9
    found = centrality(head, "in_degree_centrality")
    np.testing.assert_allclose(found[0, 0] * 2, [3, 2, 1])


def test_self_loops_count_at_both_ends_unless_they_are_left_out():
    head = gattn.AttentionGraph.from_dense(np.full((3, 3), 1 / 3))
    for graph, degree in ((head, 3.0), (head.without_self_loops(), 2.0)):
        found = centrality(graph, "degree_centrality")
        assert found[0, 0].values.tolist() == [degree] * 3
    assert any("self-loops included" in note for note in found.notes)


def test_heads_of_arrays_are_made_one_at_a_time(monkeypatch):
    made, measured = [], []
    from_dense = heads.from_dense

    def count(*given, **options):
        made.append(options["head"])
        return from_dense(*given, **options)

    monkeypatch.setattr(heads, "from_dense", count)

    def measure(graph):
        measured.append(len(made))
        return dict.fromkeys(graph, 0)

    centrality(np.stack([KNOWN] * 5), measure)
    assert made == [0, 1, 2, 3, 4]
    assert measured == [1, 2, 3, 4, 5]


def test_a_function_of_a_graph_is_a_measure(trace):
    found = centrality(trace[1, 3], lambda graph: dict(graph.in_degree(weight="weight")))
    np.testing.assert_allclose(found[0, 0], trace[1, 3].to_dense().sum(0), rtol=1e-5)


def test_communities_are_networkxs_on_the_symmetric_graph(trace):
    found = communities(trace)
    for head in trace.heads():
        matrix = head.to_dense().astype(np.float64)
        np.fill_diagonal(matrix, 0)
        graph = nx.from_numpy_array((matrix + matrix.T) / 2)
        labels = found.sel(layer=head.layer, head=head.head).to_numpy()
        parts = [set(np.flatnonzero(labels == n).tolist()) for n in range(labels.max() + 1)]
        known = nx.community.modularity(graph, parts)
        one = float(found.modularity.sel(layer=head.layer, head=head.head))
        assert one == pytest.approx(known, abs=1e-6)
        best = nx.community.louvain_communities(graph, seed=0)
        assert one == pytest.approx(nx.community.modularity(graph, best), abs=0.05)
        assert [int(np.argmax(labels == n)) for n in range(len(parts))] == sorted(
            min(part) for part in parts
        )


def test_blocks_are_found_by_every_method_and_seed():
    blocks = np.full((9, 9), 0.01)
    for first in (0, 3, 6):
        blocks[first : first + 3, first : first + 3] = 0.3
    for method in ("louvain_communities", "greedy_modularity_communities", "asyn_lpa_communities"):
        for seed in (0, 1):
            found = communities(blocks, method, seed=seed)
            assert found[0, 0].values.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2], method
    own = communities(blocks, lambda graph: iter([set(graph)]))
    assert own.modularity.item() == pytest.approx(0)
    assert (own == 0).all()


def test_a_head_without_attention_falls_apart_into_single_tokens():
    found = communities(np.zeros((3, 3)))
    assert found[0, 0].values.tolist() == [0, 1, 2]
    assert found.modularity.item() == 0


def test_dropped_attention_and_sinks_are_said(trace):
    notes = centrality(trace[1, 3].keep(gattn.TopK(2)), "pagerank").notes
    assert any("not kept" in note for note in notes)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: centrality(KNOWN, "page_rank"), SelectionError, r"nx\.page_rank"),
        (lambda: centrality(KNOWN, "hits"), GraphError, "one number per token, not tuple"),
        (lambda: centrality(KNOWN, "edge_betweenness_centrality"), GraphError, "one number"),
        (lambda: centrality(KNOWN, "pagerank", direction="both"), SelectionError, "direction"),
        (lambda: centrality(KNOWN[:2], "pagerank"), SelectionError, "self-attention"),
        (lambda: centrality(KNOWN - 0.3, "pagerank"), ShapeError, "attention >= 0"),
        (lambda: centrality(KNOWN, "pagerank", max_iter=1), GraphError, "for layer 0, head 0"),
        (lambda: centrality(KNOWN, "pagerank", backend="nowhere"), SelectionError, "'nowhere'"),
        (lambda: communities(KNOWN, backend="nowhere"), SelectionError, "nowhere"),
        (lambda: communities(KNOWN, "louvain"), SelectionError, r"nx\.community\.louvain"),
        (lambda: communities(KNOWN, "girvan_newman"), GraphError, "disjoint sets"),
        (lambda: communities(KNOWN, lambda graph: [{0, 1}, {1, 2}]), GraphError, "disjoint sets"),
        (lambda: communities(KNOWN, lambda graph: [{0, 1}]), GraphError, "disjoint sets"),
    ],
)
def test_what_cannot_be_asked_is_said(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_networkx_itself_is_a_backend(trace):
    found = centrality(trace[1, 3], "pagerank", backend="networkx")
    np.testing.assert_array_equal(found, centrality(trace[1, 3], "pagerank"))


@pytest.mark.slow
def test_an_installed_backend_computes(tmp_path):
    """A backend is known by its entry point as NetworkX is imported: so in a fresh process."""
    (tmp_path / "halves.py").write_text(
        textwrap.dedent("""
        import networkx as nx

        class Graph(nx.DiGraph):
            __networkx_backend__ = "halves"

        class Backend:
            @staticmethod
            def convert_from_nx(graph, **options):
                return Graph(graph)

            @staticmethod
            def convert_to_nx(found, **options):
                return found

            @staticmethod
            def in_degree_centrality(graph):
                return dict.fromkeys(graph, 0.5)
        """)
    )
    info = tmp_path / "halves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[networkx.backends]\nhalves = halves:Backend\n")
    code = textwrap.dedent("""
        import numpy as np
        from gattn.analysis import centrality
        from gattn.errors import SelectionError
        found = centrality(np.eye(3), "in_degree_centrality", backend="halves")
        assert (found == 0.5).all(), found
        assert (centrality(np.ones((3, 3)), "in_degree_centrality") == 1.5).all()
        try:
            centrality(np.eye(3), "pagerank", backend="halves")
        except SelectionError as error:
            assert "halves" in str(error)
        else:
            raise AssertionError("it has no pagerank")
    """)
    root = Path(gattn.__file__).parents[1]
    paths = os.pathsep.join([str(tmp_path), str(root)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr


def test_they_draw_themselves(trace):
    for found in (centrality(trace, "in_degree_centrality"), communities(trace)):
        one = found.sel(layer=2)
        ax = one.draw()
        (image,) = ax.get_images()
        np.testing.assert_allclose(image.get_array(), one)
        shown = [label.get_text() for label in ax.get_xticklabels()]
        assert trace.tokens[0].startswith(shown[0].split("…")[0])
        assert shown[1:] == trace.tokens[1:]
        assert found.name.replace("_", " ") in ax.get_title()
