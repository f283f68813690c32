"""Tables of edges are attention graphs, and back, without losing or inventing a number."""

from dataclasses import fields
from io import StringIO

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph, TopK
from gattn.errors import CaptureError, GraphError, SelectionError, ShapeError

WORDS = ["the", "dog", "chased", "a", "cat"]


def attention(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, generator=generator).double()
    if shape[-1] == shape[-2]:
        scores = scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -torch.inf)
    return scores.softmax(-1).numpy()


def trace(**options):
    return AttentionTrace.from_arrays(attention(2, 3, 5, 5), WORDS, **options)


def same(one, other):
    """Compare all fields of two heads."""
    assert one.graph.edge_index.equal(other.graph.edge_index)
    assert (one.graph.query_offset, one.graph.is_bipartite) == (
        other.graph.query_offset,
        other.graph.is_bipartite,
    )
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype, field.name
        elif field.name != "graph":
            assert mine == theirs, field.name


def heads():
    """Heads that differ in all that a head may hold."""
    yield trace()[1, 2]
    yield trace(keep=TopK(2))[0, 1].without_self_loops()
    yield trace()[0, 0].subgraph([1, 3, 4])
    cross = AttentionTrace.from_arrays(attention(1, 1, 2, 5), WORDS, query_tokens=["x", "y"])
    yield cross[0, 0]
    step = TokenGraph.causal(2, num_keys=5, query_offset=3)
    yield AttentionTrace.from_arrays(attention(1, 1, 5, 5)[:, :, 3:], WORDS, graph=step)[0, 0]
    query, key = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    sink = gattn.Softmax(sink=0.5)
    yield gattn.attention_graphs(query, key, TokenGraph.causal(5), normalizer=sink)[0]
    yield AttentionGraph.from_edges([[], []], [], ["lone \ud800", "nul \x00"])
    yield AttentionTrace.from_arrays(attention(1, 1, 5, 5)).on_grid(2, 2)[0, 0]
    model, tokenizer = gattn.load_model()
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        cut = gattn.capture("The dog chased", model, tokenizer, scores=True, keep=TopK(3))
    yield cut[1, 0]


@pytest.mark.parametrize("number", range(9))
def test_a_heads_table_is_the_head(number, tmp_path):
    head = list(heads())[number]
    frame = head.to_pandas()
    same(AttentionGraph.from_pandas(frame), head)
    shuffled = frame.sample(frac=1, random_state=0)
    same(AttentionGraph.from_pandas(shuffled), head)
    if number != 6:
        frame.to_parquet(tmp_path / "head.parquet")
        same(AttentionGraph.from_pandas(pd.read_parquet(tmp_path / "head.parquet")), head)


def test_rows_that_were_removed_count_as_dropped():
    head = trace()[1, 0]
    frame = head.to_pandas()
    strong = AttentionGraph.from_pandas(frame[frame["attention"] > 0.3])
    expected = head.keep(gattn.Threshold(0.3))
    np.testing.assert_array_equal(strong.to_dense(), expected.to_dense())
    np.testing.assert_array_equal(strong.dropped_edges, expected.dropped_edges)
    assert strong.share_kept == pytest.approx(expected.share_kept)
    assert strong.tokens == tuple(WORDS)


def test_a_table_from_elsewhere_needs_its_tokens():
    head = trace()[1, 0]
    frame = pd.read_csv(StringIO(head.to_pandas().to_csv()))  # without attrs
    with pytest.raises(GraphError, match="do not say how many tokens"):
        AttentionGraph.from_pandas(frame)
    read = AttentionGraph.from_pandas(frame, WORDS, layer=1, head=0)
    np.testing.assert_allclose(read.to_dense(), head.to_dense())
    assert read.tokens == head.tokens
    assert AttentionGraph.from_pandas(frame, num_tokens=7).to_dense().shape == (7, 7)


