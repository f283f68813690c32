"""One's own numbers, as edges and as arrays, hold what was given."""

import numpy as np
import pytest
import torch
import transformers
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn import AttentionGraph, AttentionTrace, GraphAttention, TokenGraph, TopK
from gattn.errors import CaptureError, GraphError, ShapeError
from gattn.weights import EdgeBias, ScaledDotProduct

UNSORTED = [[2, 0, 1, 0], [2, 1, 2, 2]]
WEIGHTS = [0.5, 1.0, 0.3, 0.2]


def dense_of(edge_index, numbers, shape):
    matrix = np.zeros(shape)
    for (key, query), number in zip(np.array(edge_index).T, numbers, strict=True):
        matrix[query, key] = number
    return matrix


@st.composite
def edge_lists(draw):
    """Edges in any order, each once, their numbers, and the numbers of queries and keys."""
    queries, keys = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, keys - 1), st.integers(0, queries - 1))
    edges = draw(st.lists(pairs, unique=True, max_size=queries * keys))
    numbers = draw(st.lists(st.floats(0.0625, 1, width=16), min_size=len(edges),
                            max_size=len(edges)))  # fmt: skip
    return np.array(edges, dtype=np.int64).reshape(-1, 2).T, numbers, (queries, keys)


# Edges


@settings(max_examples=60)
@given(edge_lists())
def test_each_edge_keeps_its_number(case):
    edges, numbers, (queries, keys) = case
    forms = [
        lambda x: x,
        torch.tensor,
        lambda x: torch.tensor(x, dtype=torch.bfloat16),
        lambda x: np.array(x, dtype=np.float16),
    ]
    for form in forms:
        head = AttentionGraph.from_edges(
            edges, form(numbers), num_queries=queries, num_keys=keys, score=form(numbers)
        )
        expected = dense_of(edges, form(numbers), (queries, keys))
        np.testing.assert_array_equal(head.to_dense(), expected)
        np.testing.assert_array_equal(head.score, head.attention)
        np.testing.assert_allclose(head.total_mass, expected.sum(1), rtol=1e-6)
        assert head.total_edges.tolist() == np.bincount(edges[1], minlength=queries).tolist()


@settings(max_examples=30)
@given(edge_lists())
def test_networkx_gives_edges_back_as_they_were_given(case):
    edges, numbers, shape = case
    head = AttentionGraph.from_edges(torch.tensor(edges), numbers, num_tokens=max(shape))
    graph = head.to_networkx()
    found = {(key, query): edge["weight"] for key, query, edge in graph.edges(data=True)}
    assert found == dict(zip(map(tuple, edges.T.tolist()), numbers, strict=True))
    again = AttentionGraph.from_networkx(graph)
    np.testing.assert_array_equal(again.to_dense(), head.to_dense())


def test_edges_take_tokens_and_further_fields():
    head = AttentionGraph.from_edges(
        UNSORTED, WEIGHTS, ["a", "b", "c"], contribution=[4, 1, 3, 2], layer=1, head=2
    )
    assert head.tokens == ("a", "b", "c")
    assert head.place() == ["layer 1", "head 2"]
    assert head.contribution.tolist() == [1, 2, 3, 4]
    cross = AttentionGraph.from_edges([[2], [0]], [1.0], ["a", "b", "c"], query_tokens=["q"])
    assert cross.graph.is_bipartite
    assert cross.query_tokens == ("q",)
    assert cross.to_dense().tolist() == [[0.0, 0.0, 1.0]]
    assert AttentionGraph.from_edges([[], []], [], num_tokens=2).graph.num_edges == 0


