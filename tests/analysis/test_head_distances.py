"""Distances between heads against scipy, clusters and maps against what they are made of."""

import io
import math

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon, pdist, squareform

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph, TopK, TopMass
from gattn.analysis import compare, head_clusters, head_distances, head_map
from gattn.analysis.heads import head_distances as head_space
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack

FARTHEST = math.sqrt(math.log(2))


def rows(seed, *shape, power=3, causal=True):
    values = np.random.default_rng(seed).exponential(size=shape) ** power
    values = np.tril(values) if causal else values
    return values / values.sum(-1, keepdims=True)


def trace_of(values, **attributes):
    layers, heads, _, size = values.shape
    graphs = {
        (n, h): AttentionGraph.from_dense(
            values[n, h], TokenGraph.causal(size), layer=n, head=h, **attributes
        )
        for n in range(layers)
        for h in range(heads)
    }
    return AttentionTrace({"decoder": Stack("decoder", graphs)}, "made up")


def by_scipy(one, other):
    """Mean of scipy's distance over queries, with what is left of 1 as one more column."""
    sides = [x.reshape(-1, *x.shape[-2:]).astype(float) for x in (one, other)]
    whole = [np.concatenate([x, (1 - x.sum(-1, keepdims=True)).clip(0)], -1) for x in sides]
    with np.errstate(invalid="ignore"):  # scipy takes the root of -1e-17
        return np.array(
            [
                [np.nan_to_num(jensenshannon(p, q, axis=-1)).mean() for q in whole[1]]
                for p in whole[0]
            ]
        )


@pytest.mark.parametrize("causal", [True, False])
def test_distances_are_those_of_scipy(causal):
    values = rows(0, 2, 3, 9, 9, causal=causal)
    found = head_distances(values)
    assert found.dims == ("head", "other")
    assert found["head"].to_numpy().tolist() == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    np.testing.assert_allclose(found, by_scipy(values, values), atol=2e-8)
    assert (np.diag(found) == 0).all()
    np.testing.assert_array_equal(found, found.T)
    assert float(found.sel(head="0.1", other="1.2")) == found.to_numpy()[1, 5] > 0.05


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_rectangles_of_any_size(seed, heads, queries, keys):
    one = rows(seed, heads, queries, keys, power=6, causal=False)
    other = rows(seed + 1, 2, queries, keys, causal=False) * 0.7
    np.testing.assert_allclose(head_distances(one, other), by_scipy(one, other), atol=5e-7)
    again = head_distances(other, one)
    np.testing.assert_allclose(again.T, head_distances(one, other), atol=1e-12)


def test_blocks_of_queries_change_nothing(monkeypatch):
    values = rows(1, 2, 2, 17, 17)
    expected = head_distances(values)
    for size in (1, 200, 1000):
        monkeypatch.setattr(head_space, "_BLOCK", size)
        np.testing.assert_allclose(head_distances(values, progress=False), expected, atol=1e-14)


def test_whatever_holds_attention_gives_the_same():
    values = rows(2, 2, 2, 8, 8)
    trace = trace_of(values)
    expected = head_distances(values)
    layers = tuple(torch.from_numpy(layer)[None] for layer in values)
    labelled = xr.DataArray(values, dims=("layer", "head", "query", "key"))
    graphs = list(trace.heads())
    for given_as in (trace, trace.only_stack, graphs, torch.from_numpy(values), layers, labelled):
        found = head_distances(given_as)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert found["head"].to_numpy().tolist() == ["0.0", "0.1", "1.0", "1.1"]
    single = head_distances(torch.from_numpy(values).float())
    np.testing.assert_allclose(single, expected, atol=1e-6)


def test_a_pair_is_what_compare_says():
    one, other = trace_of(rows(3, 1, 3, 9, 9)), trace_of(rows(4, 1, 3, 9, 9))
    for keep in (gattn.All(), TopK(2), TopMass(0.8)):
        sides = [[head.keep(keep) for head in trace.heads()] for trace in (one, other)]
        expected = compare(*sides).distance.to_numpy()
        np.testing.assert_allclose(np.diag(head_distances(*sides)), expected, atol=1e-7)


def test_sinks_and_cut_rows_are_one_more_outcome():
    values = rows(5, 1, 2, 6, 6) * 0.6
    values[0, 1, 3] = 0
    np.testing.assert_allclose(head_distances(values), by_scipy(values, values), atol=2e-8)
    none = np.zeros((1, 4, 4))
    assert head_distances(none, none).item() == 0
    assert head_distances(none, np.eye(4)[None]).item() == pytest.approx(FARTHEST)


def test_what_was_not_kept_bounds_the_error():
    values = rows(6, 2, 2, 9, 9)
    for keep in (TopK(1), TopK(4), TopMass(0.9)):
        kept = [head.keep(keep) for head in trace_of(values).heads()]
        found = head_distances(kept)
        (note,) = found.notes
        bound = float(note.split("at most ")[1].split()[0])
        assert np.abs(found - head_distances(values).to_numpy()).max() <= bound + 5e-4