def test_columns_are_named_and_ends_are_texts_or_positions():
    links = pd.DataFrame(
        {
            "from": ["dog", "the", "cat"],
            "to": ["dog", "dog", "chased"],
            "weight": pd.array([0.75, 0.25, 0.5], dtype="Float64"),
        }
    )
    columns = {"query": "to", "key": "from", "attention": "weight"}
    head = AttentionGraph.from_pandas(links, WORDS, **columns)
    network = nx.from_pandas_edgelist(links, "from", "to", ["weight"], create_using=nx.DiGraph)
    network.add_nodes_from(WORDS)
    np.testing.assert_array_equal(head.to_dense(), nx.to_numpy_array(network, WORDS).T)
    numbered = links.replace({word: n for n, word in enumerate(WORDS)}).infer_objects()
    for kind in ("int64", "Int64", "uint8", "object", "category"):
        cast = numbered.astype({"from": kind, "to": kind})
        same(AttentionGraph.from_pandas(cast, WORDS, **columns), head)
    cross = AttentionGraph.from_pandas(links.head(2), WORDS, query_tokens=["dog", "x"], **columns)
    assert cross.to_dense().tolist() == [[0.25, 0.75, 0, 0, 0], [0, 0, 0, 0, 0]]
    part = pd.DataFrame({"query": [7, 7], "key": [3, 7], "attention": [0.5, 0.5], "score": [1, 2]})
    placed = AttentionGraph.from_pandas(part, ["a", "b"], positions=[3, 7])
    assert placed.to_pandas()[["query", "key"]].to_numpy().tolist() == [[7, 3], [7, 7]]
    assert placed.score.tolist() == [1, 2]


def test_duplicates_of_a_table_are_summed_as_pandas_groups_them():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"query": random.integers(0, 4, 50), "key": random.integers(0, 4, 50),
         "attention": random.random(50)}
    )  # fmt: skip
    with pytest.raises(GraphError, match='duplicates="sum"'):
        AttentionGraph.from_pandas(frame, num_tokens=4)
    head = AttentionGraph.from_pandas(frame, num_tokens=4, duplicates="sum")
    sums = frame.pivot_table("attention", "query", "key", aggfunc="sum", fill_value=0)
    np.testing.assert_allclose(head.to_dense(), sums.reindex(index=range(4), columns=range(4)))


FRAME = pd.DataFrame({"query": [1, 1], "key": [0, 1], "attention": [0.5, 0.5]})


@pytest.mark.parametrize(
    ("frame", "error", "message"),
    [
        (FRAME.to_dict("list"), ShapeError, "pandas.DataFrame, not a dict"),
        (FRAME.drop(columns="key"), GraphError, "no column 'key', but 'query', 'attention'"),
        (FRAME.set_index("query"), GraphError, "'query' is in the frame's index"),
        (FRAME.assign(query=[0.5, 1]), GraphError, "positions, as whole numbers.*row 0 holds 0.5"),
        (FRAME.assign(query=[None, 1]), GraphError, "row 0 holds nan"),
        (FRAME.assign(query=["x", "b"]), SelectionError, "No token 'x'.*column 'query'.*row 0"),
        (FRAME.assign(key=["a", "a"]), GraphError, "'a' occurs 2 times"),
        (FRAME.assign(key=[0, 5]), GraphError, r"keys edge_index\[0\] must lie in 0 \.\. 2"),
        (FRAME.assign(attention=["x", "y"]), ShapeError, "'attention' must hold numbers"),
        (FRAME.assign(attention=[0.5, None]), CaptureError, "query 1 to key 1 is nan"),
        (FRAME.assign(score=[[1], [2]]), ShapeError, "'score' must hold numbers"),
        (FRAME.assign(layer=[0, 1]), GraphError, "2 values: AttentionTrace.from_pandas"),
        (FRAME.assign(text_id=[4, 9]), GraphError, r"frame\[frame\['text_id'\] == 4\]"),
        (pd.concat([FRAME, FRAME["key"]], axis=1), GraphError, "two columns 'key'"),
    ],
)
def test_tables_that_cannot_be_right_are_refused(frame, error, message):
    with pytest.raises(error, match=message):
        AttentionGraph.from_pandas(frame, ["a", "b", "a"])


