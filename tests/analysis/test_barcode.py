"""Barcodes against ripser, and against components counted at every distance."""

import sys

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
import torch
from attentions import TEXT, random_attention
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import barcode, topology_table
from gattn.analysis.shape.barcode import Barcode
from gattn.errors import DependencyError, SelectionError, ShapeError

T = np.array(
    [[0.7, 0.1, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1], [0.05, 0.55, 0.1, 0.3], [0.1, 0.2, 0.3, 0.4]]
)
RING = np.roll(np.eye(6), 1, axis=1) * 0.8


def deaths(bars, place=(0, 0), dimension=0):
    return bars.xs((*place, dimension), level=("layer", "head", "dimension"))["death"].to_numpy()


def test_the_known_deaths():
    found = barcode(T)
    assert found.index.names == ["layer", "head", "dimension"]
    np.testing.assert_allclose(deaths(found), [0.45, 0.7, 0.7])
    assert (found["birth"] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_ripser_finds_the_same_components(causal):
    ripser = pytest.importorskip("ripser")
    attention = random_attention(1, 3, 12, causal)
    found = barcode(attention)
    for head in range(3):
        distance = 1 - np.maximum(attention[0, head], attention[0, head].T)
        np.fill_diagonal(distance, 0)
        (bars,) = ripser.ripser(distance, distance_matrix=True, maxdim=0)["dgms"]
        finite = np.sort(bars[np.isfinite(bars[:, 1]), 1])
        ours = deaths(found, (0, head))
        np.testing.assert_allclose(ours[ours > 1e-9], finite[finite > 1e-9], atol=1e-6)


@settings(max_examples=25)
@given(st.integers(2, 9), st.integers(0, 10**6), st.booleans())
def test_bars_count_the_components_at_every_distance(tokens, seed, causal):
    attention = random_attention(1, 1, tokens, causal, seed)
    found = deaths(barcode(attention))
    assert len(found) == tokens - 1
    linked = np.maximum(attention[0, 0], attention[0, 0].T)
    for distance in np.linspace(0.01, 0.999, 15):
        graph = nx.from_numpy_array((1 - linked <= distance).astype(int))
        assert 1 + (found > distance).sum() == nx.number_connected_components(graph)


def test_they_are_the_betti_numbers_over_thresholds():
    attention = random_attention(2, 2, 9)
    bars, table = barcode(attention), topology_table(attention)
    for layer, head, threshold in table.index:
        alive = 1 + (deaths(bars, (layer, head)) > 1 - threshold + 1e-12).sum()
        assert alive == table.loc[(layer, head, threshold), "betti0"]


def test_tokens_at_distance_zero_are_linked_and_those_without_edges_die_last():
    matrix = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0.25, 0.75]])
    np.testing.assert_array_equal(deaths(barcode(matrix)), [0, 0.75, 1])


def test_a_ring_has_one_loop():
    pytest.importorskip("ripser")
    found = barcode(RING, dimension=1)
    np.testing.assert_allclose(found.xs(1, level="dimension"), [[0.2, 1.0]], atol=1e-6)
    assert deaths(found) == pytest.approx([0.2] * 5)
    table = topology_table(RING, [0.5]).iloc[0]
    assert table["betti1"] == 1


