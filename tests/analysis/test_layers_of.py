from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr

import gattn
from gattn.analysis.reading.heads import graphs_of
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import array
from gattn.errors import SelectionError, ShapeError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import All, Threshold

TOKENS = ("a", "b", "a", "$c")


@pytest.fixture
def attention(randn):
    return randn(3, 2, 4, 4).softmax(-1)


@pytest.fixture
def trace(attention):
    heads = {
        (layer, head): AttentionGraph.from_dense(
            attention[layer, head], tokens=TOKENS, layer=layer, head=head, model="toy"
        )
        for layer in range(3)
        for head in range(2)
    }
    return AttentionTrace({"decoder": Stack("decoder", heads)})


def kept(trace, keep):
    stack = trace.only_stack
    return Stack("decoder", {place: head.keep(keep) for place, head in stack.items()})


def forms(attention, trace):
    labelled = xr.DataArray(attention.numpy(), dims=("layer", "head", "query", "key"))
    return {
        "trace": trace,
        "stack": trace.only_stack,
        "tensor": attention,
        "numpy": attention.numpy(),
        "lists": attention.tolist(),
        "labelled": labelled,
        "attentions": tuple(attention[:, None]),
        "layers": list(attention),
    }


def test_every_form_of_attention_reads_the_same(attention, trace):
    for name, form in forms(attention, trace).items():
        layers = layers_of(form)
        assert layers.layers == (0, 1, 2), name
        assert layers.heads == (0, 1), name
        for n in range(3):
            torch.testing.assert_close(layers.read(n), attention[n], msg=name)
        torch.testing.assert_close(layers.mass, torch.ones(3, 2, 4, dtype=torch.float64))
        for head, other in zip(graphs_of(layers_of(form)), trace.heads(), strict=True):
            assert (head.layer, head.head) == (other.layer, other.head)
            np.testing.assert_array_equal(head.to_dense(), other.to_dense())


def test_a_trace_gives_names_and_says_what_it_is(trace):
    layers = layers_of(trace)
    assert layers.tokens == layers.query_tokens == TOKENS
    assert str(layers.read_from) == "toy, decoder stack, layers 0-2, heads 0-1, 4 tokens"
    assert layers.axes("layer", "key") == {"layer": (0, 1, 2), "key": (0, 1, 2, 3)}
    part = layers_of(kept(trace, Threshold(0.3)))
    assert "kept by Threshold(0.3)" in str(part.read_from)
    assert part.read_from.kept_by == (Threshold(0.3),)
    assert str(replace(part.read_from, kept_by=(All(),), size="")) == (
        "toy, decoder stack, layers 0-2, heads 0-1"
    )


def test_one_head_and_part_of_an_array(attention, trace):
    head = layers_of(trace[1, 1])
    assert (head.layers, head.heads) == ((1,), (1,))
    torch.testing.assert_close(head.read(0)[0], attention[1, 1])
    for part in (attention[0], attention[0, 0]):
        torch.testing.assert_close(layers_of(part).read(0).squeeze(), part)


def test_single_precision_and_half_are_read_in_single_where_they_are(attention):
    assert layers_of(attention.float()).read(0).dtype == torch.float32
    assert layers_of(attention.bfloat16()).read(0).dtype == torch.float32
    assert layers_of(attention.float().numpy()).read(0).dtype == torch.float64


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_heads_are_reduced(attention, heads):
    expected = getattr(attention.numpy(), heads)(axis=1)
    for n, matrix in enumerate(layers_of(attention).reduced(reduce=heads)):
        np.testing.assert_allclose(matrix, expected[n])


def test_one_head_or_weights_of_heads(attention):
    for n, matrix in enumerate(layers_of(attention).reduced(1)):
        torch.testing.assert_close(matrix, attention[n, 1])
    weights = np.array([[1, 3], [2, 0], [1, 1]])
    for weight in (weights, weights[0]):
        shares = np.broadcast_to(weight, (3, 2)) / weight.sum(-1, keepdims=True)
        expected = np.einsum("lh,lhqk->lqk", shares, attention)
        for n, matrix in enumerate(layers_of(attention).reduced(reduce=weight)):
            np.testing.assert_allclose(matrix, expected[n])


