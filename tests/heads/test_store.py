"""The kept edges of blocks against plain loops over whole rows."""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from keeping import kept_by_hand
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Window
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.store import apart
from gattn.heads.store.buffers import Buffer, append_together, reserve
from gattn.heads.store.kept_edges import KeptEdges
from gattn.keep import All, Keep, Threshold, TopK, TopMass

HEADS = [4, 0, 7]
KEEPS = [All(), Threshold(0.0), Threshold(0.2), TopK(1), TopK(3), TopMass(0.6)]
MASK = torch.rand(9, 7, generator=torch.Generator().manual_seed(0)) < 0.6
MASK[2], MASK[-1] = False, True
GRAPHS = {
    "causal": TokenGraph.causal(8),
    "complete": TokenGraph.complete(6),
    "listed": TokenGraph.from_mask(MASK, is_bipartite=True),
    "step": TokenGraph.causal(3, num_keys=9, query_offset=6),
    "empty": TokenGraph.from_mask(torch.zeros(3, 4, dtype=torch.bool)),
}
PLACES = list(GRAPHS)


def block(graph: TokenGraph, *, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Attention in sixteenths, so with ties and zeros, and scores."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(HEADS), graph.num_queries, graph.num_keys)
    attention = torch.randint(-8 if signed else 0, 9, shape, generator=generator).double() / 16
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = graph.mask()
    return attention * mask, scores.masked_fill(~mask, -torch.inf)


def begun(graph: TokenGraph, *settings: Any) -> KeptEdges:
    """A store of one graph."""
    store = KeptEdges(*settings)
    store.begin(graph)
    return store


def by_rows(
    graph: TokenGraph, keep: Keep, cuts: list[int], *, signed: bool = False, listed: bool = False
) -> list[AttentionGraph]:
    """Store whole rows, cut before the given ones; keys as a range or as a list of those read."""
    store = begun(graph, HEADS, keep, True, torch.float64)
    attention, scores = block(graph, signed=signed)
    mask, last = graph.mask(), graph.num_queries
    bounds = [0, *sorted(cut for cut in set(cuts) if 0 < cut < last), last]
    for start, stop in pairwise(bounds):
        columns = torch.arange(graph.num_keys)
        if listed:
            columns = columns[mask[start:stop].any(0)]
        places = (slice(None), slice(start, stop), columns)
        allowed = mask[start:stop, columns]
        store.add_rows(
            slice(start, stop),
            columns if listed else slice(0, graph.num_keys),
            None if allowed.all() else allowed,
            attention[places],
            scores[places],
        )
    return store.graphs(has_sink=True)


def by_edges(
    graph: TokenGraph, keep: Keep, cuts: list[int], *, signed: bool = False
) -> list[AttentionGraph]:
    """Store neighbourhoods from the list of edges, cut before the given rows."""
    store = begun(graph, HEADS, keep, True, torch.float64)
    attention, scores = block(graph, signed=signed)
    key, query = graph.edge_index
    bounds = [0, *sorted(cut for cut in set(cuts) if 0 < cut < graph.num_queries)]
    edges = [int(graph.pointer[bound]) for bound in [*bounds, graph.num_queries]]
    for start, stop in pairwise(edges):
        some = slice(start, stop)
        places = (slice(None), query[some], key[some])
        store.add_edges(some, attention[places], scores[places])
    return store.graphs(has_sink=True)


def same(one: list[AttentionGraph], other: list[AttentionGraph]) -> None:
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first.graph.edge_index, second.graph.edge_index)
        for name in ("attention", "score", "total_mass", "total_edges", "sink"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)


@pytest.mark.parametrize("signed", [False, True], ids=["positive", "signed"])
@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_a_store_holds_what_plain_loops_keep(name: str, keep: Keep, signed: bool) -> None:
    graph = GRAPHS[name]
    attention, scores = block(graph, signed=signed)
    mask = graph.mask().tolist()
    for stored in (by_rows, by_edges):
        heads = stored(graph, keep, [2, 3], signed=signed)
        assert [head.head for head in heads] == HEADS
        for head, rows, its_scores in zip(heads, attention, scores, strict=True):
            expected = [
                (i, j, row[j], float(its_scores[i, j]))
                for i, row in enumerate(rows.tolist())
                for j in kept_by_hand(row, [j for j, edge in enumerate(mask[i]) if edge], keep)
            ]
            found = zip(head.query, head.key, head.attention, head.score, strict=True)
            assert list(found) == expected
            assert head.total_mass.tolist() == [sum(map(abs, row)) for row in rows.tolist()]
            assert head.total_edges.tolist() == [sum(row) for row in mask]
            assert head.sink.tolist() == [max(0, 1 - sum(row)) for row in rows.tolist()]
            assert head.graph.query_offset == graph.query_offset
            assert head.graph.is_bipartite == graph.is_bipartite
            assert head.kept_by == (keep,)


