"""Spectra against dense algebra, NetworkX and graphs whose spectra are known."""

import networkx as nx
import numpy as np
import pytest
import torch
import xarray as xr
from attentions import TEXT, random_attention
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import graph_frequencies, laplacian_eigenvalues, spectral_table
from gattn.analysis.shape.spectral import normalized_laplacian
from gattn.errors import SelectionError, ShapeError

T = np.array(
    [[0.7, 0.1, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1], [0.05, 0.55, 0.1, 0.3], [0.1, 0.2, 0.3, 0.4]]
)
TWO = np.array([[1.0, 0.0], [0.5, 0.5]])


def star(leaves):
    """The star as attention: leaves give all to the centre, which gives each the same."""
    matrix = np.zeros((leaves + 1, leaves + 1))
    matrix[1:, 0] = 1
    matrix[0, 1:] = 1
    return matrix


@pytest.fixture(scope="module")
def run():
    model, tokenizer = gattn.load_model()
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states
    return gattn.capture(TEXT, model, tokenizer), hidden


# LapEigvals


def test_the_known_eigenvalues_of_two_tokens():
    found = laplacian_eigenvalues(TWO)
    assert found.dims == ("layer", "head", "token")
    np.testing.assert_allclose(found, [[[-0.25, 0]]], atol=1e-15)
    found = laplacian_eigenvalues(np.stack([[TWO], [TWO]]), unrolled=True)
    np.testing.assert_allclose(found, [[[-1 / 6, 0]], [[0.5, 0]]], atol=1e-15)


def test_they_are_the_eigenvalues_of_the_laplacian():
    attention = random_attention(2, 3, 7, causal=True)
    found = laplacian_eigenvalues(attention)
    for layer, head in np.ndindex(2, 3):
        matrix = attention[layer, head]
        degree = [sum(matrix[i, j] for i in range(j, 7)) / (7 - j) for j in range(7)]
        expected = np.linalg.eigvals(np.diag(degree) - matrix)
        np.testing.assert_allclose(np.sort(found[layer, head]), np.sort(expected.real), atol=1e-12)
        assert np.abs(expected.imag).max() == 0


def unrolled_by_edges(matrices):
    """The unrolled graph's Laplacian, edge by edge, with the mean weight of a node's out-edges."""
    layers, tokens = len(matrices), len(matrices[0])
    laplacian = np.zeros((layers * tokens,) * 2)
    for layer in range(layers):
        for query in range(tokens):
            for key in range(query + 1):
                up = query == key and layer > 0
                start = (layer - up) * tokens + key
                laplacian[layer * tokens + query, start] -= matrices[layer][query, key]
    edges = (laplacian != 0).sum(0)
    out = np.divide(-laplacian.sum(0), edges, out=np.zeros(layers * tokens), where=edges > 0)
    return laplacian + np.diag(out)


def test_unrolled_they_are_the_eigenvalues_of_the_graph_of_all_layers():
    attention = random_attention(4, 2, 5, causal=True)
    found = laplacian_eigenvalues(attention, unrolled=True)
    for head in range(2):
        laplacian = unrolled_by_edges(attention[:, head])
        np.testing.assert_array_equal(laplacian, np.tril(laplacian))
        expected = laplacian.diagonal().reshape(4, 5)
        np.testing.assert_allclose(found[:, head], expected, atol=1e-12)


def test_the_largest_come_first():
    attention = random_attention(2, 2, 6, causal=True)
    whole, top = laplacian_eigenvalues(attention), laplacian_eigenvalues(attention, top=3)
    assert top.dims == ("layer", "head", "rank")
    np.testing.assert_array_equal(top, np.sort(whole, axis=-1)[..., ::-1][..., :3])
    np.testing.assert_array_equal(laplacian_eigenvalues(attention, top=np.int64(3)), top)


def test_eigenvalues_are_named_by_token(run):
    trace, _ = run
    found = laplacian_eigenvalues(trace)
    assert list(found.token_token.to_numpy()) == trace.tokens
    assert "embedded" in found.computed_from
    np.testing.assert_allclose(found, laplacian_eigenvalues([
        torch.from_numpy(np.stack([trace[n, h].to_dense() for h in range(4)]))[None]
        for n in range(4)
    ]), atol=1e-6)  # fmt: skip