@pytest.mark.parametrize(
    "how",
    [
        *({"heads": heads} for heads in ("median", 7, True, [-1, 2], [0, 0], object())),
        *({"reduce": weights} for weights in ("median", 7, [1, 2, 3], [-1, 2], [0, 0], object())),
        {"reduce": [np.nan, 1]},
    ],
    ids=lambda options: str(options).partition(" object at ")[0],
)
def test_wrong_reductions_are_refused(attention, how):
    with pytest.raises(SelectionError):
        layers_of(attention).reduced(**how)


def test_dropped_mass_is_known_and_whole_rows_keep_their_sums(attention, trace):
    layers = layers_of(kept(trace, Threshold(0.3)))
    expected = torch.where(attention < 0.3, attention, 0).sum(-1)
    torch.testing.assert_close(layers.dropped, expected)
    for how in ({}, {"heads": 0}, {"reduce": [1, 2]}):
        for matrix, mass in layers.reduced_with_mass(**how):
            torch.testing.assert_close(mass, torch.ones(4, dtype=torch.float64))
            assert bool((matrix.sum(-1) < 1 + 1e-12).all())
    share = float(expected.sum()) / 24
    assert layers.mass_notes() == [f"{share * 100:.2f} % of the attention was not kept"]
    assert layers_of(trace).mass_notes() == []


def test_positions_and_tokens_of_a_labelled_array(attention):
    axes = {"layer": [4, 5, 6], "query": [1, 2, 3, 7], "key": [1, 2, 3, 7]}
    tokens = {"query": TOKENS, "key": TOKENS}
    values = array(
        attention[:, 0], axes, name="x", computed_from="y", tokens=tokens, holds_residual=True
    )
    layers = layers_of(values)
    assert (layers.layers, layers.heads) == ((4, 5, 6), (0,))
    assert (layers.positions, layers.tokens) == ((1, 2, 3, 7), TOKENS)
    assert str(layers.read_from) == "x of y"
    assert layers.holds_residual
    assert layers.is_square
    one = layers_of(values.sel(layer=5, query=[2, 7]))
    assert (one.layers, one.query_positions, one.is_square) == ((5,), (2, 7), False)
    with pytest.raises(SelectionError, match="self-attention"):
        one.square()
    (head,) = graphs_of(layers_of(one_head := values.sel(layer=5)))
    assert head.node_positions.tolist() == [1, 2, 3, 7]
    assert head.tokens == TOKENS
    np.testing.assert_array_equal(head.to_dense(), one_head.to_numpy())


def test_cross_attention_of_an_array_is_bipartite(randn):
    (head,) = graphs_of(layers_of(randn(3, 5).softmax(-1)))
    assert head.graph.is_bipartite
    assert head.to_dense().shape == (3, 5)


def test_a_captured_trace_reads_as_the_models_own_attention():
    model, tokenizer = gattn.load_model()
    trace = gattn.capture("The dog chased the cat", model, tokenizer)
    model.set_attn_implementation("eager")
    ids = tokenizer("The dog chased the cat", return_tensors="pt")
    with torch.no_grad():
        eager = model(**ids, output_attentions=True).attentions
    one, other = layers_of(trace), layers_of(eager)
    for n in range(len(one)):
        torch.testing.assert_close(one.read(n).float(), other.read(n), atol=1e-5, rtol=1e-5)


