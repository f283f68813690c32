"""Token graphs against masks written as plain loops from their definitions."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from gattn.engines.shared import tiling
from gattn.engines.shared.tiling import partial_columns, tile_pairs
from gattn.errors import GraphError
from gattn.graph.drawn import second_laplacian_eigenvalue
from gattn.graph.ordering import refuse_numbers
from gattn.graph.rules.base import Rule
from gattn.graph.rules.combined import Combined, Disjoint
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import Keys, count_keys, list_keys
from gattn.graph.rules.simple import (
    Blocks,
    Causal,
    Complete,
    Documents,
    Globals,
    Prefix,
    Strided,
    Window,
)
from gattn.graph.token_graph import TokenGraph
from gattn.graph.walking import reach

N = 13
IDS = [0, 0, 0, 1, 1, 0, 2, 2, 2, 2, 1, 0, 3]


def mask_of(
    allowed: Callable[[int, int], bool], queries: int = N, keys: int = N, offset: int = 0
) -> np.ndarray:
    mask = np.zeros((queries, keys), dtype=bool)
    for row in range(queries):
        for k in range(keys):
            mask[row, k] = allowed(row + offset, k)
    return mask


DEFINITIONS = {
    "complete": (TokenGraph.complete(N), lambda q, k: True),
    "causal": (TokenGraph.causal(N), lambda q, k: k <= q),
    "window": (TokenGraph.window(N, 3), lambda q, k: q - 3 < k <= q),
    "window of one": (TokenGraph.window(N, 1), lambda q, k: q == k),
    "window wider than the text": (TokenGraph.window(N, 99), lambda q, k: k <= q),
    "window both ways": (TokenGraph.window(N, 3, causal=False), lambda q, k: abs(q - k) <= 3),
    "dilated": (TokenGraph.dilated(N, 6, 3), lambda q, k: abs(q - k) <= 6 and (q - k) % 3 == 0),
    "prefix": (TokenGraph.prefix(N, 4), lambda q, k: k <= q or k < 4),
    "prefix longer than the text": (TokenGraph.prefix(N, 40), lambda q, k: True),
    "documents": (TokenGraph.documents(IDS), lambda q, k: IDS[q] == IDS[k]),
    "causal documents": (
        TokenGraph.documents(IDS, causal=True),
        lambda q, k: IDS[q] == IDS[k] and k <= q,
    ),
    "strided": (TokenGraph.strided(N, 4), lambda q, k: k <= q and (q - k) % 4 == 0),
    "longformer": (
        TokenGraph.longformer(N, 2, [7, 0, 7]),
        lambda q, k: abs(q - k) <= 2 or q in (0, 7) or k in (0, 7),
    ),
    "self-loops": (TokenGraph.self_loops(N), lambda q, k: q == k),
    "bigbird without random blocks": (
        TokenGraph.bigbird(N, 2, random_blocks=0),
        lambda q, k: abs(q // 2 - k // 2) <= 1 or {q // 2, k // 2} & {0, 6} != set(),
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_structured_graphs_follow_their_definitions(name: str) -> None:
    graph, allowed = DEFINITIONS[name]
    np.testing.assert_array_equal(graph.mask().numpy(), mask_of(allowed))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_all_views_of_a_graph_agree_with_its_mask(name: str) -> None:
    graph, allowed = DEFINITIONS[name]
    mask = mask_of(allowed)
    query, key = np.nonzero(mask)
    np.testing.assert_array_equal(graph.edge_index.numpy(), [key, query])
    np.testing.assert_array_equal(graph.in_degree.numpy(), mask.sum(1))
    np.testing.assert_array_equal(graph.pointer.numpy(), [0, *mask.sum(1).cumsum()])
    assert graph.num_edges == mask.sum()
    assert graph.has_self_loops == mask.diagonal().any()


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(3, 9, 6), (4, 4, 0), (2, 9, 3), (5, 3, 2)]
)
def test_query_offset_shifts_the_queries(queries: int, keys: int, offset: int) -> None:
    graph = TokenGraph.causal(queries, num_keys=keys, query_offset=offset)
    mask = mask_of(lambda q, k: k <= q, queries, keys, offset)
    np.testing.assert_array_equal(graph.mask().numpy(), mask)
    np.testing.assert_array_equal(graph.in_degree.numpy(), mask.sum(1))
    np.testing.assert_array_equal(graph.edge_index.numpy(), np.nonzero(mask)[::-1])
    assert graph.num_tokens == max(keys, queries + offset)


def test_causal_with_an_offset_reaches_up_to_its_own_key() -> None:
    assert TokenGraph.causal(2, query_offset=5).num_keys == 7


def test_queries_beyond_the_last_key_have_no_neighbours_in_a_window() -> None:
    graph = TokenGraph(Window(2, 0), 3, 5, query_offset=10)
    assert graph.num_edges == 0
    assert graph.mask().shape == (3, 5)
    assert graph.edge_index.shape == (2, 0)
    assert not graph.has_self_loops


def test_a_million_causal_tokens_cost_no_edges() -> None:
    graph = TokenGraph.causal(1_000_000)
    assert graph.num_edges == 500_000_500_000
    assert int(graph.in_degree[999_999]) == 1_000_000
    assert TokenGraph.window(1_000_000, 4).num_edges == 4 * 1_000_000 - 6


@pytest.mark.parametrize("tokens", [0, 1])
def test_the_smallest_graphs(tokens: int) -> None:
    for graph in (
        TokenGraph.complete(tokens),
        TokenGraph.causal(tokens),
        TokenGraph.window(tokens, 2),
        TokenGraph.strided(tokens, 2),
        TokenGraph.documents([7] * tokens),
        TokenGraph.longformer(tokens, 1),
        TokenGraph.bigbird(tokens, 2),
        TokenGraph.expander(tokens, 2),
        TokenGraph.nearest(torch.zeros(tokens, 2), 1),
        TokenGraph.from_mask(torch.ones(tokens, tokens, dtype=torch.bool)),
        TokenGraph.bipartite(tokens, tokens),
    ):
        assert graph.num_edges == tokens
        assert graph.edge_index.shape == (2, tokens)
        assert graph.pointer.tolist() == [0] * (tokens == 0) or graph.pointer.tolist() == [0, 1]


def test_bigbird_adds_random_blocks_beyond_the_band_and_the_ends() -> None:
    size, blocks, drawn = 3, 12, 2
    graph = TokenGraph.bigbird(size * blocks - 1, size, random_blocks=drawn, seed=5)
    cells = TokenGraph.bigbird(blocks, 1, random_blocks=drawn, seed=5).mask().numpy()
    whole = np.kron(cells, np.ones((size, size), dtype=bool))[:-1, :-1]
    np.testing.assert_array_equal(graph.mask().numpy(), whole)
    band = mask_of(lambda q, k: abs(q - k) <= 1 or {q, k} & {0, 11} != set(), blocks, blocks)
    extra = (cells & ~band).sum(1)
    assert extra.tolist() == [0] + [drawn] * (blocks - 2) + [0]
    assert (cells | band == cells).all()


@pytest.mark.parametrize("drawn", [1, 3, 5])  # few of 12 blocks are drawn otherwise than many
def test_bigbird_draws_each_far_block_as_often(drawn: int) -> None:
    blocks, seeds = 12, 500
    masks = (
        TokenGraph.bigbird(blocks, 1, random_blocks=drawn, seed=n).mask() for n in range(seeds)
    )
    count = sum(mask.long() for mask in masks)[1:-1]
    far = torch.ones(blocks, blocks, dtype=torch.bool)[1:-1]
    row, column = torch.arange(1, blocks - 1)[:, None], torch.arange(blocks)
    far &= ((row - column).abs() > 1) & (column > 0) & (column < blocks - 1)
    share = drawn / far.sum(1, keepdim=True)
    off = (count - seeds * share) / (seeds * share * (1 - share)).sqrt()
    assert float(off[far].abs().max()) < 5  # standard deviations
    assert bool(((count == seeds) | far).all())
    assert torch.equal((count * far).sum(1), torch.full((blocks - 2,), seeds * drawn))


def test_bigbird_and_expander_depend_on_their_seeds_alone() -> None:
    for build in (
        lambda seed: TokenGraph.bigbird(40, 2, seed=seed),
        lambda seed: TokenGraph.expander(40, 3, seed=seed),
    ):
        assert torch.equal(build(1).edge_index, build(1).edge_index)
        assert not torch.equal(build(1).edge_index, build(2).edge_index)


@pytest.mark.parametrize(("tokens", "degree"), [(11, 2), (40, 2), (60, 4)])
def test_expanders_are_symmetric_connected_and_of_bounded_degree(tokens: int, degree: int) -> None:
    mask = TokenGraph.expander(tokens, degree, seed=3).mask().numpy()
    np.testing.assert_array_equal(mask, mask.T)
    assert mask.sum(1).max() <= 2 * degree
    assert nx.is_connected(nx.from_numpy_array(mask))
    assert TokenGraph.expander(10, degree).num_edges == 100


@pytest.mark.parametrize("tokens", [30, 501])
def test_the_second_eigenvalue_is_that_of_the_dense_laplacian(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    query = torch.arange(tokens).repeat(2)
    key = torch.cat([torch.randperm(tokens, generator=generator) for _ in range(2)])
    adjacency = np.zeros((tokens, tokens))
    np.add.at(adjacency, (query.numpy(), key.numpy()), 1.0)
    adjacency += adjacency.T
    spectrum = np.linalg.eigvalsh(np.diag(adjacency.sum(1)) - adjacency)
    found = second_laplacian_eigenvalue(query, key, tokens)
    assert found == pytest.approx(spectrum[1], abs=1e-6)


def test_poor_draws_are_refused_and_drawn_again() -> None:
    with pytest.raises(GraphError, match="larger degree or another seed"):
        TokenGraph.expander(12, 2, seed=2, max_tries=1)
    assert TokenGraph.expander(12, 2, seed=2).num_tokens == 12


@pytest.mark.parametrize("causal", [False, True])
def test_nearest_neighbours_against_sorted_distances(causal: bool) -> None:
    features = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)).double()
    mask = TokenGraph.nearest(features, 4, causal=causal).mask().numpy()
    points = features.numpy()
    for q in range(N):
        candidates = range(q + 1 if causal else N)
        near = sorted(candidates, key=lambda k: (k != q, np.linalg.norm(points[q] - points[k])))
        assert set(np.flatnonzero(mask[q])) == set(near[:4])


def test_nearest_takes_a_token_itself_before_its_doubles() -> None:
    graph = TokenGraph.nearest(torch.zeros(5, 2), 1)
    assert graph.edge_index.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_bipartite_graphs_have_no_loops_and_no_way_back() -> None:
    graph = TokenGraph.bipartite(2, 3)
    assert graph.mask().tolist() == [[True] * 3] * 2
    assert graph.is_dag
    assert not graph.has_self_loops
    assert graph.without_self_loops() is graph
    assert set(graph.to_networkx().nodes) == {
        *(("key", j) for j in range(3)),
        *(("query", i) for i in range(2)),
    }


def test_edge_index_is_sorted_and_duplicates_merge() -> None:
    index = torch.tensor([[2, 0, 2, 1, 0], [1, 2, 1, 0, 2]])
    graph = TokenGraph.from_edge_index(index, 4)
    assert graph.edge_index.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert graph.in_degree.tolist() == [1, 1, 1, 0]
    cross = TokenGraph.from_edge_index(torch.tensor([[4], [1]]), num_queries=2, num_keys=5)
    assert cross.is_bipartite
    assert cross.mask().nonzero().tolist() == [[1, 4]]


def test_arrays_and_lists_are_taken_as_tensors_are() -> None:
    mask = np.tril(np.ones((3, 3), dtype=bool))
    mask.flags.writeable = False
    for given_mask in (mask, mask.tolist(), mask[::-1, ::-1].T):
        assert torch.equal(TokenGraph.from_mask(given_mask).mask(), TokenGraph.causal(3).mask())
    for index in ([[0], [1]], np.array([[0], [1]], dtype=np.int32)):
        assert TokenGraph.from_edge_index(index, 2).edge_index.tolist() == [[0], [1]]
    assert TokenGraph.from_edge_index([[], []], 2).num_edges == 0
    assert TokenGraph.from_edges([], 2).num_edges == 0
    assert TokenGraph.documents(np.array([0, 0, 1])).num_edges == 5
    assert TokenGraph.nearest(np.eye(3), 1).num_edges == 3


def test_the_words_of_a_long_text_are_looked_up_once() -> None:
    words = [f"w{i}" for i in range(20_000)]
    edges = [(word, word) for word in words]
    assert TokenGraph.from_edges(edges, words).num_edges == 20_000


def test_edges_may_be_named_by_tokens() -> None:
    graph = TokenGraph.from_edges(
        [("dog", "chased"), ("cat", "chased"), (0, 1)], ["dog", "chased", "cat"]
    )
    assert graph.edge_index.tolist() == [[0, 2], [1, 1]]


def test_networkx_round_trip_and_undirected_graphs() -> None:
    graph = TokenGraph.strided(9, 3)
    assert torch.equal(TokenGraph.from_networkx(graph.to_networkx()).mask(), graph.mask())
    path = TokenGraph.from_networkx(nx.path_graph(["a", "b", "c"]))
    assert path.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    cross = TokenGraph.from_mask(
        torch.tensor([[True, False, True], [False, True, False]]), is_bipartite=True
    )
    again = TokenGraph.from_networkx(cross.to_networkx())
    assert again.is_bipartite
    assert torch.equal(again.mask(), cross.mask())


def in_four_bytes(graph: TokenGraph) -> TokenGraph:
    """Store the keys of listed edges in four bytes, as captures do."""
    assert isinstance(graph.rule, Edges)
    return replace(graph, rule=replace(graph.rule, key=graph.rule.key.int()))


masks = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        *[st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)] * 2
    )
)


@given(masks)
@settings(max_examples=25)
def test_algebra_is_boolean_algebra_of_masks(pair: tuple[list, list]) -> None:
    a, b = (torch.tensor(rows) for rows in pair)
    left, right = TokenGraph.from_mask(a), TokenGraph.from_mask(b)
    causal = torch.ones_like(a).tril()
    assert torch.equal((left & right).mask(), a & b)
    assert torch.equal((left | right).mask(), a | b)
    assert torch.equal((left - right).mask(), a & ~b)
    assert torch.equal((TokenGraph.causal(len(a)) - right).mask(), causal & ~b)
    assert torch.equal((left & TokenGraph.causal(len(a)) | right).mask(), a & causal | b)
    assert torch.equal(left.without_self_loops().mask(), a & ~torch.eye(len(a), dtype=torch.bool))
    narrow = in_four_bytes(left)
    assert torch.equal((narrow - right).mask(), a & ~b)
    assert torch.equal((narrow | in_four_bytes(right)).mask(), a | b)
    assert torch.equal((TokenGraph.causal(len(a)) & narrow).mask(), causal & a)
    assert torch.equal(narrow.edge_index, left.edge_index)


@given(masks)
@settings(max_examples=25)
def test_is_dag_agrees_with_networkx(pair: tuple[list, list]) -> None:
    mask = torch.tensor(pair[0]) & torch.tensor(pair[1])
    graph = TokenGraph.from_mask(mask)
    assert graph.is_dag == nx.is_directed_acyclic_graph(graph.to_networkx())
    loopless = graph.without_self_loops()
    assert loopless.is_dag == nx.is_directed_acyclic_graph(loopless.to_networkx())


SIZE = 11
DRAWN = torch.rand(2, SIZE, SIZE, generator=torch.Generator().manual_seed(4)) < 0.3
LEAVES = [
    TokenGraph.complete(SIZE),
    TokenGraph.causal(SIZE),
    TokenGraph.window(SIZE, 3),
    TokenGraph.dilated(SIZE, 7, 3),
    TokenGraph.prefix(SIZE, 4),
    TokenGraph.documents([3, 3, 1, 1, 3, 0, 0, 0, 3, 1, 9]),
    TokenGraph.strided(SIZE, 3),
    TokenGraph.longformer(SIZE, 1, [0, 6]),
    TokenGraph.bigbird(SIZE, 2, random_blocks=1),
    TokenGraph.from_mask(DRAWN[0]),
    TokenGraph.from_mask(DRAWN[1]),
    in_four_bytes(TokenGraph.from_mask(DRAWN[0] & DRAWN[1].T)),
    TokenGraph.from_mask(torch.zeros(SIZE, SIZE, dtype=torch.bool)),
]
combined_graphs = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.tuples(parts, st.sampled_from("&|-"), parts).map(
        lambda part: part[0]._combine(part[1], part[2])
    ),
    max_leaves=6,
)


@given(combined_graphs)
@settings(max_examples=100)
def test_edges_are_counted_and_listed_as_the_mask_says(graph: TokenGraph) -> None:
    mask = graph.mask()
    assert graph.in_degree.tolist() == mask.sum(1).tolist()
    query, key = mask.nonzero(as_tuple=True)
    assert torch.equal(graph.edge_index, torch.stack([key, query]))


@given(combined_graphs, st.data())
@settings(max_examples=60)
def test_any_part_of_a_row_is_counted_as_the_mask_says(graph: TokenGraph, data) -> None:
    ends = st.lists(st.integers(0, SIZE), min_size=SIZE, max_size=SIZE)
    bounds = torch.tensor([data.draw(ends), data.draw(ends)])
    low, high = bounds.amin(0), bounds.amax(0)
    counts = graph.rule.count(torch.arange(SIZE), low, high)
    key = torch.arange(SIZE)
    inside = (key >= low[:, None]) & (key < high[:, None])
    if counts is not None:
        assert counts.tolist() == (graph.mask() & inside).sum(1).tolist()


def drawn_edges(rows: int, keys: int, first_query: int, share: float, seed: int) -> Edges:
    drawn = torch.rand(rows, keys, generator=torch.Generator().manual_seed(seed)) < share
    return Edges.from_pairs(*drawn.nonzero(as_tuple=True), rows, first_query)


SCATTERED = torch.tensor([3, 3, 1, 1, 3, 0, 0, 0, 3, 1, 9, 2, 2, 9, 2, 3, 4, 4, 5, 5, 4])
EXACT: list[Rule] = [
    Complete(),
    Causal(),
    Window(2, 0),
    Window(0, 0),
    Window(1, 4),
    Prefix(5),
    Prefix(99),
    Strided(4),
    Documents(SCATTERED),
    Documents(SCATTERED.sort().values),
    Globals(torch.tensor([9, 2, 9])),
    Globals(torch.tensor([0])),
    Globals(torch.zeros(0).long()),
    Blocks(3, Window(1, 0)),
    Blocks(2, Globals(torch.tensor([3]))),
    Blocks(3, drawn_edges(7, 7, 0, 0.2, 0)),
    drawn_edges(17, 15, 0, 0.1, 1),
    drawn_edges(5, 19, 4, 0.3, 2),
    drawn_edges(5, 7, 0, 0.9, 3),
    drawn_edges(3, 3, 0, 0.0, 4),
    Disjoint((Causal(), Globals(torch.tensor([1])), Complete()), (0, 4, 8), (0, 3, 9)),
    Disjoint((Complete(), Prefix(2), Window(1, 1), Complete()), (0, 0, 5, 5), (0, 2, 6, 6)),
]
DOUBTFUL: list[Rule] = [Window(5, 5, 3), Window(6, 0, 2), Combined("-", Causal(), Window(2, 2))]
rules = st.recursive(
    st.sampled_from(EXACT + DOUBTFUL),
    lambda parts: st.builds(Combined, st.sampled_from("&|-"), parts, parts),
    max_leaves=4,
)
graphs = st.builds(TokenGraph, rules, st.integers(0, 12), st.integers(0, 18), st.integers(0, 8))


def brute_mask(graph: TokenGraph) -> torch.Tensor:
    """All pairs, each looked at alone."""
    query = torch.arange(graph.num_queries) + graph.query_offset
    key = torch.arange(graph.num_keys).repeat(len(query))
    found = graph.rule.allowed(query.repeat_interleave(graph.num_keys), key)
    return found.reshape(graph.num_queries, graph.num_keys)


def are_keys(keys: Keys, num_keys: int) -> bool:
    if isinstance(keys, slice):
        return 0 <= keys.start <= keys.stop <= num_keys and keys.step is None
    listed = keys.tolist()
    in_range = bool(listed) and listed[0] >= 0 and listed[-1] < num_keys
    is_run = listed[-1] - listed[0] + 1 == len(listed)
    return in_range and not is_run and sorted(set(listed)) == listed and keys.dtype == torch.int64


def reached(graph: TokenGraph, first: int, last: int) -> list[int]:
    """The keys of rows first .. last, by brute force."""
    return brute_mask(graph)[first : last + 1].any(0).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("num_keys", [1, 8, 21])
def test_rules_reach_exactly_the_keys_of_a_run_of_queries(rule: Rule, num_keys: int) -> None:
    graph = TokenGraph(rule, 15, num_keys)
    for first in range(15):
        for last in range(first, 15):
            keys = rule.reach(first, last, num_keys)
            listed = list_keys(keys).tolist()
            assert are_keys(keys, num_keys)
            if isinstance(rule, Strided) and last - first >= rule.stride - 1:
                assert listed == list(range(num_keys))
            else:
                assert listed == reached(graph, first, last)


@given(st.sampled_from(EXACT), st.sampled_from(EXACT), st.integers(0, 14), st.integers(0, 14))
@settings(max_examples=60)
def test_an_either_rule_reaches_what_one_of_both_reaches(
    left: Rule, right: Rule, first: int, last: int
) -> None:
    graph = TokenGraph(Combined("|", left, right), 15, 19)
    first, last = min(first, last), max(first, last)
    found = {
        key for rule in (left, right) for key in list_keys(rule.reach(first, last, 19)).tolist()
    }
    keys = graph.rule.reach(first, last, 19)
    assert are_keys(keys, 19)
    assert list_keys(keys).tolist() == sorted(found)


@given(graphs, st.data())
@settings(max_examples=100)
def test_rows_reach_at_least_their_keys(graph: TokenGraph, data: st.DataObject) -> None:
    ends = st.integers(0, graph.num_queries)
    start, stop = sorted([data.draw(ends), data.draw(ends)])
    keys = reach(graph, slice(start, stop))
    assert are_keys(keys, graph.num_keys)
    mask = brute_mask(graph)
    wanted = mask[start:stop].any(0).nonzero()[:, 0].tolist()
    assert set(wanted) <= set(list_keys(keys).tolist())
    assert torch.equal(
        graph.allowed(slice(start, stop), keys), mask[start:stop][:, list_keys(keys)]
    )
    part = partial_columns(graph, slice(start, stop), keys)
    full = list_keys(keys).tolist()
    del full[part]
    assert mask[start:stop][:, full].all()


def test_keys_that_nearly_fill_a_run_are_given_as_the_run() -> None:
    graph = TokenGraph.from_edge_index([[0, 1, 3, 4, 1, 7], [0, 0, 0, 0, 1, 1]], 8)
    assert reach(graph, slice(0, 1)) == slice(0, 5)
    assert reach(graph, slice(1, 2)).tolist() == [1, 7]


@pytest.mark.parametrize(
    ("graph", "rows", "columns", "part"),
    [
        (TokenGraph.complete(9), slice(2, 5), slice(0, 9), slice(9, 9)),
        (TokenGraph.causal(9), slice(2, 5), slice(0, 5), slice(3, 5)),
        (TokenGraph.causal(9), slice(2, 5), torch.tensor([0, 2, 3, 6]), slice(2, 4)),
        (TokenGraph.causal(2, query_offset=5), slice(0, 2), slice(0, 7), slice(6, 7)),
        (TokenGraph.prefix(9, 4), slice(2, 6), slice(0, 6), slice(4, 6)),
        (TokenGraph.window(9, 4), slice(5, 6), slice(2, 6), slice(4, 4)),
        (TokenGraph.window(9, 4), slice(4, 6), slice(1, 9), slice(0, 8)),
        (TokenGraph.window(9, 9, causal=False), slice(0, 9), slice(0, 9), slice(9, 9)),
        (TokenGraph.window(9, 3, causal=False), slice(5, 8), slice(2, 9), slice(0, 2)),
        (TokenGraph.documents(IDS), slice(0, 2), slice(0, 6), slice(0, 6)),
    ],
)
def test_only_the_partial_columns_need_a_mask(
    graph: TokenGraph, rows: slice, columns: Keys, part: slice
) -> None:
    assert partial_columns(graph, rows, columns) == part


@given(graphs, st.data())
@settings(max_examples=100)
def test_blocks_of_any_rows_and_columns_are_looked_up(
    graph: TokenGraph, data: st.DataObject
) -> None:
    assume(graph.num_queries and graph.num_keys)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    blocks, height, width = (data.draw(st.integers(0, 5)) for _ in range(3))
    rows = torch.randint(graph.num_queries, (blocks, height), generator=generator)
    columns = torch.randint(graph.num_keys, (blocks, width), generator=generator)
    mask = brute_mask(graph)
    expected = mask[rows[:, :, None], columns[:, None, :]]
    allowed = graph.allowed(rows, columns)
    assert torch.equal(allowed, expected)
    allowed &= torch.ones(width, dtype=torch.bool)  # in memory of its own
    everywhere = graph.allowed(slice(0, graph.num_queries), columns)
    assert torch.equal(everywhere, mask[:, columns].transpose(0, 1))


@given(graphs, st.sampled_from([1, 20, 60, 10_000]), st.sampled_from([None, 1, 5]))
@settings(max_examples=100)
def test_row_blocks_cover_each_edge_once(
    graph: TokenGraph, max_pairs: int, most_rows: int | None
) -> None:
    seen = torch.zeros(graph.num_queries, graph.num_keys, dtype=torch.bool)
    next_row = 0
    for rows, columns, allowed in graph.row_blocks(max_pairs, most_rows):
        height = rows.stop - rows.start
        assert rows.start == next_row < rows.stop
        assert allowed.shape == (height, count_keys(columns))
        assert height == 1 or allowed.numel() <= max_pairs
        assert height <= (most_rows or height)
        seen[rows, columns] = allowed
        next_row = rows.stop
    assert next_row == graph.num_queries
    assert torch.equal(seen, brute_mask(graph))


@pytest.mark.parametrize(
    ("graph", "steps"),
    [
        (TokenGraph.complete(10_000), 40),
        (TokenGraph.causal(10_000), 60),
        (TokenGraph.window(10_000, 100), 100),
    ],
)
def test_large_graphs_are_walked_in_few_steps(graph: TokenGraph, steps: int) -> None:
    graph = replace(graph)
    object.__setattr__(graph, "allowed", lambda rows, columns: (rows, columns))
    walked = list(graph.row_blocks())
    pairs = sum((rows.stop - rows.start) * count_keys(columns) for rows, columns, _ in walked)
    assert len(walked) <= steps
    assert pairs <= max(2 * graph.num_edges, 10_000 * 500)


@given(graphs, st.integers(1, 13))
@settings(max_examples=100)
def test_tile_pairs_are_the_sum_over_the_tiles(graph: TokenGraph, height: int) -> None:
    ends = [*range(0, graph.num_queries, height), graph.num_queries]
    tiles = [slice(*pair) for pair in itertools.pairwise(ends)]
    found = sum((rows.stop - rows.start) * count_keys(reach(graph, rows)) for rows in tiles)
    assert tile_pairs(graph, height) == found == tile_pairs(graph, height)


@pytest.mark.parametrize(
    ("graph", "pairs"),
    [
        (TokenGraph.complete(1_000_000), 10**12),
        (TokenGraph.causal(1_000_000), 64**2 * (15_625 * 15_626 // 2)),
        (TokenGraph.window(1_000_000, 65), 64 * (128 * 15_625 - 64)),
        (TokenGraph.prefix(1_000_000, 64), 64**2 * (15_625 * 15_626 // 2)),
    ],
)
def test_the_tiles_of_long_texts_are_counted_at_once(
    graph: TokenGraph, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiling, "reach", None)  # no walk over the tiles
    assert tile_pairs(graph, 64) == pairs


def test_an_offset_is_kept_where_edges_meet_rules() -> None:
    step = TokenGraph.causal(3, num_keys=8, query_offset=5)
    cut = Edges.from_pairs(torch.tensor([0, 2, 2]), torch.tensor([7, 1, 6]), 3, 5)
    edges = replace(step, rule=cut)
    for graph in (step & edges, step | edges, step - edges, edges - step, edges | edges):
        mask = graph.mask()
        assert graph.in_degree.tolist() == mask.sum(1).tolist()
        assert torch.equal(graph.edge_index, mask.nonzero().T.flip(0))


class Unwalked(TokenGraph):
    """A graph that fails where all pairs are walked."""

    def row_blocks(self, max_pairs: int = 0):
        raise AssertionError("walked over all pairs")


LARGE = 100_000
RING = TokenGraph.from_edge_index(
    torch.stack([(torch.arange(LARGE) * 7 + 1) % LARGE, torch.arange(LARGE)]), LARGE
)


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (TokenGraph.longformer(LARGE, 64, [0]), 129 * LARGE - 64 * 65 + 2 * (LARGE - 65)),
        (RING | TokenGraph.self_loops(LARGE), 2 * LARGE),
        (RING & TokenGraph.causal(LARGE) | RING, LARGE),
        (TokenGraph.causal(LARGE) - RING, None),
        (TokenGraph.documents(torch.arange(LARGE) // 10, causal=True), 55 * LARGE // 10),
        (TokenGraph.strided(LARGE, 100), None),
        (TokenGraph.dilated(LARGE, 6, 3), 5 * LARGE - 18),
        (TokenGraph.bigbird(LARGE, 64), None),
    ],
)
def test_long_texts_are_counted_without_a_walk(graph: TokenGraph, count: int | None) -> None:
    unwalked = Unwalked(graph.rule, LARGE, LARGE)
    assert unwalked.num_edges == (count or unwalked.num_edges) > 0


def test_edges_joined_with_a_rule_are_listed_without_a_walk_over_all_pairs() -> None:
    graph = RING | TokenGraph.self_loops(LARGE)
    assert graph.edge_index.shape == (2, 2 * LARGE)
    assert graph.edge_index[:, :2].tolist() == [[0, 1], [0, 0]]


def test_many_joined_rules_are_counted_too() -> None:
    graph = TokenGraph.self_loops(40)
    for size in range(1, 30):
        graph = graph | TokenGraph.dilated(40, size, size)
    assert graph.num_edges == int(graph.mask().sum())


def test_disjoint_union_is_a_block_diagonal() -> None:
    parts = [
        TokenGraph.causal(3),
        TokenGraph.complete(0),
        TokenGraph.longformer(5, 1, [4]),
        TokenGraph.from_edge_index(torch.tensor([[1], [0]]), 2),
    ]
    union = TokenGraph.disjoint_union(parts)
    np.testing.assert_array_equal(
        union.mask(), block_diag(*[part.mask() for part in parts[:1] + parts[2:]])
    )
    cross = TokenGraph.disjoint_union([TokenGraph.bipartite(2, 3), TokenGraph.bipartite(1, 2)])
    assert cross.is_bipartite
    np.testing.assert_array_equal(cross.mask(), block_diag(np.ones((2, 3)), np.ones((1, 2))))
    assert TokenGraph.disjoint_union([]).num_edges == 0


def test_arrange_brings_features_into_edge_order() -> None:
    graph = TokenGraph.from_edge_index(torch.tensor([[2, 0, 1], [1, 2, 0]]), 3)
    shuffled = torch.tensor([[0, 1, 2], [2, 0, 1]])
    features = torch.tensor([[20.0], [1.0], [12.0]])
    assert graph.arrange(shuffled, features).tolist() == [[1.0], [12.0], [20.0]]
    doubled = torch.cat([shuffled, shuffled[:, :1]], dim=1)
    with pytest.raises(GraphError, match="exactly once"):
        graph.arrange(doubled, torch.zeros(4, 1))


ERRORS = {
    "a whole number ≥ 0, not -1": lambda: TokenGraph.causal(-1),
    "a whole number ≥ 0, not 2.5": lambda: TokenGraph.complete(2.5),
    "size must be a whole number ≥ 1, not 0": lambda: TokenGraph.window(4, 0),
    "stride must be a whole number ≥ 1, not True": lambda: TokenGraph.strided(4, True),
    "random_blocks must be a whole number ≥ 0, not -2": lambda: TokenGraph.bigbird(
        9, 2, random_blocks=-2
    ),
    "global_positions must lie in 0 .. 3; they run from 9 to 9": lambda: TokenGraph.longformer(
        4, 1, [9]
    ),
    r"boolean \(queries, keys\), .* not torch.float32 \(2, 2\)": lambda: TokenGraph.from_mask(
        torch.zeros(2, 2)
    ),
    r"edge_index must hold whole numbers, not torch.float32 \(2, 1\)": lambda: (
        TokenGraph.from_edge_index(torch.zeros(2, 1), 3)
    ),
    r"the queries edge_index\[1\] must lie in 0 .. 2": lambda: TokenGraph.from_edge_index(
        torch.tensor([[0], [3]]), 3
    ),
    r"edge_index must have shape \(2, edges\), .* not \(3, 1\)": lambda: TokenGraph.from_edge_index(
        [[0], [0], [1]], 3
    ),
    "edge_index must be a tensor or an array of numbers": lambda: TokenGraph.from_edge_index(
        [["a"], ["b"]], 2
    ),
    "mask must be a tensor or an array": lambda: TokenGraph.from_mask([[True], [True, False]]),
    "boolean .* not torch.int64": lambda: TokenGraph.from_mask(np.ones((2, 2), dtype=np.int64)),
    "ids must hold whole numbers, not torch.float64": lambda: TokenGraph.documents([0.2, 0.9, 1.0]),
    r"one id per token, not \(2, 2\)": lambda: TokenGraph.documents(torch.zeros(2, 2).long()),
    "ids must be a tensor or an array of numbers": lambda: TokenGraph.documents(["a", "b"]),
    "global_positions must hold whole": lambda: TokenGraph.longformer(4, 1, [0.5]),
    "edges must hold whole numbers": lambda: TokenGraph.from_edges([(0.5, 1)], 3),
    "Give num_tokens, or both": lambda: TokenGraph.from_edge_index(torch.tensor([[0], [0]])),
    "'the' occurs 2 times": lambda: TokenGraph.from_edges([("the", 0)], ["the", "the"]),
    "'cat' occurs 0 times": lambda: TokenGraph.from_edges([(0, "cat")], ["the", "dog"]),
    "the graphs must have one size": lambda: TokenGraph.causal(3) & TokenGraph.causal(4),
    "features must be finite": lambda: TokenGraph.nearest(torch.full((2, 2), torch.nan), 1),
    "query_offset cannot be joined": lambda: TokenGraph.disjoint_union(
        [TokenGraph.causal(1, query_offset=2)]
    ),
    "Bipartite graphs cannot be joined": lambda: TokenGraph.disjoint_union(
        [TokenGraph.bipartite(1, 1), TokenGraph.causal(1)]
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_name_what_came(message: str) -> None:
    with pytest.raises(GraphError, match=message):
        ERRORS[message]()


def test_a_rule_without_edges_is_on_every_device() -> None:
    causal = TokenGraph.causal(3)
    assert causal.to("meta") is causal
    explicit = TokenGraph.from_mask(torch.eye(2).bool())
    assert (causal.to("meta").edge_index.device.type, explicit.rule.device.type) == ("cpu", "cpu")
    assert (explicit.to("meta") | TokenGraph.causal(2)).rule.device.type == "meta"


def test_a_graph_combines_with_graphs_alone() -> None:
    with pytest.raises(TypeError):
        TokenGraph.causal(2) & torch.ones(2, 2)


def test_repr_says_rule_and_size() -> None:
    assert repr(TokenGraph.causal(1, num_keys=5, query_offset=4)) == (
        "TokenGraph(Causal(), 1 x 5, query_offset=4)"
    )
    assert repr(TokenGraph.bipartite(2, 3)) == "TokenGraph(Complete(), 2 x 3, bipartite)"
    assert repr(TokenGraph.from_mask(torch.eye(2).bool())) == "TokenGraph(Edges(2), 2 x 2)"


def test_edges_taken_and_added_in_turn_stay_one_flat_rule():
    graph = TokenGraph.causal(50)
    mask = graph.mask()
    for n in range(100):
        taken = TokenGraph.from_edge_index(torch.tensor([[n % 7], [n % 50]]), 50)
        added = TokenGraph.from_edge_index(torch.tensor([[49 - n % 50], [n % 11]]), 50)
        graph = (graph - taken) | added
        mask = mask & ~taken.mask() | added.mask()
    assert torch.equal(graph.mask(), mask)
    assert graph.rule.depth <= 2


@given(
    start=st.sampled_from(
        [
            TokenGraph.causal(6),
            TokenGraph.window(6, 2),
            TokenGraph.strided(6, 2),
            TokenGraph.from_edges([(0, 1)], 6),
        ]
    ),
    changes=st.lists(
        st.tuples(
            st.sampled_from("|-&"),
            st.one_of(
                st.integers(0, 2**36 - 1),
                st.sampled_from(
                    [
                        TokenGraph.window(6, 3),
                        TokenGraph.prefix(6, 2),
                        TokenGraph.complete(6) - TokenGraph.strided(6, 3),
                    ]
                ),
            ),
        ),
        max_size=6,
    ),
)
def test_any_chain_of_rules_and_edge_sets_agrees_with_masks(start, changes):
    graph, mask = start, start.mask()
    for operation, drawn in changes:
        other = drawn
        if isinstance(drawn, int):
            bits = [bool(drawn >> bit & 1) for bit in range(36)]
            other = TokenGraph.from_mask(torch.tensor(bits).view(6, 6))
        sides = (other, graph) if len(changes) % 2 else (graph, other)
        masks = (other.mask(), mask) if len(changes) % 2 else (mask, other.mask())
        if operation == "|":
            graph, mask = sides[0] | sides[1], masks[0] | masks[1]
        elif operation == "&":
            graph, mask = sides[0] & sides[1], masks[0] & masks[1]
        else:
            graph, mask = sides[0] - sides[1], masks[0] & ~masks[1]
    assert torch.equal(graph.mask(), mask)
    assert graph.num_edges == int(mask.sum()) == graph.edge_index.shape[1]


def test_doubled_edges_are_told_and_arrange_takes_arrays() -> None:
    graph = TokenGraph.from_edge_index([[0, 0, 1], [1, 1, 1]], 2)
    assert graph.is_reordered
    with pytest.raises(GraphError, match="doubled edges"):
        refuse_numbers(graph, "attention", "")
    with pytest.raises(GraphError, match="edges 0 and 1 are the same"):
        graph.arrange([[0, 0, 1], [1, 1, 1]], [1.0, 2.0, 3.0])
    edges = np.array([[1, 0], [1, 1]])
    for form in (edges, edges.tolist(), torch.tensor(edges)):
        assert graph.arrange(form, [5.0, 4.0]).tolist() == [4.0, 5.0]
    with pytest.raises(GraphError, match="2 edges, but 3 features"):
        graph.arrange(edges, [1.0, 2.0, 3.0])


def test_the_order_of_edges_holds_for_sizes_whose_product_overflows() -> None:
    edges = torch.tensor([[0, 5], [0, 2**23]])
    size = {"num_queries": 2**23 + 1, "num_keys": 2**40}
    graph = TokenGraph.from_edge_index(edges, **size)
    assert not graph.is_reordered
    assert graph.arrange(edges.flip(1), torch.tensor([7, 6])).tolist() == [6, 7]
    assert TokenGraph.from_edge_index(
        edges.flip(1), num_queries=2**23 + 1, num_keys=2**40
    ).is_reordered
