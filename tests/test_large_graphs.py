"""Graphs that are larger than any memory: counted, combined, and refused where they are listed."""

import random
import re
import time

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gattn
from gattn.attention import attention_graphs, graph_attention
from gattn.checks import check_memory
from gattn.errors import CaptureError, ContractError, GraphError
from gattn.graph.counting import count_edges
from gattn.graph.networks import list_nodes
from gattn.graph.rules.combined import Combined
from gattn.graph.rules.simple import Blocks, Causal, Crossing, Globals, Strided, Window
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, TopK
from gattn.weights import ALiBi, Polynomial

N = 10**9
HUGE = (2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**40)


# Counted by sums


def triangle(n):
    return n * (n + 1) // 2


COUNTS = {
    "causal": (lambda: TokenGraph.causal(N), triangle(N)),
    "complete": (lambda: TokenGraph.complete(N), N**2),
    "window": (lambda: TokenGraph.window(N, 64), 64 * N - triangle(63)),
    "both sides": (lambda: TokenGraph.window(N, 9, causal=False), 19 * N - 2 * triangle(9)),
    "prefix": (lambda: TokenGraph.prefix(N, 10), triangle(N) + triangle(9)),
    "self-loops": (lambda: TokenGraph.self_loops(N), N),
    "without self-loops": (lambda: TokenGraph.causal(N).without_self_loops(), triangle(N - 1)),
    "window and prefix": (
        lambda: TokenGraph.window(N, 64) | TokenGraph.prefix(N, 10),
        triangle(N) + triangle(9),
    ),
    "cut": (
        lambda: TokenGraph.causal(N) - TokenGraph.window(N, 5),
        triangle(N) - (5 * N - triangle(4)),
    ),
    "an offset": (
        lambda: TokenGraph.causal(10**6, num_keys=10**6, query_offset=5),
        triangle(10**6) + 5 * (10**6) - triangle(5),
    ),
    "few keys": (lambda: TokenGraph.causal(N, num_keys=3), 3 * N - 3),
    "strided": (
        lambda: TokenGraph.strided(N, 7),
        sum((N - r + 6) // 7 * ((N - r + 6) // 7 + 1) // 2 for r in range(7)),
    ),
    "dilated": (lambda: TokenGraph.dilated(N, 6, 3), 5 * N - 2 * (3 + 6)),
    "longformer": (
        lambda: TokenGraph.longformer(N, 4, [0]),
        9 * N - 2 * triangle(4) + 2 * (N - 5),
    ),
    "side by side": (
        lambda: TokenGraph.disjoint_union([TokenGraph.causal(N)] * 2),
        2 * triangle(N),
    ),
    "many side by side": (
        lambda: TokenGraph.disjoint_union([TokenGraph.causal(5)] * 100_000),
        1_500_000,
    ),
    "large blocks": (
        lambda: TokenGraph.bigbird(10**8, 10**6, random_blocks=0),
        (100 * 3 - 2 + 4 * 98 - 2) * 10**12,
    ),
    "no keys": (lambda: TokenGraph.bipartite(N, 0), 0),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_billion_tokens_are_counted(name):
    build, count = COUNTS[name]
    begun = time.process_time()
    assert build().num_edges == count
    assert time.process_time() - begun < 60


def drawn(draw, depth=2):
    if not depth or draw.random() < 0.3:
        return draw.choice(
            [
                Causal(),
                Window(draw.randrange(6), draw.randrange(6)),
                Window(draw.randrange(6), draw.randrange(6), draw.randrange(1, 4)),
                Strided(draw.randrange(1, 5)),
                Globals(torch.tensor([draw.randrange(12)])),
                Crossing(torch.tensor([draw.randrange(12)]), None),
                Blocks(draw.randrange(1, 4), Causal()),
                TokenGraph.prefix(4, draw.randrange(1, 4)).rule,
            ]
        )
    return Combined(draw.choice("&|-"), drawn(draw, depth - 1), drawn(draw, depth - 1))


def test_sums_are_what_the_mask_says():
    counted = 0
    for seed in range(300):
        draw = random.Random(seed)
        rule, first = drawn(draw), draw.randrange(5)
        queries, keys = draw.randrange(1, 14), draw.randrange(1, 14)
        graph = TokenGraph(rule, queries, keys, first)
        found = count_edges(rule, first, queries, keys)
        if found is not None:
            counted += 1
            assert found == int(graph.mask().sum()), (seed, graph)
    assert counted > 100


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 6), st.integers(0, 6)), max_size=5))
def test_sums_side_by_side_are_what_the_mask_says(parts):
    graphs = [
        TokenGraph(drawn(random.Random(seed)), rows, columns) for seed, rows, columns in parts
    ]
    graph = TokenGraph.disjoint_union(graphs)
    assert graph.num_edges == int(graph.mask().sum()) == sum(one.num_edges for one in graphs)
    found = count_edges(graph.rule, 0, graph.num_queries, graph.num_keys)
    assert found in (None, graph.num_edges)