def test_what_is_no_attention_is_refused(attention, trace):
    for wrong in (
        torch.zeros(3),
        torch.zeros(0, 3),
        torch.zeros(1, 1, 1, 2, 2),
        "text",
        [torch.zeros(2, 3), torch.zeros(3, 3)],
        [torch.zeros(2, 1, 3, 3)],
        torch.full((2, 2), torch.nan),
        xr.DataArray(np.ones((2, 2)), dims=("key", "query")),
        -attention,
    ):
        with pytest.raises(ShapeError):
            layers_of(wrong)
    assert layers_of(-attention, signed=True).is_signed
    lacking = dict(trace.only_stack.heads)
    del lacking[1, 0]
    with pytest.raises(SelectionError, match="Layer 1 has no head 0"):
        layers_of(Stack("decoder", lacking))
    with pytest.raises(SelectionError, match="capture at least one"):
        layers_of(Stack("decoder", {}))
    apart = {place: head for place, head in trace.only_stack.items() if place[0] != 1}
    with pytest.raises(SelectionError, match="consecutive"):
        layers_of(Stack("decoder", apart)).consecutive()


@pytest.mark.parametrize("heads", ["max", "min"])
@pytest.mark.parametrize("limit", [0.1, 0.3, 0.5])
def test_reductions_of_kept_edges_are_bounded(attention, trace, heads, limit):
    whole = layers_of(trace).reduced(reduce=heads)
    for exact, (matrix, mass) in zip(
        whole, layers_of(kept(trace, Threshold(limit))).reduced_with_mass(reduce=heads), strict=True
    ):
        assert bool((matrix <= exact + 1e-12).all())
        assert bool((exact.sum(-1) <= mass + 1e-12).all())


def test_a_labelled_array_without_labels_is_square_by_its_shape_alone(randn):
    cross = xr.DataArray(randn(2, 3).softmax(-1).numpy(), dims=("query", "key"))
    assert layers_of(cross).query_positions == (0, 1)
    with pytest.raises(SelectionError, match="2 queries and 3 keys"):
        layers_of(cross).square()
    square = xr.DataArray(
        randn(2, 2).softmax(-1).numpy(), dims=("query", "key"), coords={"key": [4, 7]}
    )
    assert layers_of(square).square().query_positions == (4, 7)


def test_heads_of_arrays_are_a_sequence(attention):
    heads = graphs_of(layers_of(attention.numpy()))
    assert len(heads) == 6
    assert [(head.layer, head.head) for head in heads] == [(n, h) for n in range(3) for h in (0, 1)]
    for place in (3, -3, np.int64(3)):
        np.testing.assert_array_equal(heads[place].to_dense(), attention[1, 1])
    assert [head.layer for head in heads[4:]] == [2, 2]
    with pytest.raises(IndexError):
        heads[6]


def test_rows_that_lost_no_edge_lost_nothing_and_others_at_least_what_they_did():
    whole = torch.randn(1, 1, 60, 60, generator=torch.Generator().manual_seed(0)).softmax(-1)
    head = gattn.AttentionGraph.from_dense(whole[0, 0])
    assert (layers_of(head).dropped == 0).all()
    kept = head.keep(gattn.TopK(59))
    lost = whole[0, 0].double().sort(-1).values[:, 0]
    dropped = layers_of(kept).dropped[0, 0]
    assert (dropped >= lost).all()
    assert (dropped <= lost + 1e-6).all()


def test_heads_of_other_tokens_are_refused(trace):
    head = trace[0, 0]
    parts = {(0, 0): head.subgraph([0, 1]), (0, 1): head.subgraph([1, 2])}
    with pytest.raises(SelectionError, match="other tokens"):
        layers_of(Stack("", parts))
    with pytest.raises(ShapeError, match="Layer 1 has no attention"):
        layers_of([torch.eye(2), None])


def test_other_things_are_refused_with_where_the_attention_is(trace):
    for wrong, hint in (
        ("a text", "gattn.capture"),
        ([trace, trace], "over_texts"),
        (type("Output", (), {"attentions": ()})(), "pass its .attentions"),
        (type("Recording", (), {"trace": None})(), "pass its .trace"),
    ):
        with pytest.raises(ShapeError, match=hint):
            layers_of(wrong)


def test_rows_that_sum_to_more_than_one_are_told():
    assert layers_of(2 * np.eye(2)).mass_notes() == ["no distributions: rows sum to up to 2"]
    assert layers_of(np.eye(2)).mass_notes() == []