def test_facts_that_to_pandas_did_not_write_are_refused():
    frame = trace()[0, 0].to_pandas()
    for wrong in ("{}", "no json", 3, '{"graph": {}}'):
        frame.attrs["gattn"] = wrong
        with pytest.raises(GraphError, match="give tokens= or num_tokens="):
            AttentionGraph.from_pandas(frame)
    longer = trace()[0, 0].to_pandas()
    longer.loc[0, "key"] = 9
    with pytest.raises(GraphError, match="tokens that the frame's graph does not have"):
        AttentionGraph.from_pandas(longer)
    for name in ("graph", "total_mass"):
        with pytest.raises(GraphError, match=f"{name} follows from the edges"):
            AttentionGraph.from_pandas(FRAME, num_tokens=3, **{name: None})
    with pytest.raises(GraphError, match="names tokens, such as 'a'"):
        AttentionGraph.from_pandas(FRAME.assign(key="a"), num_tokens=3)
    with pytest.raises(GraphError, match="position 0, which is not among the 2 positions"):
        AttentionGraph.from_pandas(FRAME, ["a", "b"], positions=[1, 2])


# Several heads


def test_a_table_of_several_heads_is_their_trace():
    given = trace()
    tables = [head.to_pandas().assign(layer=head.layer, head=head.head) for head in given.heads()]
    read = AttentionTrace.from_pandas(pd.concat(tables).sample(frac=1, random_state=0), WORDS)
    assert read.tokens == WORDS
    assert sorted(read.only_stack) == sorted(given.only_stack)
    for place, head in given.only_stack.items():
        same(read[place], head)
    one = AttentionTrace.from_pandas(tables[4], WORDS)
    assert list(one.only_stack) == [(1, 1)]
    same(one[1, 1], given[1, 1])


def test_stacks_of_a_table_have_their_own_tokens():
    encoder = trace()
    cross = AttentionTrace.from_arrays(attention(1, 2, 2, 5), WORDS, query_tokens=["x", "y"])
    tables = [
        head.to_pandas().assign(stack=name, layer=head.layer, head=head.head)
        for name, one in (("encoder", encoder), ("cross", cross))
        for head in one.heads()
    ]
    tokens = {"encoder": WORDS, "cross": WORDS}
    read = AttentionTrace.from_pandas(
        pd.concat(tables), tokens, query_tokens={"cross": ["x", "y"]}, model="mine"
    )
    assert (
        repr(read) == "AttentionTrace(mine; cross: 1 layer x 2 heads, encoder: 2 layers x 3 heads)"
    )
    for name, one in (("encoder", encoder), ("cross", cross)):
        for place, head in one.only_stack.items():
            np.testing.assert_array_equal(read[name][place].to_dense(), head.to_dense())
            assert read[name][place].query_tokens == head.query_tokens


def test_columns_of_layers_and_heads_are_named_or_0():
    rows = FRAME.assign(block=[3, 4])
    read = AttentionTrace.from_pandas(rows, num_tokens=2, layer="block")
    assert sorted(read.only_stack) == [(3, 0), (4, 0)]
    assert sorted(AttentionTrace.from_pandas(FRAME.assign(head=2), num_tokens=2).only_stack) == [
        (0, 2)
    ]


@pytest.mark.parametrize(
    ("frame", "options", "error", "message"),
    [
        (FRAME, {}, GraphError, "neither a column 'layer' nor 'head'"),
        (FRAME.assign(layer=0).head(0), {}, GraphError, "at least"),
        (FRAME.assign(layer=[0, None]), {}, GraphError, "Every row must have a value"),
        (FRAME.assign(layer=0.5), {}, ShapeError, r"0\.5\.0: layer must be a whole number"),
        (FRAME.assign(layer=0), {"num_tokens": None}, GraphError, r"attention 0\.0: Give tokens="),
        (
            FRAME.assign(layer=0),
            {"tokens": {"x": []}},
            SelectionError,
            "tokens names the stack 'x'",
        ),
        (FRAME.assign(layer=0, text_id=[0, 1]), {}, GraphError, "text_id"),
    ],
)
def test_tables_that_are_no_trace_are_refused(frame, options, error, message):
    with pytest.raises(error, match=message):
        AttentionTrace.from_pandas(frame, **{"num_tokens": 2, **options})