# Sizes that no number of 64 bits holds


@pytest.mark.parametrize("size", HUGE)
def test_huge_sizes_mean_all(size):
    whole, past = 25, 15
    assert TokenGraph.window(5, size, causal=False).num_edges == whole
    assert TokenGraph.window(5, size).num_edges == past
    assert TokenGraph.prefix(5, size).num_edges == whole
    assert TokenGraph.longformer(5, size, [1]).num_edges == whole
    assert TokenGraph.bigbird(5, size).num_edges == whole
    assert TokenGraph.strided(5, size).num_edges == 5
    assert TokenGraph.dilated(5, size, 2).num_edges == 13
    assert TokenGraph.dilated(5, 3, size).num_edges == 5
    for graph in (TokenGraph.window(5, size, causal=False), TokenGraph.strided(5, size)):
        assert len(graph.edge_index[0]) == int(graph.mask().sum()) == graph.num_edges
        draw = torch.Generator().manual_seed(0)
        query = torch.randn(1, 1, 5, 4, generator=draw)
        outputs = [
            graph_attention(query, query, query, graph, engine=name)
            for name in ("tiles", "edges", "message_passing")
        ]
        torch.testing.assert_close(outputs[0], outputs[1])
        torch.testing.assert_close(outputs[0], outputs[2])


@pytest.mark.parametrize("size", [2**41, *HUGE[1:]])
def test_positions_that_are_too_far_are_refused(size):
    for build in (
        lambda: TokenGraph.causal(size),
        lambda: TokenGraph.complete(size),
        lambda: TokenGraph.bipartite(1, size),
        lambda: TokenGraph.causal(1, num_keys=3, query_offset=size),
    ):
        with pytest.raises(GraphError, match=r"must be at most 2\*\*40, not"):
            build()
    for build in (
        lambda: TokenGraph.from_edge_index([[0], [0]], size),
        lambda: TokenGraph.from_edges([(0, 1)], size),
    ):
        with pytest.raises(GraphError, match=r"GiB, more than the 1 GiB allowed"):
            build()


def test_keys_that_are_too_far_are_not_taken_for_others():
    with pytest.raises(GraphError, match="too many"):
        TokenGraph.from_edge_index([[2**40 - 1], [2**26]], num_queries=2**27, num_keys=2**40)


# Listed only within the limit


@pytest.mark.parametrize(
    "ask",
    [
        lambda: TokenGraph.causal(10**6).edge_index,
        lambda: TokenGraph.causal(10**6).mask(),
        lambda: TokenGraph.causal(10_000).to_networkx(),
        lambda: TokenGraph.self_loops(10**8).to_networkx(),
        lambda: TokenGraph.causal(N).in_degree,
        lambda: TokenGraph.causal(N).pointer,
        lambda: TokenGraph.causal(10**6).without_self_loops().edge_index,
        lambda: (TokenGraph.complete(10**5) - TokenGraph.from_edges([(0, 0)], 10**5)).edge_index,
        lambda: TokenGraph.from_edges([(0, 0)], 10**9),
        lambda: list_nodes(TokenGraph.causal(10**9)),
        lambda: TokenGraph.disjoint_union([TokenGraph.causal(10**5)] * 2).edge_index,
        lambda: (TokenGraph.strided(10**8, 7) - TokenGraph.strided(10**8, 14)).edge_index,
        lambda: (
            (
                TokenGraph.disjoint_union([TokenGraph.causal(20_000)] * 2)
                & TokenGraph.causal(40_000)
            ).edge_index
        ),
    ],
)
def test_what_takes_more_than_a_gibibyte_is_refused(ask):
    begun = time.process_time()
    with pytest.raises(GraphError, match=r"would take .* GiB, more than the 1 GiB allowed; "):
        ask()
    assert time.process_time() - begun < 60


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: TokenGraph.expander(100, 10**9), "below the number of tokens"),
        (lambda: TokenGraph.expander(10**9, 2), "119.2 GiB"),
        (lambda: TokenGraph.bigbird(N, 1), "GiB allowed; take larger blocks"),
        (lambda: TokenGraph.bigbird(10**7, 1), "GiB allowed; take larger blocks"),
        (lambda: TokenGraph.bigbird(200_000, 1, random_blocks=300), "Take larger blocks"),
        (lambda: TokenGraph.bigbird(10**5, 1, random_blocks=10**5), "GiB allowed; take larger"),
    ],
)
def test_drawings_that_take_too_much_are_refused_at_once(build, says):
    begun = time.process_time()
    with pytest.raises(GraphError, match=re.escape(says)):
        build()
    assert time.process_time() - begun < 60


