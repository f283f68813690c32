"""What a page holds is what the graphs hold, to within the precision that it states."""

import re

import numpy as np
import pytest
from decoding import Decoded
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.drawing.canvas.colours import RAMPS
from gattn.drawing.page import payload
from gattn.drawing.page.page import to_html
from gattn.errors import FileError, SelectionError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

LAMP = "The river tall green lamp river tall green lamp river tall green"


def trace_of(heads, name="decoder", **options):
    places = {(i // 4, i % 4): head for i, head in enumerate(heads)}
    return AttentionTrace({name: Stack(name, places)}, **options)


def check(head, found, levels):
    assert found["query"].tolist() == head.query.tolist()
    assert found["key"].tolist() == head.key.tolist()
    for name, values in head.edge_values.items():
        close(found[name], values, levels, whole=name == "attention")
    assert found["total_mass"] == pytest.approx(head.total_mass, rel=1e-6)
    assert ("sink" in found) == (head.sink is not None)
    if head.sink is not None:
        close(found["sink"], head.sink, levels, whole=True)


def close(found, values, levels, *, whole):
    values = np.asarray(values, dtype=float)
    finite = values[np.isfinite(values)]
    assert np.array_equal(np.isnan(found), ~np.isfinite(values))
    if finite.size:
        span = np.ptp([*finite, 0, 1] if whole else finite)
        assert np.abs(found - values)[np.isfinite(values)].max() <= 0.501 * span / levels


@st.composite
def heads(draw):
    """Graphs of all patterns: half-kept, signed, with sinks, scores, bipartite, decoding steps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    graph = draw(
        st.sampled_from(
            [
                TokenGraph.complete(keys),
                TokenGraph.causal(keys),
                TokenGraph.causal(queries, query_offset=keys),
                TokenGraph.causal(queries, num_keys=queries + keys),
                TokenGraph.window(keys, 2),
                TokenGraph.bipartite(queries, keys),
                TokenGraph.from_mask(rng.random((keys, keys)) < 0.4),
                TokenGraph(TokenGraph.complete(1).rule, queries, keys),
            ]
        )
    )
    kind = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    attention = rng.normal(size=graph.num_edges) * draw(st.sampled_from([0.1, 1, 30]))
    if draw(st.booleans()):
        attention = np.abs(attention)
    mass = np.bincount(graph.edge_index[1].numpy(), np.abs(attention), graph.num_queries)
    score = rng.normal(size=graph.num_edges)
    score[rng.random(graph.num_edges) < 0.2] = -np.inf
    head = AttentionGraph(
        graph,
        attention.astype(kind),
        total_mass=mass,
        total_edges=graph.in_degree.numpy() + 1,
        score=score.astype(kind) if draw(st.booleans()) else None,
        contribution=np.abs(attention) * 3 if draw(st.booleans()) else None,
        sink=rng.random(graph.num_queries) if draw(st.booleans()) else None,
    )
    return head.keep(gattn.TopK(2)) if draw(st.booleans()) else head


@given(heads())
@settings(max_examples=100)
def test_a_page_holds_the_numbers_of_any_head(head):
    page = Decoded(to_html(head))
    (stack,) = page.stacks()
    check(head, page.head(stack, 0, 0), page.header["levels"])


@pytest.mark.parametrize(
    ("graph", "pattern"),
    [
        (TokenGraph.complete(4), "complete"),
        (TokenGraph.bipartite(2, 3), "complete"),
        (TokenGraph.causal(4), "causal"),
        (TokenGraph.causal(2, query_offset=3), "causal"),
        (TokenGraph.from_mask(np.tri(4, dtype=bool)), "causal"),
        (TokenGraph.window(4, 2), "explicit"),
        (TokenGraph.from_mask(np.tri(4, dtype=bool).T), "explicit"),
    ],
)
def test_a_pattern_that_is_known_stores_no_edges(graph, pattern):
    matrix = np.full((graph.num_queries, graph.num_keys), 0.1)
    (stack,) = Decoded(to_html(AttentionGraph.from_dense(matrix, graph))).stacks().values()
    assert stack["graphs"][0]["pattern"] == pattern


def test_the_title_of_a_tab_shows_what_is_invisible():
    head = AttentionGraph.from_dense(np.full((2, 2), 0.5), tokens=["\u202e</title>", "b\r\n\0"])
    title, *_ = re.findall("<title>(.*?)</title>", to_html(head), re.DOTALL)
    assert title == "U+202E &lt;/title&gt; b\\r↵\\x00"


def test_a_trace_comes_with_its_tokens_scores_and_labels():
    trace = gattn.capture(LAMP, scores=True, contributions=True)
    page, table = Decoded(trace.to_html()), trace.summary()
    (stack,) = page.stacks().values()
    assert stack["keys"]["tokens"] == trace.tokens
    assert stack["keys"]["special"] == [0]
    assert stack["keys"]["words"] == list(trace[0, 0].words)
    assert f"<title>{LAMP} · embedded</title>" in trace.to_html()
    assert len(stack["graphs"]) == len(page.blocks) - 1 == 16
    for entry in stack["graphs"]:
        head = trace[entry["layer"], entry["head"]]
        row = table.loc["decoder", entry["layer"], entry["head"]]
        check(head, page.head("decoder", entry["layer"], entry["head"]), page.header["levels"])
        assert entry["label"] == row.label
        assert entry["scores"]["induction"] == pytest.approx(row.induction, rel=1e-3)
        assert entry["totalEdges"] == head.total_edges.sum()


def test_grouped_queries_and_sinks_are_told(tiny, tokenizer):
    trace = gattn.capture("the dog chased a cat", tiny("gpt-oss", "eager"), tokenizer)
    page = Decoded(trace.to_html())
    (stack,) = page.stacks().values()
    assert [entry["keyValueHead"] for entry in stack["graphs"][:4]] == [0, 0, 1, 1]
    assert all(entry["sink"] for entry in stack["graphs"])
    check(trace[1, 2], page.head("decoder", 1, 2), page.header["levels"])


def test_cross_attention_has_tokens_of_its_own(tiny, tokenizer):
    texts = [tokenizer(t, return_tensors="pt").input_ids for t in ("the dog chased", "a cat")]
    inputs = dict(zip(("input_ids", "decoder_input_ids"), texts, strict=True))
    trace = gattn.capture(inputs, tiny("bart"), tokenizer)
    page = Decoded(trace.to_html())
    assert set(page.stacks()) == {"encoder", "decoder", "cross"}
    stack = page.stacks()["cross"]
    assert stack["keys"]["tokens"] == trace["encoder"].tokens
    assert stack["queries"]["tokens"] == trace["decoder"].tokens
    for name in page.stacks():
        check(trace[name][1, 3], page.head(name, 1, 3), page.header["levels"])


def test_generated_tokens_are_told():
    model, tokenizer = gattn.load_model()
    inputs = tokenizer("The river tall", return_tensors="pt")
    with gattn.capturing(model, tokenizer) as run:
        model.generate(**inputs, max_new_tokens=4, do_sample=False)
    page = Decoded(run.trace.to_html())
    assert page.stacks()["decoder"]["generatedFrom"] == len(run.trace.tokens) - 3


def test_two_runs_are_in_one_page():
    model, tokenizer = gattn.load_model()
    before = gattn.capture(LAMP, model, tokenizer)
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        after = gattn.capture(LAMP, model, tokenizer)
    page = Decoded(before.to_html(other=after, edits="cut 1.1 <b>"))
    assert len(page.header["traces"]) == 2
    assert page.header["edits"] == "cut 1.1 <b>"
    for number, trace in enumerate((before, after)):
        check(trace[2, 0], page.head("decoder", 2, 0, number), page.header["levels"])


def test_edits_are_between_two_runs():
    with pytest.raises(SelectionError, match="other="):
        trace_of([AttentionGraph.from_dense(np.eye(2))]).to_html(edits="cut 1.1")


def test_two_runs_must_be_of_the_same_heads_and_tokens():
    one, other = (gattn.capture(text) for text in ("The dog", "The cat"))
    with pytest.raises(SelectionError, match="different tokens"):
        one.to_html(other=other)
    with pytest.raises(SelectionError, match="layers="):
        one.to_html(other=gattn.capture("The dog", layers=[1]))


@pytest.mark.parametrize("unnamed", [0, 1])
def test_a_run_whose_tokens_are_not_known_is_compared_by_positions(unnamed):
    """An edit may change which tokens a model picks; `gattn.analysis.compare` takes such runs."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(4), (2, 1, 2, 4))  # runs, layers, heads, queries
    named = [{"tokens": list("abcd")} if n != unnamed else {} for n in range(2)]
    runs = [
        gattn.AttentionTrace.from_arrays(one, **names)
        for one, names in zip(shares, named, strict=True)
    ]
    page = Decoded(runs[0].to_html(other=runs[1]))
    found = gattn.analysis.compare(*runs)["distance"]
    assert len(page.header["traces"]) == 2
    assert np.isfinite(found).all()
    names = page.header["traces"][0]["stacks"][0]["keys"]["tokens"]
    assert names == (list("0123") if unnamed == 0 else list("abcd"))
    other = gattn.AttentionTrace.from_arrays(shares[1], tokens=list("abce"))
    for refuse in (gattn.analysis.compare, lambda *two: two[0].to_html(other=two[1])):
        with pytest.raises(SelectionError):
            refuse(runs[1 - unnamed], other)


def test_thumbnails_hold_the_largest_attention_of_blocks():
    rng = np.random.default_rng(0)
    dense = np.tril(rng.random((70, 70))) ** 6
    whole = AttentionGraph.from_dense(dense, TokenGraph.causal(70))
    small = AttentionGraph.from_dense(dense[:5, :5], TokenGraph.causal(5))
    few = whole.keep(gattn.TopK(2))
    for head in (whole, small, few):
        page = Decoded(to_html(head))
        size = min(page.header["thumbnails"]["size"], head.graph.num_keys)
        (found,) = thumbnails(page)
        expected = np.zeros((size, size))
        for query, key, value in zip(head.query, head.key, head.attention, strict=True):
            place = query * size // head.graph.num_queries, key * size // head.graph.num_keys
            expected[place] = max(expected[place], value)
        assert np.abs(found - 255 * np.sqrt(expected)).max() <= 0.51


def thumbnails(page):
    """All small pictures of a page of one stack, one behind the other."""
    (stack,), data = page.stacks().values(), page.block(page.header["thumbnails"]["block"])
    size = page.header["thumbnails"]["size"]
    sides = min(size, stack["numQueries"]), min(size, len(stack["keys"]["tokens"]))
    return np.frombuffer(data, np.uint8).reshape(-1, *sides)


def changes(page):
    *_, shades = np.split(thumbnails(page), 3)  # before, after, the change
    signed = (shades.astype(float) - 128) / 127
    return np.sign(signed) * signed**2


def test_the_thumbnail_of_a_change_is_the_largest_change_not_that_of_the_largest():
    size = 128
    before = np.roll(np.eye(size), 1, 1)
    heads = [AttentionGraph.from_dense(one) for one in (before, 0.8 * np.roll(before, 3, 1))]
    found = changes(Decoded(heads[0].to_html(other=heads[1])))
    expected = np.zeros((32, 32))
    for query, row in enumerate(heads[1].to_dense() - before):
        for key in np.flatnonzero(row):
            expected[query // 4, key // 4] = max(expected[query // 4, key // 4], row[key], key=abs)
    assert np.count_nonzero(expected) > 32
    assert found[-1] == pytest.approx(expected, abs=0.01)


def test_the_thumbnail_of_a_change_leaves_out_what_was_not_kept_and_not_what_is_not_there():
    whole = AttentionGraph.from_dense(np.array([[0.6, 0.4, 0.0], [0.5, 0.2, 0.3], [0, 0, 1]]))
    other = AttentionGraph.from_dense(np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0, 0, 1]]))
    best = [head.keep(gattn.TopK(1)) for head in (whole, other)]
    (half,) = changes(Decoded(best[0].to_html(other=best[1])))
    assert half == pytest.approx(np.zeros((3, 3)))
    (half,) = changes(Decoded(whole.to_html(other=best[1])))
    assert half == pytest.approx(np.array([[0, 0.3, 0], [0, 0, 0], [0, 0, 0]]), abs=0.01)
    causal = AttentionGraph.from_dense(np.tril(np.full((3, 3), 0.4)), TokenGraph.causal(3))
    (found,) = changes(Decoded(causal.to_html(other=other)))
    assert found[0] == pytest.approx([-0.3, 0.7, 0.2], abs=0.01)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ({}, "one head"),
        ({"head": 3}, "head 3"),
        ({"layer": 2, "head": 1}, "layer 2 · head 1"),
    ],
)
def test_a_head_has_no_other_name_than_its_own(place, name):
    (stack,) = Decoded(AttentionGraph.from_dense(np.eye(2), **place).to_html()).stacks().values()
    assert stack["graphs"][0]["name"] == name