@given(
    st.sampled_from(PLACES),
    st.sampled_from(KEEPS),
    st.lists(st.integers(1, 8), max_size=5),
    st.booleans(),
)
@settings(max_examples=80)
def test_blocks_in_pieces_are_one_block(
    name: str, keep: Keep, cuts: list[int], signed: bool
) -> None:
    graph = GRAPHS[name]
    whole = by_rows(graph, keep, [], signed=signed)
    same(by_rows(graph, keep, cuts, signed=signed), whole)
    same(by_rows(graph, keep, cuts, signed=signed, listed=True), whole)
    same(by_edges(graph, keep, cuts, signed=signed), whole)


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_a_rule_built_on_the_way_is_the_sorted_one(keep: Keep) -> None:
    graph = GRAPHS["step"]
    for head in by_rows(graph, keep, [1]):
        expected = TokenGraph.from_edge_index(
            head.graph.edge_index, num_queries=graph.num_queries, num_keys=graph.num_keys
        )
        assert torch.equal(head.graph.edge_index, expected.edge_index)
        assert torch.equal(head.graph.in_degree, expected.in_degree)
        assert head.graph.edge_index.dtype == torch.int64
        query = torch.arange(graph.num_queries)[:, None] + graph.query_offset
        allowed = head.graph.rule.allowed(query, torch.arange(graph.num_keys))
        assert torch.equal(allowed, expected.mask())


def test_all_heads_share_the_graph_when_all_is_kept() -> None:
    graph = GRAPHS["causal"]
    heads = by_rows(graph, All(), [3])
    assert all(head.graph is graph for head in heads)


@pytest.mark.parametrize("keep", [All(), TopK(2)], ids=str)
@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (torch.float16, np.float32),
        (torch.bfloat16, np.float32),
        (torch.float32, np.float32),
        (torch.float64, np.float64),
    ],
)
def test_half_precision_is_stored_as_float32(given: torch.dtype, stored: type, keep: Keep) -> None:
    graph = GRAPHS["complete"]
    attention, scores = (x.to(given).requires_grad_() for x in block(graph))
    store = begun(graph, HEADS, keep, True, given)
    store.add_rows(slice(0, 6), slice(0, 6), None, attention, scores)
    for head, its_attention, its_scores in zip(
        store.graphs(has_sink=True), attention, scores, strict=True
    ):
        for values in (head.attention, head.score, head.total_mass, head.sink):
            assert values.dtype == stored
        places = its_scores.detach()[head.query, head.key]
        np.testing.assert_array_equal(head.score, places.to(torch.float64).numpy())
        places = its_attention.detach()[head.query, head.key]
        np.testing.assert_array_equal(head.attention, places.to(torch.float64).numpy())


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("worst", [torch.nan, -torch.nan])
def test_nan_names_its_head_and_query(keep: Keep, worst: float) -> None:
    graph = GRAPHS["causal"]
    attention, scores = block(graph, signed=True)
    attention[2, 5, 1] = worst
    store = begun(graph, HEADS, keep, False, torch.float64)
    with pytest.raises(CaptureError, match="head 7 is NaN at query 5"):
        store.add_rows(slice(3, 8), slice(0, 8), graph.mask()[3:], attention[:, 3:], scores)
    key, query = graph.edge_index
    with pytest.raises(CaptureError, match="head 7 is NaN at query 5"):
        store.add_edges(slice(6, 36), attention[:, query, key][:, 6:], None)


def test_infinities_of_both_signs_are_no_nan() -> None:
    graph = TokenGraph.complete(3)
    attention = torch.tensor([[torch.inf, -torch.inf, 1.0], [0.0, 2.0, 1.0], [3.0, 1.0, 1.0]])
    store = begun(graph, [0], TopK(1), False, torch.float32)
    store.add_rows(slice(0, 3), slice(0, 3), None, attention[None], None)
    with pytest.raises(CaptureError, match="query 0 to key 0 is inf"):
        store.graphs(has_sink=False)


# Several graphs, one behind the other

RULES = {
    "causal": TokenGraph.causal(9),
    "step": TokenGraph.causal(4, num_keys=9, query_offset=5),
    "window": TokenGraph.window(9, 3),
    "dilated": TokenGraph.dilated(9, 2, 2),
    "prefix": TokenGraph.prefix(9, 2),
    "listed": TokenGraph.from_mask(MASK[:, [0, 1, 2, 3, 4, 5, 6, 6, 6]].tril()),
    "cross": TokenGraph.bipartite(9, 4),
    "listed cross": TokenGraph.from_mask(MASK, is_bipartite=True),
}


