"""A run with edits says so, wherever its attention goes."""

import json
import re

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
import torch

import gattn
from gattn import Cut, Dot, ModelScore, Restrict, Scale, Swap, TokenGraph, Use, capture, edited
from gattn.analysis import (
    arborescence,
    compare,
    contributions,
    deletion_curve,
    flow,
    head_clusters,
    head_distances,
    head_map,
    head_table,
    over_texts,
    rank_agreement,
    reach,
    rollout,
    routes,
    value_zeroing,
    without_tokens,
)
from gattn.analysis.reading.results import edits_of
from gattn.drawing import draw_compare, draw_head, draw_text
from gattn.edit_records import EditRecord, from_text, identities, in_words, to_text
from gattn.errors import EditError, GraphError, SelectionError, ShapeError

TEXT = "The dog chased the cat"
CUT = Cut(layer=1, head=1)
SAID = "edited by Cut(layer=1, head=1)"


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


@pytest.fixture(scope="module")
def plain(embedded):
    return capture(TEXT, *embedded)


@pytest.fixture(scope="module")
def cut(embedded):
    with edited(embedded[0], CUT):
        return capture(TEXT, *embedded)


def test_a_trace_and_each_of_its_heads_know_the_edits(cut, plain):
    assert cut.edits == (CUT,)
    assert cut.edits[0] is CUT
    stack, head = cut.only_stack, cut[0, 2]
    assert stack.edits == head.edits == (CUT,)  # of a layer before, and another head
    for one in (cut, stack, head):
        assert SAID in repr(one)
    assert plain.edits == plain.only_stack.edits == plain[1, 1].edits == ()
    assert "edited" not in repr(plain) + repr(plain.only_stack) + repr(plain[1, 1])
    for part in (head.keep(gattn.TopK(2)), head.subgraph([0, -1]), head.merge([(0, 2)])):
        assert part.edits == (CUT,)
    assert without_tokens(cut, "first").edits == (CUT,)


def test_nested_contexts_are_told_outer_first_and_sequences_by_themselves(tiny):
    model = tiny("llama")
    ids = [5, 17, 42, 17]
    one, other = Cut(0, 1, key=1), Scale(0.5, 1, 0)
    with edited(model, one), edited(model, other):
        assert capture(ids, model).edits == (one, other)
        assert [trace.edits for trace in gattn.capture_many([ids, ids[:3]], model)] == [
            (one, other)
        ] * 2
    assert capture(ids, model).edits == ()
    with gattn.capturing(model) as run:
        with edited(model, one):
            model.generate(torch.tensor([ids]), max_new_tokens=3, do_sample=False)
        model(torch.tensor([ids]))
    assert [trace.edits for trace in run.traces] == [(one,), ()]


def test_edits_of_a_part_of_the_model_and_of_a_larger_one_are_told(tiny):
    model = tiny("llama")
    with edited(model.model, CUT):
        assert capture([5, 17, 42], model).edits == (CUT,)
    with edited(model, CUT), gattn.capturing(model.model) as run:
        model(torch.tensor([[5, 17, 42]]))
    assert run.trace.edits == (CUT,)
    other = tiny("gpt2")
    with edited(other, Cut(0)):
        assert capture([5, 17, 42], model).edits == ()
        capture([5, 17, 42], other)


