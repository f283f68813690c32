"""Scores that are summed up while a model runs, against `head_table` of all edges of its trace."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis import effective_rank, head_table
from gattn.analysis.heads.head_table import scored
from gattn.analysis.heads.summed import of_blocks
from gattn.analysis.heads.summed.nodes import Nodes
from gattn.analysis.heads.summed.of_blocks import BlockSums, Marks
from gattn.analysis.heads.summed.of_edges import sums_of_edges
from gattn.engines.tiles import RowBlock
from gattn.heads.head import AttentionGraph
from gattn.models.load.encoding import encode
from gattn.models.run.capturing import capture_encoded
from gattn.models.run.options import Options
from gattn.surveys.run.capture_graphs import CaptureGraphs
from gattn.surveys.run.summing import SummedTexts

CPU = torch.device("cpu")
LENGTHS = [1, 2, 3, 17, 40, 23, 23, 23]
TOKENS = ("<s>", "a", ",", "b", "a", "a", ",", "b", "c", "a", "b", ".")
TEXTS = ["The dog chased the cat, and the cat chased the dog", "dog", "A tall, tall green lamp"]


def assert_alike(found, expected, tolerance):
    """Two rows of scores, with the same undefined ones."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, str):
            assert found[name] == value, name
        elif value is None or math.isnan(value):
            assert found[name] is None or math.isnan(found[name]), name
        else:
            assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def ids_of(length, seed):
    """Tokens that come again and again, with a beginning and an end."""
    drawn = torch.randint(4, 12, (length,), generator=torch.Generator().manual_seed(seed))
    return [1, *drawn.tolist()[2:], 2][:length]


def encodings_of(model, tokenizer):
    found = []
    for seed, length in enumerate(LENGTHS):
        given_ids = {"input_ids": [ids_of(length, seed)]}
        if model.config.is_encoder_decoder:
            given_ids["decoder_input_ids"] = [ids_of(length % 7 + 1, seed + 100)]
        found.append(encode(given_ids, model, tokenizer))
    return found


def assert_summed_as_edge_by_edge(model, tokenizer, tolerance, *edits, **options):
    """Sum up a batch with padding, and score all edges of its traces one by one."""
    encodings = sorted(encodings_of(model, tokenizer), key=len)
    summed = SummedTexts(encodings)
    chosen = Options(gattn.All(), onlooker=summed, **options)
    with gattn.edited(model, *edits) if edits else nullcontext():
        traces = capture_encoded(encodings, model, tokenizer, chosen)
    for text, trace in enumerate(traces):
        assert summed.holds(text, trace)
        expected = head_table(trace, progress=False)
        found = summed.scores(text, trace)
        assert list(found) == list(expected.index)
        for place, row in zip(found, expected.astype(object).to_dict("records"), strict=True):
            if "key_value_head" in row:
                assert found[place].pop("key_value_head") == row.pop("key_value_head")
            assert_alike(found[place], row, tolerance)
    return traces


KINDS = ["llama", "bert", "mistral", "modernbert", "t5", "bart"]


@pytest.mark.parametrize("name", KINDS)
def test_sums_are_those_of_all_edges_whatever_the_model(tiny, tokenizer, name):
    assert_summed_as_edge_by_edge(tiny(name, dtype=torch.float64), tokenizer, 1e-12)


@pytest.mark.parametrize("name", ["gpt-oss", "bert"])  # the first one has sinks, in float32 alone
def test_sums_in_single_precision_differ_by_rounding(tiny, tokenizer, name):
    assert_summed_as_edge_by_edge(tiny(name, "eager"), tokenizer, 1e-6)


def test_small_pieces_of_blocks_change_nothing(tiny, tokenizer, monkeypatch):
    monkeypatch.setattr(of_blocks, "_PIECE", 50)
    monkeypatch.setattr(of_blocks, "_MOST_LISTED", 100)
    assert_summed_as_edge_by_edge(tiny("mistral", dtype=torch.float64), tokenizer, 1e-12)


def test_heads_that_are_chosen_or_edited_are_summed_up(tiny, tokenizer):
    model = tiny("llama", dtype=torch.float64)
    edit = gattn.Cut(head=2, key=0)
    traces = assert_summed_as_edge_by_edge(model, tokenizer, 1e-12, edit)
    assert traces[-1][0, 2].to_dense()[:, 0].max() == 0 < traces[-1][0, 1].to_dense()[:, 0].max()
    chosen = {"layers": [1], "heads": [0, 3]}
    traces = assert_summed_as_edge_by_edge(model, tokenizer, 1e-12, edit, **chosen)
    assert list(traces[0].only_stack) == [(1, 0), (1, 3)]