def test_bigbird_of_many_blocks_is_drawn_at_once():
    begun = time.process_time()
    graph = TokenGraph.bigbird(10**5, 1, random_blocks=3)
    # The first and the last block, the ends and the band of the others, and what is drawn.
    assert graph.num_edges == 2 * 10**5 + (10**5 - 2) * (2 + 3 + 3) - 2
    assert time.process_time() - begun < 60


def test_more_random_blocks_than_there_are_mean_all():
    many = TokenGraph.bigbird(60, 4, random_blocks=10**9)
    assert many.num_edges == 60**2


def test_attention_graphs_keep_all_edges_by_default_only_where_few():
    query = torch.zeros(1, 20_000, 1)
    graph = TokenGraph.causal(20_000)
    eight = query.expand(8, -1, -1)
    with pytest.raises(CaptureError, match=r"8 heads .* would take .*keep=TopK\(8\)"):
        attention_graphs(eight, eight, graph)
    begun = time.process_time()
    with pytest.raises(CaptureError, match=r"1 heads .* would take 3\.7 GiB.*keep=TopK\(8\)"):
        attention_graphs(query, query, graph)
    assert time.process_time() - begun < 60
    kept = attention_graphs(query, query, TokenGraph.window(20_000, 3), keep=TopK(1))
    assert kept[0].graph.num_edges == 20_000
    few = query[:, :20]
    assert attention_graphs(few, few, TokenGraph.causal(20), keep=All())[0].graph.num_edges == 210


def test_the_limit_is_the_users():
    graph = TokenGraph.causal(500)
    with gattn.memory_limit(1e-4):
        for ask in (lambda: graph.edge_index, graph.mask, graph.to_networkx):
            with pytest.raises(GraphError, match=r"more than the 0\.0001 GiB allowed"):
                ask()
        with gattn.memory_limit(1):
            assert graph.edge_index.shape == (2, triangle(500))
        query = torch.zeros(1, 500, 1)
        head = attention_graphs(query, query, graph, keep=All())[0]
        with pytest.raises(GraphError, match=r"NetworkX graph of AttentionGraph.*Threshold"):
            head.to_networkx()
    assert isinstance(head.to_networkx(), nx.DiGraph)
    for wrong in (0, -1, float("nan"), "2"):
        with pytest.raises(ContractError):
            gattn.memory_limit(wrong)
    check_memory(2**30, "A gibibyte")


# Combined again and again


def test_a_graph_joined_with_itself_is_itself():
    for build in (
        lambda: TokenGraph.window(100, 5),
        lambda: TokenGraph.from_edges([(0, 1), (4, 2)], 100),
        lambda: TokenGraph.causal(100).without_self_loops(),
    ):
        graph = build()
        count, begun = graph.num_edges, time.process_time()
        for _ in range(200):
            graph = graph | graph
            graph = graph & graph
        assert graph.num_edges == count
        assert time.process_time() - begun < 60