GRAPH = TokenGraph.window(6, 2)
EDITS = [
    CUT,
    Cut((2, 1), query="dog", key=-1, renormalize=False, stack="decoder"),
    Cut([(2, 1), (3, 0)], query=slice(1, None), key=range(3)),
    Cut(query=range(0, 10**12, 2), key=range(3, 1000, 5)),
    Scale(0.25, layer=[0, 1], key=[0, "cat"]),
    Restrict(GRAPH, layer=1),
    Use(gattn.AttentionGraph.from_dense(np.eye(6)), "3.2"),
    Swap(weight=0.5 * ModelScore(), layer=3),
    Swap(weight=lambda query, key, pairs: (query * key).sum(-1), head=2),
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: type(edit).__name__)
def test_a_record_equals_its_edit_and_shows_the_same(edit):
    (record,) = from_text(to_text([edit]))
    assert isinstance(record, EditRecord)
    assert record == edit
    assert edit == record
    assert hash(record) == hash(edit)
    assert re.sub(r" at 0x\w+", "", repr(edit)) == repr(record)
    assert record.kind == type(edit).__name__
    assert record.others == edit.record.others
    assert record.others.get("factor") == getattr(edit, "factor", None)
    for name in ("head", "query", "key", "stack"):
        value = getattr(edit, name, None)
        if value is None or isinstance(value, (int, float, str, slice)):
            assert getattr(record, name) == value
    assert all(record != other for other in EDITS if other is not edit)


def test_what_is_written_alike_and_is_not_the_same_differs():
    masks = torch.ones(2, 5, 5, dtype=torch.bool).tril()
    masks[0, 4, 2] = masks[1, 4, 1] = False
    graphs = [TokenGraph.from_mask(mask) for mask in masks]
    heads = [gattn.AttentionGraph.from_dense(np.eye(4) * x) for x in (1.0, 0.5)]
    weights = [torch.nn.Parameter(torch.full((4,), x)) * Dot() for x in (1.0, 2.0)]
    for one, other in (
        (Restrict(graphs[0]), Restrict(graphs[1])),
        (Use(heads[0], 0, 0), Use(heads[1], 0, 0)),
        (Swap(weight=weights[0]), Swap(weight=weights[1])),
        (Swap(weight=lambda q, k, p: q.sum(-1)), Swap(weight=lambda q, k, p: k.sum(-1))),
    ):
        assert one == one
        assert one != other
        assert one.record.identity != other.record.identity
    assert Restrict(TokenGraph.window(9, 2)) == Restrict(TokenGraph.window(9, 2))


def test_files_keep_edits(tmp_path, cut):
    cut.save(tmp_path / "cut.gattn")
    found = gattn.load(tmp_path / "cut.gattn")
    assert found.edits == cut.edits
    assert repr(found) == repr(cut)
    assert found.edits[0].layer == found.edits[0].head == 1
    for suffix in ("gattn", "json", "graphml"):
        cut[0, 2].save(tmp_path / f"head.{suffix}")
        head = gattn.load(tmp_path / f"head.{suffix}")
        assert head.edits == (CUT,)
    graph = cut[0, 2].to_networkx()
    assert json.loads(graph.graph["edits"]) == [
        {"text": "Cut(layer=1, head=1)", "kind": "Cut", "layer": 1, "head": 1}
    ]
    nx.write_gexf(graph, tmp_path / "head.gexf")
    assert gattn.AttentionGraph.from_networkx(graph).edits == (CUT,)
    for wrong in (
        "{}",
        "[1]",
        '[{"kind": "Cut"}]',
        "nonsense",
        3,
        '[{"text": 1, "kind": "Cut"}]',
        '[{"text": "Scale()", "kind": "Scale", "others": 2}]',
    ):
        graph.graph["edits"] = wrong
        with pytest.raises(GraphError, match="edits"):
            gattn.AttentionGraph.from_networkx(graph)


def test_the_table_of_a_head_knows_its_edits(cut, plain):
    assert edits_of(cut[0, 2].to_pandas()) == ["Cut(layer=1, head=1)"]
    assert edits_of(plain[0, 2].to_pandas()) == []


def test_a_plain_trace_is_written_as_before(tmp_path, plain):
    plain.save(tmp_path / "plain.gattn")
    assert b'"edits"' not in (tmp_path / "plain.gattn").read_bytes()
    assert "edits" not in plain[0, 0].to_networkx().graph


