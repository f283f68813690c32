"""Chains against known figures, NetworkX, powers and eigenvalues; bounds against the truth."""

import matplotlib.text
import networkx as nx
import numpy as np
import pytest
import scipy.sparse.linalg
import torch
import xarray as xr
from attentions import TEXT, random_attention
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import bounces, mixing, pagerank, stationary
from gattn.analysis.reading.heads import by_place
from gattn.errors import SelectionError, ShapeError

KNOWN = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])


@pytest.fixture(scope="module")
def trace():
    return gattn.capture(TEXT)


@pytest.fixture(scope="module")
def thinned():
    return gattn.capture(TEXT, keep=gattn.Threshold(0.05))


def encoder(keep=None):
    """A trace of a layer that looks both ways, whole or with edges dropped."""
    heads = {}
    for head, matrix in enumerate(random_attention(1, 3, 7, seed=3)[0]):
        graph = gattn.AttentionGraph.from_dense(matrix, layer=0, head=head)
        heads[0, head] = graph if keep is None else graph.keep(keep)
    return gattn.AttentionTrace({"encoder": gattn.heads.stack.Stack("encoder", heads)})


def drawn_words(ax):
    texts = ax.figure.findobj(matplotlib.text.Text)
    return " ".join(text.get_text().replace("\n", " ") for text in texts)


def test_known_figures():
    np.testing.assert_allclose(stationary(KNOWN)[0, 0], [0.217391, 0.579710, 0.202899], atol=5e-7)
    ranks = pagerank(KNOWN)[0, 0]
    assert float(ranks[1]) == pytest.approx(0.513, abs=5e-4)  # .256 is the other direction
    uniform = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    np.testing.assert_allclose(pagerank(uniform)[0, 0], [0.7704, 0.1156, 0.0664, 0.0476], atol=5e-5)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.85, 0.97])
def test_pagerank_is_networkx_on_the_reversed_graph(trace, damping):
    found = pagerank(trace, damping)
    for head in trace.heads():
        graph = head.to_networkx().reverse()
        known = nx.pagerank(graph, alpha=damping, tol=1e-13, max_iter=2000)
        np.testing.assert_allclose(
            found.sel(layer=head.layer, head=head.head), [known[i] for i in range(13)], atol=1e-7
        )


def test_a_query_without_attention_jumps_as_networkx_lets_it():
    matrix = KNOWN.copy()
    matrix[2] = 0
    graph = nx.DiGraph()
    graph.add_nodes_from(range(3))
    graph.add_weighted_edges_from((i, j, matrix[i, j]) for i in range(2) for j in range(3))
    known = nx.pagerank(graph, tol=1e-13)
    found = pagerank(matrix)
    np.testing.assert_allclose(found[0, 0], [known[i] for i in range(3)], atol=1e-9)
    assert any("attend to nothing" in note for note in found.notes)
    filled = np.where(matrix.sum(1, keepdims=True) > 0, matrix, 1 / 3)
    share = stationary(matrix)[0, 0].to_numpy()
    np.testing.assert_allclose(share @ filled, share)