def test_each_head_of_a_trace_is_named_by_its_place():
    heads = [AttentionGraph.from_dense(np.eye(2))] * 5
    (stack,) = Decoded(trace_of(heads).to_html()).stacks().values()
    assert [entry["name"] for entry in stack["graphs"]][-2:] == [
        "layer 0 · head 3",
        "layer 1 · head 0",
    ]


def test_the_page_has_the_colours_of_the_figures():
    page = Decoded(AttentionGraph.from_dense(np.eye(2)).to_html())
    assert page.header["ramps"] == RAMPS
    assert {len(stops) for ramps in RAMPS.values() for stops in ramps.values()} == {7}


def test_keep_makes_a_page_smaller_and_says_so():
    trace = gattn.capture(" ".join([LAMP] * 4))
    whole, few = trace.to_html(), trace.to_html(keep=gattn.TopK(2))
    assert len(few) < len(whole)
    (stack,) = Decoded(few).stacks().values()
    assert {entry["keep"] for entry in stack["graphs"]} == {"TopK(2)"}
    assert stack["graphs"][0]["edges"] < stack["graphs"][0]["totalEdges"]


def test_precision_is_given_up_only_where_a_page_would_be_large(monkeypatch):
    head = trace_of([AttentionGraph.from_dense(np.random.default_rng(0).random((30, 30)))] * 8)
    fine = Decoded(head.to_html()).header
    assert fine["levels"] == 65534
    assert fine["notes"] == ["rounded: attention to within 0.0000077"]
    monkeypatch.setattr(payload, "_ROOM", 8 * 900 * 1.6)
    page = Decoded(head.to_html())
    assert page.header["levels"] < 65534
    said = re.search(r"attention to within (0\.0*[1-9]+)", " ".join(page.header["notes"]))
    assert float(said.group(1)) == pytest.approx(0.5 / page.header["levels"], rel=0.1)
    check(head[0, 0], page.head("decoder", 0, 0), page.header["levels"])