def test_what_is_no_edit_is_refused(embedded):
    with (
        pytest.raises(EditError, match="was read from a file"),
        edited(embedded[0], EditRecord("Cut(layer=1)", "Cut")),
    ):
        pass
    with pytest.raises(ShapeError, match="edits holds edits"):
        gattn.AttentionGraph.from_dense(np.eye(2), edits=["Cut(layer=1)"])


OF_ATTENTION = [
    "barcode", "best_edges", "communities", "effective_rank", "graph_frequencies",
    "laplacian_eigenvalues", "mixing", "oversquashing", "pagerank", "rank_collapse",
    "spectral_table", "stationary", "template_distances", "topology_table", "walks",
]  # fmt: skip


def test_the_edits_of_a_tree_are_those_of_its_run_with_their_digests():
    edits = [CUT, Restrict(TokenGraph.window(6, 2)), Swap(weight=lambda q, k, p: q.sum(-1))]
    head = gattn.AttentionGraph.from_dense(np.tril(np.ones((6, 6))) / 6, edits=tuple(edits))
    tree = arborescence(head)
    assert edits_of(tree) == identities(edits)
    assert gattn.AttentionGraph.from_networkx(tree).edits == tuple(edits)


def test_analyses_say_what_they_were_computed_from(embedded, cut, plain):
    results = [
        rollout(cut), flow(cut, queries=-1, progress=False), reach(cut), head_table(cut),
        head_distances(cut), head_clusters(head_distances(cut), 2), head_map(head_distances(cut)),
        cut.unroll(), arborescence(cut[0, 2]), over_texts([head_table(cut)] * 2).mean,
        *(getattr(gattn.analysis, name)(cut) for name in OF_ATTENTION),
    ]  # fmt: skip
    model, tokenizer = embedded
    with edited(model, CUT):
        results += [
            contributions(TEXT, model, tokenizer, progress=False),
            routes(TEXT, model, tokenizer, progress=False),
            value_zeroing(TEXT, model, tokenizer, progress=False),
        ]
    for found in results:
        assert SAID in found.computed_from, found
        assert edits_of(found) == ["Cut(layer=1, head=1)"]
        if isinstance(found, nx.Graph):
            assert from_text(found.graph["edits"]) == (CUT,)
        found.draw()
        plt.close("all")
    assert SAID in rollout(contributions_of(results)).computed_from
    both = compare(plain, cut).computed_from
    assert both.count("embedded") == 1
    assert both.endswith(SAID)
    for found in (rollout(plain), head_table(plain), plain.unroll()):
        assert "edited" not in found.computed_from
        assert "edits" not in (found.graph if isinstance(found, nx.Graph) else found.attrs)


def contributions_of(results):
    found = next(one for one in results if getattr(one, "name", "") == "value_zeroing")
    assert found.attrs["edits"] == ["Cut(layer=1, head=1)"]
    return found


def test_a_ranking_of_another_run_is_refused(embedded, cut, plain):
    model, tokenizer = embedded
    how = {"model": model, "tokenizer": tokenizer, "progress": False}
    curve = {"steps": 2, "random": 0, **how}
    rankings = {"trace": cut, "stack": cut.only_stack, "head": cut[0, 2], "array": rollout(cut)[-1]}
    for ranking in rankings.values():
        with pytest.raises(SelectionError, match=r"edited by Cut.*without edits now"):
            deletion_curve({"mine": ranking}, TEXT, **curve)
    with pytest.raises(SelectionError, match=r"'ranking' is of the model edited by Cut"):
        rank_agreement(cut, TEXT, sample=4, **how)
    with edited(model, CUT):
        effects = gattn.effect(TEXT, [Cut(0, 0, 3, n) for n in range(4)], model, tokenizer)
        assert effects.attrs["edits"] == ["Cut(layer=1, head=1)"]
        assert deletion_curve(cut, TEXT, **curve).computed_from.startswith("embedded, edited by")
        with pytest.raises(SelectionError, match="without edits, which runs edited by Cut"):
            deletion_curve(plain, TEXT, **curve)
        dense = np.stack([head.to_dense() for head in plain.heads()]).reshape(4, 4, 6, 6)
        deletion_curve(dense, TEXT, **curve)  # nobody knows of what
    with pytest.raises(SelectionError, match=r"The table 'effects' is of the model edited by"):
        rank_agreement(plain, TEXT, effects=effects, **how)
    deletion_curve(plain, TEXT, **curve)
    other = Restrict(TokenGraph.window(6, 3))
    with edited(model, other):
        restricted = capture(TEXT, model, tokenizer)
        deletion_curve(restricted, TEXT, **curve)
    with (
        edited(model, Restrict(TokenGraph.window(6, 4))),
        pytest.raises(SelectionError, match="Restrict"),
    ):
        deletion_curve(restricted, TEXT, **curve)