def test_what_lapeigvals_cannot_be():
    with pytest.raises(ShapeError, match="later ones"):
        laplacian_eigenvalues(T)
    with pytest.raises(ShapeError, match=">= 0"):
        laplacian_eigenvalues(-TWO)
    with pytest.raises(SelectionError, match="top must be a whole number from 1 to 2, not 3"):
        laplacian_eigenvalues(TWO, top=3)
    for wrong in (True, np.bool_(True), 0, 1.5):
        with pytest.raises(SelectionError, match="top must be a whole number"):
            laplacian_eigenvalues(TWO, top=wrong)
    with pytest.raises(SelectionError, match="two layers at least"):
        laplacian_eigenvalues(TWO, unrolled=True)
    with pytest.raises(SelectionError, match="queries and keys"):
        laplacian_eigenvalues(TWO[:1])


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("keep", [gattn.Threshold(0.1), gattn.TopK(2), gattn.TopMass(0.8)])
def test_the_error_of_what_was_dropped_is_bounded(run, keep, unrolled):
    trace, _ = run
    exact = laplacian_eigenvalues(trace, unrolled=unrolled)
    kept = laplacian_eigenvalues(gattn.capture(TEXT, keep=keep), unrolled=unrolled)
    (note,) = [note for note in kept.notes if "off by up to" in note]
    bound = float(note.split()[-1])
    error = float(np.abs(exact - kept).max())
    assert 0 < error <= bound
    assert not [note for note in exact.notes if "off by" in note]
    assert not [note for note in kept.notes if "later token" in note]


def test_edges_to_later_tokens_that_were_dropped_are_known_by_their_number():
    matrix = 0.5 * np.eye(8) + 0.3 * np.eye(8, k=-1) + 0.2 * np.eye(8, k=-2)
    matrix[2:, -1] += 0.01
    head = gattn.AttentionGraph.from_dense(matrix).keep(gattn.Threshold(0.1))
    with pytest.raises(ShapeError, match="later ones"):  # query 2 has 4 edges and reads 3 tokens
        laplacian_eigenvalues(head)
    matrix[2, -1] = 0
    found = laplacian_eigenvalues(
        gattn.AttentionGraph.from_dense(matrix).keep(gattn.Threshold(0.1))
    )
    assert "no edge to a later token is taken" in found.notes[-1]


# The graph without directions


def test_the_star_has_the_known_spectrum():
    found = graph_frequencies(star(5))
    np.testing.assert_allclose(found[0, 0], [0, 1, 1, 1, 1, 2], atol=1e-12)
    row = spectral_table(star(5)).loc[(0, 0)]
    assert row["fiedler"] == pytest.approx(1)
    assert row["largest"] == pytest.approx(2)


def test_the_known_spectrum_without_self_loops():
    known = [0, 1.088255, 1.251381, 1.660365]
    np.testing.assert_allclose(graph_frequencies(T)[0, 0], known, atol=1e-6)


@pytest.mark.parametrize("self_loops", [False, True])
def test_networkx_has_the_same_laplacian(self_loops):
    matrix = random_attention(1, 1, 6)[0, 0] * (np.arange(6) != 3)
    matrix[3] = 0  # a token of its own
    matrix[4, 0] = 0
    symmetric = (matrix + matrix.T) / 2
    if not self_loops:
        np.fill_diagonal(symmetric, 0)
    graph = nx.from_numpy_array(symmetric)
    expected = nx.normalized_laplacian_matrix(graph).toarray()
    found = normalized_laplacian(torch.from_numpy(matrix), self_loops)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    spectrum = np.sort(nx.normalized_laplacian_spectrum(graph))
    frequencies = graph_frequencies(matrix, self_loops=self_loops)[0, 0]
    np.testing.assert_allclose(frequencies, spectrum, atol=1e-12)


