"""The scores in a survey of odd texts and models, against each text captured by itself."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import gattn
from gattn.analysis import head_table
from gattn.errors import CaptureError
from gattn.surveys.run.capture_graphs import CaptureGraphs

LENGTHS = (70, 1, 41, 70)
"""Those of one token, of several blocks of queries, and some that need padding."""


def ids_of(length, seed):
    """Tokens that come again and again, with a beginning and an end."""
    drawn = torch.randint(4, 14, (length,), generator=torch.Generator().manual_seed(seed))
    return [1, *drawn.tolist()[2:], 2][:length]


def rows_of(model):
    rows = [{"input_ids": ids_of(length, seed)} for seed, length in enumerate(LENGTHS)]
    if model.config.is_encoder_decoder:
        for seed, row in enumerate(rows):
            row["decoder_input_ids"] = ids_of(1 + 5 * seed, seed + 100)
    return rows


@pytest.fixture
def built(tiny, tokenizer, tmp_path):
    """Build a small model that knows its tokenizer."""

    def build(name, implementation="sdpa", dtype=torch.float64, **options):
        longest = {"t5": {}, "gpt2": {"n_positions": 96}}
        options = longest.get(name, {"max_position_embeddings": 96}) | options
        model = tiny(name, implementation, dtype, **options)
        tokenizer.save_pretrained(tmp_path / "model")
        model.name_or_path = model.config._name_or_path = str(tmp_path / "model")
        return model

    return build


def assert_scores(survey, text_id, trace, tolerance):
    """A text's rows in the table heads are those of a trace that has all edges."""
    expected = head_table(trace, progress=False)
    found = survey.sql(f"select * from heads where text_id = {text_id}")
    assert len(found) == len(expected)
    found = found.set_index(["stack", "layer", "head"]).loc[expected.index, expected.columns]
    assert found["label"].tolist() == expected["label"].tolist()
    numbers = [x.drop(columns=["kept", "label"]).astype(float) for x in (found, expected)]
    np.testing.assert_allclose(*numbers, rtol=tolerance, atol=tolerance)


def assert_surveyed(rows, model, folder, tolerance, **options):
    survey = gattn.survey(rows, model, out=folder, progress=False, **options)
    assert not len(survey.failures)
    edits = options.get("edits", ())
    with gattn.edited(model, *edits) if edits else nullcontext():
        for text_id, row in enumerate(rows):
            one = {name: torch.tensor([ids]) for name, ids in row.items()}
            trace = gattn.capture(one, model, keep=gattn.All())
            assert_scores(survey, text_id, trace, tolerance)
    return survey