def edges_of(**changed):
    options = {"edge_index": UNSORTED, "attention": WEIGHTS, "num_tokens": 3} | changed
    return AttentionGraph.from_edges(**options)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"edge_index": [[0, 1, 0, 2], [1, 2, 1, 2]]}, GraphError, "key 0 to query 1 .* 0 and 2"),
        ({"num_tokens": None}, GraphError, "how many tokens"),
        ({"num_tokens": 2}, GraphError, r"must lie in 0 \.\. 1"),
        ({"query_tokens": ["a"]}, GraphError, "leave it out"),
        ({"attention": WEIGHTS[:3]}, ShapeError, r"each of the 4 edges, not \(3,\)"),
        ({"score": [WEIGHTS]}, ShapeError, r"score .* not \(1, 4\)"),
        ({"attention": ["a", "b", "c", "d"]}, ShapeError, "must hold numbers"),
        ({"attention": [True, False, True, True]}, ShapeError, "real numbers"),
        ({"attention": [1.0, float("nan"), 0.0, 0.0]}, CaptureError, "query 1 to key 0 is nan"),
        ({"tokens": "abc"}, ShapeError, "tokens is a list of texts"),
        ({"tokens": [1, 2, 3]}, ShapeError, "tokens is a list of texts"),
    ],
)
def test_edges_that_cannot_be_right_are_refused(changed, error, message):
    with pytest.raises(error, match=message):
        edges_of(**changed)


# Token graphs whose edges came in another order


def test_numbers_never_meet_a_reordered_graph():
    graph = TokenGraph.from_edge_index(UNSORTED, 3)
    mass, edges = np.array([0.0, 1.0, 1.0]), np.array([0, 1, 3])
    with pytest.raises(GraphError, match="from_edges"):
        AttentionGraph(graph, np.array(WEIGHTS), mass, edges)
    arranged = graph.arrange(torch.tensor(UNSORTED), torch.tensor(WEIGHTS)[:, None])[:, 0]
    head = AttentionGraph(graph.sorted(), arranged.numpy(), mass, edges)
    np.testing.assert_allclose(head.to_dense(), edges_of().to_dense())


def test_edge_features_never_meet_a_reordered_graph():
    torch.manual_seed(0)
    layer = GraphAttention(8, 4, 2, weight=ScaledDotProduct() + EdgeBias(2, 3)).double()
    x, features = torch.randn(3, 8).double(), torch.randn(4, 3).double()
    index = torch.tensor(UNSORTED)
    graph = TokenGraph.from_edge_index(index, 3)
    expected = layer(x, index, features)
    others = [graph & TokenGraph.complete(3), TokenGraph.complete(3) & graph, graph.to("cpu"),
              TokenGraph.from_edges(list(zip(*UNSORTED, strict=True)), 3),
              TokenGraph.disjoint_union([graph])]  # fmt: skip
    for one in [graph, *others]:
        with pytest.raises(GraphError, match=r"graph\.sorted\(\)"):
            layer(x, one, features)
        with pytest.raises(GraphError, match=r"graph\.sorted\(\)"):
            layer.graphs(x, one, features)
        found = layer(x, one.sorted(), one.arrange(index, features))
        torch.testing.assert_close(found, expected)
        plain = GraphAttention(8, 4, 2).double()  # without numbers of edges, no order matters
        torch.testing.assert_close(plain(x, one), plain(x, index))
    dense = torch.zeros(3, 3, 3).double()
    dense[index[1], index[0]] = features
    torch.testing.assert_close(layer(x, graph, dense), expected)
    assert graph.is_reordered
    assert not TokenGraph.from_edge_index(graph.edge_index, 3).is_reordered


# Arrays


def softmaxed(*shape, causal=False, seed=0):
    scores = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1)