@pytest.mark.parametrize("spread", [0.1, 30])
def test_no_number_is_farther_from_the_exact_one_than_the_page_says(spread):
    rng = np.random.default_rng(0)
    graph = TokenGraph.complete(40)
    size = graph.num_edges
    scores, sink = spread * rng.normal(size=size), spread * rng.random(40)
    attention = spread * rng.normal(size=size)
    mass = np.abs(attention).reshape(40, 40).sum(1)
    some = {"total_mass": mass, "total_edges": np.full(40, 40), "sink": sink}
    head = AttentionGraph(graph, attention, score=scores, **some)
    page = Decoded(head.to_html())
    (said,) = page.header["notes"]
    found = page.head("heads", 0, 0)
    for name in ("attention", "score"):
        limit = float(re.search(rf"{name} to within ([0-9.]+)", said).group(1))
        farthest = np.abs(found[name] - getattr(head, name)).max()
        assert 0.8 * limit < farthest <= limit
    assert np.abs(found["sink"] - sink).max() <= float(re.search("[0-9.]+", said).group())


def test_heads_that_are_no_sample_of_the_others_make_no_page_larger(monkeypatch):
    rng = np.random.default_rng(0)
    even, uneven = np.full((60, 60), 1 / 60), rng.dirichlet(np.ones(60), (60, 60))
    sampled = set(np.linspace(0, 59, payload._SAMPLES).astype(int).tolist())
    heads = [AttentionGraph.from_dense(even if i in sampled else uneven[i]) for i in range(60)]
    room = 140_000 * 2
    monkeypatch.setattr(payload, "_ROOM", room)
    page = Decoded(trace_of(heads).to_html())
    numbers = sum(len(page.blocks[graph["block"]]) for graph in page.stacks()["decoder"]["graphs"])
    assert 0.8 * room < 0.75 * numbers <= room
    check(heads[1], page.head("decoder", 0, 1), page.header["levels"])


