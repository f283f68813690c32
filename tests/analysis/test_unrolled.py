"""What passes over the edges of unrolled layers."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

from gattn import Softmax, TokenGraph, attention_graphs
from gattn.analysis import flow, rollout
from gattn.analysis.propagation.unrolled import Unrolled
from gattn.errors import SelectionError
from gattn.files import load, save
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK

LAYERS, HEADS, TOKENS = 3, 2, 5


def trace_of(*, seed=0, keep=None, is_causal=True):
    drawn = np.random.default_rng(seed).exponential(size=(LAYERS, HEADS, TOKENS, TOKENS)) ** 2
    drawn = np.tril(drawn) if is_causal else drawn
    drawn /= drawn.sum(-1, keepdims=True)
    heads = {}
    for layer, head in np.ndindex(LAYERS, HEADS):
        made = AttentionGraph.from_dense(
            drawn[layer, head], tokens=list("abcab"), layer=layer, head=head, model="toy"
        )
        heads[layer, head] = made if keep is None else made.keep(keep)
    return AttentionTrace({"decoder": Stack("decoder", heads)}, "toy")


def chosen(heads):
    return {"reduce": heads} if isinstance(heads, str) else {"heads": heads}


@pytest.mark.parametrize("heads", ["mean", "max", 1])
@pytest.mark.parametrize("target", [-1, 2])
def test_a_rollout_passes_all_of_the_target_over_each_layer(heads, target):
    trace = trace_of()
    passed = trace.unroll(**chosen(heads), residual=0.3).rollout(query=target)
    matrices = passed.matrices("passes")
    np.testing.assert_allclose(matrices.sum((1, 2)), 1)
    rolled = rollout(trace, **chosen(heads), residual=0.3)[-1, target]
    np.testing.assert_allclose(matrices[0].sum(0), rolled)
    at_input = [passed.nodes[0, position]["passes"] for position in range(TOKENS)]
    np.testing.assert_allclose(at_input, rolled)
    for depth in range(1, LAYERS):
        np.testing.assert_allclose(matrices[depth].sum(0), matrices[depth - 1].sum(1))


def test_from_a_source_to_a_target_passes_one_number_of_the_rollout():
    trace = trace_of(is_causal=False)
    graph = trace.unroll()
    rolled = rollout(trace)[-1]
    for source, target in ((0, 4), (3, 1)):
        between = graph.rollout(key=source, query=target)
        np.testing.assert_allclose(
            between.matrices("passes").sum((1, 2)), float(rolled[target, source])
        )
        assert between.end("key") == (0, source)
        assert between.end("query") == (LAYERS, target)
    onwards = graph.rollout(key=2)
    held = [onwards.nodes[LAYERS, position]["passes"] for position in range(TOKENS)]
    np.testing.assert_allclose(held, rolled[:, 2])
    assert onwards.end("query") is None


def test_a_node_in_the_middle_is_a_target_and_a_source():
    trace = trace_of()
    graph = trace.unroll()
    below = graph.rollout(query=(2, 3))
    np.testing.assert_allclose(below.matrices("passes")[:2].sum((1, 2)), 1)
    assert not below.matrices("passes")[2].any()
    np.testing.assert_allclose(below.matrices("passes")[0].sum(0), rollout(trace)[1, 3])
    above = graph.rollout(key=(2, 3))
    assert not above.matrices("passes")[:2].any()
    assert {end for _, end in above.edges} == {(3, 3), (3, 4)}


@pytest.mark.parametrize(("source", "target"), [(0, 4), (1, 3), (2, 2)])
def test_a_flow_is_conserved_within_the_capacities_and_as_large_as_can_be(source, target):
    trace = trace_of()
    graph = trace.unroll()
    found = graph.flow(key=source, query=target)
    passes = found.matrices("passes")
    assert (passes <= graph.matrices("capacity") + 1e-12).all()
    whole = nx.maximum_flow_value(graph, (0, source), (LAYERS, target))
    np.testing.assert_allclose(passes.sum((1, 2)), whole, atol=1e-7)
    for depth in range(1, LAYERS):
        np.testing.assert_allclose(passes[depth].sum(0), passes[depth - 1].sum(1), atol=1e-12)
    assert found.nodes[LAYERS, target]["passes"] == pytest.approx(
        flow(trace, queries=target, keys=source, progress=False).item(), abs=1e-7
    )


def test_where_nothing_can_come_nothing_passes():
    graph = trace_of().unroll()
    for none in (graph.flow(key=4, query=0), graph.rollout(key=4, query=0)):
        assert none.number_of_edges() == 0
        assert none.number_of_nodes() == graph.number_of_nodes()


def test_chosen_heads_are_a_mean_and_other_layers_pass_the_stream_alone():
    trace = trace_of()
    graph = trace.unroll(heads=[(1, 0), (1, 1), (2, 1)], residual=0.4)
    attention = graph.matrices("attention")
    assert not attention[0].any()
    np.testing.assert_allclose(graph.matrices()[0], np.eye(TOKENS))
    mean = (trace[1, 0].to_dense() + trace[1, 1].to_dense()) / 2
    np.testing.assert_allclose(attention[1], mean)
    np.testing.assert_allclose(attention[2], trace[2, 1].to_dense())
    edge = graph.edges[(1, 0), (2, 3)]
    assert edge["head_0"] == pytest.approx(float(trace[1, 0].to_dense()[3, 0]))
    assert "head_0" not in graph.edges[(2, 0), (3, 3)]
    assert "mean of heads 1.0, 1.1, 2.1, residual 0.4" in graph.computed_from
    with pytest.raises(SelectionError, match="no layer and head"):
        trace.unroll(heads=[(1, 7)])


@pytest.mark.parametrize("heads", ["mean", "max", 1])
def test_of_half_kept_heads_rollouts_and_flows_are_those_of_the_analyses(heads):
    trace = trace_of(keep=TopK(2))
    graph = trace.unroll(**chosen(heads), residual=0.3)
    rolled = rollout(trace, **chosen(heads), residual=0.3)[-1]
    for target in range(TOKENS):
        passed = graph.rollout(query=target)
        at_input = [passed.nodes[0, position]["passes"] for position in range(TOKENS)]
        np.testing.assert_allclose(at_input, rolled[target], atol=1e-12)
    assert float(rolled[-1].sum()) < 0.99
    flows = flow(trace, **chosen(heads), residual=0.3, queries=4, keys=0, progress=False)
    found = graph.flow(key=0, query=4)
    assert found.nodes[LAYERS, 4]["passes"] == pytest.approx(flows.item(), abs=1e-7)


def test_it_says_what_was_dropped():
    assert trace_of().unroll().notes == []
    dropped, bounds = trace_of(keep=TopK(2)).unroll().notes
    assert dropped in rollout(trace_of(keep=TopK(2))).notes
    assert dropped.endswith("of the attention was not kept")
    assert bounds == "weights are lower bounds"


def test_it_says_that_some_attention_went_to_a_sink():
    query, key = torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    sunk = attention_graphs(query, key, TokenGraph.causal(6), normalizer=Softmax(sink=1.0))
    plain = attention_graphs(query, key, TokenGraph.causal(6))
    graph = Stack("decoder", {(0, 0): plain[0], (1, 0): sunk[0]}).unroll()
    assert graph.notes == ["some attention went to a sink outside of the text"]
    assert graph.rollout(query=-1).notes == graph.notes
    assert Stack("decoder", {(0, 0): plain[0]}).unroll().notes == []


def test_heads_are_known_by_their_place_in_the_stack():
    trace = trace_of()
    nameless = Stack(
        "decoder",
        {place: replace(head, layer=None, head=None) for place, head in trace["decoder"].items()},
    )
    for heads in ("mean", "max", [(0, 0), (0, 1), (1, 1)]):
        expected, found = trace.unroll(**chosen(heads)), nameless.unroll(**chosen(heads))
        assert dict(found.edges) == dict(expected.edges)


def test_one_token_is_one_token():
    head = AttentionGraph.from_dense(np.ones((1, 1)), tokens=["a"], layer=0, head=0)
    assert "1 token;" in Stack("decoder", {(0, 0): head}).unroll().computed_from


def test_without_tokens_no_token_is_named():
    head = attention_graphs(torch.zeros(1, 0, 4), torch.zeros(1, 0, 4), TokenGraph.causal(0))[0]
    graph = Stack("decoder", {(0, 0): head}).unroll()
    for ask in (
        lambda: graph.rollout(query=-1),
        lambda: graph.rollout(key=0),
        lambda: graph.flow(key=0, query=-1),
    ):
        with pytest.raises(SelectionError, match="there are no tokens"):
            ask()


@pytest.mark.parametrize("suffix", [".json", ".graphml"])
def test_it_comes_back_from_a_file_with_what_passes(suffix, tmp_path):
    passed = trace_of().unroll().rollout(query=3)
    save(passed, tmp_path / f"passed{suffix}")
    again = load(tmp_path / f"passed{suffix}")
    assert isinstance(again, Unrolled)
    assert again.end("query") == (LAYERS, 3)
    np.testing.assert_array_equal(again.matrices("passes"), passed.matrices("passes"))


def test_what_is_asked_for_must_be_there():
    graph = trace_of().unroll()
    with pytest.raises(SelectionError, match="Say which token"):
        graph.rollout()
    with pytest.raises(SelectionError, match=r"No node \(7, 0\)"):
        graph.rollout(query=(7, 0))
    with pytest.raises(SelectionError, match="position"):
        graph.flow(key=9, query=0)