def test_hundreds_of_edges_are_cut_and_added_one_by_one():
    causal, window = TokenGraph.causal(60), TokenGraph.window(60, 2)
    mask, wide = causal.mask(), window.mask()
    draw = random.Random(0)
    for _ in range(500):
        key, query = draw.randrange(60), draw.randrange(60)
        edge = TokenGraph.from_edges([(key, query)], 60)
        causal, window = causal - edge, window | edge
        mask[query, key], wide[query, key] = False, True
    assert torch.equal(causal.mask(), mask)
    assert torch.equal(window.mask(), wide)
    assert repr(causal).startswith("TokenGraph((Causal() - Edges(")
    assert causal.num_edges == int(mask.sum())


def test_many_rules_stay_flat():
    graph, cut, mask = TokenGraph.causal(40), TokenGraph.complete(40), TokenGraph.causal(40).mask()
    for size in range(1, 41):
        mask |= TokenGraph.dilated(40, size, 3).mask()
        graph = graph | TokenGraph.dilated(40, size, 3)
        cut = cut & TokenGraph.window(40, 50 - size, causal=False)
    assert graph.rule.depth < 10
    assert torch.equal(graph.mask(), mask)
    assert cut.num_edges == TokenGraph.window(40, 10, causal=False).num_edges


def test_rules_too_deep_or_too_many_are_refused():
    def nested(graph):
        for size in range(200):
            graph = (graph & TokenGraph.window(50, size + 1)) | TokenGraph.prefix(50, size + 1)

    def doubled(graph):
        for step in range(40):
            graph = (graph - TokenGraph.window(50, step + 1)) | graph

    for build in (nested, doubled):
        with pytest.raises(GraphError, match="List its edges first"):
            build(TokenGraph.causal(50))


# Numbers of other libraries


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.array])
def test_whole_numbers_of_numpy_are_taken(kind):
    five, two = kind(5), kind(2)
    pairs = [
        (TokenGraph.causal(five), TokenGraph.causal(5)),
        (
            TokenGraph.causal(two, num_keys=five, query_offset=two),
            TokenGraph.causal(2, num_keys=5, query_offset=2),
        ),
        (TokenGraph.complete(five), TokenGraph.complete(5)),
        (TokenGraph.window(five, two), TokenGraph.window(5, 2)),
        (TokenGraph.dilated(five, two, two), TokenGraph.dilated(5, 2, 2)),
        (TokenGraph.prefix(five, two), TokenGraph.prefix(5, 2)),
        (TokenGraph.strided(five, two), TokenGraph.strided(5, 2)),
        (TokenGraph.longformer(five, two, [1]), TokenGraph.longformer(5, 2, [1])),
        (
            TokenGraph.bigbird(five, two, random_blocks=two),
            TokenGraph.bigbird(5, 2, random_blocks=2),
        ),
        (TokenGraph.bipartite(two, five), TokenGraph.bipartite(2, 5)),
        (TokenGraph.from_edge_index([[1], [0]], five), TokenGraph.from_edge_index([[1], [0]], 5)),
        (TokenGraph.from_edges([(two, 0)], five), TokenGraph.from_edges([(2, 0)], 5)),
        (TokenGraph.expander(kind(12), two), TokenGraph.expander(12, 2)),
    ]
    for found, wanted in pairs:
        assert repr(found) == repr(wanted)
        assert type(found.num_queries) is type(found.num_keys) is type(found.query_offset) is int
        assert torch.equal(found.mask(), wanted.mask())
    assert gattn.TopKSoftmax(two).k == 2
    assert Polynomial(two).degree == 2
    assert repr(TopK(two)) == "TopK(k=2)"
    assert type(gattn.AttentionTrace({}, generated=two).generated) is int
    assert repr(ALiBi(two)) == "ALiBi(2)"
    assert gattn.Cut(layer=two) == gattn.Cut(layer=2)
    assert repr(gattn.Cut(layer=[two], head=five)) == "Cut(layer=[2], head=5)"


@pytest.mark.parametrize(
    "wrong", [True, np.bool_(True), 2.0, "5", None, np.float64(5), np.array([5])]
)
def test_what_is_no_whole_number_is_refused(wrong):
    with pytest.raises(GraphError, match="num_queries must be a whole number ≥ 0"):
        TokenGraph.complete(wrong)
    with pytest.raises(GraphError, match="whole number"):
        TokenGraph.window(5, wrong)