def part(whole: TokenGraph, rows: slice, *, sliding: bool) -> tuple[TokenGraph, int]:
    """The graph of some rows, on the keys so far, or on those since the first that they read."""
    if whole.is_bipartite:
        if whole.rule.listed() is None:
            return TokenGraph.bipartite(rows.stop - rows.start, whole.num_keys), 0
        return TokenGraph.from_mask(whole.mask()[rows], is_bipartite=True), 0
    read = whole.mask()[rows].any(0).nonzero()[:, 0].tolist()
    stop = max([*read, whole.query_offset + rows.stop - 1]) + 1
    first = min(read, default=0) if sliding else 0
    rule, offset = whole.rule, whole.query_offset + rows.start - first
    if rule.listed() is not None:
        edges = whole.mask()[rows, first:stop].nonzero(as_tuple=True)
        rule = Edges.from_pairs(*edges, rows.stop - rows.start, offset)
    return TokenGraph(rule, rows.stop - rows.start, stop - first, offset), first


def in_graphs(
    whole: TokenGraph, keep: Keep, cuts: list[int], *, sliding: bool, listed: bool
) -> list[AttentionGraph]:
    """Store each of some runs of rows as a graph of its own, by blocks or by lists of edges."""
    store = KeptEdges(HEADS, keep, True, torch.float64)
    attention, scores = block(whole)
    bounds = [0, *sorted(cut for cut in set(cuts) if 0 < cut < whole.num_queries)]
    for start, stop in pairwise([*bounds, whole.num_queries]):
        graph, first = part(whole, slice(start, stop), sliding=sliding)
        store.begin(graph, first)
        here = (slice(None), slice(start, stop), slice(first, first + graph.num_keys))
        if listed:
            key, query = graph.edge_index
            places = (slice(None), query, key)
            edges = slice(0, graph.num_edges)
            store.add_edges(edges, attention[here][places], scores[here][places])
            continue
        for row in range(graph.num_queries):
            here = (slice(None), slice(start + row, start + row + 1), here[2])
            rows, keys = slice(row, row + 1), slice(0, graph.num_keys)
            store.add_rows(rows, keys, graph.mask()[rows], attention[here], scores[here])
    return store.graphs(has_sink=True)


@given(
    st.sampled_from(list(RULES)),
    st.sampled_from(KEEPS),
    st.lists(st.integers(1, 8), max_size=8),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=100)
def test_a_prompt_and_steps_are_one_graph(
    name: str, keep: Keep, cuts: list[int], sliding: bool, listed: bool
) -> None:
    whole = RULES[name]
    heads = in_graphs(whole, keep, cuts, sliding=sliding, listed=listed)
    same(heads, by_rows(whole, keep, []))
    for head in heads:
        assert head.graph._size == whole._size
        if keep == All() and whole.rule.interval(torch.arange(2)) is not None:
            assert head.graph.rule == whole.rule


def stored(*pieces: tuple[TokenGraph, int]) -> AttentionGraph:
    store = KeptEdges([0], All(), False, torch.float32)
    for graph, first_key in pieces:
        store.begin(graph, first_key)
        rows, keys = slice(0, graph.num_queries), slice(0, graph.num_keys)
        store.add_rows(rows, keys, graph.mask(), graph.mask().float()[None], None)
    (head,) = store.graphs(has_sink=False)
    return head


STEP, STEP_OF_2 = TokenGraph.causal(1, query_offset=4), TokenGraph.causal(1, query_offset=1)