def test_as_many_frequencies_are_zero_as_there_are_components():
    matrix = np.zeros((6, 6))
    matrix[0, 1] = matrix[2, 3] = matrix[4, 2] = 1
    frequencies = graph_frequencies(matrix)[0, 0]
    assert int((frequencies < 1e-12).sum()) == 3
    assert spectral_table(matrix).loc[(0, 0), "fiedler"] == 0


def test_signals_are_as_smooth_as_the_sum_over_edges_says():
    attention, state = random_attention(1, 2, 6), np.random.default_rng(1).normal(size=(6, 4))
    found = spectral_table(attention, state, self_loops=True)
    for head in range(2):
        symmetric = (attention[0, head] + attention[0, head].T) / 2
        scaled = state / np.sqrt(symmetric.sum(1))[:, None]
        varying = sum(
            symmetric[i, j] / 2 * np.square(scaled[i] - scaled[j]).sum()
            for i, j in np.ndindex(6, 6)
        )
        expected = varying / np.square(state).sum()
        assert found.loc[(0, head), "smoothness"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("high", "upper"), [(0.5, 3), (0.2, 1), (0.9, 5)])
def test_an_eigenvector_has_its_energy_where_it_is(high, upper):
    attention = random_attention(1, 1, 6)
    laplacian = normalized_laplacian(torch.from_numpy(attention[0, 0])).numpy()
    frequencies, waves = np.linalg.eigh(laplacian)
    for index in range(6):
        row = spectral_table(attention, waves[:, [index]], high=high).loc[(0, 0)]
        assert row["smoothness"] == pytest.approx(frequencies[index], abs=1e-12)
        assert row["high_frequency"] == pytest.approx(float(index >= 6 - upper), abs=1e-12)


def test_equal_frequencies_share_their_energy_whatever_basis_the_solver_takes():
    # Of the star's 0, 1, 1, 1, 1, 2 the upper three hold 2 and two of the four ones.
    basis = np.linalg.eigh(normalized_laplacian(torch.from_numpy(star(5))).numpy())[1]
    state = np.random.default_rng(0).normal(size=(6, 3))
    energy = np.square(basis.T @ state).sum(1)
    expected = (energy[5] + energy[1:5].sum() / 2) / energy.sum()
    found = spectral_table(star(5), state).loc[(0, 0), "high_frequency"]
    assert found == pytest.approx(expected, abs=1e-12)
    turned = np.random.default_rng(1).permutation(6)
    again = spectral_table(star(5)[np.ix_(turned, turned)], state[turned]).loc[(0, 0)]
    assert again["high_frequency"] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=20)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_the_order_of_tokens_does_not_matter(tokens, seed):
    rng = np.random.default_rng(seed)
    attention, state = random_attention(1, 1, tokens, seed=seed), rng.normal(size=(tokens, 3))
    order = rng.permutation(tokens)
    turned = attention[..., order, :][..., order]
    found, again = spectral_table(attention, state), spectral_table(turned, state[order])
    np.testing.assert_allclose(found, again, atol=1e-9)
    assert (found["fiedler"] <= found["largest"]).all()
    assert found["high_frequency"].between(0, 1 + 1e-12).all()
    assert found["smoothness"].between(-1e-12, 2 + 1e-12).all()


def test_each_layer_reads_its_hidden_state(run):
    trace, hidden = run
    table = spectral_table(trace, hidden)
    assert table.index.names == ["layer", "head"]
    for layer in range(4):
        alone = spectral_table(trace, hidden[layer][0]).loc[[layer]]
        np.testing.assert_allclose(table.loc[[layer]], alone, atol=1e-12)
    stacked = np.stack([state[0].numpy() for state in hidden])
    np.testing.assert_allclose(table, spectral_table(trace, stacked), atol=1e-9)
    part = gattn.capture(TEXT, layers=[1, 2])
    np.testing.assert_allclose(spectral_table(part, hidden[1:3]), table.loc[[1, 2]], atol=1e-9)
    for lacking in (part, gattn.capture(TEXT, layers=[0, 1])):
        with pytest.raises(SelectionError, match=r"\[hidden_states\[n\] for n in which\]"):
            spectral_table(lacking, hidden)
    with pytest.raises(SelectionError, match="3 hidden states and 2 layers"):
        spectral_table(part, hidden[1:4])