@pytest.mark.parametrize(
    ("name", "implementation", "tolerance"),
    [
        *((name, "sdpa", 1e-11) for name in ("llama", "bert", "mistral", "modernbert", "bart")),
        ("t5", "sdpa", 1e-11),
        ("gemma2", "eager", 1e-6),  # whose softmax is in float32, whatever the model is in
    ],
)
def test_texts_that_need_several_blocks(built, tmp_path, name, implementation, tolerance):
    model = built(name, implementation)
    assert_surveyed(rows_of(model), model, tmp_path / "survey", tolerance, keep=gattn.TopK(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_half_precision(built, tmp_path, name, dtype):
    model = built(name, "eager", dtype)
    # In a batch with others, a model's own half precision rounds otherwise.
    assert_surveyed(rows_of(model), model, tmp_path / "survey", 2e-6, most_tokens=1)


EDITS = {
    "empty rows": [gattn.Cut(query=0), gattn.Cut(head=1, key=0)],
    "rows of little": [gattn.Scale(1e-6, head=1), gattn.Scale(0.0, head=2, query=0)],
    "rows of more than 1": [gattn.Scale(3.0, key=0)],
    "ties and zeros": [gattn.Swap(normalizer=gattn.Sparsemax(), head=2)],
    "rows of any sum": [gattn.Swap(normalizer=gattn.Sigmoid())],
}


@pytest.mark.parametrize("kind", EDITS)
def test_edited_models(built, tmp_path, kind):
    model = built("llama")
    assert_surveyed(rows_of(model), model, tmp_path / "survey", 1e-11, edits=EDITS[kind])


def test_signed_attention_has_no_scores(built, tmp_path):
    model = built("llama")
    edits = [gattn.Swap(normalizer=gattn.Identity(), head=1)]
    rows = rows_of(model)
    with pytest.raises(CaptureError, match="attention >= 0"):
        gattn.survey(rows, model, out=tmp_path / "survey", progress=False, edits=edits)


@pytest.mark.parametrize("keep", [gattn.All(), gattn.Threshold(0.1), gattn.TopMass(0.5)])
@pytest.mark.parametrize("more", [{}, {"scores": True}, {"contributions": True, "layers": [1]}])
def test_what_is_kept_besides_changes_no_score(built, tmp_path, keep, more):
    model = built("mistral")
    folder, options = tmp_path / "survey", {"keep": keep, **more}
    survey = gattn.survey(rows_of(model), model, out=folder, progress=False, **options)
    chosen = {"layers": more.get("layers")}
    for text_id, row in enumerate(rows_of(model)):
        whole = gattn.capture(row["input_ids"], model, keep=gattn.All(), **chosen)
        assert_scores(survey, text_id, whole, 1e-11)
        trace = survey.trace(text_id)
        kept = gattn.capture(row["input_ids"], model, **options)
        for place, head in kept.only_stack.items():
            assert torch.equal(trace[place].graph.edge_index, head.graph.edge_index)
            np.testing.assert_allclose(trace[place].attention, head.attention, rtol=1e-9)


def test_scores_of_kept_edges(built, tmp_path):
    model = built("bert")
    options = {"keep": gattn.TopK(3), "analyse": "kept"}
    folder = tmp_path / "survey"
    survey = gattn.survey(rows_of(model), model, out=folder, progress=False, **options)
    for text_id, row in enumerate(rows_of(model)):
        trace = gattn.capture(row["input_ids"], model, keep=gattn.TopK(3))
        assert_scores(survey, text_id, trace, 1e-11)


def test_texts_that_fail_change_no_others(built, tmp_path):
    """Texts without tokens, of unknown ids and too long ones, and one that fails in the model."""
    model = built("gpt2")
    good = rows_of(model)
    bad = [{"input_ids": []}, {"input_ids": [1, 99]}, {"input_ids": [4] * 97}]
    rows = [row for pair in zip(good, [*bad, *good], strict=False) for row in pair]
    survey = gattn.survey(rows, model, out=tmp_path / "survey", progress=False)
    assert survey.failures["text_id"].tolist() == [1, 3, 5]
    for text_id, row in enumerate(rows):
        if text_id not in (1, 3, 5):
            trace = gattn.capture(row["input_ids"], model, keep=gattn.All())
            assert_scores(survey, text_id, trace, 1e-11)


def test_threads_that_share_a_model(built, tmp_path):
    """Each thread sums up its own texts."""
    model = built("llama")
    capture = CaptureGraphs(model, keep=gattn.TopK(1))
    every = [{"input_ids": [row["input_ids"]]} for row in rows_of(model)] * 4
    alone = [capture(one)["heads"].to_pylist() for one in every]
    with ThreadPoolExecutor(8) as pool:
        together = [rows["heads"].to_pylist() for rows in pool.map(capture, every)]
    assert together == alone


def test_logits_that_nobody_keeps_are_not_computed(built):
    model, rows = built("llama"), []
    model.lm_head.register_forward_hook(lambda module, given, logits: rows.append(logits.shape[1]))
    CaptureGraphs(model)({"input_ids": [ids_of(9, 0), ids_of(5, 1)]})
    assert gattn.capture(ids_of(9, 0), model).logits.shape[0] == 9
    assert rows == [1, 9]
