"""Traces and their unrolled graph."""

import networkx as nx
import numpy as np
import pytest
import torch

import gattn
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK

FIRST = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])
SECOND = np.array([[0.2, 0.2, 0.6], [0.3, 0.4, 0.3], [0.6, 0.1, 0.3]])
TOKENS = ("a", "b", "a")


def stack_of(*layers: list[np.ndarray], name: str = "decoder", keep=None) -> Stack:
    heads = {}
    for layer, matrices in enumerate(layers):
        for number, A in enumerate(matrices):
            head = AttentionGraph.from_dense(A, tokens=TOKENS, layer=layer, head=number)
            heads[layer, number] = head if keep is None else head.keep(keep)
    return Stack(name, heads)


def trace_of(*layers: list[np.ndarray], keep=None) -> AttentionTrace:
    return AttentionTrace({"decoder": stack_of(*layers, keep=keep)}, "toy")


def layer_matrix(graph: nx.DiGraph, depth: int, attribute: str = "weight") -> np.ndarray:
    matrix = np.zeros((3, 3))
    for (at, key), (to, query), edge in graph.edges(data=True):
        if at == depth:
            assert to == depth + 1
            matrix[query, key] = edge[attribute]
    return matrix


def random_layers(layers: int, heads: int) -> list[list[np.ndarray]]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(layers, heads, 3, 3, generator=generator).double().softmax(-1)
    return [list(layer) for layer in scores.numpy()]