@pytest.mark.parametrize(
    ("pieces", "rule", "mask"),
    [
        ([(TokenGraph.causal(4), 0), (STEP, 0)], "Causal()", ["1", "11", "111", "1111", "11111"]),
        (
            [(TokenGraph.complete(4), 0), (STEP, 0)],
            "Edges(21)",
            ["1111", "1111", "1111", "1111", "11111"],
        ),
        (
            [(TokenGraph.causal(4), 0), (TokenGraph.causal(1, query_offset=2), 2)],
            "Edges(13)",
            ["1", "11", "111", "1111", "00111"],
        ),
        (
            [(TokenGraph.causal(2), 0), (TokenGraph(Window(1, 0), 2, 3, 1), 1)],
            "Window(before=1, after=0, dilation=1)",
            ["1", "11", "011", "0011"],
        ),
        (
            [(TokenGraph(Window(1, 0), 1, 2, 1), 2)],
            "Window(before=1, after=0, dilation=1)",
            ["0011"],
        ),
        (
            [(TokenGraph.causal(2), 0), (STEP_OF_2, 1), (STEP_OF_2, 2)],
            "Window(before=1, after=0, dilation=1)",
            ["1", "11", "011", "0011"],
        ),
        ([(TokenGraph.prefix(3, 1), 1)], "Edges(6)", ["01", "011", "0111"]),
    ],
)
def test_a_rule_is_named_only_where_it_describes_every_row(
    pieces: list[tuple[TokenGraph, int]], rule: str, mask: list[str]
) -> None:
    head = stored(*pieces)
    keys = max(map(len, mask))
    expected = [[letter == "1" for letter in row.ljust(keys, "0")] for row in mask]
    assert head.graph.mask().tolist() == expected
    assert str(head.graph.rule) == rule
    assert head.graph.query_offset + len(mask) == keys
    assert head.total_edges.tolist() == [sum(row) for row in expected]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(TokenGraph.causal(3), 0), (TokenGraph.causal(3), 0)], "first query at position 3"),
        ([(TokenGraph.causal(3), 0), (STEP, 1)], "first query at position 3"),
        ([(TokenGraph.bipartite(2, 3), 0), (TokenGraph.bipartite(2, 4), 0)], "the same 3 keys"),
        ([(TokenGraph.bipartite(2, 3), 0), (TokenGraph.complete(3), 0)], "is_bipartite=True"),
    ],
)
def test_graphs_that_do_not_follow_are_refused(
    pieces: list[tuple[TokenGraph, int]], message: str
) -> None:
    with pytest.raises(CaptureError, match=message):
        stored(*pieces)


def test_steps_are_written_behind_a_graph_that_was_read() -> None:
    """Reading in between takes nothing away, and later steps leave what was read alone."""
    whole = TokenGraph.causal(9)
    attention, _ = block(whole)
    store, read = KeptEdges(HEADS, TopK(2), False, torch.float64), []
    for row in range(9):
        store.begin(TokenGraph.causal(1, query_offset=row))
        store.add_rows(slice(0, 1), slice(0, row + 1), None, attention[:, [row], : row + 1], None)
        read.append(store.graphs(has_sink=False))
    for row, heads in enumerate(read):
        for head, its_attention in zip(heads, attention, strict=True):
            rows = its_attention[: row + 1, : row + 1]
            (kept,) = TopK(2).select(rows[None], TokenGraph.causal(row + 1).mask())
            np.testing.assert_array_equal(head.to_dense(), (rows * kept).numpy())


# Memory


def held(values: np.ndarray) -> int:
    """The bytes that an array keeps alive."""
    base = values.base
    return base.untyped_storage().nbytes() if isinstance(base, Tensor) else values.nbytes


def memory(store: KeptEdges) -> dict[str, list[Tensor]]:
    return {name: [one._memory for one in buffers] for name, buffers in store._kept.items()}


def filled(keep: Keep, share: float) -> tuple[list[dict[str, list[Tensor]]], list[AttentionGraph]]:
    """Store 64 blocks of 4 rows; give the buffers after each block, and the heads."""
    graph = TokenGraph.causal(256)
    mask = graph.mask()
    generator = torch.Generator().manual_seed(0)
    attention = (torch.rand(2, 256, 256, generator=generator) < share).float() * mask
    store = begun(graph, [0, 1], keep, True, torch.float32)
    seen = [memory(store)]
    for start in range(0, 256, 4):
        rows = slice(start, start + 4)
        block = attention[:, rows, : start + 4]
        store.add_rows(rows, slice(0, start + 4), mask[rows, : start + 4], block, block)
        seen.append(memory(store))
    return seen, store.graphs(has_sink=False)