def test_layers_without_attention_have_hidden_states_all_the_same():
    from transformers import JambaConfig, JambaForCausalLM

    torch.manual_seed(0)
    config = JambaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, num_experts=2, attn_layer_period=2,
        attn_layer_offset=1, use_mamba_kernels=False, mamba_d_state=4, attn_implementation="sdpa",
    )  # fmt: skip
    model = JambaForCausalLM(config).eval()
    ids = torch.arange(9)[None]
    seen = {}
    for n in (1, 3):
        model.model.layers[n].register_forward_pre_hook(
            lambda _, args, n=n: seen.setdefault(n, args[0].detach())
        )
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states
    with gattn.capturing(model) as recording, torch.no_grad():
        model(ids)
    trace = recording.trace
    assert trace.only_stack.layers == [0, 1]
    assert len(hidden) == 5
    with pytest.raises(SelectionError, match="5 hidden states and 2 layers of attention"):
        spectral_table(trace, hidden)
    found = spectral_table(trace, [hidden[n] for n in (1, 3)])
    for layer, n in enumerate((1, 3)):
        expected = spectral_table(trace, seen[n][0]).loc[layer]
        np.testing.assert_allclose(found.loc[layer], expected, atol=1e-12)


def test_traces_arrays_and_labelled_arrays_give_the_same(run):
    trace, hidden = run
    dense = np.stack([[trace[n, h].to_dense() for h in range(4)] for n in range(4)])
    labelled = xr.DataArray(dense, dims=("layer", "head", "query", "key"))
    table = spectral_table(trace, hidden)
    for attention in (dense, labelled):
        np.testing.assert_allclose(spectral_table(attention, hidden), table, atol=1e-6)
        np.testing.assert_allclose(
            graph_frequencies(attention), graph_frequencies(trace), atol=1e-6
        )


def test_tensors_stay_what_they_are():
    attention = torch.from_numpy(random_attention(1, 2, 5)).float()
    assert graph_frequencies(attention).dtype == np.float32
    assert graph_frequencies(attention.double()).dtype == np.float64


def test_half_kept_graphs_say_so():
    kept = gattn.capture(TEXT, keep=gattn.TopK(2))
    for result in (graph_frequencies(kept), spectral_table(kept)):
        assert any("not kept" in note for note in result.notes)
        assert any("without a useful bound" in note for note in result.notes)


@pytest.mark.parametrize(
    ("hidden", "error", "message"),
    [
        (np.ones((5, 2)), ShapeError, "hidden states of 5 tokens, and attention among 4"),
        (np.ones((2, 2, 4, 3)), ShapeError, "take one text of a batch"),
        (np.full((4, 2), np.nan), ShapeError, "finite"),
        (np.ones((2, 4, 2)), SelectionError, "2 hidden states and 3 layers of attention"),
        (np.ones((5, 4, 2)), SelectionError, "5 hidden states and 3 layers of attention"),
        ([torch.ones(1, 4, 2), torch.ones(1, 4, 3)], ShapeError, "alike"),
        ("text", ShapeError, "tensors or arrays, not str"),
    ],
)
def test_hidden_states_that_do_not_fit(hidden, error, message):
    with pytest.raises(error, match=message):
        spectral_table(np.stack([[T]] * 3), hidden)


def test_what_a_spectrum_cannot_be_of():
    for wrong in (1.5, 0, 1, "a", np.full(2, 0.5), np.nan):
        with pytest.raises(SelectionError, match="high is a share"):
            spectral_table(T, np.ones((4, 2)), high=wrong)
    with pytest.raises(ShapeError, match=">= 0"):
        graph_frequencies(-T)
    with pytest.raises(SelectionError, match="queries and keys"):
        spectral_table(T[:2])


def test_they_draw_themselves(run):
    trace, hidden = run
    for result in (
        laplacian_eigenvalues(trace),
        graph_frequencies(trace),
        spectral_table(trace, hidden),
    ):
        assert result.draw().has_data()