def test_effects_name_positions_from_the_start(embedded):
    cuts = [Cut(0, 0, query=-1, key=n) for n in (0, -2, "dog")]
    table = gattn.effect(TEXT, cuts, *embedded, progress=False)
    assert table["query"].tolist() == [5, 5, 5]
    assert table["key"].tolist() == [0, 4, 2]
    exact = gattn.effect(TEXT, [Cut(0, 0, 5, n) for n in (0, 4, 2)], *embedded, progress=False)
    np.testing.assert_array_equal(table["edited"], exact["edited"])


def texts_of(figure):
    found = [text.get_text() for text in figure.findobj(match=plt.Text)]
    return " ".join(" ".join(found).split())


def test_figures_say_so(cut, plain):
    pictures = [
        cut.draw(),
        draw_head(cut[0, 2]).figure,
        draw_head(cut[0, 2], "matrix").figure,
        draw_text(cut[0, 2]).figure,
        cut.draw_text().figure,
    ]
    for figure in pictures:
        assert "· edited" in texts_of(figure)
        assert SAID in texts_of(figure)
    for figure in (rollout(cut).draw().figure, cut.unroll().draw().figure):
        assert SAID in texts_of(figure)
    assert f"after: {SAID}" in texts_of(plain.draw(other=cut))
    assert f"both {SAID}" in texts_of(draw_compare(cut, cut))
    assert f"before: {SAID}; after: without edits" in texts_of(draw_compare(cut, plain))
    words = texts_of(draw_compare(plain, cut, edits="cut 1.1"))
    assert "cut 1.1" in words
    assert SAID not in words
    for figure in (plain.draw(), draw_head(plain[0, 2]).figure):
        assert "edited" not in texts_of(figure)
    plt.close("all")


@pytest.mark.parametrize("layout", ["arcs", "columns", "circle", "text"])
def test_a_long_caption_is_not_cut_off(cut, layout):
    edits = tuple(Cut(layer=n, head=1, key="chased", renormalize=False) for n in range(2))
    head = gattn.AttentionGraph.from_dense(
        cut[0, 2].to_dense(), tokens=cut.tokens, layer=0, head=2, edits=edits
    )
    ax = draw_text(head) if layout == "text" else draw_head(head, layout)
    figure = ax.figure
    figure.canvas.draw()
    (caption,) = (text for text in ax.texts if text.get_gid() == "gattn-caption")
    assert "\n" in caption.get_text()
    assert "layer=1, head=1" in " ".join(caption.get_text().split())
    place = caption.get_window_extent()
    assert min(place.x0, place.y0) >= 0
    assert place.x1 <= figure.bbox.x1
    assert ax.title.get_window_extent().y1 <= figure.bbox.y1
    plt.close("all")


def test_many_edits_are_counted():
    edits = [Cut(layer=n) for n in range(5)]
    assert in_words(edits) == "edited by Cut(layer=0), Cut(layer=1) and 3 more edits"
    assert in_words(edits[:2]) == "edited by Cut(layer=0) and Cut(layer=1)"
    assert in_words(edits[:3]).endswith("and 1 more edit")
    assert in_words([]) == ""