@settings(max_examples=40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    st.booleans(),
    st.sampled_from(["array", "tensor", "list", "attentions"]),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_a_trace_of_arrays_is_the_arrays(shape, causal, form, dtype):
    values = softmaxed(*shape, causal=causal and shape[2] == shape[3]).to(dtype)
    plain = values.float() if dtype == torch.bfloat16 else values  # NumPy has no such kind
    given = {
        "array": lambda: plain.numpy(),
        "tensor": lambda: values,
        "list": lambda: list(plain.numpy()),
        "attentions": lambda: tuple(layer[None] for layer in values),
    }[form]()
    trace = AttentionTrace.from_arrays(given)
    assert len(trace) == shape[0] * shape[1]
    for (layer, head), graph in trace.only_stack.items():
        assert (graph.layer, graph.head) == (layer, head)
        np.testing.assert_array_equal(graph.to_dense(), values[layer, head].double().numpy())
        assert graph.graph.is_bipartite == (shape[2] != shape[3])


def test_the_token_graph_of_arrays():
    def graph_of(values, **options):
        return AttentionTrace.from_arrays(values, **options)[0, 0].graph

    causal = softmaxed(2, 2, 4, 4, causal=True)
    assert repr(graph_of(causal)) == repr(TokenGraph.causal(4))
    assert repr(graph_of(softmaxed(2, 2, 4, 4))) == repr(TokenGraph.complete(4))
    one_looks_ahead = causal.clone()
    one_looks_ahead[1, 1, 0, 3] = 1e-30
    assert repr(graph_of(one_looks_ahead)) == repr(TokenGraph.complete(4))
    assert graph_of(causal, query_tokens=list("abcd")).is_bipartite
    window = TokenGraph.window(4, 2)
    local = causal * window.mask()
    head = AttentionTrace.from_arrays(local, graph=window)[1, 0]
    assert head.graph is window
    assert head.total_edges.tolist() == [1, 2, 2, 2]
    with pytest.raises(GraphError, match=r"Layer 0, head 0 has attention .* query 2 to key 0"):
        AttentionTrace.from_arrays(causal, graph=window)
    step = TokenGraph.causal(1, num_keys=4, query_offset=3)
    assert not graph_of(softmaxed(1, 1, 1, 4), graph=step).is_bipartite


def test_tokens_and_names_of_arrays():
    values = softmaxed(2, 2, 3, 3)
    trace = AttentionTrace.from_arrays(values, ["a", "b", "c"], stack="encoder", model="mine")
    assert trace.tokens == ["a", "b", "c"]
    assert list(trace.stacks) == ["encoder"]
    assert trace.model == trace[0, 0].model == "mine"
    cross = AttentionTrace.from_arrays(values[:, :, :2], ["a", "b", "c"], query_tokens=["q", "r"])
    assert cross[1, 1].query_tokens == ("q", "r")
    kept = AttentionTrace.from_arrays(values, keep=TopK(1))[0, 1]
    assert kept.graph.num_edges == 3
    assert kept.total_edges.tolist() == [3, 3, 3]
    uneven = AttentionTrace.from_arrays([values[0], values[1, :1]])
    assert len(uneven) == 3


def test_a_models_own_attentions_are_its_trace():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=8, vocab_size=11, n_positions=8, attn_implementation="eager"
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.tensor([[1, 5, 3, 5, 2]])
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    mine = AttentionTrace.from_arrays(attentions)
    live = gattn.capture(ids, model)
    for place, head in live.only_stack.items():
        assert repr(mine[place].graph) == repr(head.graph)
        np.testing.assert_allclose(mine[place].to_dense(), head.to_dense(), atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (softmaxed(2, 3, 3), "list of layers"),
        ([softmaxed(3, 3)], r"layer 0 is \(3, 3\)"),
        ([softmaxed(2, 2, 3, 3)], "batch of 2 texts: choose one"),
        ([(softmaxed(1, 2, 3, 3),)], "steps of layers"),
        ([softmaxed(2, 3, 3), None], "Layer 1 has no attention"),
        ([softmaxed(2, 3, 3), softmaxed(2, 4, 4)], "stacks of their own"),
        ([], "no layers"),
        (torch.full((1, 1, 2, 2), float("nan")), "Layer 0, head 0 gives query 0 and key 0 nan"),
        (torch.ones(1, 1, 2, 2).bool(), "real numbers"),
        (np.array([[["x"]]]), "must hold numbers"),
        (torch.zeros(1, 0, 2, 2), "Layer 0 is empty"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(values, message):
    with pytest.raises(ShapeError, match=message):
        AttentionTrace.from_arrays(values)


def labelled(values, **options):
    names = {"key": [2, 3, 7], "query": [2, 3, 7], "layer": [4, 5], "head": [1, 3]}
    texts = {"key_token": ("key", ["a", "b", "c"]), "query_token": ("query", ["a", "b", "c"])}
    options = {"coords": names | texts, "attrs": {"edits": ["Cut(layer=1)"]}} | options
    return xr.DataArray(values, dims=("layer", "head", "query", "key"), **options)


def test_labelled_arrays_keep_their_labels_tokens_and_edits():
    values = softmaxed(2, 2, 3, 3).numpy()
    array = labelled(values)
    for form in (array, list(array), (array[0], array[1])):
        trace = AttentionTrace.from_arrays(form)
        assert sorted(trace.only_stack) == [(4, 1), (4, 3), (5, 1), (5, 3)]
        np.testing.assert_array_equal(trace[5, 1].to_dense(), values[1, 0])
        assert trace.tokens == ["a", "b", "c"]
        assert trace[5, 1].node_ids() == ([2, 3, 7], [2, 3, 7])
        assert trace.edits == (gattn.Cut(layer=1),)
        xr.testing.assert_equal(gattn.analysis.rollout(trace), gattn.analysis.rollout(form))
    others = array.isel(query=[1, 2]).assign_coords(query_token=("query", ["x", "y"]))
    cross = AttentionTrace.from_arrays(others)[4, 3]
    assert cross.query_tokens == ("x", "y")
    assert cross.node_ids() == ([2, 3, 7], [3, 7])
    step = TokenGraph.causal(1, num_keys=3, query_offset=2)
    last = AttentionTrace.from_arrays(array[:, :, 2:], graph=step)[4, 1]
    assert last.node_ids() == ([2, 3, 7], [7])


def test_labelled_layers_never_swap_queries_and_keys():
    array = labelled(softmaxed(2, 2, 3, 3).numpy())
    swapped = [layer.transpose("head", "key", "query") for layer in array]
    for form in (swapped, array.transpose("layer", "head", "key", "query")):
        for read in (AttentionTrace.from_arrays, gattn.analysis.rollout):
            with pytest.raises(ShapeError, match="transpose it"):
                read(form)
    with pytest.raises(ShapeError, match="transposed"):
        AttentionGraph.from_dense(swapped[0][0])


def test_labels_that_cannot_be_kept_are_refused():
    array = labelled(softmaxed(2, 2, 3, 3).numpy())
    one, other = array
    for form, options, message in (
        (array, {"tokens": ["x", "y", "z"]}, "leave out tokens="),
        (array.assign_coords(key=["a", "b", "c"]), {}, "key_token"),
        (array.assign_coords(layer=[1, 1]), {}, "must differ"),
        (array.assign_coords(key=[0, 1, 2]), {"graph": TokenGraph.complete(3)}, "bipartite"),
        (array.assign_coords(query_token=("query", ["x", "y", "z"])), {}, "different tokens"),
        (array.assign_attrs(holds_residual=True), {}, "residual"),
        ([one, other.to_numpy()], {}, "Layer 1 is a ndarray"),
        ([one, other.assign_attrs(edits=[])], {}, "different edits"),
        ([one, other.assign_coords(key_token=("key", ["a", "b", "d"]))], {}, "different tokens"),
        ([one, other.assign_coords(key=[2, 3, 8])], {}, "same axes and labels"),
    ):
        with pytest.raises(ShapeError, match=message):
            AttentionTrace.from_arrays(form, **options)


def test_arrays_that_hide_numbers_are_refused():
    values = np.tril(np.full((1, 1, 3, 3), 0.25))
    hidden = np.ma.masked_equal(values, 0)
    for read in (AttentionTrace.from_arrays, gattn.analysis.rollout):
        for form in (hidden, list(hidden)):
            with pytest.raises(ShapeError, match="fill it"):
                read(form)
        with pytest.raises(ShapeError, match="no numbers"):
            read(torch.zeros(1, 1, 3, 3, device="meta"))
        with pytest.raises(ShapeError, match="to_dense"):
            read(torch.tensor(values).to_sparse())
    with pytest.raises(ShapeError, match="fill it"):
        AttentionGraph.from_dense(hidden[0, 0])
    assert len(AttentionTrace.from_arrays(np.ma.masked_array(values))) == 1


def test_what_edges_and_arrays_cannot_take_is_said():
    for name in ("graph", "total_mass", "total_edges"):
        with pytest.raises(GraphError, match=f"{name} follows from the edges"):
            edges_of(**{name: [1.0, 1.0, 1.0]})
    with pytest.raises(GraphError, match="must be a TokenGraph"):
        AttentionTrace.from_arrays(softmaxed(1, 1, 3, 3), graph="causal")
    assert edges_of(positions=[3, 4, 6]).node_ids()[0] == [3, 4, 6]
    head = AttentionGraph.from_dense(np.eye(2), positions=[3, 4])
    assert head.node_ids()[0] == [3, 4]


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([[1.5, -0.5], [-2.0, 0.5]], "query 0 gives key 1 the weight -0.5: attention is never neg"),
        ([[0.5, 0.5], [1.0, 2.0]], "query 1 has weights that sum to 3: attention sums to at most"),
    ],
)
def test_scores_in_place_of_attention_are_told(weights, says):
    arrays = np.array([[[[0.5, 0.5], [0.2, 0.8]], weights]])
    with pytest.warns(UserWarning, match=f"In layer 0, head 1, {says}") as told:
        trace = AttentionTrace.from_arrays(arrays)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert trace[0, 1].to_dense() == pytest.approx(arrays[0, 1])
    assert "% of the attention" in repr(trace[0, 0])
    assert "% of the weights, " in repr(trace[0, 1])


@pytest.mark.filterwarnings("error")
def test_weights_of_edges_that_are_no_attention_are_noted():
    index = np.array([[0, 1, 0, 1], [0, 0, 1, 1]])
    fine, half = [0.25, 0.75, 0.5, 0.125], np.float32([0.25, 0.7578, 0.5, 0.5])
    for weights in (fine, half):
        assert "of the attention)" in repr(AttentionGraph.from_edges(index, weights, num_tokens=2))
    wide = AttentionGraph.from_edges(index, [1.0, 2.0, 0.5, 0.5], num_tokens=2)
    assert repr(wide).endswith("100.0 % of the weights, which sum to up to 3 per query)")
    known = AttentionGraph.from_edges(
        index, [1.0, -2.0, 0.5, 0.5], num_tokens=2, normalizer="Identity"
    )
    assert repr(known).endswith("of the attention)")
    for weights in ([1.0, -2.0, 0.5, 0.5], [0.5, -0.25, 0.5, 0.5]):
        with pytest.raises(UserWarning, match="Query 0 gives key 1 the weight -"):
            AttentionGraph.from_edges(index, weights, num_tokens=2)
    with pytest.raises(CaptureError, match="is nan"):
        AttentionGraph.from_edges(index, [np.nan, 1.0, 0.5, 0.5], num_tokens=2)


@pytest.mark.parametrize("form", [list, np.array])
def test_edges_between_words_are_told_where_to_go(form):
    for pairs in ([["the", "dog"], ["dog", "the"]], [("the", "dog"), ("dog", "dog"), ("a", "b")]):
        with pytest.raises(GraphError, match="not words such as 'the': a table of words goes to"):
            AttentionGraph.from_edges(form(pairs), [0.5, 0.5], ["the", "dog"])


def test_tokens_in_the_place_of_a_graph_are_told():
    with pytest.raises(ShapeError, match=r"graph must be a TokenGraph, not \['a', 'b'\].*tokens="):
        AttentionGraph.from_dense(np.eye(2), ["a", "b"])