def test_rows_of_any_sum_are_divided_by_it():
    scaled = KNOWN * np.array([[0.5], [0.9], [0.1]])
    np.testing.assert_allclose(pagerank(scaled), pagerank(KNOWN), atol=1e-12)
    np.testing.assert_allclose(stationary(scaled), stationary(KNOWN), atol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_stationary_distributions_stay(seed):
    matrix = random_attention(2, 3, 7, seed=seed)
    found = stationary(matrix)
    np.testing.assert_allclose(np.einsum("lhq,lhqk->lhk", found, matrix), found, atol=1e-12)
    np.testing.assert_allclose(found.sum("token"), 1)
    assert found.notes == []


@settings(max_examples=10)
@given(st.permutations(range(7)))
def test_order_of_tokens_does_not_matter(order):
    matrix = random_attention(2, 3, 7, seed=1)
    mixed = matrix[..., order, :][..., order]
    for analysis in (pagerank, stationary):
        np.testing.assert_allclose(analysis(mixed), analysis(matrix)[..., order], atol=1e-10)
    np.testing.assert_allclose(mixing(mixed), mixing(matrix), rtol=1e-8)


def test_causal_heads_end_at_the_first_token_and_the_notes_say_so(trace):
    found = stationary(trace)
    assert (found[..., 0] == 1).all()
    assert (found[..., 1:] == 0).all()
    assert any("16 of 16 heads end at one token" in note for note in found.notes)


def test_periodic_chains_have_a_stationary_distribution_and_never_relax():
    swap = np.array([[0.0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]])
    np.testing.assert_allclose(stationary(swap)[0, 0], [0.25, 0.5, 0.25])
    row = mixing(swap).loc[0, 0]
    assert row["second_eigenvalue"] == 1
    assert row["relaxation_time"] == np.inf
    assert row["closed_classes"] == 1


def test_several_closed_classes_are_no_number():
    apart = np.zeros((4, 4))
    apart[:2, :2] = apart[2:, 2:] = 0.5
    found = stationary(np.stack([apart, random_attention(1, 1, 4)[0, 0]]))
    assert np.isnan(found[0, 0]).all()
    assert np.isfinite(found[0, 1]).all()
    assert any("heads 0.0" in note and "0.1" not in note for note in found.notes)
    assert mixing(apart).loc[0, 0].tolist() == [1, np.inf, 2]


def test_tokens_that_walks_leave_for_good_get_nothing():
    matrix = np.array(
        [[0.5, 0.5, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.25, 0.25, 0], [0, 0, 0.5, 0.5]]
    )
    found = stationary(matrix)[0, 0].to_numpy()
    np.testing.assert_allclose(found[:2], [1 / 3, 2 / 3])
    assert (found[2:] == 0).all()


def test_links_too_weak_for_double_precision_are_not_made_up():
    weak = np.array([[1, 1e-14], [1e-15, 1]])
    assert np.isnan(stationary(weak)).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", [1, 2, 9, 80])
def test_mixing_is_numpys_eigenvalues(causal, size):
    matrix = random_attention(2, 3, size, causal, seed=5)
    found = mixing(matrix)
    for (layer, head), row in found.iterrows():
        values = np.sort(np.abs(np.linalg.eigvals(matrix[layer, head])))
        known = values[-2] if size > 1 else 0
        if causal and size == 80:
            known = np.sort(np.diagonal(matrix[layer, head]))[-2]
        assert row["second_eigenvalue"] == pytest.approx(known, abs=1e-8)
        assert row["relaxation_time"] == pytest.approx(1 / (1 - known), rel=1e-6)


def test_mixing_does_not_wait_for_what_hardly_converges():
    position = np.arange(200)
    window = np.exp(3 * np.random.default_rng(0).standard_normal((200, 200)))
    window[abs(position[:, None] - position) > 1] = 0
    window /= window.sum(1, keepdims=True)
    # A window of neighbours is reversible: its eigenvalues are those of a symmetric matrix.
    symmetric = np.sqrt(window * window.T)
    known = np.sort(abs(np.linalg.eigvalsh(symmetric)))[-2]
    assert mixing(window).loc[(0, 0), "second_eigenvalue"] == pytest.approx(known, abs=1e-9)


def test_mixing_gives_up_on_arnoldi_soon(monkeypatch):
    asked = []
    eigs = scipy.sparse.linalg.eigs

    def count(*given, **options):
        asked.append(options["maxiter"])
        return eigs(*given, **options)

    monkeypatch.setattr(scipy.sparse.linalg, "eigs", count)
    mixing(random_attention(1, 1, 80))
    assert 0 < asked[0] <= 100


def test_bounces_are_rows_of_matrix_powers(trace):
    found = bounces(trace, 11, steps=3)
    assert found.dims == ("layer", "head", "step", "token")
    for head in trace.heads():
        matrix = head.to_dense().astype(np.float64)
        matrix /= matrix.sum(1, keepdims=True)
        for step in range(4):
            known = np.linalg.matrix_power(matrix, step)[11]
            one = found.sel(layer=head.layer, head=head.head, step=step)
            np.testing.assert_allclose(one, known, atol=1e-12)


def test_bounds_of_dropped_edges_hold(trace, thinned):
    for analysis in (pagerank, lambda given: bounces(given, 12, steps=5)):
        whole, kept = analysis(trace), analysis(thinned)
        error = abs(whole - kept).sum("token")
        assert (error <= kept.error_bound).all()
        assert float(error.max()) > 0.05
        assert float((kept.error_bound / error).min()) < 5  # no empty promise
        assert "error_bound" not in whole.coords
        assert any("error_bound" in note for note in kept.notes)


@pytest.mark.parametrize("keep", [gattn.TopK(6), gattn.Threshold(0.03), gattn.TopMass(0.9)])
def test_bounds_of_stationary_distributions_hold(keep):
    whole, kept = stationary(encoder()), stationary(encoder(keep))
    error = abs(whole - kept)
    assert float(error.max()) > 1e-4
    assert (error <= kept.error_bound).all()


def nearly_apart(seed, size=4, causal=False):
    """Chains of two groups of tokens, with links between them that get weaker and weaker."""
    generator = np.random.default_rng(seed)
    matrix = np.exp(3 * generator.standard_normal((size, size)))
    group = generator.permutation(np.arange(size) % 2)
    matrix *= np.where(group[:, None] == group, 1, 10.0 ** -generator.uniform(2, 7))
    matrix = np.tril(matrix) if causal else matrix
    return matrix / matrix.sum(1, keepdims=True)


def balanced(chain):
    """The stationary distribution, without a subtraction: Grassmann, Taksar and Heyman (1985)."""
    chain = chain.copy()
    for last in range(len(chain) - 1, 0, -1):
        chain[:last, last] /= chain[last, :last].sum()
        chain[:last, :last] += np.outer(chain[:last, last], chain[last, :last])
    share = np.ones(1)
    for last in range(1, len(chain)):
        share = np.append(share, share @ chain[:last, last])
    return share / share.sum()


def test_what_hardly_weighs_may_still_decide():
    whole = np.array([[1 - 2e-6, 2e-6], [5e-7, 1 - 5e-7]])
    graph = gattn.AttentionGraph.from_dense(whole)
    np.testing.assert_allclose(stationary(graph)[0, 0], [0.2, 0.8], atol=1e-9)
    found = stationary(graph.keep(gattn.Threshold(1e-6)))
    assert found[0, 0].values.tolist() == [0, 1]
    assert (found.error_bound[0, 0] >= 0.2).all()
    assert any("error_bound" in note for note in found.notes)


KEEPS = [gattn.Threshold(1e-4), gattn.Threshold(1e-6), gattn.TopK(2), gattn.TopMass(0.99999)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_bounds_hold_where_groups_hardly_meet(keep, dtype):
    tight = 0
    for seed in range(12):
        whole = nearly_apart(seed).astype(dtype)
        found = stationary(gattn.AttentionGraph.from_dense(whole).keep(keep))[0, 0]
        if "error_bound" not in found.coords or np.isnan(found).any():
            continue
        whole = whole.astype(np.float64)
        error = abs(found - balanced(whole / whole.sum(1, keepdims=True)))
        assert (error <= found.error_bound).all(), seed
        tight += bool((error > found.error_bound / 10).any())
    assert tight > 0


@pytest.mark.parametrize("damping", [0.99, 0.9999])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_bounds_hold_where_walks_hardly_start_anew(keep, causal, damping):
    moved = 0
    for seed in range(12):
        whole = nearly_apart(seed, causal=causal)
        known = np.linalg.solve(np.eye(4) - damping * whole.T, np.full(4, (1 - damping) / 4))
        found = pagerank(gattn.AttentionGraph.from_dense(whole).keep(keep), damping)
        error = float(abs(found[0, 0] - known).sum())
        if "error_bound" in found.coords:
            assert error <= float(found.error_bound[0, 0]), seed
            moved = max(moved, error)
        else:
            assert error < 1e-10
    assert moved > 2e-5


def test_bounds_of_long_walks_hold():
    whole = np.array([[1 - 5e-7, 5e-7], [2e-7, 1 - 2e-7]])
    found = bounces(gattn.AttentionGraph.from_dense(whole).keep(gattn.Threshold(1e-6)), 0, 5000)
    known = np.linalg.matrix_power(whole, 5000)[0]
    error = float(abs(found[0, 0, -1] - known).sum())
    assert 0.004 < error <= float(found.error_bound[0, 0, -1]) < 2 * error


def test_rows_that_lost_no_edge_have_no_bound_in_any_precision():
    whole = random_attention(2, 3, 40, seed=1)[0, 0]
    for dtype in (np.float16, np.float32, np.float64):
        graph = gattn.AttentionGraph.from_dense(whole.astype(dtype))
        assert "error_bound" not in pagerank(graph, 0.9999).coords
        assert "error_bound" not in stationary(graph).coords
        assert "error_bound" in pagerank(graph.keep(gattn.TopK(39)), 0.9999).coords


def test_bounds_hold_where_causal_heads_lost_their_first_token():
    whole = random_attention(2, 3, 7, causal=True)[0, 0]
    graph = gattn.AttentionGraph.from_dense(whole)
    found = stationary(graph.keep(gattn.TopK(2)))
    known = ~np.isnan(found)
    assert (abs(found - stationary(whole)) <= found.error_bound).where(known, True).all()


def test_all_inputs_give_the_same(trace):
    arrays = np.stack(
        [np.stack([trace[n, h].to_dense() for h in range(4)]) for n in range(4)]
    ).astype(np.float64)
    labelled = xr.DataArray(arrays, dims=("layer", "head", "query", "key"))
    tensors = tuple(torch.from_numpy(layer)[None] for layer in arrays)
    for analysis in (pagerank, stationary, mixing, lambda given: bounces(given, 5)):
        known = np.asarray(analysis(trace))
        for given_ in (trace.only_stack, arrays, labelled, torch.from_numpy(arrays), tensors):
            np.testing.assert_allclose(np.asarray(analysis(given_)), known, atol=1e-6)
        one = np.asarray(analysis(trace[2, 1]))
        np.testing.assert_allclose(one.ravel(), known.reshape(4, 4, -1)[2, 1], atol=1e-6)


def test_numbers_of_layers_and_heads_are_the_models(trace):
    found = pagerank(trace[2, 1])
    assert found["layer"].values.tolist() == [2]
    assert found["head"].values.tolist() == [1]
    assert found["token_token"].values.tolist() == trace.tokens
    assert mixing(trace[2, 1]).index.tolist() == [(2, 1)]
    assert len(by_place(trace)) == len(mixing(trace))


def test_a_sink_outside_of_the_text_is_left_out_and_said():
    from dataclasses import replace

    graph = gattn.AttentionGraph.from_dense(KNOWN * 0.6)
    graph = replace(graph, sink=np.full(3, 0.4))
    found = pagerank(graph)
    np.testing.assert_allclose(found, pagerank(KNOWN), atol=1e-12)
    assert any("sink" in note for note in found.notes)
    assert any("divided by its sum" in note for note in found.notes)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: pagerank(KNOWN, 1.0), SelectionError, "damping"),
        (lambda: pagerank(KNOWN[:2]), SelectionError, "self-attention"),
        (lambda: stationary(KNOWN - 0.2), ShapeError, "attention >= 0"),
        (lambda: pagerank(KNOWN, "x"), SelectionError, "damping is a number .* not 'x'"),
        (lambda: pagerank(KNOWN, True), SelectionError, "not True"),
        (lambda: pagerank(KNOWN, np.nan), SelectionError, "damping"),
        (
            lambda: bounces(KNOWN, 3),
            SelectionError,
            r"query must be a token's position, here 0 \.\. 2",
        ),
        (lambda: bounces(KNOWN, -4), SelectionError, "query must be a token's position"),
        (lambda: bounces(KNOWN, "dog"), SelectionError, "No query 'dog'; the 3 tokens are '0'"),
        (lambda: bounces(KNOWN, False), SelectionError, "query must be a token's position"),
        (lambda: bounces(KNOWN, 0, steps=True), SelectionError, "steps"),
        (lambda: bounces(KNOWN, 0, steps=0), SelectionError, "steps"),
        (lambda: mixing(KNOWN[:, :2]), SelectionError, "self-attention"),
    ],
)
def test_what_cannot_be_asked_is_said(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_numbers_of_numpy_are_numbers():
    found = bounces(KNOWN, np.int64(1), np.int32(2))
    np.testing.assert_array_equal(found, bounces(KNOWN, 1, 2))
    np.testing.assert_array_equal(pagerank(KNOWN, np.float32(0.5)), pagerank(KNOWN, 0.5))


def test_negative_positions_count_from_the_end(trace):
    found = bounces(trace[1, 1].subgraph(range(2, 9)), -1)
    assert found.attrs["query"] == 8
    assert found.sel(step=0, token=8).item() == 1
    np.testing.assert_array_equal(bounces(trace, -2), bounces(trace, 11))


def test_they_draw_themselves(trace):
    ranks = pagerank(trace)
    ax = ranks.sel(layer=1).draw()
    (image,) = ax.get_images()
    np.testing.assert_allclose(image.get_array(), ranks.sel(layer=1))
    shown = [label.get_text() for label in ax.get_xticklabels()]
    assert trace.tokens[0].startswith(shown[0].split("…")[0])
    assert shown[1:] == trace.tokens[1:]
    assert "pagerank" in ax.get_title()
    walk = bounces(trace, -1).sel(layer=1, head=1)
    np.testing.assert_allclose(walk.draw().get_images()[0].get_array(), walk)
    assert "16 of 16 heads end at one token" in drawn_words(stationary(trace).draw())
    drawn = drawn_words(mixing(trace).draw())
    assert "relaxation" in drawn
    assert "3.3" in drawn