def test_some_queries():
    values = rows(7, 1, 3, 9, 9)
    found = head_distances(trace_of(values), queries=[2, 5, 8])
    part = values[:, :, [2, 5, 8]]
    np.testing.assert_allclose(found, by_scipy(part, part), atol=2e-8)
    assert found.notes == ["mean over 3 of 9 queries"]
    np.testing.assert_array_equal(found, head_distances(values, queries=[2, 5, 8]))
    with pytest.raises(SelectionError, match=r"query must be a token's position, here 0 \.\. 8"):
        head_distances(values, queries=[9])
    with pytest.raises(SelectionError, match="at least one"):
        head_distances(values, queries=[])


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_order_of_heads_and_keys_does_not_matter(seed):
    values = rows(seed, 1, 4, 7, 7, causal=False)
    generator = np.random.default_rng(seed)
    heads, keys = generator.permutation(4), generator.permutation(7)
    expected = head_distances(values).to_numpy()[np.ix_(heads, heads)]
    np.testing.assert_allclose(head_distances(values[:, heads][..., keys]), expected, atol=1e-12)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_it_is_a_metric(seed):
    found = head_distances(rows(seed, 6, 5, 5, power=8)).to_numpy()
    assert (found <= FARTHEST + 1e-12).all()
    assert (found[:, None] <= found[:, :, None] + found[None] + 1e-9).all()


def test_the_match_of_each_head_in_another_model():
    one = trace_of(rows(8, 1, 4, 9, 9), tokens=list("abcdefghi"))
    order = [2, 0, 3, 1]
    other = trace_of(one_of(one)[:, order].reshape(2, 2, 9, 9), tokens=list("abcdefghi"))
    match = head_distances(one, other).idxmin("other")
    names = ["0.0", "0.1", "1.0", "1.1"]
    assert match.to_numpy().tolist() == [names[order.index(h)] for h in range(4)]
    text = trace_of(one_of(one), tokens=list("abcdefghj"))
    with pytest.raises(SelectionError, match="Token 8 is 'i' before and 'j' after"):
        head_distances(one, text)
    with pytest.raises(SelectionError, match="9 and 8 tokens"):
        head_distances(one, rows(0, 1, 1, 8, 8))


def one_of(trace):
    return np.stack([head.to_dense() for head in trace.heads()])[None]


def test_bad_inputs_are_refused():
    with pytest.raises(ShapeError, match=">= 0"):
        head_distances(np.array([[[1.0, 0.0], [-1.0, 2.0]]]))
    signed = AttentionGraph.from_dense(np.array([[1.0, 0.0], [-1.0, 2.0]]))
    with pytest.raises(ShapeError, match=">= 0"):
        head_distances(signed)
    small, large = trace_of(rows(0, 1, 1, 3, 3)), trace_of(rows(0, 1, 1, 4, 4))
    stacks = {"encoder": small["decoder"], "decoder": large["decoder"]}
    with pytest.raises(SelectionError, match="name one"):
        head_distances(AttentionTrace(stacks))
    with pytest.raises(SelectionError, match="take one stack"):
        head_distances([small[0, 0], AttentionGraph.from_dense(np.eye(4), head=1)])
    with pytest.raises(SelectionError, match="no heads"):
        head_distances([])