@st.composite
def attention(draw):
    """Attention with ties, empty rows and rows that do not sum to 1, on graphs of many kinds."""
    size = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["causal", "complete", "window", "listed", "bipartite"]))
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    matrix = generator.integers(0, 5, (2, size, 12 if kind == "bipartite" else size)) / 4
    matrix[:, generator.random(size) < 0.2] = 0
    matrix *= 10.0 ** generator.integers(-6, 1, (2, size, 1))
    listed = generator.random((size, size)) < 0.6
    graph = {
        "causal": gattn.TokenGraph.causal(size),
        "complete": gattn.TokenGraph.complete(size),
        "window": gattn.TokenGraph.window(size, 3),
        "bipartite": gattn.TokenGraph.bipartite(size, 12),
        "listed": gattn.TokenGraph.from_mask(torch.from_numpy(listed)),
    }[kind]
    return matrix * graph.mask().numpy(), graph, draw(st.integers(1, size))


@pytest.mark.filterwarnings("ignore:The columns of the attention sum to 1")
@settings(max_examples=60)
@given(attention())
def test_blocks_give_what_edges_give(given_attention):
    matrix, graph, height = given_attention
    words = (None, *range(1, graph.num_tokens))
    names = {"tokens": TOKENS[: graph.num_tokens], "words": words, "weight_function": "dot"}
    heads = [AttentionGraph.from_dense(one, graph, **names) for one in matrix]
    sums = BlockSums(graph, [Nodes.of(heads[0])], len(heads), CPU, Marks())
    for start in range(0, graph.num_queries, height):
        rows = slice(start, min(start + height, graph.num_queries))
        block = torch.from_numpy(matrix[None, :, rows])
        keys = block[0].amax((0, 1)).nonzero()[:, 0]  # all others are 0
        sums.add(RowBlock(rows, keys, None, None, block[..., keys]))
    assert sums.is_of(0, heads[0])
    for head, found in zip(heads, scored(sums.of(0, heads)), strict=True):
        (expected,) = scored(sums_of_edges(head))
        assert_alike(found, expected, 1e-12)


def scores_in(rows):
    columns = ["layer", "head", "entropy", "induction", "edges_for_90", "even_locality", "label"]
    return [[[head[name] for name in columns] for head in row["heads"]] for row in rows]


def test_a_survey_holds_them(embedded):
    rows = CaptureGraphs(embedded, keep=gattn.TopK(1))({"text": TEXTS}).to_pylist()
    for row, text in zip(rows, TEXTS, strict=True):
        expected = head_table(gattn.capture(text, embedded, keep=gattn.All()), progress=False)
        records = expected.droplevel("stack").to_dict("index")
        assert row["num_edges"] == 16 * row["num_tokens"]
        for head in row["heads"]:
            own = records[head["layer"], head["head"]]
            for name in own.keys() - {"kept"}:
                missing = head[name] is None
                got = {name: math.nan if missing else head[name]}
                # Padded texts are multiplied in other shapes, which round otherwise.
                assert_alike(got, {name: own[name]}, 1e-5)


def test_with_other_analyses_and_without_a_look_at_blocks_scores_are_the_same(
    embedded, monkeypatch
):
    plain = scores_in(CaptureGraphs(embedded)({"text": TEXTS}).to_pylist())
    ranks = lambda trace: effective_rank(trace.only_stack).to_series().to_frame()  # noqa: E731
    both = CaptureGraphs(embedded, analyses=[ranks, head_table])({"text": TEXTS}).to_pylist()
    assert scores_in(both) == plain
    assert both[0]["heads"][0]["effective_rank"] >= 1
    begin = SummedTexts.begin

    def away(self, place, part):
        """Look away from one layer, as from a model whose windows are put together later."""
        return None if place.layer == 2 else begin(self, place, part)

    monkeypatch.setattr(SummedTexts, "begin", away)
    capture = CaptureGraphs(embedded, keep=gattn.TopK(2))
    for _ in range(2):
        rows = capture({"text": TEXTS}).to_pylist()
        for found, expected in zip(scores_in(rows), plain, strict=True):
            for one, other in zip(found, expected, strict=True):
                assert one[-1] == other[-1]
                assert one[:-1] == pytest.approx(other[:-1], abs=1e-6, nan_ok=True)
        assert rows[0]["num_edges"] < 2 * 16 * rows[0]["num_tokens"]


def test_what_is_summed_up_takes_no_memory_for_edges(embedded, monkeypatch):
    monkeypatch.setattr("gattn.surveys.run.capture_graphs._MOST_BYTES", 1)
    rows = CaptureGraphs(embedded)({"text": TEXTS})
    assert rows["reason"].null_count == len(TEXTS)


def test_negative_attention_fails_its_text(embedded):
    capture = CaptureGraphs(embedded, edits=[gattn.Scale(-1.0, query="lamp")])
    reasons = capture({"text": TEXTS})["reason"].to_pylist()
    assert "attention >= 0" in reasons[2]