@pytest.mark.parametrize(
    ("keep", "edges"),
    [(TopK(8), 256 * 8 - 28), (TopK(1), 256), (TopK(16), 256 * 16 - 120)],
    ids=str,
)
def test_a_bounded_keep_is_given_its_memory_once_and_no_more(keep: Keep, edges: int) -> None:
    seen, heads = filled(keep, 0.5)
    fields = {"attention", "score"} | (set() if isinstance(keep, All) else {"key"})
    assert set(seen[0]) == fields
    for name in fields:
        for head in range(2):
            places = {buffers[name][head].data_ptr() for buffers in seen}
            assert len(places) == 1
            assert len(seen[-1][name][head]) == edges
    for head in heads:
        assert held(head.attention) == held(head.score) == 4 * edges


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_an_unbounded_keep_grows_in_few_steps_and_holds_what_it_shows(share: float) -> None:
    seen, heads = filled(Threshold(0.5), share)
    for index, head in enumerate(heads):
        edges = head.graph.num_edges
        for name in ("attention", "score", "key"):
            sizes = [len(buffers[name][index]) for buffers in seen]
            assert sizes[-1] <= 2 * edges
            assert len(set(sizes)) <= 3 + np.log2(max(edges, 1))
        for values in (head.attention, head.score):
            assert values.nbytes == 4 * edges
            assert held(values) <= 1.25 * 4 * edges
        assert head.graph.rule.pointer.untyped_storage().nbytes() == 8 * 257
        assert held(head.total_mass) == 4 * 256
    keys = [head.graph.rule.key for head in heads]
    size = sum(key.nbytes for key in keys)
    if size < apart.LEAST_BYTES:
        assert [key.untyped_storage().nbytes() for key in keys] == [key.nbytes for key in keys]
    else:
        first, *others = (key.data_ptr() for key in keys)
        assert others == [first + before for before in accumulate(key.nbytes for key in keys[:-1])]


def test_keys_stay_in_four_bytes_and_are_read_in_eight() -> None:
    (_, *_, last), heads = filled(TopK(2), 1.0)
    assert {buffer.dtype for buffer in last["key"]} == {torch.int32}
    for head in heads:
        assert head.graph.rule.key.dtype == torch.int32
        assert head.key.dtype == np.int64
        assert head.graph.edge_index.dtype == torch.int64
    (_, *_, last), _ = filled(All(), 1.0)
    assert "key" not in last


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("listed", [False, True])
def test_the_first_rows_are_a_store_of_their_own(keep: Keep, listed: bool) -> None:
    """They go on by themselves, and what they were taken from stays."""
    whole, graph = TokenGraph.causal(8), TokenGraph.causal(5)
    if listed:
        whole = TokenGraph.from_mask(whole.mask() & (torch.arange(8) != 2))
        graph = TokenGraph.from_mask(graph.mask() & (torch.arange(5) != 2))
    attention, scores = block(whole)

    def filled(graph: TokenGraph) -> KeptEdges:
        store, rows = begun(graph, HEADS, keep, True, torch.float64), graph.num_queries
        places = (slice(None), slice(0, rows), slice(0, rows))
        columns = slice(0, rows)
        store.add_rows(slice(0, rows), columns, graph.mask(), attention[places], scores[places])
        return store

    store = filled(whole)
    some = store.first_rows(5)
    assert (some.num_rows, store.num_rows) == (5, 8)
    same(some.graphs(has_sink=True), filled(graph).graphs(has_sink=True))
    step = TokenGraph.causal(1, num_keys=6, query_offset=5)
    some.begin(step)
    row = attention[:, 5:6, :6] * 2
    some.add_rows(slice(0, 1), slice(0, 6), None, row, scores[:, 5:6, :6])
    assert some.graphs(has_sink=True)[0].graph.num_queries == 6
    same(store.graphs(has_sink=True), filled(whole).graphs(has_sink=True))


def test_rows_that_read_what_is_taken_back_are_refused() -> None:
    store = begun(TokenGraph.complete(6), HEADS, All(), False, torch.float64)
    attention = torch.full((3, 6, 6), 1 / 6, dtype=torch.float64)
    store.add_rows(slice(0, 6), slice(0, 6), None, attention, None)
    with pytest.raises(CaptureError, match="Tokens that others attend to were taken back"):
        store.first_rows(4)


@pytest.mark.parametrize("edges", [0, 4, 5000])
def test_values_of_all_heads_are_appended_at_once_where_they_lie_side_by_side(edges: int) -> None:
    buffers = [Buffer(torch.float32) for _ in HEADS]
    values = torch.arange(float(len(buffers) * edges)).view(len(buffers), edges)
    assert not append_together(buffers, values)
    reserve(buffers, 20_000)
    for _ in range(2):
        assert append_together(buffers, values)
    assert not append_together(buffers, torch.zeros(len(buffers), 20_001 - 2 * edges))
    for buffer, own in zip(buffers, values, strict=True):
        assert torch.equal(buffer.values(), torch.cat((own, own)))


def test_values_of_heads_that_hold_other_numbers_are_appended_one_by_one() -> None:
    buffers = [Buffer(torch.float32) for _ in HEADS]
    reserve(buffers, 20_000)
    values = torch.ones(len(buffers), 3)
    assert append_together(buffers, values)
    buffers[1].cut(2)
    assert not append_together(buffers, values)
    buffers[1].append(values[1, :1])
    buffers[2].move(torch.empty(20_000))
    assert not append_together(buffers, values)