def test_a_page_of_too_many_bytes_is_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr(payload, "_ROOM", 1000)
    monkeypatch.setattr(payload, "_MOST_BYTES", 3000)
    head = AttentionGraph.from_dense(np.random.default_rng(0).random((50, 50)))
    with pytest.raises(FileError, match=r"keep=TopK\(16\)"):
        head.to_html()
    assert head.to_html(keep=gattn.TopK(8))


def test_random_attention_of_144_heads_on_512_tokens_stays_under_30_megabytes(monkeypatch):
    share = 4 / 144
    monkeypatch.setattr(payload, "_ROOM", int(share * payload._ROOM))
    rows = np.exp(np.random.default_rng(0).normal(size=(4, 512, 512)))
    trace = trace_of([AttentionGraph.from_dense(one / one.sum(1, keepdims=True)) for one in rows])
    page = Decoded(trace.to_html())
    assert sum(map(len, page.blocks.values())) < share * 29.5e6
    assert page.header["levels"] >= 4095


def test_a_page_that_no_browser_opens_is_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr(payload, "_MOST_VALUES", 100)
    with pytest.raises(FileError, match=r"keep=TopK\(16\)"):
        trace_of([AttentionGraph.from_dense(np.ones((11, 11)))]).to_html()


def test_an_empty_trace_is_no_page():
    with pytest.raises(SelectionError, match="no heads"):
        AttentionTrace({}).to_html()
    with pytest.raises(SelectionError, match="not int"):
        to_html([3])


def test_heads_of_other_tokens_are_no_page():
    heads = [AttentionGraph.from_dense(np.ones((n, n))) for n in (3, 4)]
    with pytest.raises(SelectionError, match="different tokens"):
        trace_of(heads).to_html()