def distances_of(values):
    """Distances between points as `head_distances` labels them."""
    size = len(values)
    names = [f"{n // 4}.{n % 4}" for n in range(size)]
    axes = {"head": names, "other": names}
    places = {"layer": ("head", np.arange(size) // 4), "number": ("head", np.arange(size) % 4)}
    return xr.DataArray(squareform(pdist(values)), coords=axes | places, dims=list(axes))


def test_clusters_of_points_that_lie_apart(randn):
    centres = np.array([[0.0, 0], [9, 0], [0, 9]])
    member = np.array([0, 1, 1, 2, 0, 2, 1, 0, 1, 2, 2, 0])
    points = centres[member] + 0.1 * randn(12, 2).numpy()
    distances = distances_of(points)
    found = head_clusters(distances, 3)
    assert found.cluster.tolist() == member.tolist()
    assert found.index.names == ["layer", "head"]
    for n, (_, row) in enumerate(found.iterrows()):
        same = [m for m in range(12) if member[m] == member[n] and m != n]
        assert row.distance == pytest.approx(distances.to_numpy()[n, same].mean())
    alone = head_clusters(distances, 12)
    assert alone.cluster.tolist() == list(range(12))
    assert alone.distance.isna().all()
    assert (head_clusters(distances, 1).cluster == 0).all()
    assert head_clusters(distances, np.int64(3)).equals(found)
    for wrong in (0, 13, 2.0, True):
        with pytest.raises(SelectionError, match="count must be a whole number from 1 to 12"):
            head_clusters(distances, wrong)


def test_a_map_of_points_in_the_plane_has_their_distances(randn):
    points = randn(9, 2).numpy()
    found = head_map(distances_of(points))
    again = pdist(found[["x", "y"]].to_numpy())
    np.testing.assert_allclose(again, pdist(points), atol=1e-9)
    assert found.notes == ["two axes show 100 % of the heads' spread"]
    np.testing.assert_allclose(found.mean(), 0, atol=1e-12)


def test_the_share_that_two_axes_show(randn):
    points = randn(9, 4).numpy() * [3, 2, 1, 1]
    shares = np.linalg.svd(points - points.mean(0), compute_uv=False) ** 2
    share = shares[:2].sum() / shares.sum()
    assert head_map(distances_of(points)).notes[0].startswith(f"two axes show {share * 100:.0f} %")


def test_one_head_has_a_place_and_a_cluster():
    distances = head_distances(rows(0, 1, 1, 4, 4))
    assert head_map(distances).to_numpy().tolist() == [[0, 0]]
    assert head_clusters(distances, 1).cluster.tolist() == [0]
    head_map(distances).draw()
    head_clusters(distances, 1).draw()


def test_the_tree_of_one_head_has_its_name():
    distances = head_distances(rows(0, 1, 1, 4, 4))
    ax = head_clusters(distances, 1).draw()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.0"]
    assert ax.texts[0].get_text().endswith("; 1 cluster")
    (at,) = ax.get_xticks()
    assert ax.get_xlim()[0] < at < ax.get_xlim()[1]


def test_attention_is_no_distance():
    attention = rows(0, 1, 2, 4, 4)
    for wrong in (attention, gattn.capture("The dog")):
        for make in (head_map, lambda d: head_clusters(d, 2)):
            with pytest.raises(SelectionError, match=r"head_distances\(trace\), not"):
                make(wrong)


def test_distances_of_two_sets_have_no_clusters():
    distances = head_distances(rows(0, 1, 3, 4, 4), rows(0, 1, 2, 4, 4))
    for make in (head_map, lambda d: head_clusters(d, 2)):
        with pytest.raises(SelectionError, match="one set"):
            make(distances)
    square = head_distances(rows(0, 1, 3, 4, 4))
    for count in (0, 4, 2.0, True):
        with pytest.raises(SelectionError, match="1 to 3"):
            head_clusters(square, count)


def test_pictures_name_heads():
    distances = head_distances(rows(9, 2, 3, 8, 8))
    names = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    ax = distances.draw()
    assert [text.get_text() for text in ax.get_yticklabels()] == names
    tree = head_clusters(distances, 2).draw()
    assert sorted(text.get_text() for text in tree.get_xticklabels()) == names
    assert tree.get_title() == "head clusters"
    caption = tree.texts[0].get_text().replace("\n", " ")
    assert caption.startswith(f"{distances.computed_from}; 2 clusters")
    drawn = head_map(distances).draw()
    assert [text.get_text() for text in drawn.texts[1:]] == names
    np.testing.assert_allclose(drawn.collections[0].get_offsets(), head_map(distances))


def test_a_crowded_matrix_names_each_head_once():
    ax = head_distances(rows(10, 12, 12, 6, 6)).draw()
    for axis in (ax.xaxis, ax.yaxis):
        names = {
            n: text.get_text()
            for n, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        }
        assert 10 < len(names) < 144
        assert names == {n: f"{n // 12}.{n % 12}" for n in names}


def test_names_on_a_crowded_map_do_not_meet():
    distances = head_distances(rows(10, 12, 12, 6, 6))
    ax = head_map(distances).draw()
    figure = ax.figure
    figure.savefig(io.BytesIO())
    boxes = [text.get_window_extent() for text in ax.texts if "." in text.get_text()][1:]
    assert 30 < len(boxes) <= 144
    overlaps = sum(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
    assert overlaps == 0


def test_heads_of_the_embedded_model_that_do_the_same_are_near():
    model, tokenizer = gattn.load_model()
    said = torch.randint(1, 2560, (30,), generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([torch.tensor([tokenizer.bos_token_id]), said, said])
    distances = head_distances(gattn.capture(tokens, model, tokenizer))
    nearest = distances.where(distances["head"] != distances["other"]).idxmin("other")
    nearest = dict(zip(distances["head"].to_numpy(), nearest.to_numpy(), strict=True))
    assert (nearest["2.0"], nearest["2.1"], nearest["1.1"]) == ("2.1", "2.0", "2.2")
    cluster = pd.DataFrame(head_clusters(distances, 5)).cluster
    assert cluster[2, 0] == cluster[2, 1]
    assert cluster[1, 0] == cluster[1, 2] == cluster[1, 3] != cluster[2, 0]


def test_a_query_named_twice_is_refused():
    trace = gattn.capture("The lamp is on")
    with pytest.raises(SelectionError, match="query once"):
        head_distances(trace, queries=[-1, len(trace.tokens) - 1, 1])