def test_summaries_are_those_of_the_lengths():
    pytest.importorskip("ripser")
    attention = np.stack([[RING, np.eye(6)]])
    summary = barcode(attention, dimension=1).summary()
    assert list(summary.index) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert summary.loc[(0, 0, 0)].tolist() == pytest.approx([5, 1, 0.2, 0, np.log(5)])
    assert summary.loc[(0, 0, 1)].tolist() == pytest.approx([1, 0.8, 0.8, 0, 0], abs=1e-6)
    assert summary.loc[(0, 1, 0)].tolist() == pytest.approx([5, 5, 1, 0, np.log(5)])
    none = summary.loc[(0, 1, 1)]
    assert none[["number", "sum", "entropy"]].tolist() == [0, 0, 0]
    assert none[["mean", "std"]].isna().all()
    lengths = np.array([0.45, 0.7, 0.7])
    shares = lengths / lengths.sum()
    found = barcode(T).summary().loc[(0, 0, 0)]
    assert found["entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert found["std"] == pytest.approx(lengths.std())


def test_parts_of_it_are_barcodes_too():
    found = barcode(random_attention(2, 2, 5))
    part = found[found["death"] > 0.5]
    assert isinstance(part, Barcode)
    expected = (found["death"] > 0.5).groupby(["layer", "head"]).sum()
    kept = part.summary()["number"].droplevel("dimension")
    assert kept.to_dict() == expected[expected > 0].to_dict()


def test_inputs_give_the_same():
    trace = gattn.capture(TEXT)
    dense = np.stack([[trace[n, h].to_dense() for h in range(4)] for n in range(4)])
    found = barcode(trace)
    assert "embedded" in found.computed_from
    assert len(found) == 16 * 12
    np.testing.assert_array_equal(barcode(dense), found)
    np.testing.assert_allclose(barcode(torch.from_numpy(dense).float()), found, atol=1e-6)
    np.testing.assert_array_equal(barcode(trace[3, 1]), found.loc[(3, 1, slice(None)), :])


KEEPS = [gattn.Threshold(0.06), gattn.Threshold(1 / 7), gattn.TopK(2), gattn.TopMass(0.7)]


@pytest.mark.parametrize("keep", KEEPS)
def test_bars_of_half_kept_heads_end_late_by_no_more_than_is_said(keep):
    whole, kept = barcode(gattn.capture(TEXT)), barcode(gattn.capture(TEXT, keep=keep))
    (note,) = [note for note in kept.notes if "earlier" in note]
    bound = float(note.split("up to ")[1].split()[0])
    late = kept["death"] - whole["death"]
    assert late.min() >= -1e-6
    assert 0 < late.max() <= bound
    assert not [note for note in whole.notes if "earlier" in note]


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("causal", [False, True])
def test_loops_of_half_kept_heads_begin_and_end_late_by_no_more_than_is_said(keep, causal):
    pytest.importorskip("ripser")
    bottleneck = pytest.importorskip("persim").bottleneck
    moved = 0
    for seed in range(4):
        head = gattn.AttentionGraph.from_dense(random_attention(1, 1, 14, causal, seed)[0, 0])
        whole, kept = barcode(head, dimension=1), barcode(head.keep(keep), dimension=1)
        (note,) = [note for note in kept.notes if "dimension 1" in note]
        bound = float(note.split("up to ")[1].split()[0])
        assert f"those of up to {bound:g} " in note
        one, other = (bars.xs(1, level="dimension").to_numpy() for bars in (whole, kept))
        # Both ends between 0 and the bound earlier: within half of it, had all moved by half of it.
        other = other - bound / 2
        assert bottleneck(one, other) <= bound / 2 + 1e-6  # ripser is of single precision
        moved += len(one) != len(other) or not np.allclose(one, other)
        assert not [note for note in whole.notes if "earlier" in note]
    assert moved


def test_one_token_has_no_bars_and_a_summary():
    found = barcode(np.ones((2, 3, 1, 1)))
    assert len(found) == 0
    summary = found.summary()
    assert list(summary.index) == [(layer, head, 0) for layer in range(2) for head in range(3)]
    assert (summary[["number", "sum", "entropy"]] == 0).all(axis=None)
    assert summary[["mean", "std"]].isna().all(axis=None)


def test_without_ripser_loops_are_refused_and_components_are_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "ripser", None)
    assert len(barcode(T)) == 3
    with pytest.raises(DependencyError, match=r"pip install 'gattn\[topology\]'"):
        barcode(T, dimension=1)


@pytest.mark.parametrize(
    ("attention", "options", "error", "message"),
    [
        (-T, {}, ShapeError, ">= 0"),
        (T * 2, {}, ShapeError, "attention of 1.4"),
        (T[:2], {}, SelectionError, "queries and keys"),
        (T, {"dimension": 2}, SelectionError, "0 and 1"),
    ],
)
def test_what_has_no_barcode(attention, options, error, message):
    with pytest.raises(error, match=message):
        barcode(attention, **options)


def test_it_draws_one_head():
    pytest.importorskip("ripser")
    found = barcode(np.stack([[T, T.T / 2], [RING[:4, :4], T]]), dimension=1)
    ax = found.draw(layer=0, head=1)
    assert ax.get_title().startswith("barcode · layer 0 · head 1")
    assert found.draw().get_title().startswith("barcode · layer 1 · head 1")
    assert found.draw(layer=0).get_title().startswith("barcode · layer 0 · head 1")
    given_ax = plt.figure().add_subplot()
    assert barcode(RING, dimension=1).draw(ax=given_ax) is given_ax
    lines = [len(collection.get_segments()) for collection in given_ax.collections]
    assert lines == [1, 5]
    labels = [text.get_text() for text in given_ax.get_legend().get_texts()]
    assert labels == ["loops (1)", "components (5)"]
    with pytest.raises(SelectionError, match=r"no bars .* layer 7"):
        found.draw(layer=7)
    plt.close("all")