@pytest.mark.parametrize("residual", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("heads", ["mean", "max", "min", 1])
def test_the_unrolled_graph_is_the_row_normalized_mix(heads, residual: float) -> None:
    layers = random_layers(3, 2)
    how = {"heads": heads} if heads == 1 else {"reduce": heads}
    graph = trace_of(*layers).unroll(**how, residual=residual)
    assert nx.is_directed_acyclic_graph(graph)
    assert set(graph.nodes) == {(depth, i) for depth in range(4) for i in range(3)}
    for depth, matrices in enumerate(layers):
        reduced = matrices[1] if heads == 1 else getattr(np.stack(matrices), heads)(axis=0)
        mixed = (1 - residual) * reduced + residual * np.eye(3)
        mass = mixed.sum(1, keepdims=True)
        weight = layer_matrix(graph, depth)
        np.testing.assert_allclose(weight, mixed / mass)
        np.testing.assert_allclose(layer_matrix(graph, depth, "capacity"), weight)
        np.testing.assert_allclose(
            layer_matrix(graph, depth, "residual"), residual * np.eye(3) / mass
        )
        if residual < 1:
            np.testing.assert_allclose(layer_matrix(graph, depth, "attention"), reduced)


def test_the_published_rollout_is_the_product_of_the_layers() -> None:
    graph = trace_of([FIRST], [SECOND]).unroll(residual=0.5)
    rollout = layer_matrix(graph, 1) @ layer_matrix(graph, 0)
    expected = [[0.4925, 0.2175, 0.29], [0.16625, 0.67125, 0.1625], [0.30875, 0.17125, 0.52]]
    np.testing.assert_allclose(rollout, expected)


def test_the_published_attention_flow_is_the_maximum_flow() -> None:
    graph = trace_of([FIRST], [SECOND]).unroll(residual=0.5)
    flow = [
        [
            nx.maximum_flow_value(graph, (0, j), (2, i), flow_func=nx.algorithms.flow.preflow_push)
            for j in range(3)
        ]
        for i in range(3)
    ]
    expected = [[0.775, 0.375, 0.45], [0.325, 0.975, 0.3], [0.475, 0.325, 0.8]]
    np.testing.assert_allclose(flow, expected)


def test_rows_are_divided_by_their_whole_mass_dropped_edges_included() -> None:
    graph = trace_of([FIRST], [SECOND], keep=TopK(1)).unroll(residual=0.5)
    kept = np.where(FIRST.max(1, keepdims=True) == FIRST, FIRST, 0)
    np.testing.assert_allclose(layer_matrix(graph, 0), (kept + np.eye(3)) / 2)
    assert (1, 0) not in graph[0, 2]


def test_an_empty_neighbourhood_without_residual_has_no_edges() -> None:
    empty = FIRST * [[0], [1], [1]]
    graph = trace_of([empty]).unroll(residual=0.0)
    assert list(graph.predecessors((1, 0))) == []


def test_nodes_carry_tokens_layers_and_positions() -> None:
    graph = trace_of([FIRST]).unroll(heads=0, residual=0.25)
    assert graph.nodes[1, 2] == {"token": "a", "layer": 1, "position": 2}
    facts = {"residual": 0.25, "heads": "head 0", "layers": 1, "first_layer": 0}
    assert facts.items() <= graph.graph.items()


def test_parts_of_a_text_keep_their_positions() -> None:
    head = AttentionGraph.from_dense(FIRST, tokens=TOKENS).subgraph([0, 2])
    graph = AttentionTrace({"decoder": Stack("decoder", {(0, 0): head})}).unroll()
    assert {position for _, position in graph.nodes} == {0, 2}
    assert graph.has_edge((0, 0), (1, 2))


def test_heads_are_taken_by_layer_and_head() -> None:
    trace = trace_of([FIRST, SECOND], [SECOND, FIRST])
    np.testing.assert_array_equal(trace[1, 0].to_dense(), SECOND)
    np.testing.assert_array_equal(trace["decoder"][1, 1].to_dense(), FIRST)
    assert [(head.layer, head.head) for head in trace.heads()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trace.tokens == list(TOKENS)
    assert (trace["decoder"].layers, trace["decoder"].head_numbers) == ([0, 1], [0, 1])
    assert repr(trace) == "AttentionTrace(toy; decoder: 2 layers x 2 heads)"


def test_a_trace_counts_its_heads() -> None:
    assert len(trace_of([FIRST, SECOND], [SECOND, FIRST])) == 4
    stacks = {"encoder": stack_of([FIRST]), "cross": stack_of([FIRST, SECOND])}
    assert len(AttentionTrace(stacks)) == len(list(AttentionTrace(stacks).heads())) == 3
    assert len(AttentionTrace({})) == 0


def test_what_to_walk_must_be_said() -> None:
    trace = trace_of([FIRST, SECOND])
    for act in (iter, list, lambda trace: (0, 1) in trace, lambda trace: "decoder" in trace):
        with pytest.raises(SelectionError, match=r"trace\.heads\(\)"):
            act(trace)
    assert (0, 1) in trace.only_stack
    assert "decoder" in trace.stacks


def test_what_was_generated_is_a_number_of_tokens() -> None:
    trace = AttentionTrace({"decoder": stack_of([FIRST])}, "toy", generated=2)
    assert repr(trace) == "AttentionTrace(toy; decoder: 1 layer x 1 head; 2 generated)"
    assert trace_of([FIRST]).generated == 0
    for generated in (-1, 1.0, True, "2", None):
        with pytest.raises(ShapeError, match=f"generated must be .*, not {generated!r}"):
            AttentionTrace({}, generated=generated)


def test_logits_are_those_of_one_sequence() -> None:
    for shape in [(3, 7), (2,)]:
        logits = torch.zeros(shape)
        assert AttentionTrace({}, logits=logits).logits is logits
    assert trace_of([FIRST]).logits is None
    with pytest.raises(ShapeError, match=r"\(tokens, vocabulary\) or \(labels,\).*\(1, 3, 7\)"):
        AttentionTrace({}, logits=torch.zeros(1, 3, 7))


def test_what_is_not_there_is_named_with_what_is() -> None:
    trace = trace_of([FIRST], [SECOND])
    with pytest.raises(SelectionError, match=r"no layer and head \(2, 0\).*layers \[0, 1\]"):
        trace[2, 0]
    for place in ([0, 1], 1, slice(2), (0, [1])):
        with pytest.raises(SelectionError, match="no layer and head"):
            trace[place]
    for place in ((-1, -1), (1, -1)):
        with pytest.raises(
            SelectionError, match=r"count from 0, not from the end: the last is \[1, 0\]"
        ):
            trace[place]
    with pytest.raises(SelectionError, match=r"Take a head by both, as in trace\[1, 0\]"):
        trace[1]
    with pytest.raises(SelectionError, match=r"Take a head by both, as in trace\[0, 0\]"):
        trace[5]
    with pytest.raises(SelectionError, match=r"No stack 'cross'; there are \['decoder'\]"):
        trace["cross"]
    several = AttentionTrace(dict.fromkeys(("second", "first"), trace["decoder"]))
    with pytest.raises(SelectionError, match=r"there are \['second', 'first'\]"):
        several["third"]
    with pytest.raises(SelectionError, match=r"has the stacks \['second', 'first'\]"):
        several.unroll()
    takes = "A head is taken by its numbers, as in trace"
    with pytest.raises(SelectionError, match=rf"{takes}\['decoder'\]\[1, 0\]"):
        trace["decoder:1.0"]
    for of, place in ((trace, "1.0"), (trace, 1.0), (trace["decoder"], "1.0")):
        with pytest.raises(SelectionError, match=rf"{takes}\[1, 0\]"):
            of[place]
    with pytest.raises(SelectionError, match=rf"{takes}\[1, 0\]"):
        trace["1"]
    with pytest.raises(SelectionError, match="not 'median'"):
        trace.unroll(reduce="median")
    with pytest.raises(ShapeError, match=r"share from 0 to 1, not 1\.5"):
        trace.unroll(residual=1.5)


def test_with_several_stacks_one_must_be_named() -> None:
    stacks = {name: stack_of([FIRST], name=name) for name in ("encoder", "cross")}
    trace = AttentionTrace(stacks)
    with pytest.raises(SelectionError, match=r"\['encoder', 'cross'\].*trace\['encoder'\]"):
        trace[0, 0]
    assert trace["cross"].unroll().number_of_nodes() == 6
    assert len(list(trace.heads())) == 2


def test_of_several_stacks_one_of_self_attention_is_named_which_unrolls() -> None:
    cross = AttentionGraph.from_dense(np.ones((2, 3)), TokenGraph.bipartite(2, 3))
    stacks = {
        "cross": Stack("cross", {(0, 0): cross}),
        "encoder": stack_of([FIRST], name="encoder"),
    }
    with pytest.raises(SelectionError, match=r"as in trace\['encoder'\]"):
        AttentionTrace(stacks).unroll()


def test_only_whole_self_attention_unrolls() -> None:
    cross = AttentionGraph.from_dense(np.ones((2, 3)), TokenGraph.bipartite(2, 3))
    negative = AttentionGraph.from_dense(-FIRST)
    pooled = AttentionGraph.from_dense(FIRST[:-1, :-1])
    head = AttentionGraph.from_dense(FIRST)
    for heads, error, message in [
        ({}, SelectionError, "stack is empty"),
        (
            {(0, 0): cross},
            SelectionError,
            r"such as that of an encoder.*it has 2 queries and 3 keys",
        ),
        ({(0, 0): head, (2, 0): head}, SelectionError, r"consecutive layers.*\[0, 2\]"),
        ({(0, 0): negative}, ShapeError, "attention ≥ 0"),
        ({(0, 0): head, (1, 0): pooled}, SelectionError, "layer 1 is of other tokens than layer 0"),
    ]:
        with pytest.raises(error, match=message):
            Stack("decoder", heads).unroll()


def test_a_stack_is_a_mapping_that_knows_what_it_lacks():
    stack = stack_of([FIRST])
    assert (0, 0) in stack
    assert (7, 7) not in stack
    assert stack.get((7, 7)) is None
    with pytest.raises(SelectionError, match=r"^The decoder stack has no layer and head \(7, 7\)"):
        stack[7, 7]


def test_some_heads_of_layers_are_counted_as_they_are():
    trace = gattn.capture("a b", heads=["0.1", "2.0", "2.3"])
    assert "decoder: 3 heads in 2 layers" in repr(trace)


def test_heads_of_one_stack_of_several_name_it() -> None:
    heads = {(0, 0): AttentionGraph.from_dense(np.eye(2), layer=0, head=0)}
    alone = AttentionTrace({"blocks": Stack("blocks", dict(heads))})
    assert alone[0, 0].place() == ["layer 0", "head 0"]
    both = AttentionTrace({name: Stack(name, dict(heads)) for name in ("blocks", "pool")})
    for name in both.stacks:
        assert both[name][0, 0].place() == [name, "layer 0", "head 0"]
        assert repr(both[name][0, 0]).startswith(f"AttentionGraph({name}, layer 0, head 0, ")
    assert both["pool"][0, 0].without_self_loops().place()[0] == "pool"
    blocks, pool = (stack[0, 0].stack for stack in both.stacks.values())
    assert (blocks, pool, heads[0, 0].stack) == ("blocks", "pool", "")