def header(page):
    pattern = r'<script[^>]*type="application/json"[^>]*>(.*?)</script>'
    return json.loads(re.search(pattern, page, re.DOTALL)[1])


def test_the_page_says_so(cut, plain):
    assert header(cut.to_html())["edited"] == SAID
    assert "· edited</title>" in cut.to_html()
    assert header(plain.to_html())["edited"] == ""
    assert header(plain.to_html(other=cut))["edited"] == f"after: {SAID}"
    assert header(cut.to_html(other=cut))["edited"] == f"both {SAID}"
    given = header(plain.to_html(other=cut, edits="cut 1.1"))
    assert (given["edits"], given["edited"]) == ("cut 1.1", "")


def test_a_survey_says_so(tmp_path, embedded):
    texts = [TEXT, "A cat sat"]
    options = {"keep": gattn.TopK(2), "progress": False}
    survey = gattn.survey(texts, edits=[CUT], out=tmp_path / "cut", **options)
    assert survey.trace(0).edits == (CUT,)
    assert survey.graph(1, 0, 2).edits == (CUT,)
    assert SAID in repr(survey)
    assert [from_text(text) for text in survey.texts["edits"]] == [(CUT,)] * 2
    assert survey.sql("select count(*) as n from texts where edits like '%Cut%'")["n"][0] == 2
    statistics = survey.statistics("entropy", resamples=100)
    assert SAID in statistics.computed_from
    plain = gattn.survey(texts, out=tmp_path / "plain", **options)
    assert plain.texts["edits"].isna().all()
    assert plain.trace(0).edits == ()
    assert "edited" not in repr(plain)
    assert "edited" not in plain.statistics("entropy", resamples=100).computed_from
    assert f"after: {SAID}" in plain.compare(survey, "entropy", resamples=100).computed_from
    with edited(embedded[0], CUT):  # around it
        around = gattn.survey(texts, embedded[0], out=tmp_path / "around", **options)
    assert around.manifest["edits"] == ["Cut(layer=1, head=1)"]
    assert around.trace(0).edits == (CUT,)


def test_pieces_of_words_have_one_name_with_a_text_and_with_ids(tiny):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[UNK]", "un", "##believ", "##able", "the", "dog"]
    plain = Tokenizer(
        models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    plain.normalizer, plain.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    model, text = tiny("bert"), "The unbelievable dog"
    trace = capture(text, model, tokenizer)
    assert trace.tokens == ["The", "un", "believ", "able", "dog"]
    ids = tokenizer(text, return_tensors="pt").input_ids
    for name, place in (("believ", 2), ("##believ", 2), ("The", 0), ("the", 0), (" dog", 4)):
        with edited(model, Cut(0, 1, key=place)):
            expected = model(ids)[0]
        with edited(model, Cut(0, 1, key=name), tokenizer=tokenizer):
            assert torch.equal(model(ids)[0], expected), name
            found = capture(text, model, tokenizer)
        assert np.flatnonzero(found[0, 1].to_dense().sum(0) == 0).tolist() == [place]
        assert trace[0, 1].subgraph([name]).node_positions.tolist() == [place]


def test_recorded_steps_do_not_digest_the_parameters_of_edits(tiny, monkeypatch):
    """The digest of all parameters is made where a record is written or compared."""
    from gattn.models.edit import base

    model, digested = tiny("llama"), []
    digest = base.digest_of
    monkeypatch.setattr(base, "digest_of", lambda held: digested.append(held) or digest(held))
    swaps = [Swap(weight=Dot(), layer=layer) for layer in (0, 1)]
    ids = torch.tensor([[5, 17, 42]])
    with edited(model, swaps[0]), edited(model, swaps[1]), gattn.capturing(model) as run:
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert not digested
    assert run.trace.edits == tuple(swaps)
    assert not digested
    assert swaps[0].record.digest
    assert digested
